// Products of routed experts with e2m1 weights and e4m3 activations, both scaled per 32 inputs: for
// up to 32 rows of an expert the time is that of reading its weights once.
// A block owns 128 output channels of one expert and all inputs, in slices of 256 that arrive in
// shared memory up to four slices ahead; blocks stay and take the next expert's channels, so that
// the copies never stop. One warp fills stages, eight multiply; a kernel before brings activations
// into the order that products want. Codes
// become e5m2 by moving bits (2^-14 too small, exact), are the A operand of warpgroup products from
// registers, and each product is one group of 32 inputs from zero: its sum times both scales is
// added in f32 (catalogue 13.3 K1'). The order of an output's sum is that of its inputs. Weight
// scales of byte 0 count as zero; byte 255 gives infinities or NaN. Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/select.cuh"
#include "kernels/formats.h"
#include "kernels/sm90/arrival.cuh"
#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/tensor_map.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace skein::kernels::sm90::fp4 {

inline constexpr int kGroup = 32;   // inputs under one scale: 16 bytes of codes
inline constexpr int kSlice = 256;  // inputs of a stage
inline constexpr int kGroups = kSlice / kGroup;
inline constexpr int kBlockRows = 128;  // output channels of a block, 16 of a warp
inline constexpr int kMultiplyWarps = 8;
inline constexpr int kThreads = (kMultiplyWarps + 1) * 32;
inline constexpr int kStages = 4;
inline constexpr int kMostRows = 32;  // rows of an expert at a time
inline constexpr int kMostExperts = 512;
inline constexpr float kCodeScale = 16384;  // what the codes are too small by

struct Stage {
  uint8_t codes[kBlockRows][kSlice / 2];    // swizzled
  uint8_t x[kGroups * 2 * kMostRows * 16];  // group; even inputs, then odd ones; row; 16 bytes
  float x_scale[kMostRows][kGroups];
  uint32_t scale[kBlockRows][kGroups / 4];
};

struct Shared {
  Stage stage[kStages];
  uint64_t full[kStages], empty[kStages];
  int2 rows[kMostExperts];  // of the experts that have any: first, end
  uint16_t expert[kMostExperts];
  unsigned counts[cuda::kWarp];
};

inline constexpr size_t kAlignment = 1024;  // of the swizzled rows

// Addresses of all experts' weights.
struct ExpertTable {
  const uint8_t* codes[kMostExperts];
  const uint8_t* scale[kMostExperts];
};

// Activations in the order of products: of each group of inputs and each assignment the even
// inputs, then the odd ones, 16 bytes each: [k / 16][places][16]; scales as f32: [places][k / 32].
// (Boxes must begin at multiples of 16 bytes.) There are at least as many places as the largest box
// has rows.
struct Arranged {
  uint8_t* codes;
  float* scale;
  int64_t assignments, places;
};
constexpr int64_t PlacesOf(int64_t assignments) {
  return assignments < kMostRows ? kMostRows : (assignments + 3) / 4 * 4;
}
constexpr size_t ArrangedBytes(int64_t assignments, int64_t k) {
  return static_cast<size_t>(PlacesOf(assignments) * (k + k / kGroup * 4));
}

inline constexpr int kRowBoxes = 3;  // boxes of 8, 16 and 32 rows

// All of it travels as a kernel parameter, so a captured call needs no copy.
struct Parameters {
  CUtensorMap codes;                             // of all experts' codes
  CUtensorMap x[kRowBoxes], x_scale[kRowBoxes];  // of arranged activations
  int32_t place[kMostExperts];                   // of an expert in `codes`
  const uint8_t* scale[kMostExperts];
  int64_t scale_step;
  const int32_t* expert_offset;
  uint16_t* y;
  int64_t y_step;
  int n, k, num_experts;
};

struct Source {
  const uint8_t* x;
  int64_t x_step;
  const uint8_t* scale;
  int64_t scale_step;
  const int32_t* row;  // null: assignment i reads row i
  int groups;
  bool aligned;  // rows of x begin at multiples of 16 bytes
};

