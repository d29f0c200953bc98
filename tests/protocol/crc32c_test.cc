// Known checksums.
#include "protocol/base/crc32c.h"

#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Crc32cTest, KnownAnswers) {
  EXPECT_EQ(Crc32c(0, Bytes("123456789")), 0xE3069283u);
  EXPECT_EQ(Crc32c(0, {}), 0u);
  const std::vector<std::byte> zeros(32);
  EXPECT_EQ(Crc32c(0, zeros), 0x8A9136AAu);  // RFC 3720, B.4
  const uint32_t first = Crc32c(0, Bytes("12345678"));
  EXPECT_EQ(Crc32c(first, Bytes("9")), 0xE3069283u);
}

}  // namespace
}  // namespace skein::protocol
