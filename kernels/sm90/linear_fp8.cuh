// Products with e4m3 weights and activations, both scaled per 32 inputs: for few rows the time is
// that of reading the weights once.
// A block owns 128 output channels and a part of the inputs, up to eight blocks of a cluster share
// the rest. The copy engine brings codes of both sides to shared memory as they are; eight warps
// multiply: codes are the operands of warpgroup products, each one unit of 32 inputs from zero,
// whose sum times both scales is added in f32 (catalogue 13.3 K1). The parts of a cluster are added
// in order. Up to 64 rows all blocks run at once, one or two a multiprocessor, which take tile
// after tile where there are no parts to add; with more rows and tiles enough a block takes all
// parts, one after the other. How inputs are divided depends on N and K alone, and so does the
// order of a sum.
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

// Parts that the inputs are divided into, two slices each: about 100 blocks. More would not find
// room at once, as clusters, on 132 multiprocessors.
constexpr int PartsOf(int n, int k) {
  const int tiles = (n + kChannels - 1) / kChannels;
  const int most = 100 / tiles < k / kSlice / 2 ? 100 / tiles : k / kSlice / 2;
  return most < 1 ? 1 : most < cluster::kMostParts ? most : cluster::kMostParts;
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
  alignas(16) float x_scale[kStages][kUnits][kRows];
  alignas(16) float w_scale[kStages][kUnits][kChannels / kUnit];
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
  bool y_aligned;        // pairs of channels of y lie in words
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

// With 64 rows and more these are the first operand of products, with fewer the channels: a product
// has 64 of the first and any number of the second. A lane then has two rows and many channels,
// which share scales by 32, so that fewer scales are fetched and multiplied.
constexpr bool RowsFirst(int rows) { return rows >= 64; }
// The rows or channels that a warpgroup begins with.
template <int kRows>
__device__ int FirstRow(int warp) {
  return kRows == 128 ? warp / 4 * 64 : 0;
}
template <int kRows>
__device__ int FirstChannel(int warp) {
  return kRows == 128 ? 0 : warp / 4 * 64;
}

// Sum i of a thread: its row and channel in the tile.
template <int kRows>
__device__ int RowOf(int i) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (!RowsFirst(kRows)) return i / 4 * 8 + lane % 4 * 2 + i % 2;
  return FirstRow<kRows>(warp) + warp % 4 * 16 + lane / 4 + i / 2 % 2 * 8;
}
template <int kRows>
__device__ int ChannelOf(int i) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (!RowsFirst(kRows)) return warp * 16 + lane / 4 + i / 2 % 2 * 8;
  return FirstChannel<kRows>(warp) + i / 4 * 8 + lane % 4 * 2 + i % 2;
}

// The scales of a unit that a thread needs. By rows: of both rows and of each 32 channels. By
// channels: of them and of each row.
template <int kRows>
struct UnitScales {
  static constexpr bool kRowsFirst = RowsFirst(kRows);
  static constexpr int kFactors = kRows / 8 / (kRowsFirst ? 4 : 1);
  float one[kRowsFirst ? kFactors : 1];  // of channels
  float2 two[kRowsFirst ? 1 : kFactors];

  __device__ void Fetch(const float* x_scale, const float* w_scale) {
#pragma unroll
    for (float& w : one) w = *w_scale++;
    if constexpr (kRowsFirst) {
      two[0] = {x_scale[0], x_scale[8]};
    } else {
#pragma unroll
      for (int i = 0; i < kFactors; ++i) two[i] = *reinterpret_cast<const float2*>(x_scale + i * 8);
    }
  }
  // Adds the unit's product to the sums.
  __device__ void Add(const float (&part)[kRows / 2], float (&sum)[kRows / 2]) const {
    float2 scale[kFactors];
#pragma unroll
    for (int i = 0; i < kFactors; ++i) {
      const float w = one[kRowsFirst ? i : 0];
      const float2 x = two[kRowsFirst ? 0 : i];
      scale[i] = {x.x * w, x.y * w};
    }
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const float2 s = scale[kRowsFirst ? i / 16 : i / 4];
      const bool second = kRowsFirst ? i / 2 % 2 != 0 : i % 2 != 0;
      sum[i] = fmaf(part[i], second ? s.y : s.x, sum[i]);
    }
  }
};

