// Config texts in which @ROWS@ stands for the table rows of two Engram layers. Owns nothing, any
// thread. Must never: give rows that the model's rule of primes does not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace skein::tests {

inline bool IsPrime(int64_t value) {
  for (int64_t d = 2; d * d <= value; ++d) {
    if (value % d == 0) return false;
  }
  return true;
}

// `columns` primes for each layer, climbing from `vocab`.
inline std::string WithEngramRows(std::string_view text, int64_t vocab, int columns) {
  int64_t next = vocab - 1;
  std::vector<int64_t> rows(2);
  for (int64_t& sum : rows) {
    for (int i = 0; i < columns; ++i) {
      do {
        ++next;
      } while (!IsPrime(next));
      sum += next;
    }
  }
  return absl::StrReplaceAll(std::string(text), {{"@ROWS@", absl::StrJoin(rows, ", ")}});
}

}  // namespace skein::tests
