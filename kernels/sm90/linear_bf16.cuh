// Products with bf16 weights and activations: the time is that of reading the weights once.
// A block owns 64 or 128 output channels and a part of the inputs, up to eight blocks of a cluster
// share the rest. The copy engine brings rows of both sides to shared memory, swizzled; each
// warpgroup multiplies 64 channels. Every 64 inputs are summed on tensor cores from zero and added
// in f32, so that the error is that of f32 sums; the parts of a cluster are added in order. How
// inputs are divided depends on N and K alone, and so does the order of a sum. Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/order.cuh"
#include "kernels/formats.h"
#include "kernels/sm90/arrival.cuh"
#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/cluster_sums.cuh"
#include "kernels/sm90/tensor_map.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace skein::kernels::sm90::bf16 {

inline constexpr int kLine = 64;        // inputs of a swizzled row
inline constexpr int kLineBytes = 128;  // of it
inline constexpr int kLines = 2;        // of a stage
inline constexpr int kSlice = kLines * kLine;
inline constexpr int kStep = 16;         // inputs of one product
inline constexpr int kFillThreads = 64;  // one warp asks the copy engine, one copies what it cannot

// Channels of a block: few where there are few, so that more blocks read.
constexpr int ChannelsOf(int n) { return n > 8192 ? 128 : 64; }
constexpr int SlicesOf(int k) { return (k + kSlice - 1) / kSlice; }

// Parts that the inputs are divided into: blocks for all multiprocessors, a slice each at least.
constexpr int PartsOf(int n, int k) {
  const int tiles = (n + ChannelsOf(n) - 1) / ChannelsOf(n);
  int parts = 1;
  while (parts < cluster::kMostParts && tiles * parts < 256 && SlicesOf(k) >= 2 * parts) parts *= 2;
  return parts;
}

template <int kChannels, int kRows>
struct Tile {
  // Two blocks share a multiprocessor but for the largest tile.
  static constexpr int kBlocks = kChannels * kRows > 128 * 32 ? 1 : 2;
  static constexpr int kStages =
      kBlocks == 1 ? 4 : (108 << 10) / (kSlice * 2 * (kChannels + kRows));
  static constexpr int kMultiplyThreads = kChannels * 2;
  static constexpr int kThreads = kMultiplyThreads + kFillThreads;

  struct Stage {
    uint8_t w[kLines][kChannels][kLineBytes];
    uint8_t x[kLines][kRows][kLineBytes];
  };
  struct Shared {
    Stage stage[kStages];
    uint64_t full[kStages], empty[kStages];
  };
};
inline constexpr size_t kAlignment = 1024;  // of the swizzled rows

struct Parameters {
  CUtensorMap w;
  CUtensorMap x_map;  // where x is aligned
  const uint16_t* x;
  int64_t x_step;
  uint16_t* y;  // one of the two
  float* wide;
  int64_t y_step;
  int n, k, rows, row_tiles;
  bool x_aligned;   // rows of x begin at multiples of 16 bytes
  bool accumulate;  // wide alone
};

// A slice of rows that the copy engine cannot read, by one warp; rows beyond the last stay what
// they were.
template <int kChannels, int kRows>
__device__ void BringRows(const Parameters& p, typename Tile<kChannels, kRows>::Stage& stage,
                          int slice, int t0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = 0; row < kRows && t0 + row < p.rows; ++row) {
    const uint16_t* from = p.x + (t0 + row) * p.x_step;
    for (int i = lane; i < kSlice; i += 32) {
      const int c = slice * kSlice + i;
      const int byte = i % kLine * 2;
      *reinterpret_cast<uint16_t*>(
          &stage.x[i / kLine][row][(byte / 16 ^ row % 8) * 16 + byte % 16]) =
          c < p.k ? from[c] : uint16_t{0};
    }
  }
}

// Two warps fill stages: one has the copy engine bring rows, the first stages' weights before the
// kernel ahead of this one has ended; the other brings rows of x that are not aligned.
template <int kChannels, int kRows>
__device__ void Fill(const Parameters& p, typename Tile<kChannels, kRows>::Shared& shared,
                     int first, int end, int n0, int t0) {
  using T = Tile<kChannels, kRows>;
  const bool asks = static_cast<int>(threadIdx.x) < T::kMultiplyThreads + 32;
  const bool speaks = asks && threadIdx.x % 32 == 0;
  const auto ask_weights = [&](int slice, uint32_t at) {
    auto& stage = shared.stage[at];
    const uint32_t full = SharedAddress(&shared.full[at]);
    ArriveExpecting(full, sizeof(stage.w) + (p.x_aligned ? sizeof(stage.x) : 0));
    for (int line = 0; line < kLines; ++line) {
      CopyBox(SharedAddress(stage.w[line]), p.w, (slice * kLines + line) * kLineBytes, 0, n0, full);
    }
  };
  const int ahead = min(end - first, T::kStages);
  for (int i = 0; speaks && i < ahead; ++i) ask_weights(first + i, static_cast<uint32_t>(i));
  cuda::WaitForLast();
  cuda::LetNextBegin();
  Ring<T::kStages> ring;
  for (int slice = first; slice < end; ++slice) {
    auto& stage = shared.stage[ring.stage];
    const uint32_t full = SharedAddress(&shared.full[ring.stage]);
    WaitForPhase(SharedAddress(&shared.empty[ring.stage]), ring.parity ^ 1);
    if (speaks) {
      if (slice - first >= ahead) ask_weights(slice, ring.stage);
      for (int line = 0; p.x_aligned && line < kLines; ++line) {
        CopyBox(SharedAddress(stage.x[line]), p.x_map, (slice * kLines + line) * kLineBytes, 0, t0,
                full);
      }
    }
    if (!asks) {
      if (!p.x_aligned) {
        BringRows<kChannels, kRows>(p, stage, slice, t0);
        FenceForProducts();
      }
      Arrive(full);
    }
    ring.Advance();
  }
}

