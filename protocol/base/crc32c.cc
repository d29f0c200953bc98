// Eight bytes at a time, by tables.
#include "protocol/base/crc32c.h"

#include <array>

namespace skein::protocol {
namespace {

using Table = std::array<std::array<uint32_t, 256>, 8>;

constexpr Table MakeTable() {
  Table table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[0][i] = crc;
  }
  for (size_t slice = 1; slice < 8; ++slice) {
    for (size_t i = 0; i < 256; ++i) {
      const uint32_t before = table[slice - 1][i];
      table[slice][i] = (before >> 8) ^ table[0][before & 0xFF];
    }
  }
  return table;
}

constexpr Table kTable = MakeTable();

// Eight bytes, the first one lowest.
uint64_t Word(const std::byte* at) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= std::to_integer<uint64_t>(at[i]) << (8 * i);
  return value;
}

}  // namespace

uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    const uint64_t word = Word(at) ^ crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kTable[7 - i][(word >> (8 * i)) & 0xFF];
  }
  while (left-- > 0) crc = (crc >> 8) ^ kTable[0][(crc ^ std::to_integer<uint32_t>(*at++)) & 0xFF];
  return ~crc;
}

}  // namespace skein::protocol
