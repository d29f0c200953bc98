// Well-formed UTF-8: no overlong form, surrogate or value above U+10FFFF.
// Thread: functions are pure.
// Must never: accept what RFC 3629 forbids.
#pragma once

#include <cstddef>
#include <string_view>

namespace skein::protocol {

// Length of the well-formed sequence at the start of `text`, 0 when there is none. `text` is not
// empty.
size_t Utf8SequenceLength(std::string_view text);

// True when all of `text` is well formed.
bool IsValidUtf8(std::string_view text);

}  // namespace skein::protocol
