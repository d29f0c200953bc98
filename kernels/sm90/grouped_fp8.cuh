// Block-diagonal products of bf16 activations with e4m3 weights scaled per 32 by 32: the time is
// that of reading the weights. A warp owns 16 output channels of a group and an eighth of its
// inputs; codes become bf16 with their scale (exact) and are the A operand of tensor-core products.
// The eighths are added in order, so the order of a sum is fixed by K alone. Device code.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "kernels/formats.h"

namespace skein::kernels::sm90::grouped {

inline constexpr int kUnit = 32;      // inputs and channels under one scale
inline constexpr int kStep = 64;      // inputs of a step: 16 bytes of a lane
inline constexpr int kChannels = 16;  // of a block: every warp has them, with inputs of its own
inline constexpr int kWarps = 8;
inline constexpr int kDepth = 4;  // steps in flight

struct Parameters {
  const uint8_t* w;
  int64_t w_step;
  const uint8_t* w_scale;
  int64_t w_scale_step;
  const uint16_t* x;
  int64_t x_step, x_group_step;
  uint16_t* y;
  int64_t y_step, y_group_step;
  int n, k, rows;
  bool x_aligned;  // rows of x begin at multiples of eight bytes
};

__device__ inline uint32_t Times(uint32_t pair, uint32_t factor) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                         *reinterpret_cast<const __nv_bfloat162*>(&factor));
  return *reinterpret_cast<const uint32_t*>(&product);
}

// Two codes, in the upper bytes of the halves, times a scale; NaN codes stay NaN.
__device__ inline uint32_t Widen(uint32_t codes, uint32_t scale) {
  constexpr uint32_t kUp = 0x7B807B80;  // 2^120
  uint32_t bits = (codes & 0x80008000) | (codes >> 4 & 0x07F007F0);
  if ((codes & 0x7F00) == 0x7F00) bits |= 0x7FC0;
  if ((codes & 0x7F000000) == 0x7F000000) bits |= 0x7FC00000;
  return Times(Times(bits, kUp), scale);
}

__device__ inline uint32_t ScalePair(uint32_t byte) {
  const uint32_t half = byte == 255 ? 0x7FC0u : byte == 0 ? 0x0040u : byte << 7;
  return half | half << 16;
}

__device__ inline void Mma(float (&c)[4], const uint32_t (&a)[4], uint2 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

__device__ inline uint2 LoadFour(const uint16_t* from, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint2*>(from);
  return {from[0] | uint32_t{from[1]} << 16, from[2] | uint32_t{from[3]} << 16};
}

// A lane's weights of one step: 16 inputs of two channels, and their scale.
struct Fetched {
  uint4 codes[2];
  uint32_t scale;
};

__device__ inline uint32_t WordOf(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Adds a step; `x` points at the lane's 16 inputs of its row in each tile.
template <int kTiles>
__device__ void AddStep(const Fetched& w, const uint16_t* const (&x)[kTiles], int64_t at,
                        bool aligned, float (&sum)[kTiles][4]) {
  const uint32_t scale = ScalePair(w.scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t upper = WordOf(w.codes[0], i), lower = WordOf(w.codes[1], i);
    const uint32_t a[4] = {
        Widen(__byte_perm(upper, 0, 0x1404), scale), Widen(__byte_perm(lower, 0, 0x1404), scale),
        Widen(__byte_perm(upper, 0, 0x3424), scale), Widen(__byte_perm(lower, 0, 0x3424), scale)};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Mma(sum[tile], a, LoadFour(x[tile] + at + i * 4, aligned));
    }
  }
}

// The eighths in order; `partial` holds [warp][row][channel].
template <int kTiles>
__device__ void Store(const Parameters& p, const float* partial, int n0, int t0, int group) {
  constexpr int kOutputs = kTiles * 8 * kChannels;
  for (int i = static_cast<int>(threadIdx.x); i < kOutputs; i += kWarps * 32) {
    float total = 0;
#pragma unroll
    for (int slice = 0; slice < kWarps; ++slice) total += partial[slice * kOutputs + i];
    const int n = n0 + i % kChannels;
    const int t = t0 + i / kChannels;
    if (n < p.n && t < p.rows) {
      p.y[t * p.y_step + group * p.y_group_step + n] = EncodeBf16(total);
    }
  }
}

template <int kTiles>
__global__ void __launch_bounds__(kWarps * 32) GroupedFp8Kernel(Parameters p) {
  __shared__ float partial[kWarps][kTiles * 8][kChannels];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int n0 = static_cast<int>(blockIdx.x) * kChannels;
  const int t0 = static_cast<int>(blockIdx.y) * (kTiles * 8);
  const auto group = static_cast<int>(blockIdx.z);
  const int per_warp = p.k / kWarps;
  const int64_t first = int64_t{warp} * per_warp + lane % 4 * 16;
  const uint8_t* w[2];
  for (int i = 0; i < 2; ++i) {
    // Channels beyond the last are computed from it and not stored; rows likewise.
    const int64_t n = int64_t{group} * p.n + min(n0 + lane / 4 + i * 8, p.n - 1);
    w[i] = p.w + n * p.w_step + first;
  }
  const uint8_t* w_scale =
      p.w_scale + (int64_t{group} * p.n + n0) / kUnit * p.w_scale_step + first / kUnit;
  const uint16_t* x[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int64_t row = min(t0 + tile * 8 + lane / 4, p.rows - 1);
    x[tile] = p.x + row * p.x_step + group * p.x_group_step + first;
  }
  const auto load = [&](int step) {
    Fetched out;
    for (int i = 0; i < 2; ++i) {
      out.codes[i] = __ldcs(reinterpret_cast<const uint4*>(w[i] + int64_t{step} * kStep));
    }
    out.scale = w_scale[step * (kStep / kUnit)];
    return out;
  };
  const int steps = per_warp / kStep;
  float sum[kTiles][4] = {};
  Fetched ahead[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    if (i < steps) ahead[i] = load(i);
  }
  for (int begin = 0; begin < steps; begin += kDepth) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (begin + i >= steps) break;
      const Fetched now = ahead[i];
      if (begin + i + kDepth < steps) ahead[i] = load(begin + i + kDepth);
      AddStep<kTiles>(now, x, int64_t{begin + i} * kStep, p.x_aligned, sum);
    }
  }
#pragma unroll
  for (int i = 0; i < kTiles * 4; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    partial[warp][row][lane / 4 + i / 2 % 2 * 8] = sum[i / 4][i % 4];
  }
  __syncthreads();
  Store<kTiles>(p, &partial[0][0][0], n0, t0, group);
}

}  // namespace skein::kernels::sm90::grouped
