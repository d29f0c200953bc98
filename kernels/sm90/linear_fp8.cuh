// Products with e4m3 weights and activations, both scaled per 32 inputs: for few rows the time is
// that of reading the weights once.
// A block owns 128 output channels and a part of the inputs, up to eight blocks of a cluster share
// the rest. The copy engine brings codes of both sides to shared memory as they are; eight warps
// multiply: codes are the operands of warpgroup products, each one unit of 32 inputs from zero,
// whose sum times both scales is added in f32 (catalogue 13.3 K1). The parts of a cluster are added
// in order. Up to 64 rows all blocks run at once, one a multiprocessor, which take tile after tile
// where there are no parts to add; with more rows and tiles enough a block takes all parts, one
// after the other. How inputs are divided depends on N and K alone, and so does the order of a sum.
// Device code.
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

namespace skein::kernels::sm90::fp8 {

inline constexpr int kUnit = 32;    // inputs under one scale
inline constexpr int kLine = 128;   // inputs of a swizzled row
inline constexpr int kSlice = 256;  // inputs of a stage
inline constexpr int kUnits = kSlice / kUnit;
inline constexpr int kLines = kSlice / kLine;
inline constexpr int kChannels = 128;  // of a block, 64 of a warpgroup
inline constexpr int kMultiplyThreads = 256;
inline constexpr int kThreads = kMultiplyThreads + 128;

// Parts that the inputs are divided into: blocks for half of the multiprocessors at least, two
// slices each. Larger clusters would not all find room at once.
constexpr int PartsOf(int n, int k) {
  const int tiles = (n + kChannels - 1) / kChannels;
  int parts = 1;
  while (parts < cluster::kMostParts && tiles * parts < 64 && k / kSlice >= 4 * parts) parts *= 2;
  return parts;
}

template <int kRows>
struct Stage {
  uint8_t w[kLines][kChannels][kLine];
  uint8_t x[kLines][kRows][kLine];
};

// Blocks of a multiprocessor, which share its memory and registers: with few rows the next kernel's
// can begin beside this one's last ones. Stages in flight.
constexpr int BlocksOf(int rows) { return rows > 16 ? 1 : 2; }
constexpr int StagesOf(int rows) { return rows > 64 ? 3 : rows > 32 ? 4 : rows > 16 ? 5 : 3; }
// Registers of a tile of 128 rows: threads that multiply take some of those that fill.
inline constexpr int kMultiplyRegisters = 208;
inline constexpr int kFillRegisters = 88;

// Whether blocks of so many rows take tile after tile.
constexpr bool Stays(int rows) { return rows <= 64; }

template <int kRows>
struct Shared {
  static constexpr int kStages = StagesOf(kRows);
  Stage<kRows> stage[kStages];
  float x_scale[kStages][kUnits][kRows];
  float w_scale[kStages][kUnits][kChannels / kUnit];
  uint64_t full[kStages], empty[kStages];
};
inline constexpr size_t kAlignment = 1024;  // of the swizzled rows

struct Parameters {
  CUtensorMap w;
  CUtensorMap x_map;  // where x is aligned
  const uint8_t* w_scale;
  int64_t w_scale_step;
  const uint8_t* x;
  int64_t x_step;
  const uint8_t* x_scale;
  int64_t x_scale_step;
  uint16_t* y;
  int64_t y_step;
  int n, k, rows, row_tiles;
  int parts;  // of the inputs; a cluster has as many blocks, or one that takes one after the other
  int tiles;  // of channels and rows
  bool x_aligned;        // rows of x begin at multiples of 16 bytes
  bool x_scale_aligned;  // and of its scales of 4
};

// A slice of rows that the copy engine cannot read, by one warp; rows beyond the last stay what
// they were.
template <int kRows>
__device__ void BringRows(const Parameters& p, Stage<kRows>& stage, int slice, int t0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = 0; row < kRows && t0 + row < p.rows; ++row) {
    const uint8_t* from = p.x + (t0 + row) * p.x_step + int64_t{slice} * kSlice;
    for (int i = lane; i < kSlice; i += 32) {
      stage.x[i / kLine][row][(i % kLine / 16 ^ row % 8) * 16 + i % 16] = from[i];
    }
  }
}

