// Two bf16 numbers in a register: scaling by powers of two, e4m3 codes and scales as such pairs.
// Device code.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace skein::kernels::sm90 {

__device__ inline uint32_t TimesPair(uint32_t pair, uint32_t factor) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                         *reinterpret_cast<const __nv_bfloat162*>(&factor));
  return *reinterpret_cast<const uint32_t*>(&product);
}

// An e8m0 scale, twice; exact for every byte, NaN for 255.
__device__ inline uint32_t ScalePair(uint32_t byte) {
  const uint32_t half = byte == 255 ? 0x7FC0u : byte == 0 ? 0x0040u : byte << 7;
  return half | half << 16;
}

// Two e4m3 codes, in the upper bytes of the halves, as bf16 numbers 2^-120 too small; NaN codes
// become 480 * 2^-120.
__device__ inline uint32_t SpreadPair(uint32_t codes) {
  return (codes & 0x80008000) | (codes >> 4 & 0x07F007F0);
}
inline constexpr uint32_t kUp120 = 0x7B807B80;  // 2^120, twice
inline constexpr uint32_t kUp126 = 0x7E807E80;

}  // namespace skein::kernels::sm90