__device__ inline uint4 Gather(const uint8_t* from) {
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    word[i] = from[4 * i] | from[4 * i + 1] << 8 | from[4 * i + 2] << 16 |
              uint32_t{from[4 * i + 3]} << 24;
  }
  return {word[0], word[1], word[2], word[3]};
}

// A thread per group of inputs of an assignment.
__global__ void ArrangeKernel(Source from, Arranged to) {
  LetNextBegin();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t assignment = item % to.assignments;
  const int64_t group = item / to.assignments;
  if (group >= from.groups) return;
  const int64_t row = from.row == nullptr ? assignment : from.row[assignment];
  if (row < 0) return;
  const uint8_t* x = from.x + row * from.x_step + group * kGroup;
  const uint4 low = from.aligned ? *reinterpret_cast<const uint4*>(x) : Gather(x);
  const uint4 high = from.aligned ? *reinterpret_cast<const uint4*>(x + 16) : Gather(x + 16);
  auto* even = reinterpret_cast<uint4*>(to.codes) + 2 * group * to.places + assignment;
  *even = {__byte_perm(low.x, low.y, 0x6420), __byte_perm(low.z, low.w, 0x6420),
           __byte_perm(high.x, high.y, 0x6420), __byte_perm(high.z, high.w, 0x6420)};
  even[to.places] = {__byte_perm(low.x, low.y, 0x7531), __byte_perm(low.z, low.w, 0x7531),
                     __byte_perm(high.x, high.y, 0x7531), __byte_perm(high.z, high.w, 0x7531)};
  to.scale[assignment * from.groups + group] =
      DecodeE8m0(from.scale[row * from.scale_step + group]);
}

// Where a warp is: up to 32 rows of an expert, for a block of channels.
struct Cursor {
  int item, n0, begin, end, live;
};

struct Work {
  int items, blocks, slices;

  __device__ void Open(Cursor& at, const Shared& shared) const {
    if (at.item >= items) return;
    at.live = at.item / blocks;
    at.n0 = (at.item - at.live * blocks) * kBlockRows;
    const int2 rows = shared.rows[at.live];
    at.begin = rows.x;
    at.end = rows.y;
  }
  // The next rows or channels.
  __device__ void Advance(Cursor& at, const Shared& shared) const {
    at.begin += kMostRows;
    if (at.begin < at.end) return;
    at.item += static_cast<int>(gridDim.x);
    Open(at, shared);
  }
};

// The experts that have rows, in order, with their rows. All threads call it.
__device__ inline int FindLive(const Parameters& p, Shared& shared) {
  unsigned live = 0;
  for (int base = 0; base < p.num_experts; base += kThreads) {
    const int e = base + static_cast<int>(threadIdx.x);
    int2 rows = {0, 0};
    if (e < p.num_experts) rows = {p.expert_offset[e], p.expert_offset[e + 1]};
    const cuda::Position place = cuda::BlockCount(rows.y > rows.x, shared.counts);
    if (rows.y > rows.x) {
      shared.rows[live + place.before] = rows;
      shared.expert[live + place.before] = static_cast<uint16_t>(e);
    }
    live += place.total;
  }
  __syncthreads();
  return static_cast<int>(live);
}

// The box of rows that a tile needs: 8, 16 or 32.
__device__ inline int BoxOf(int rows) { return rows <= 8 ? 0 : rows <= 16 ? 1 : 2; }