__device__ inline float ScaleOf(uint32_t byte) {
  const float value = __uint_as_float(byte == 0 ? 0x00400000u : byte << 23);
  return byte == 255 ? __uint_as_float(0x7FC00000u) : value;
}

// Scales of a slice on their way to a stage as f32, by two warps: a lane has four units of up to
// two rows of activations, and of the first warp one of the weights.
template <int kRows>
struct Scales {
  static constexpr int kItems = kRows * (kUnits / 4);
  static constexpr int kBlocks = kChannels / kUnit;
  uint32_t x[(kItems + 63) / 64];
  uint32_t w;

  __device__ void Fetch(const Parameters& p, int slice, int n0, int t0, int thread) {
#pragma unroll
    for (int i = 0; i < (kItems + 63) / 64; ++i) {
      const int item = i * 64 + thread;
      const int64_t row = min(t0 + item % kRows, p.rows - 1);
      const uint8_t* from =
          p.x_scale + row * p.x_scale_step + slice * kUnits + min(item / kRows, 1) * 4;
      x[i] = p.x_scale_aligned ? *reinterpret_cast<const uint32_t*>(from)
                               : from[0] | from[1] << 8 | from[2] << 16 | uint32_t{from[3]} << 24;
    }
    if (thread >= 32) return;
    const int64_t row = min(n0 / kUnit + thread % kBlocks, (p.n - 1) / kUnit);
    w = p.w_scale[row * p.w_scale_step + slice * kUnits + thread / kBlocks];
  }
  __device__ void Store(float* x_scale, float* w_scale, int thread) const {
#pragma unroll
    for (int i = 0; i < (kItems + 63) / 64; ++i) {
      const int item = i * 64 + thread;
      if (item >= kItems) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x_scale[(item / kRows * 4 + j) * kRows + item % kRows] = ScaleOf(x[i] >> (8 * j) & 255);
      }
    }
    if (thread < 32) w_scale[thread] = ScaleOf(w);
  }
};

// What a block does: slices [first, end) of the tiles [tile, tiles) that are `stride` apart.
struct Work {
  int first, end;
  int tile, tiles, stride;

  __device__ Work(const Parameters& p)
      : first(static_cast<int>(cluster::Rank()) * (p.k / kSlice) /
              static_cast<int>(cluster::Size())),
        end(static_cast<int>(cluster::Rank() + 1) * (p.k / kSlice) /
            static_cast<int>(cluster::Size())),
        tile(static_cast<int>(blockIdx.x / cluster::Size())),
        tiles(p.tiles),
        stride(static_cast<int>(gridDim.x / cluster::Size())) {}
  __device__ int slices() const { return end - first; }
  __device__ int items() const { return (tiles - tile + stride - 1) / stride * slices(); }
};

