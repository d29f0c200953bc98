// Products of few rows with e4m3 weights and activations, both scaled per 32 inputs: the time is
// that of reading the weights once.
// A block owns 64 output channels and a part of the inputs, up to eight blocks of a cluster share
// the rest; codes of both sides go to shared memory as they are and are the operands of warpgroup
// products, each one unit of 32 inputs from zero, whose sum times both scales is added in f32
// (catalogue 13.3 K1). The parts of a cluster are added in order. How inputs are divided depends on
// N and K alone, and so does the order of a sum. Device code.
#pragma once

#include <cstdint>

#include "kernels/formats.h"
#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace skein::kernels::sm90::fp8 {

inline constexpr int kUnit = 32;    // inputs under one scale
inline constexpr int kLine = 128;   // inputs of a swizzled row
inline constexpr int kSlice = 256;  // inputs of a stage
inline constexpr int kUnits = kSlice / kUnit;
inline constexpr int kLines = kSlice / kLine;
inline constexpr int kChannels = 64;  // of a block
inline constexpr int kThreads = 128;
inline constexpr int kStages = 3;
inline constexpr int kMostParts = 8;

// Parts that the inputs are divided into: blocks for all multiprocessors, two slices each.
constexpr int PartsOf(int n, int k) {
  const int tiles = (n + kChannels - 1) / kChannels;
  int parts = 1;
  while (parts < kMostParts && tiles * parts < 512 && k / kSlice >= 4 * parts) parts *= 2;
  return parts;
}

template <int kRows>
struct Stage {
  uint8_t w[kLines][kChannels][kLine];
  uint8_t x[kLines][kRows][kLine];
};

template <int kRows>
struct Shared {
  Stage<kRows> stage[kStages];
  float x_scale[kStages][kUnits][kRows];
  float w_scale[kStages][kUnits][2];
};
inline constexpr size_t kAlignment = 1024;  // of the swizzled rows

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
  int n, k, rows;
  bool x_aligned;  // rows of x begin at multiples of 16 bytes
};

// A thread's part of a stage: codes are copied aside, scales pass through registers. Channels and
// rows beyond the last are computed from it and not stored.
template <int kRows>
class Loader {
 public:
  __device__ Loader(const Parameters& p, Shared<kRows>& shared, int n0, int t0)
      : p_(p), shared_(shared), n0_(n0), t0_(t0) {}

  __device__ void Codes(int slice, int stage) const {
    Stage<kRows>& to = shared_.stage[stage];
    CopyRows<kChannels>(p_.w, p_.w_step, n0_, p_.n, slice, true, &to.w[0][0][0]);
    CopyRows<kRows>(p_.x, p_.x_step, t0_, p_.rows, slice, p_.x_aligned, &to.x[0][0][0]);
  }
  __device__ void FetchScales(int slice) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = i * kThreads + static_cast<int>(threadIdx.x);
      const int64_t row = min(t0_ + item % kRows, p_.rows - 1);
      if (item < kRows * kUnits) {
        x_scale_[i] = p_.x_scale[row * p_.x_scale_step + slice * kUnits + item / kRows];
      }
    }
    if (threadIdx.x < 2 * kUnits) {
      const int64_t row = min(n0_ / kUnit + static_cast<int>(threadIdx.x) % 2, (p_.n - 1) / kUnit);
      w_scale_ = p_.w_scale[row * p_.w_scale_step + slice * kUnits + threadIdx.x / 2];
    }
  }
  __device__ void StoreScales(int stage) const {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = i * kThreads + static_cast<int>(threadIdx.x);
      if (item < kRows * kUnits) {
        (&shared_.x_scale[stage][0][0])[item] = DecodeE8m0(static_cast<uint8_t>(x_scale_[i]));
      }
    }
    if (threadIdx.x < 2 * kUnits) {
      (&shared_.w_scale[stage][0][0])[threadIdx.x] = DecodeE8m0(static_cast<uint8_t>(w_scale_));
    }
  }

 private:
  static constexpr int kPerThread = (kRows * kUnits + kThreads - 1) / kThreads;

  template <int kCount>
  __device__ static void CopyRows(const uint8_t* from, int64_t step, int first, int end, int slice,
                                  bool aligned, uint8_t* to) {
    constexpr int kPieces = kSlice / 16;
#pragma unroll
    for (int i = 0; i < kCount * kPieces / kThreads; ++i) {
      const int item = i * kThreads + static_cast<int>(threadIdx.x);
      const int piece = item % kPieces;
      const int row = item / kPieces;
      const uint8_t* at = from + min(first + row, end - 1) * step + slice * kSlice + piece * 16;
      uint8_t* target =
          to + piece / 8 * (kCount * kLine) + row * kLine + (piece % 8 ^ row % 8) * 16;
      if (aligned) {
        CopyAsync16(SharedAddress(target), at);
      } else {
        for (int j = 0; j < 16; ++j) target[j] = at[j];
      }
    }
  }

  const Parameters& p_;
  Shared<kRows>& shared_;
  int n0_, t0_;
  uint32_t x_scale_[kPerThread] = {};
  uint32_t w_scale_ = 0;
};

