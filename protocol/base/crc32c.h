// CRC-32C (Castagnoli): of frames, and of cache blocks that cross between workers.
// A pure function, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace skein::protocol {

// Of `bytes`, continuing from `crc` (0 at the start).
uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace skein::protocol
