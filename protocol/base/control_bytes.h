// Control characters in text of others, and how they are shown: a terminal that prints a log or a
// report obeys none of them. Pure; any thread. Must never change a character that is none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace skein::protocol {

// Bytes of the control character that `text` begins with: 1 for C0 and DEL, 2 for C1 in UTF-8, 0
// when it begins with none.
size_t ControlBytes(std::string_view text);

// Two hexadecimal digits.
void AppendHex(unsigned char byte, std::string& out);

// Every byte of a control character as \xNN; those in `kept` pass.
std::string EscapeControls(std::string_view text, std::string_view kept);

}  // namespace skein::protocol
