// What the codec's files share: errors that name a field, and the check of a list before it is
// read. Any thread.
#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "protocol/base/strings.h"

namespace skein::protocol {

// A list that is too long to be written.
inline absl::Status TooLarge(std::string_view field, size_t size, size_t limit) {
  return absl::ResourceExhaustedError(
      Concat(field, " has ", size, " entries; at most ", limit, " fit a message"));
}

// A field that a peer wrote wrongly.
inline absl::Status Malformed(std::string_view field, std::string_view reason) {
  return absl::InvalidArgumentError(Concat(field, ": ", reason));
}

// OK if a list of a peer has at most `limit` entries.
template <typename List>
absl::Status CheckSize(const List& list, std::string_view field, size_t limit) {
  if (list.size() > limit) {
    return Malformed(field, Concat(list.size(), " entries; at most ", limit));
  }
  return absl::OkStatus();
}

}  // namespace skein::protocol
