// Products of few rows with e2m1 weights, for experts in decoding: the time is that of reading the
// weights once. A warp owns 16 output channels and all inputs; codes go from memory to registers,
// become bf16 with their scale folded in (exact), and are the A operand of tensor-core products;
// activations are bf16 in shared memory. No weight passes through shared memory.
// Sums: per output over inputs in an order that K alone fixes. Device code.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "kernels/cuda/reduce.cuh"
#include "kernels/formats.h"

namespace skein::kernels::sm90::fp4 {

inline constexpr int kUnit = 32;      // inputs under one scale: one 16-byte load of a lane
inline constexpr int kStep = 4 * 32;  // inputs of a step: a unit of each lane of a quad
inline constexpr int kWarpRows = 16;  // output channels of a warp
inline constexpr int kWarps = 8;      // of a block
inline constexpr int kBlockRows = kWarpRows * kWarps;
inline constexpr int kDepth = 4;  // steps in flight

// Where input `k` of a row lies in its shared row: within a step, the four inputs that a lane of
// the quad needs for one product are neighbours, and so are the quad's lanes.
__host__ __device__ constexpr int Place(int k) {
  const int step = k / kStep, lane = k % kStep / kUnit, word = k % kUnit / 8, code = k % 8;
  // Codes j and j + 4 of a word are the halves of one register.
  const int half = code / 4, pair = code % 4;
  return step * kStep + (word * 2 + pair / 2) * 16 + lane * 4 + pair % 2 * 2 + half;
}

// Eight codes as four registers of two bf16 each, times 2^-126: codes (j, j + 4) in register j.
__device__ inline void Spread(uint32_t word, uint32_t (&out)[4]) {
  out[0] = (word << 6 & 0x01C001C0u) | (word << 12 & 0x80008000u);
  out[1] = (word << 2 & 0x01C001C0u) | (word << 8 & 0x80008000u);
  out[2] = (word >> 2 & 0x01C001C0u) | (word << 4 & 0x80008000u);
  out[3] = (word >> 6 & 0x01C001C0u) | (word & 0x80008000u);
}

// Two bf16 of 2^126 times the scale of an e8m0 byte; NaN for 255. Bytes above 128 do not fit: the
// product of such a weight is infinite or NaN, never wrong by a factor.
__device__ inline uint32_t ScalePair(uint32_t byte) {
  // 2^(126 + byte - 127) has the exponent field byte + 126.
  const uint32_t field = byte == 255 ? 0x7FC0u : byte > 128 ? 0x7F80u : (byte + 126) << 7;
  return field | field << 16;
}

__device__ inline uint32_t Scaled(uint32_t pair, uint32_t scale) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                         *reinterpret_cast<const __nv_bfloat162*>(&scale));
  return *reinterpret_cast<const uint32_t*>(&product);
}

__device__ inline void Mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                           uint2 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y));
}

// One step's weights of a lane: a unit of two output channels.
struct Fetched {
  uint4 codes[2];
  uint32_t scale[2];
};

// The two channels of a lane.
struct Source {
  const uint8_t* codes[2];
  const uint8_t* scale[2];

  __device__ Fetched Load(int step, int quad_lane) const {
    Fetched out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint8_t* at = codes[i] + int64_t{step} * (kStep / 2) + quad_lane * 16;
      out.codes[i] = __ldcs(reinterpret_cast<const uint4*>(at));
      out.scale[i] = scale[i][step * 4 + quad_lane];
    }
    return out;
  }
};

__device__ inline uint32_t WordOf(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Adds one step to the sums of kTiles tiles of eight rows. `x` points at the lane's place in the
// step of row lane / 4; tiles are `tile_stride` elements apart.
template <int kTiles>
__device__ void AddStep(const Fetched& w, const uint16_t* x, int tile_stride,
                        float (&sum)[kTiles][4]) {
  const uint32_t scale0 = ScalePair(w.scale[0]);
  const uint32_t scale1 = ScalePair(w.scale[1]);
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    uint32_t low[4], high[4];
    Spread(WordOf(w.codes[0], word), low);
    Spread(WordOf(w.codes[1], word), high);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t a0 = Scaled(low[half * 2], scale0);
      const uint32_t a1 = Scaled(high[half * 2], scale1);
      const uint32_t a2 = Scaled(low[half * 2 + 1], scale0);
      const uint32_t a3 = Scaled(high[half * 2 + 1], scale1);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint2 b =
            *reinterpret_cast<const uint2*>(x + tile * tile_stride + (word * 2 + half) * 16);
        Mma(sum[tile], a0, a1, a2, a3, b);
      }
    }
  }
}

}  // namespace skein::kernels::sm90::fp4
