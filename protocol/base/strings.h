// Conversions at Abseil calls, whose string_view is another type than the standard one, and the
// transparent hash for maps keyed by strings. Any thread.
// Must never own text: everything here borrows for the call, Concat alone returns a new string.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace skein::protocol {

// A standard view as the view of Abseil, for one call.
inline absl::string_view ToAbsl(std::string_view text) {
  return absl::string_view(text.data(), text.size());
}

// A view of Abseil as the standard one; borrows the same bytes.
inline std::string_view ToStd(absl::string_view text) {
  return std::string_view(text.data(), text.size());
}

// The text of a status; borrowed from it.
inline std::string_view StatusText(const absl::Status& status) { return ToStd(status.message()); }

// What absl::StrCat takes for `value`: standard views become Abseil's, the rest passes through.
template <typename T>
decltype(auto) AsAbslPiece(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return ToAbsl(value);
  } else {
    return (value);
  }
}

// absl::StrCat that also accepts std::string_view.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  return absl::StrCat(AsAbslPiece(parts)...);
}

// Hash for maps keyed by strings: lookups by std::string, std::string_view or char pointer.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const noexcept {
    return std::hash<std::string_view>()(text);
  }
};

// Equality that goes with StringHash.
struct StringEqual {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const noexcept { return a == b; }
};

}  // namespace skein::protocol
