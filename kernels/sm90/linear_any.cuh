// Products of any shape and format that no tuned kernel takes. bf16 outputs: operands decoded
// exactly to bf16 in shared memory (per-32 scales folded in, catalogue 13.3 K2), then tensor-core
// products with f32 accumulators, k ascending in steps of 16. f32 outputs: a warp per output column
// in f32. Neither order depends on the rows. Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/order.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/formats.h"
#include "kernels/ops/gemm.h"

namespace skein::kernels::sm90::any {

inline constexpr int kTileN = 64;           // output channels of a block, 16 of a warp
inline constexpr int kChunk = 64;           // inputs that are staged at a time
inline constexpr int kStride = kChunk + 8;  // of a staged row: no bank conflicts
inline constexpr unsigned kThreads = 4 * cuda::kWarp;
inline constexpr int kUnit = 32;  // inputs under one activation scale

// A weight as stored, by value.
struct WeightView {
  const uint8_t* codes;
  int64_t codes_step;
  const uint8_t* scale;
  int64_t scale_step;
  WeightFormat format;
  int block;

  __device__ float Element(int64_t n, int64_t k) const {
    switch (format) {
      case WeightFormat::kBf16:
        return DecodeBf16(reinterpret_cast<const uint16_t*>(codes)[n * codes_step + k]);
      case WeightFormat::kF32:
        return reinterpret_cast<const float*>(codes)[n * codes_step + k];
      case WeightFormat::kE4m3Block:
        return DecodeE4m3(codes[n * codes_step + k]) *
               DecodeE8m0(scale[n / block * scale_step + k / block]);
      case WeightFormat::kE2m1Row32:
        return DecodeE2m1(codes[n * codes_step + k / 2] >> (k % 2 * 4) & 15) *
               DecodeE8m0(scale[n * scale_step + k / kUnit]);
    }
    return 0;
  }
};

inline WeightView MakeWeight(const Weight& w, WeightFormat format, int block) {
  WeightView out;
  out.codes = w.codes.as<uint8_t>();
  out.codes_step = w.codes.step(0);
  out.scale = w.scale.absent() ? nullptr : w.scale.as<uint8_t>();
  out.scale_step = w.scale.absent() ? 0 : w.scale.step(0);
  out.format = format;
  out.block = block;
  return out;
}

// Rows of activations, by value.
struct Activations {
  const void* data;
  DType dtype;
  int64_t step;
  const uint8_t* scale;
  int64_t scale_step;

  __device__ float Element(int64_t row, int64_t k) const {
    switch (dtype) {
      case DType::kE4m3:
        return DecodeE4m3(static_cast<const uint8_t*>(data)[row * step + k]) *
               DecodeE8m0(scale[row * scale_step + k / kUnit]);
      case DType::kBf16:
        return DecodeBf16(static_cast<const uint16_t*>(data)[row * step + k]);
      default:
        return static_cast<const float*>(data)[row * step + k];
    }
  }
};

inline Activations MakeActivations(const TensorView& x, const TensorView& x_scale) {
  Activations out;
  out.data = x.data;
  out.dtype = x.dtype;
  out.step = x.step(0);
  out.scale = x_scale.absent() ? nullptr : x_scale.as<uint8_t>();
  out.scale_step = x_scale.absent() ? 0 : x_scale.step(0);
  return out;
}

// ---- bf16 outputs

__device__ inline void Mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// What a block computes: rows [begin, end) of one weight's product.
struct TileWork {
  WeightView w;
  int64_t n, k;
  Activations x;
  const int32_t* source_row;  // null: row i reads x row i
  int64_t begin, end;
  uint16_t* y;
  int64_t y_step;
};

// Stages `rows` rows of 64 inputs from `k0`; rows at or beyond `valid` and inputs beyond k are 0.
template <typename Element>
__device__ void Stage(uint16_t* tile, int rows, int64_t valid, int64_t k0, int64_t k,
                      const Element& element) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * kChunk; i += static_cast<int>(kThreads)) {
    const int row = i / kChunk;
    const int64_t at = k0 + i % kChunk;
    const bool there = row < valid && at < k;
    tile[row * kStride + i % kChunk] = there ? EncodeBf16(element(row, at)) : uint16_t{0};
  }
}