// Adds a stage to the sums.
template <int kRows>
__device__ void AddStage(const Shared<kRows>& shared, int stage, float (&sum)[kRows / 2]) {
  constexpr int kColumns = kRows < 32 ? kRows : 32;  // of one product
  constexpr int kParts = kRows / kColumns;
  constexpr int kSteps = kUnits * kParts;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const float* x_scale = &shared.x_scale[stage][0][static_cast<int>(threadIdx.x) % 4 * 2];
  const float* w_scale = &shared.w_scale[stage][0][warp / 2];
  const uint64_t w = wgmma::SwizzledOperand(SharedAddress(shared.stage[stage].w));
  const uint64_t x = wgmma::SwizzledOperand(SharedAddress(shared.stage[stage].x));
  float part[2][kColumns / 2];
  const auto add = [&](int step) {
    wgmma::Settle(part[step % 2]);
    const int unit = step / kParts;
    const float scale = w_scale[unit * 2];
#pragma unroll
    for (int tile = 0; tile < kColumns / 8; ++tile) {
      const int column = step % kParts * kColumns + tile * 8;
      const float2 s = *reinterpret_cast<const float2*>(x_scale + unit * kRows + column);
      const float left = scale * s.x, right = scale * s.y;
      float* to = sum + column / 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[i] = fmaf(part[step % 2][tile * 4 + i], i % 2 == 0 ? left : right, to[i]);
      }
    }
  };
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int unit = step / kParts;
    const int line = unit * kUnit / kLine;
    const int inside = unit * kUnit % kLine;
    const uint32_t w_at = static_cast<uint32_t>(line * kChannels * kLine + inside);
    const uint32_t x_at =
        static_cast<uint32_t>((line * kRows + step % kParts * kColumns) * kLine + inside);
    wgmma::Fence();
    wgmma::Product(part[step % 2], w + (w_at >> 4), x + (x_at >> 4));
    wgmma::Commit();
    if (step > 0) {
      wgmma::Wait<1>();
      add(step - 1);
    }
  }
  wgmma::Wait<0>();
  add(kSteps - 1);
}

// Adds the sums of the cluster's blocks in order, each block a part of the rows, and stores them.
template <int kRows>
__device__ void StoreSums(const Parameters& p, float* sums, const float (&sum)[kRows / 2], int n0,
                          int t0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int channel = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    sums[row * kChannels + channel + i / 2 % 2 * 8] = sum[i];
  }
  const int parts = static_cast<int>(cluster::Size());
  const int rank = static_cast<int>(cluster::Rank());
  cluster::Synchronize();
  const int rows = kRows / parts;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kChannels; i += kThreads) {
    const int at = rank * rows * kChannels + i;
    float total = 0;
    for (int part = 0; part < parts; ++part) {
      total += cluster::Load(SharedAddress(sums + at), static_cast<uint32_t>(part));
    }
    const int n = n0 + at % kChannels;
    const int t = t0 + at / kChannels;
    if (n < p.n && t < p.rows) p.y[t * p.y_step + n] = EncodeBf16(total);
  }
  cluster::Synchronize();
}

template <int kRows>
__global__ void __launch_bounds__(kThreads) LinearFp8Kernel(const __grid_constant__ Parameters p) {
  extern __shared__ uint8_t memory[];
  const uint32_t base = SharedAddress(memory);
  auto& shared = *reinterpret_cast<Shared<kRows>*>(memory + (-base & (kAlignment - 1)));
  const int parts = static_cast<int>(cluster::Size());
  const int rank = static_cast<int>(cluster::Rank());
  const int n0 = static_cast<int>(blockIdx.x) / parts * kChannels;
  const int t0 = static_cast<int>(blockIdx.y) * kRows;
  const int slices = p.k / kSlice;
  const int first = rank * slices / parts;
  const int end = (rank + 1) * slices / parts;
  Loader<kRows> loader(p, shared, n0, t0);
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (first + stage < end) loader.Codes(first + stage, stage);
    CommitCopies();
  }
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (first + stage >= end) break;
    loader.FetchScales(first + stage);
    loader.StoreScales(stage);
  }
  float sum[kRows / 2] = {};
  int stage = 0;
  for (int slice = first; slice < end; ++slice) {
    WaitForCopies<kStages - 2>();
    FenceForProducts();
    __syncthreads();
    const int ahead = slice + kStages - 1;
    const int next = stage == 0 ? kStages - 1 : stage - 1;
    if (ahead < end) {
      loader.Codes(ahead, next);
      loader.FetchScales(ahead);
    }
    CommitCopies();
    AddStage<kRows>(shared, stage, sum);
    if (ahead < end) loader.StoreScales(next);
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  __syncthreads();
  StoreSums<kRows>(p, reinterpret_cast<float*>(shared.stage), sum, n0, t0);
}

}  // namespace skein::kernels::sm90::fp8
