#include "tests/chaos/message_splitter.h"

#include <algorithm>
#include <cstdint>

namespace skein::tests {
namespace {

constexpr uint8_t kMore = 1, kLong = 2, kCommand = 4;

}  // namespace

MessageSplitter::Unit MessageSplitter::Next(std::string_view bytes) {
  if (greeting_left_ > 0) {
    const size_t size = std::min(bytes.size(), greeting_left_);
    greeting_left_ -= size;
    return {size > 0 ? Kind::kGreeting : Kind::kNone, size, 0};
  }
  Unit unit;
  while (true) {
    if (unit.size + 2 > bytes.size()) return {};
    const auto flags = static_cast<uint8_t>(bytes[unit.size]);
    const size_t size_bytes = (flags & kLong) != 0 ? 8 : 1;
    if (unit.size + 1 + size_bytes > bytes.size()) return {};
    uint64_t size = 0;
    for (size_t i = 0; i < size_bytes; ++i) {
      size = size << 8 | static_cast<uint8_t>(bytes[unit.size + 1 + i]);
    }
    unit.body = unit.size + 1 + size_bytes;
    if (size > bytes.size() - unit.body) return {};
    unit.size = unit.body + static_cast<size_t>(size);
    if ((flags & kCommand) != 0) unit.kind = Kind::kCommand;
    if ((flags & (kMore | kCommand)) == 0) unit.kind = Kind::kMessage;
    if ((flags & kMore) == 0) return unit;
  }
}

}  // namespace skein::tests