// The warps that fill stages: one has the copy engine bring codes, the first stages' weights before
// the kernel ahead of this one has ended; two bring scales, one the activations that are not
// aligned.
template <int kRows>
__device__ void Fill(const Parameters& p, Shared<kRows>& shared, const Work& work) {
  constexpr int kStages = Shared<kRows>::kStages;
  const int warp = (static_cast<int>(threadIdx.x) - kMultiplyThreads) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool speaks = warp == 0 && lane == 0;
  // Tiles of rows that share weights follow each other.
  const auto channel_of = [&](int tile) { return tile / p.row_tiles * kChannels; };
  const auto ask_weights = [&](int n0, int slice, int at) {
    Stage<kRows>& stage = shared.stage[at];
    const uint32_t full = SharedAddress(&shared.full[at]);
    ArriveExpecting(full, sizeof(stage.w) + (p.x_aligned ? sizeof(stage.x) : 0));
    for (int line = 0; line < kLines; ++line) {
      CopyBox(SharedAddress(stage.w[line]), p.w, slice * kSlice + line * kLine, 0, n0, full);
    }
  };
  const int ahead = min(work.items(), kStages);
  for (int i = 0; speaks && i < ahead; ++i) {
    ask_weights(channel_of(work.tile + i / work.slices() * work.stride),
                work.first + i % work.slices(), i);
  }
  cuda::WaitForLast();
  cuda::LetNextBegin();
  Ring<kStages> ring;
  int item = 0;
#pragma unroll 1
  for (int tile = work.tile; tile < work.tiles; tile += work.stride) {
    const int n0 = channel_of(tile);
    const int t0 = tile % p.row_tiles * kRows;
#pragma unroll 1
    for (int slice = work.first; slice < work.end; ++slice, ++item) {
      const auto at = static_cast<int>(ring.stage);
      Stage<kRows>& stage = shared.stage[at];
      const uint32_t full = SharedAddress(&shared.full[at]);
      Scales<kRows> scales;
      if (warp >= 2) scales.Fetch(p, slice, n0, t0, (warp - 2) * 32 + lane);
      WaitForPhase(SharedAddress(&shared.empty[at]), ring.parity ^ 1);
      if (speaks) {
        if (item >= ahead) ask_weights(n0, slice, at);
        for (int line = 0; p.x_aligned && line < kLines; ++line) {
          CopyBox(SharedAddress(stage.x[line]), p.x_map, slice * kSlice + line * kLine, 0, t0,
                  full);
        }
      }
      if (warp == 1 && !p.x_aligned) {
        BringRows<kRows>(p, stage, slice, t0);
        FenceForProducts();
      }
      if (warp >= 2) {
        scales.Store(&shared.x_scale[at][0][0], &shared.w_scale[at][0][0], (warp - 2) * 32 + lane);
      }
      if (warp > 0) Arrive(full);
      ring.Advance();
    }
  }
}

// Adds a stage to the sums. Up to 64 rows, two products of a warpgroup are in flight, so that one
// is added while the other is formed; with more, other warpgroups multiply meanwhile.
template <int kRows>
__device__ void AddStage(const Shared<kRows>& shared, int stage, float (&sum)[kRows / 2]) {
  constexpr int kInFlight = kRows > 64 ? 1 : 2;
  const int warp = static_cast<int>(Uniform(threadIdx.x / 32));
  const float* x_scale = &shared.x_scale[stage][0][static_cast<int>(threadIdx.x) % 4 * 2];
  const float* w_scale = &shared.w_scale[stage][0][warp / 2];
  const uint64_t w = wgmma::SwizzledOperand(SharedAddress(shared.stage[stage].w[0][warp / 4 * 64]));
  const uint64_t x = wgmma::SwizzledOperand(SharedAddress(shared.stage[stage].x));
  float part[kInFlight][kRows / 2];
  const auto add = [&](int unit) {
    constexpr int kTiles = kRows / 8;
    constexpr int kEarly = kTiles <= 8 ? kTiles : 1;
    // Scales are fetched while the product is formed, as far as registers go.
    const float scale = w_scale[unit * (kChannels / kUnit)];
    const auto x_scales = [&](int tile) {
      return *reinterpret_cast<const float2*>(x_scale + unit * kRows + tile * 8);
    };
    float2 early[kEarly];
#pragma unroll
    for (int tile = 0; tile < kEarly; ++tile) early[tile] = x_scales(tile);
    if (unit + 1 < kUnits && kInFlight > 1) {
      wgmma::Wait<1>();
    } else {
      wgmma::Wait<0>();
    }
    wgmma::Settle(part[unit % kInFlight]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float2 s = tile < kEarly ? early[tile] : x_scales(tile);
      const float left = scale * s.x, right = scale * s.y;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float from = part[unit % kInFlight][tile * 4 + i];
        sum[tile * 4 + i] = fmaf(from, i % 2 == 0 ? left : right, sum[tile * 4 + i]);
      }
    }
  };
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    const int line = unit * kUnit / kLine;
    const auto inside = static_cast<uint32_t>(unit * kUnit % kLine);
    wgmma::Fence();
    wgmma::Product(part[unit % kInFlight],
                   wgmma::Advance(w, static_cast<uint32_t>(line * kChannels * kLine) + inside),
                   wgmma::Advance(x, static_cast<uint32_t>(line * kRows * kLine) + inside));
    wgmma::Commit();
    if (kInFlight == 1) {
      add(unit);
    } else if (unit > 0) {
      add(unit - 1);
    }
  }
  if (kInFlight > 1) add(kUnits - 1);
}

