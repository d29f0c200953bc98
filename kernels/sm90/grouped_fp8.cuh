// Block-diagonal products of bf16 activations with e4m3 weights scaled per 32 by 32: the time is
// that of reading the weights once.
// A block owns 64 output channels of a group and a part of the inputs, up to eight blocks of a
// cluster share the rest. The copy engine brings codes and activations to shared memory, swizzled;
// codes become bf16 with their scale (exact) in the registers of a warpgroup, the A operand of its
// products. Every 128 inputs are summed from zero and added in f32; the parts of a cluster are
// added in order. How inputs are divided depends on N and K alone, and so does the order of a sum.
// Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/order.cuh"
#include "kernels/formats.h"
#include "kernels/sm90/arrival.cuh"
#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/bf16_pairs.cuh"
#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/cluster_sums.cuh"
#include "kernels/sm90/tensor_map.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace skein::kernels::sm90::grouped {

inline constexpr int kUnit = 32;      // inputs and channels under one scale
inline constexpr int kSlice = 128;    // inputs of a stage: a swizzled row of codes
inline constexpr int kLine = 64;      // inputs of a swizzled row of activations
inline constexpr int kStep = 16;      // inputs of one product
inline constexpr int kChannels = 64;  // of a block
inline constexpr int kMultiplyThreads = 128;
inline constexpr int kThreads = kMultiplyThreads + 64;

// Parts that the inputs are divided into: two blocks for each multiprocessor, four slices each.
constexpr int PartsOf(int groups, int n, int k) {
  const int tiles = groups * (n / kChannels);
  int parts = 1;
  while (parts < cluster::kMostParts && tiles * parts < 256 && k / kSlice >= 4 * parts) parts *= 2;
  return parts;
}

template <int kRows>
struct Tile {
  struct Stage {
    uint8_t w[kChannels][kSlice];
    uint8_t x[kSlice / kLine][kRows][2 * kLine];
  };
  static constexpr int kStages = (108 << 10) / sizeof(Stage);  // two blocks share a multiprocessor
  struct Shared {
    Stage stage[kStages];
    uint64_t full[kStages], empty[kStages];
  };
};
inline constexpr size_t kAlignment = 1024;  // of the swizzled rows

struct Parameters {
  CUtensorMap w;
  CUtensorMap x_map;  // where x is aligned: [row][group][input]
  const uint8_t* w_scale;
  int64_t w_scale_step;
  const uint16_t* x;
  int64_t x_step, x_group_step;
  uint16_t* y;
  int64_t y_step, y_group_step;
  int n, k, rows, row_tiles;
  bool x_aligned;  // rows and groups of x begin at multiples of 16 bytes
};

// Where a block is.
struct Place {
  int group, n0, t0;
};

// A slice of rows that the copy engine cannot read, by one warp; rows beyond the last stay what
// they were.
template <int kRows>
__device__ void BringRows(const Parameters& p, typename Tile<kRows>::Stage& stage, int slice,
                          const Place& at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = 0; row < kRows && at.t0 + row < p.rows; ++row) {
    const uint16_t* from =
        p.x + (at.t0 + row) * p.x_step + at.group * p.x_group_step + int64_t{slice} * kSlice;
    for (int i = lane; i < kSlice; i += 32) {
      const int byte = i % kLine * 2;
      *reinterpret_cast<uint16_t*>(
          &stage.x[i / kLine][row][(byte / 16 ^ row % 8) * 16 + byte % 16]) = from[i];
    }
  }
}

// Two warps fill stages: one has the copy engine bring rows, the first stages' weights before the
// kernel ahead of this one has ended; the other brings rows of x that are not aligned.
template <int kRows>
__device__ void Fill(const Parameters& p, typename Tile<kRows>::Shared& shared, int first, int end,
                     const Place& at) {
  const bool asks = static_cast<int>(threadIdx.x) < kMultiplyThreads + 32;
  const bool speaks = asks && threadIdx.x % 32 == 0;
  const auto ask_weights = [&](int slice, uint32_t to) {
    auto& stage = shared.stage[to];
    const uint32_t full = SharedAddress(&shared.full[to]);
    ArriveExpecting(full, sizeof(stage.w) + (p.x_aligned ? sizeof(stage.x) : 0));
    CopyBox(SharedAddress(stage.w), p.w, slice * kSlice, 0, at.group * p.n + at.n0, full);
  };
  const int ahead = min(end - first, Tile<kRows>::kStages);
  for (int i = 0; speaks && i < ahead; ++i) ask_weights(first + i, static_cast<uint32_t>(i));
  cuda::WaitForLast();
  cuda::LetNextBegin();
  Ring<Tile<kRows>::kStages> ring;
  for (int slice = first; slice < end; ++slice) {
    auto& stage = shared.stage[ring.stage];
    const uint32_t full = SharedAddress(&shared.full[ring.stage]);
    WaitForPhase(SharedAddress(&shared.empty[ring.stage]), ring.parity ^ 1);
    if (speaks) {
      if (slice - first >= ahead) ask_weights(slice, ring.stage);
      for (int line = 0; p.x_aligned && line < kSlice / kLine; ++line) {
        CopyBox(SharedAddress(stage.x[line]), p.x_map, (slice * kSlice + line * kLine) * 2,
                at.group, at.t0, full);
      }
    }
    if (!asks) {
      if (!p.x_aligned) {
        BringRows<kRows>(p, stage, slice, at);
        FenceForProducts();
      }
      Arrive(full);
    }
    ring.Advance();
  }
}

// A scale and the 2^120 that spread codes are too small by, as bf16 pairs: one factor where it is
// in range, else two.
struct Factor {
  uint32_t first, rest;
  bool split;