// The warp that fills stages: the copy engine brings codes of both sides and scales of rows, the
// lanes copy scales of weights.
__device__ inline void Fill(const Parameters& p, const Work& work, Shared& shared) {
  constexpr int kPieces = kBlockRows / 16;
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int groups = p.k / kGroup;
  if (lane == 0) PrefetchMap(p.codes);
  Cursor at = {};
  at.item = static_cast<int>(blockIdx.x);
  work.Open(at, shared);
  Ring<kStages> ring;
  bool arranged = false;
  while (at.item < work.items) {
    const int expert = shared.expert[at.live];
    const int place = p.place[expert];
    const int box = BoxOf(at.end - at.begin);
    // Channels beyond the last have zeros for codes, and for scales what was there.
    const uint8_t* scale =
        p.scale[expert] + (at.n0 + lane / 2) * p.scale_step + int64_t{lane % 2} * 4;
    const int rows = p.n - at.n0 - lane / 2;
    for (int slice = 0; slice < work.slices; ++slice) {
      WaitForPhase(SharedAddress(&shared.empty[ring.stage]), ring.parity ^ 1);
      Stage& stage = shared.stage[ring.stage];
      const uint32_t full = SharedAddress(&shared.full[ring.stage]);
      if (lane == 0) {
        ArriveExpecting(full, static_cast<uint32_t>(sizeof(stage.codes)) +
                                  ((kSlice + kGroups * 4) * 8u << box));
        CopyBox(SharedAddress(stage.codes), p.codes, slice * (kSlice / 2), place, at.n0, full);
        if (!arranged) WaitForLast();
        CopyBox(SharedAddress(stage.x), p.x[box], 0, at.begin, slice * (kSlice / 16), full);
        CopyBox(SharedAddress(stage.x_scale), p.x_scale[box], slice * kGroups, 0, at.begin, full);
      }
      arranged = true;
      __syncwarp();
      if (slice * kGroups + lane % 2 * 4 < groups) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          if (i * 16 < rows) {
            CopyAsync4(SharedAddress(&stage.scale[i * 16 + lane / 2][lane % 2]),
                       scale + i * 16 * p.scale_step);
          }
        }
      }
      scale += kGroups;
      ArriveWithCopies(full);
      ring.Advance();
    }
    work.Advance(at, shared);
  }
  // Who comes next may count on the kernel before having ended.
  if (lane == 0 && !arranged) WaitForLast();
}

// Eight codes as two registers of e5m2: the even ones and the odd ones.
__device__ inline void Spread(uint32_t word, uint32_t& even, uint32_t& odd) {
  even = (word << 4 & 0x80808080u) | (word << 1 & 0x0E0E0E0Eu);
  odd = (word & 0x80808080u) | (word >> 3 & 0x0E0E0E0Eu);
}

__device__ inline float ScaleOf(uint32_t bytes, int i) {
  return __uint_as_float(__byte_perm(bytes, 0, 0x4440 + i) << 23);
}

// Adds kCount groups of a stage to the sums of kTiles tiles of eight rows.
template <int kTiles, int kCount>
__device__ void AddGroups(const Stage& stage, float (&sum)[kMostRows / 2]) {
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int row = warp * 16 + lane % 16;
  const uint32_t codes = SharedAddress(stage.codes[row]);
  const uint32_t piece = static_cast<uint32_t>(lane / 16 ^ row % 8);
  constexpr int kRows = kTiles * 8;
  const uint64_t x = wgmma::PlainOperand(SharedAddress(stage.x), kRows * 16, 128);
  const uint2 scale[2] = {*reinterpret_cast<const uint2*>(stage.scale[warp * 16 + lane / 4]),
                          *reinterpret_cast<const uint2*>(stage.scale[warp * 16 + lane / 4 + 8])};
  const float* x_scale = stage.x_scale[lane % 4 * 2];
  float part[2][kTiles * 4];
  const auto add = [&](int g) {
    wgmma::Settle(part[g % 2]);
    const float upper = ScaleOf(g < 4 ? scale[0].x : scale[0].y, g % 4);
    const float lower = ScaleOf(g < 4 ? scale[1].x : scale[1].y, g % 4);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float left = x_scale[tile * 8 * kGroups + g];
      const float right = x_scale[(tile * 8 + 1) * kGroups + g];
      const float* from = part[g % 2] + tile * 4;
      float* to = sum + tile * 4;
      to[0] = fmaf(from[0], upper * left, to[0]);
      to[1] = fmaf(from[1], upper * right, to[1]);
      to[2] = fmaf(from[2], lower * left, to[2]);
      to[3] = fmaf(from[3], lower * right, to[3]);
    }
  };
  uint32_t raw[4];
  uint32_t a[2][4];
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
    if (g % 2 == 0) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(raw[0]), "=r"(raw[1]), "=r"(raw[2]), "=r"(raw[3])
                   : "r"(codes + ((piece ^ static_cast<uint32_t>(g)) << 4)));
    }
    Spread(raw[g % 2 * 2], a[g % 2][0], a[g % 2][2]);
    Spread(raw[g % 2 * 2 + 1], a[g % 2][1], a[g % 2][3]);
    wgmma::Fence();
    wgmma::Product(part[g % 2], a[g % 2], x + static_cast<uint64_t>(g * (2 * kRows)));
    wgmma::Commit();
    if (g > 0) {
      wgmma::Wait<1>();
      add(g - 1);
    }
  }
  wgmma::Wait<0>();
  add(kCount - 1);
}

