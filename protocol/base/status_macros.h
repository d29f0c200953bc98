// Early return for absl::Status and absl::StatusOr: the two macros Abseil does not ship.
// Any thread. Must never hide control flow beyond the return they are named for.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define SKEIN_STATUS_CONCAT_INNER(a, b) a##b
#define SKEIN_STATUS_CONCAT(a, b) SKEIN_STATUS_CONCAT_INNER(a, b)

// Returns the status of an expression (an absl::Status) from the enclosing function unless it is
// OK.
#define SKEIN_RETURN_IF_ERROR(...) \
  SKEIN_RETURN_IF_ERROR_INNER(SKEIN_STATUS_CONCAT(skein_status_, __COUNTER__), (__VA_ARGS__))

#define SKEIN_RETURN_IF_ERROR_INNER(temporary, expr)          \
  do {                                                        \
    if (::absl::Status temporary = (expr); !temporary.ok()) { \
      return temporary;                                       \
    }                                                         \
  } while (false)

// Evaluates `expr` (an absl::StatusOr); returns its status on error, else moves the value to `lhs`,
// which may be a declaration: SKEIN_ASSIGN_OR_RETURN(auto file, Open(path));
#define SKEIN_ASSIGN_OR_RETURN(lhs, ...)                                                \
  SKEIN_ASSIGN_OR_RETURN_INNER(SKEIN_STATUS_CONCAT(skein_status_or_, __COUNTER__), lhs, \
                               (__VA_ARGS__))

#define SKEIN_ASSIGN_OR_RETURN_INNER(temporary, lhs, expr)   \
  auto temporary = expr;                                     \
  if (!temporary.ok()) return std::move(temporary).status(); \
  lhs = *std::move(temporary)