// Adds a stage to the sums. Up to 64 rows, two products of a warpgroup are in flight, so that one
// is added while the other is formed; with more, other warpgroups multiply meanwhile.
template <int kRows>
__device__ void AddStage(const Shared<kRows>& shared, int stage, float (&sum)[kRows / 2]) {
  constexpr int kInFlight = kRows > 64 ? 1 : 2;
  const int warp = static_cast<int>(Uniform(threadIdx.x / 32));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = FirstRow<kRows>(warp);
  const int first_channel = FirstChannel<kRows>(warp);
  const float* x_scale =
      &shared.x_scale[stage][0]
                     [RowsFirst(kRows) ? first_row + warp % 4 * 16 + lane / 4 : lane % 4 * 2];
  const float* w_scale =
      &shared.w_scale[stage][0][RowsFirst(kRows) ? first_channel / kUnit : warp / 2];
  const Stage<kRows>& from = shared.stage[stage];
  const uint64_t w = wgmma::SwizzledOperand(SharedAddress(from.w[0][first_channel]));
  const uint64_t x = wgmma::SwizzledOperand(SharedAddress(from.x[0][first_row]));
  float part[kInFlight][kRows / 2];
  UnitScales<kRows> scales[2];
  const auto fetch = [&](int unit) {
    scales[unit % 2].Fetch(x_scale + unit * kRows, w_scale + unit * (kChannels / kUnit));
  };
  const auto add = [&](int unit) {
    if (unit + 1 < kUnits && kInFlight > 1) {
      wgmma::Wait<1>();
    } else {
      wgmma::Wait<0>();
    }
    wgmma::Settle(part[unit % kInFlight]);
    scales[unit % 2].Add(part[unit % kInFlight], sum);
  };
  if (kInFlight == 1) fetch(0);
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    const int line = unit * kUnit / kLine;
    const auto inside = static_cast<uint32_t>(unit * kUnit % kLine);
    const uint64_t channels =
        wgmma::Advance(w, static_cast<uint32_t>(line * kChannels * kLine) + inside);
    const uint64_t rows = wgmma::Advance(x, static_cast<uint32_t>(line * kRows * kLine) + inside);
    wgmma::Fence();
    wgmma::Product(part[unit % kInFlight], RowsFirst(kRows) ? rows : channels,
                   RowsFirst(kRows) ? channels : rows);
    wgmma::Commit();
    // A unit's scales are on their way while others are added.
    if (kInFlight == 1) {
      if (unit + 1 < kUnits) fetch(unit + 1);
      add(unit);
    } else {
      fetch(unit);
      if (unit > 0) add(unit - 1);
    }
  }
  if (kInFlight > 1) add(kUnits - 1);
}

// Stores a tile's sums from channel n0 on, and begins new ones.
template <int kRows>
__device__ void StoreTile(const Parameters& p, int n0, float (&sum)[kRows / 2]) {
#pragma unroll
  for (int i = 0; i < kRows / 2; i += 2) {
    const int n = n0 + ChannelOf<kRows>(i);
    const int t = RowOf<kRows>(i);
    const uint16_t first = EncodeBf16(0.0f + sum[i]), second = EncodeBf16(0.0f + sum[i + 1]);
    uint16_t* to = p.y + t * p.y_step + n;
    if (RowsFirst(kRows) && p.y_aligned && n + 1 < p.n) {
      if (t < p.rows) *reinterpret_cast<uint32_t*>(to) = first | uint32_t{second} << 16;
    } else {
      const bool same_row = RowsFirst(kRows);
      if (n < p.n && t < p.rows) *to = first;
      if (n + (same_row ? 1 : 0) < p.n && t + (same_row ? 0 : 1) < p.rows) {
        to[same_row ? 1 : p.y_step] = second;
      }
    }
    sum[i] = sum[i + 1] = 0;
  }
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
      StoreTile<kRows>(p, tile * kChannels, sum);
    }
  }
  if (Stays(kRows) && cluster::Size() == 1) return;
  // All of the block's products are done before the stages are written.
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiplyThreads) : "memory");
  auto* sums = reinterpret_cast<float*>(shared.stage);
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    sums[RowOf<kRows>(i) * kChannels + ChannelOf<kRows>(i)] = sum[i];
  }
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