template <int kTiles>
__device__ void AddStage(const Stage& stage, int groups, float (&sum)[kMostRows / 2]) {
  if (groups < kGroups) {
    AddGroups<kTiles, kGroups / 2>(stage, sum);
  } else {
    AddGroups<kTiles, kGroups>(stage, sum);
  }
}

// Rounds and stores the sums of a tile and clears them.
__device__ inline void StoreTile(const Parameters& p, const Cursor& at,
                                 float (&sum)[kMostRows / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int n = at.n0 + static_cast<int>(threadIdx.x) / cuda::kWarp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kMostRows / 2; ++i) {
    const int t = at.begin + i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int channel = n + i / 2 % 2 * 8;
    if (t < at.end && channel < p.n) {
      p.y[t * p.y_step + channel] = EncodeBf16(sum[i] * kCodeScale);
    }
    sum[i] = 0;
  }
}

// The warps that multiply.
__device__ inline void Multiply(const Parameters& p, const Work& work, Shared& shared) {
  float sum[kMostRows / 2] = {};
  Cursor at = {};
  at.item = static_cast<int>(blockIdx.x);
  work.Open(at, shared);
  Ring<kStages> ring;
  while (at.item < work.items) {
    const int rows = at.end - at.begin;
    for (int slice = 0; slice < work.slices; ++slice) {
      WaitForPhase(SharedAddress(&shared.full[ring.stage]), ring.parity);
      const Stage& stage = shared.stage[ring.stage];
      const int groups = min(kGroups, p.k / kGroup - slice * kGroups);
      if (rows <= 8) {
        AddStage<1>(stage, groups, sum);
      } else if (rows <= 16) {
        AddStage<2>(stage, groups, sum);
      } else {
        AddStage<4>(stage, groups, sum);
      }
      if (threadIdx.x % cuda::kWarp == 0) Arrive(SharedAddress(&shared.empty[ring.stage]));
      ring.Advance();
    }
    StoreTile(p, at, sum);
    work.Advance(at, shared);
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    ExpertFp4Kernel(const __grid_constant__ Parameters p) {
  extern __shared__ uint8_t memory[];
  const uint32_t base = SharedAddress(memory);
  Shared& shared = *reinterpret_cast<Shared*>(memory + (-base & (kAlignment - 1)));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitArrivals(SharedAddress(&shared.full[i]), 1 + cuda::kWarp);
      InitArrivals(SharedAddress(&shared.empty[i]), kMultiplyWarps);
    }
    FenceForProducts();
  }
  Work work;
  work.blocks = (p.n + kBlockRows - 1) / kBlockRows;
  work.slices = (p.k + kSlice - 1) / kSlice;
  work.items = FindLive(p, shared) * work.blocks;  // ends with a barrier
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  if (warp < kMultiplyWarps) {
    Multiply(p, work, shared);
  } else {
    Fill(p, work, shared);
  }
}

}  // namespace skein::kernels::sm90::fp4
