// Products of few rows with e4m3 weights and activations, both scaled per 32 inputs: the time is
// that of reading the weights once. A warp owns 16 output channels and an eighth of the inputs;
// codes of both sides become f16 without their scales (exact), a unit of 32 inputs is summed by
// tensor-core products from zero, and the sum times both scales is added in f32 (catalogue 13.3
// K1). The eighths are added in order. So the order of a sum is fixed by K alone. Device code.
#pragma once

#include <cstdint>

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/formats.h"

namespace skein::kernels::sm90::fp8 {

inline constexpr int kUnit = 32;      // inputs under one scale
inline constexpr int kChannels = 16;  // of a block: every warp has them, with inputs of its own
inline constexpr int kWarps = 8;
inline constexpr int kDepth = 4;  // units in flight

// Four codes as two registers of two f16.
__device__ inline void Widen(uint32_t codes, uint32_t& low, uint32_t& high) {
  const __half2_raw a =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  const __half2_raw b =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes >> 16), __NV_E4M3);
  low = a.x | uint32_t{a.y} << 16;
  high = b.x | uint32_t{b.y} << 16;
}

__device__ inline void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Eight codes from any address.
__device__ inline uint2 LoadEight(const uint8_t* from, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint2*>(from);
  uint2 out;
  out.x = from[0] | from[1] << 8 | from[2] << 16 | uint32_t{from[3]} << 24;
  out.y = from[4] | from[5] << 8 | from[6] << 16 | uint32_t{from[7]} << 24;
  return out;
}

struct Parameters {
  const uint8_t* w;
  int64_t w_step;
  const uint8_t* w_scale;
  int64_t w_scale_step;
  const uint8_t* x;
  int64_t x_step;
  const uint8_t* x_scale;
  int64_t x_scale_step;
  uint16_t* y;
  int64_t y_step;
  int64_t n, k, rows;
  bool x_aligned;  // rows of x begin at multiples of eight bytes
};

// A lane's weights of one unit: eight inputs of two channels, and the block's scale.
struct Fetched {
  uint2 codes[2];
  uint32_t scale;
};

template <int kTiles>
__global__ void __launch_bounds__(kWarps * 32) SkinnyLinearKernel(Parameters p) {
  __shared__ float partial[kWarps][kTiles][kChannels * 8];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int quad_lane = lane % 4;
  const int64_t n0 = int64_t{blockIdx.x} * kChannels;
  const int64_t t0 = int64_t{blockIdx.y} * (kTiles * 8);
  const uint8_t* w[2];
  for (int i = 0; i < 2; ++i) {
    // Channels beyond the last are computed from it and not stored; rows likewise.
    w[i] = p.w + min(n0 + lane / 4 + i * 8, p.n - 1) * p.w_step + quad_lane * 8;
  }
  const uint8_t* w_scale = p.w_scale + n0 / kUnit * p.w_scale_step;
  const uint8_t* x[kTiles];
  const uint8_t* x_scale[kTiles][2];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    x[tile] = p.x + min(t0 + tile * 8 + lane / 4, p.rows - 1) * p.x_step + quad_lane * 8;
    for (int i = 0; i < 2; ++i) {
      const int64_t row = min(t0 + tile * 8 + quad_lane * 2 + i, p.rows - 1);
      x_scale[tile][i] = p.x_scale + row * p.x_scale_step;
    }
  }
  const int units = static_cast<int>(p.k / kUnit / kWarps);
  const int first = warp * units;
  const auto load = [&](int unit) {
    Fetched out;
    for (int i = 0; i < 2; ++i) {
      out.codes[i] = __ldcs(reinterpret_cast<const uint2*>(w[i] + int64_t{unit} * kUnit));
    }
    out.scale = w_scale[unit];
    return out;
  };
  float sum[kTiles][4] = {};
  Fetched ahead[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    if (i < units) ahead[i] = load(first + i);
  }
  for (int begin = 0; begin < units; begin += kDepth) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (begin + i >= units) break;
      const Fetched now = ahead[i];
      if (begin + i + kDepth < units) ahead[i] = load(first + begin + i + kDepth);
      const int unit = first + begin + i;
      uint32_t a[2][4];
      Widen(now.codes[0].x, a[0][0], a[0][2]);
      Widen(now.codes[1].x, a[0][1], a[0][3]);
      Widen(now.codes[0].y, a[1][0], a[1][2]);
      Widen(now.codes[1].y, a[1][1], a[1][3]);
      const float scale = DecodeE8m0(static_cast<uint8_t>(now.scale));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint2 codes = LoadEight(x[tile] + int64_t{unit} * kUnit, p.x_aligned);
        uint32_t b[4];
        Widen(codes.x, b[0], b[1]);
        Widen(codes.y, b[2], b[3]);
        float c[4] = {};
        Mma(c, a[0], b[0], b[1]);
        Mma(c, a[1], b[2], b[3]);
        const float left = scale * DecodeE8m0(x_scale[tile][0][unit]);
        const float right = scale * DecodeE8m0(x_scale[tile][1][unit]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[tile][j] = fmaf(c[j], j % 2 == 0 ? left : right, sum[tile][j]);
        }
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int channel = lane / 4 + j / 2 * 8;
      partial[warp][tile][(quad_lane * 2 + j % 2) * kChannels + channel] = sum[tile][j];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * kChannels * 8; i += kWarps * 32) {
    const int tile = i / (kChannels * 8);
    float total = 0;
#pragma unroll
    for (int slice = 0; slice < kWarps; ++slice) {
      total += partial[slice][tile][i % (kChannels * 8)];
    }
    const int64_t n = n0 + i % kChannels;
    const int64_t t = t0 + i / kChannels;
    if (n < p.n && t < p.rows) p.y[t * p.y_step + n] = EncodeBf16(total);
  }
}

}  // namespace skein::kernels::sm90::fp8