  __device__ explicit Factor(uint32_t byte) {
    split = byte > 134 && byte < 255;
    first = split ? kUp120 : byte == 255 ? ScalePair(255) : (byte + 120) * 0x00800080u;
    rest = ScalePair(byte);
  }
};

// The A operands of a slice's step: of the lane's two channels, inputs 2 (l % 4) and + 8 of it.
// `nan` collects what codes say of NaN, by channel.
__device__ inline void LoadStep(const uint8_t (&w)[kChannels][kSlice], int step,
                                const Factor& factor, uint32_t (&a)[4], uint32_t (&nan)[2]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp * 16 + lane / 4;
  const uint8_t* at = &w[row][(step ^ row % 8) * 16 + lane % 4 * 2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Channels are eight rows apart, which the swizzle does not see.
    const uint32_t two = *reinterpret_cast<const uint16_t*>(at + i % 2 * 8 * kSlice + i / 2 * 8);
    nan[i % 2] |= (two & 0x7F7F) + 0x0101;
    a[i] = TimesPair(SpreadPair(__byte_perm(two, 0, 0x1404)), factor.first);
    if (factor.split) a[i] = TimesPair(a[i], factor.rest);
  }
}

// The warps that multiply; sums go to shared memory, over the stages.
template <int kRows>
__device__ void Multiply(const Parameters& p, typename Tile<kRows>::Shared& shared, int first,
                         int end, const Place& at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int channel = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  const uint8_t* w_scale =
      p.w_scale + (int64_t{at.group} * p.n + at.n0 + channel) / kUnit * p.w_scale_step;
  float sum[kRows / 2] = {};
  float part[kRows / 2];
  uint32_t nan[2] = {};
  Ring<Tile<kRows>::kStages> ring;
  uint8_t ahead[kSlice / kUnit];
  const auto fetch = [&](int slice) {
#pragma unroll
    for (int i = 0; i < kSlice / kUnit; ++i) ahead[i] = w_scale[slice * (kSlice / kUnit) + i];
  };
  if (first < end) fetch(first);
  for (int slice = first; slice < end; ++slice) {
    uint8_t scale[kSlice / kUnit];
#pragma unroll
    for (int i = 0; i < kSlice / kUnit; ++i) scale[i] = ahead[i];
    if (slice + 1 < end) fetch(slice + 1);
    WaitForPhase(SharedAddress(&shared.full[ring.stage]), ring.parity);
    const auto& stage = shared.stage[Uniform(ring.stage)];
    uint32_t a[2][4];
#pragma unroll
    for (int step = 0; step < kSlice / kStep; ++step) {
      // The operands of the product before last are free once it is done.
      if (step > 1) wgmma::Wait<1>();
      LoadStep(stage.w, step, Factor(scale[step * kStep / kUnit]), a[step % 2], nan);
      const uint64_t x =
          wgmma::Advance(wgmma::SwizzledOperand(SharedAddress(stage.x[step * kStep / kLine])),
                         static_cast<uint32_t>(step * kStep % kLine * 2));
      wgmma::Fence();
      if (step == 0) {
        wgmma::ProductBf16<false>(part, a[0], x);
      } else {
        wgmma::ProductBf16<true>(part, a[step % 2], x);
      }
      wgmma::Commit();
    }
    wgmma::Wait<0>();
    wgmma::Settle(part);
    Arrive(SharedAddress(&shared.empty[ring.stage]));
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) sum[i] += part[i];
    ring.Advance();
  }
  // A NaN code makes its channel NaN in every row.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    nan[i] |= __shfl_xor_sync(0xFFFFFFFF, nan[i], 1);
    nan[i] |= __shfl_xor_sync(0xFFFFFFFF, nan[i], 2);
  }
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    if ((nan[i / 2 % 2] & 0x8080) != 0) sum[i] = __uint_as_float(0x7FC00000);
  }
  // All of the block's products are done before the stages are written.
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiplyThreads) : "memory");
  auto* sums = reinterpret_cast<float*>(shared.stage);
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    sums[row * kChannels + channel + i / 2 % 2 * 8] = sum[i];
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 2)
    GroupedFp8Kernel(const __grid_constant__ Parameters p) {
  using T = Tile<kRows>;
  extern __shared__ uint8_t memory[];
  const uint32_t base = SharedAddress(memory);
  auto& shared = *reinterpret_cast<typename T::Shared*>(memory + (-base & (kAlignment - 1)));
  const int parts = static_cast<int>(cluster::Size());
  const int rank = static_cast<int>(cluster::Rank());
  // Tiles of rows that share weights follow each other.
  const int tile = static_cast<int>(blockIdx.x) / parts;
  const int channels = tile / p.row_tiles * kChannels;
  const Place at{channels / p.n, channels % p.n, tile % p.row_tiles * kRows};
  const int slices = p.k / kSlice;
  const int first = rank * slices / parts;
  const int end = (rank + 1) * slices / parts;
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      // The lane that asks the copy engine, and the lanes of the other warp.
      InitArrivals(SharedAddress(&shared.full[i]), 1 + 32);
      InitArrivals(SharedAddress(&shared.empty[i]), kMultiplyThreads);
    }
    FenceForProducts();
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < kMultiplyThreads) {
    Multiply<kRows>(p, shared, first, end, at);
  } else {
    Fill<kRows>(p, shared, first, end, at);
  }
  cluster::Synchronize();
  cluster::AddParts<kRows, kChannels, kThreads>(
      reinterpret_cast<const float*>(shared.stage), [&](int row, int channel, float total) {
        const int t = at.t0 + row;
        if (t >= p.rows) return;
        p.y[t * p.y_step + at.group * p.y_group_step + at.n0 + channel] = EncodeBf16(total);
      });
  cluster::Synchronize();
}

}  // namespace skein::kernels::sm90::grouped