// Sum i of a thread: its row and channel in the tile.
__device__ inline int RowOf(int i) {
  return i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
}
__device__ inline int ChannelOf(int i) {
  return static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 +
         i / 2 % 2 * 8;
}

// The warps that multiply; sums go to shared memory, over the stages. Those of parts are added as
// a cluster adds them, also where one block has all.
template <int kRows>
__device__ void Multiply(const Parameters& p, Shared<kRows>& shared, const Work& work) {
  constexpr bool kWhole = kRows > 64;
  const int slices = p.k / kSlice;
  float sum[kRows / 2] = {};
  float total[kWhole ? kRows / 2 : 1] = {};
  int part = 0;
  Ring<Shared<kRows>::kStages> ring;
#pragma unroll 1
  for (int tile = work.tile; tile < work.tiles; tile += work.stride) {
#pragma unroll 1
    for (int slice = work.first; slice < work.end; ++slice) {
      WaitForPhase(SharedAddress(&shared.full[ring.stage]), ring.parity);
      AddStage<kRows>(shared, static_cast<int>(ring.stage), sum);
      Arrive(SharedAddress(&shared.empty[ring.stage]));
      ring.Advance();
      if constexpr (kWhole) {
        if (cluster::Size() > 1 || slice + 1 < (part + 1) * slices / p.parts) continue;
        ++part;
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) {
          total[i] += sum[i];
          sum[i] = part < p.parts ? 0.0f : total[i];
        }
      }
    }
    if constexpr (Stays(kRows)) {
      if (cluster::Size() > 1) break;
      const int n0 = tile * kChannels;
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        const int n = n0 + ChannelOf(i);
        const int t = RowOf(i);
        if (n < p.n && t < p.rows) p.y[t * p.y_step + n] = EncodeBf16(0.0f + sum[i]);
        sum[i] = 0;
      }
    }
  }
  if (Stays(kRows) && cluster::Size() == 1) return;
  // All of the block's products are done before the stages are written.
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiplyThreads) : "memory");
  auto* sums = reinterpret_cast<float*>(shared.stage);
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) sums[RowOf(i) * kChannels + ChannelOf(i)] = sum[i];
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, BlocksOf(kRows))
    LinearFp8Kernel(const __grid_constant__ Parameters p) {
  extern __shared__ uint8_t memory[];
  const uint32_t base = SharedAddress(memory);
  auto& shared = *reinterpret_cast<Shared<kRows>*>(memory + (-base & (kAlignment - 1)));
  const Work work(p);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared<kRows>::kStages; ++i) {
      // The lane that asks the copy engine, and all lanes of the other three warps.
      InitArrivals(SharedAddress(&shared.full[i]), 1 + 3 * 32);
      InitArrivals(SharedAddress(&shared.empty[i]), kMultiplyThreads);
    }
    FenceForProducts();
  }
  __syncthreads();
  // The same for all lanes, and known to be.
  const int group = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0);
  if (group < kMultiplyThreads / 128) {
    if constexpr (kRows > 64) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplyRegisters));
    }
    Multiply<kRows>(p, shared, work);
  } else {
    if constexpr (kRows > 64) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kFillRegisters));
    }
    Fill<kRows>(p, shared, work);
  }
  if (Stays(kRows) && cluster::Size() == 1) return;
  const int n0 = work.tile / p.row_tiles * kChannels;
  const int t0 = work.tile % p.row_tiles * kRows;
  cluster::Synchronize();
  cluster::AddParts<kRows, kChannels, kThreads>(reinterpret_cast<const float*>(shared.stage),
                                                [&](int row, int channel, float total) {
                                                  const int n = n0 + channel;
                                                  const int t = t0 + row;
                                                  if (n < p.n && t < p.rows)
                                                    p.y[t * p.y_step + n] = EncodeBf16(total);
                                                });
  cluster::Synchronize();
}

}  // namespace skein::kernels::sm90::fp8