// The warps that multiply; sums go to shared memory, over the stages. Two products are in flight,
// so that one is added while the other is formed.
template <int kChannels, int kRows>
__device__ void Multiply(typename Tile<kChannels, kRows>::Shared& shared, int first, int end) {
  using T = Tile<kChannels, kRows>;
  const int group = static_cast<int>(threadIdx.x) / 128;
  float sum[kRows / 2] = {};
  float part[2][kRows / 2];
  Ring<T::kStages> ring;
  for (int slice = first; slice < end; ++slice) {
    WaitForPhase(SharedAddress(&shared.full[ring.stage]), ring.parity);
    const auto& stage = shared.stage[ring.stage];
    const auto add = [&](int line) {
      wgmma::Settle(part[line % 2]);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) sum[i] += part[line % 2][i];
    };
#pragma unroll
    for (int line = 0; line < kLines; ++line) {
      const uint64_t w = wgmma::SwizzledOperand(SharedAddress(stage.w[line][group * 64]));
      const uint64_t x = wgmma::SwizzledOperand(SharedAddress(stage.x[line]));
      wgmma::Fence();
      wgmma::ProductBf16<false>(part[line % 2], w, x);
#pragma unroll
      for (uint32_t i = 1; i < kLine / kStep; ++i) {
        wgmma::ProductBf16<true>(part[line % 2], wgmma::Advance(w, i * kStep * 2),
                                 wgmma::Advance(x, i * kStep * 2));
      }
      wgmma::Commit();
      if (line == 0) continue;
      wgmma::Wait<1>();
      add(line - 1);
    }
    wgmma::Wait<0>();
    add(kLines - 1);
    Arrive(SharedAddress(&shared.empty[ring.stage]));
    ring.Advance();
  }
  // All of the block's products are done before the stages are written.
  asm volatile("bar.sync 1, %0;" ::"n"(T::kMultiplyThreads) : "memory");
  auto* sums = reinterpret_cast<float*>(shared.stage);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int channel = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    sums[row * kChannels + channel + i / 2 % 2 * 8] = sum[i];
  }
}

template <int kChannels, int kRows>
__global__ void __launch_bounds__(Tile<kChannels, kRows>::kThreads, Tile<kChannels, kRows>::kBlocks)
    LinearBf16Kernel(const __grid_constant__ Parameters p) {
  using T = Tile<kChannels, kRows>;
  extern __shared__ uint8_t memory[];
  const uint32_t base = SharedAddress(memory);
  auto& shared = *reinterpret_cast<typename T::Shared*>(memory + (-base & (kAlignment - 1)));
  const int parts = static_cast<int>(cluster::Size());
  const int rank = static_cast<int>(cluster::Rank());
  // Tiles of rows that share weights follow each other.
  const int tile = static_cast<int>(blockIdx.x) / parts;
  const int n0 = tile / p.row_tiles * kChannels;
  const int t0 = tile % p.row_tiles * kRows;
  const int slices = SlicesOf(p.k);
  const int first = rank * slices / parts;
  const int end = (rank + 1) * slices / parts;
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      // The lane that asks the copy engine, and the lanes of the other warp.
      InitArrivals(SharedAddress(&shared.full[i]), 1 + 32);
      InitArrivals(SharedAddress(&shared.empty[i]), T::kMultiplyThreads);
    }
    FenceForProducts();
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < T::kMultiplyThreads) {
    Multiply<kChannels, kRows>(shared, first, end);
  } else {
    Fill<kChannels, kRows>(p, shared, first, end, n0, t0);
  }
  cluster::Synchronize();
  cluster::AddParts<kRows, kChannels, T::kThreads>(reinterpret_cast<const float*>(shared.stage),
                                                   [&](int row, int channel, float total) {
                                                     const int n = n0 + channel;
                                                     const int t = t0 + row;
                                                     if (n >= p.n || t >= p.rows) return;
                                                     if (p.wide == nullptr) {
                                                       p.y[t * p.y_step + n] = EncodeBf16(total);
                                                     } else {
                                                       float* at = p.wide + t * p.y_step + n;
                                                       *at = p.accumulate ? *at + total : total;
                                                     }
                                                   });
  cluster::Synchronize();
}

}  // namespace skein::kernels::sm90::bf16