template <int kTileT>
__device__ void ComputeTile(const TileWork& work, int64_t n0, int64_t t0, uint16_t* w_tile,
                            uint16_t* x_tile) {
  constexpr int kColumns = kTileT / 8;
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int row = warp * 16 + lane / 4;
  const int pair = lane % 4 * 2;
  float c[kColumns][4] = {};
  for (int64_t k0 = 0; k0 < work.k; k0 += kChunk) {
    __syncthreads();
    Stage(w_tile, kTileN, work.n - n0, k0, work.k,
          [&](int r, int64_t at) { return work.w.Element(n0 + r, at); });
    Stage(x_tile, kTileT, work.end - t0, k0, work.k, [&](int r, int64_t at) {
      const int64_t i = t0 + r;
      return work.x.Element(work.source_row == nullptr ? i : work.source_row[i], at);
    });
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < kChunk; kk += 16) {
      const uint16_t* a_row = w_tile + row * kStride + kk + pair;
      const uint32_t a[4] = {*reinterpret_cast<const uint32_t*>(a_row),
                             *reinterpret_cast<const uint32_t*>(a_row + 8 * kStride),
                             *reinterpret_cast<const uint32_t*>(a_row + 8),
                             *reinterpret_cast<const uint32_t*>(a_row + 8 * kStride + 8)};
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const uint16_t* b_row = x_tile + (column * 8 + lane / 4) * kStride + kk + pair;
        const uint32_t b[2] = {*reinterpret_cast<const uint32_t*>(b_row),
                               *reinterpret_cast<const uint32_t*>(b_row + 8)};
        Mma(c[column], a, b);
      }
    }
  }
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t n = n0 + row + i / 2 * 8;
      const int64_t t = t0 + column * 8 + pair + i % 2;
      if (n < work.n && t < work.end) work.y[t * work.y_step + n] = EncodeBf16(c[column][i]);
    }
  }
}

template <int kTileT>
__global__ void __launch_bounds__(kThreads)
    LinearTileKernel(TileWork work, int64_t x_group_step, int64_t y_group_step) {
  cuda::BeginAfterLast();
  __shared__ uint16_t w_tile[kTileN * kStride];
  __shared__ uint16_t x_tile[kTileT * kStride];
  // Groups of a block-diagonal product: inputs, weight rows and outputs move along.
  const int64_t g = blockIdx.z;
  const int64_t width = work.x.dtype == DType::kE4m3 ? 1 : 2;
  work.x.data = static_cast<const uint8_t*>(work.x.data) + g * x_group_step * width;
  work.y += g * y_group_step;
  const int64_t n0 = int64_t{blockIdx.x} * kTileN;
  const int64_t first = g * work.n;
  if (g > 0) {
    const WeightView w = work.w;
    TileWork moved = work;
    // Rows of the group are a window of the weight; scales of blocks may start inside one.
    moved.w = w;
    moved.n = first + work.n;
    moved.y -= first;
    ComputeTile<kTileT>(moved, first + n0, int64_t{blockIdx.y} * kTileT, w_tile, x_tile);
    return;
  }
  ComputeTile<kTileT>(work, n0, int64_t{blockIdx.y} * kTileT, w_tile, x_tile);
}

// ---- f32 outputs

inline constexpr int kWideRows = 4;  // rows that share one decoding of the weight

inline __global__ void WideLinearKernel(WeightView w, Activations x, int64_t x_group_step,
                                        int64_t n, int64_t k, int64_t rows, void* y, DType y_dtype,
                                        int64_t y_step, int64_t y_group_step, bool accumulate) {
  cuda::BeginAfterLast();
  const int64_t column = blockIdx.x * (kThreads / cuda::kWarp) + threadIdx.x / cuda::kWarp;
  if (column >= n) return;
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int64_t g = blockIdx.z;
  const int64_t width = x.dtype == DType::kE4m3 ? 1 : x.dtype == DType::kBf16 ? 2 : 4;
  x.data = static_cast<const uint8_t*>(x.data) + g * x_group_step * width;
  const int64_t t0 = int64_t{blockIdx.y} * kWideRows;
  float sum[kWideRows] = {};
  for (int64_t at = lane; at < k; at += cuda::kWarp) {
    const float weight = w.Element(g * n + column, at);
#pragma unroll
    for (int i = 0; i < kWideRows; ++i) {
      if (t0 + i < rows) sum[i] = fmaf(x.Element(t0 + i, at), weight, sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kWideRows; ++i) {
    const float total = cuda::WarpSum(sum[i]);
    if (lane != 0 || t0 + i >= rows) continue;
    const int64_t at = g * y_group_step + (t0 + i) * y_step + column;
    cuda::StoreFloat(y, y_dtype, at, accumulate ? cuda::LoadFloat(y, y_dtype, at) + total : total);
  }
}

}  // namespace skein::kernels::sm90::any
