#include "protocol/base/control_bytes.h"

namespace skein::protocol {

size_t ControlBytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x20 || first == 0x7F) return 1;
  if (first != 0xC2 || text.size() < 2) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  return second >= 0x80 && second < 0xA0 ? 2 : 0;
}

void AppendHex(unsigned char byte, std::string& out) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += kHex[byte >> 4];
  out += kHex[byte & 15];
}

std::string EscapeControls(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    size_t bytes = ControlBytes(text);
    if (bytes == 0 || kept.find(text[0]) != std::string_view::npos) {
      out += text[0];
      bytes = 1;
    } else {
      for (const char c : text.substr(0, bytes)) {
        out += "\\x";
        AppendHex(static_cast<unsigned char>(c), out);
      }
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace skein::protocol
