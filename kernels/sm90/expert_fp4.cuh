// Products of routed experts with e2m1 weights and e4m3 activations, both scaled per 32 inputs: for
// up to 32 rows of an expert the time is that of reading its weights once.
// A block owns 128 output channels of one expert and all inputs, in slices of 256 that arrive in
// shared memory four slices ahead; blocks stay and take the next expert's channels, so that the
// copies never stop. Codes become e5m2 by moving bits (2^-14 too small, exact), are the A operand
// of warpgroup products from registers, and each product is one group of 32 inputs from zero: its
// sum times both scales is added in f32 (catalogue 13.3 K1'). The order of an output's sum is that
// of its inputs. Weight scales of byte 0 count as zero; byte 255 gives infinities or NaN.
// Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/select.cuh"
#include "kernels/formats.h"
#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace skein::kernels::sm90::fp4 {

inline constexpr int kGroup = 32;   // inputs under one scale: 16 bytes of codes
inline constexpr int kSlice = 256;  // inputs of a stage
inline constexpr int kGroups = kSlice / kGroup;
inline constexpr int kBlockRows = 128;  // output channels of a block, 16 of a warp
inline constexpr int kThreads = 256;
inline constexpr int kStages = 4;
inline constexpr int kMostRows = 32;  // rows of an expert at a time
inline constexpr int kMostExperts = 512;
inline constexpr float kCodeScale = 16384;  // what the codes are too small by

struct Stage {
  uint8_t codes[kBlockRows][kSlice / 2];  // pieces of 16 bytes swizzled: piece c at c ^ (row & 7)
  uint8_t x[kGroups][2][kMostRows][16];   // even inputs of a group, then odd ones
  float x_scale[kGroups][kMostRows];
  uint32_t scale[kBlockRows][kGroups / 4];
};

struct Shared {
  Stage stage[kStages];
  int2 rows[kMostExperts];  // of the experts that have any: first, end
  uint16_t expert[kMostExperts];
  unsigned counts[cuda::kWarp];
};

// Addresses of all experts' weights; they travel as a kernel parameter, so a captured call needs no
// copy.
struct ExpertTable {
  const uint8_t* codes[kMostExperts];
  const uint8_t* scale[kMostExperts];
};

struct Parameters {
  int64_t codes_step, scale_step;
  const uint8_t* x;
  int64_t x_step;
  const uint8_t* x_scale;
  int64_t x_scale_step;
  const int32_t* source_row;  // null: assignment i reads row i
  const int32_t* expert_offset;
  uint16_t* y;
  int64_t y_step;
  int n, k, num_experts;
  bool x_aligned;  // rows of x begin at multiples of 16 bytes
};

// Where a block is: a slice of inputs of up to 32 rows of an expert, for a block of channels.
struct Cursor {
  int item, slice, n0, begin, end, live;
};

struct Work {
  int items, blocks, slices;

  __device__ void Open(Cursor& at, const Shared& shared) const {
    at.slice = 0;
    if (at.item >= items) return;
    at.live = at.item / blocks;
    at.n0 = (at.item - at.live * blocks) * kBlockRows;
    const int2 rows = shared.rows[at.live];
    at.begin = rows.x;
    at.end = rows.y;
  }
  // The next slice; true if it belongs to other rows or channels.
  __device__ bool Advance(Cursor& at, const Shared& shared) const {
    if (++at.slice < slices) return false;
    at.slice = 0;
    at.begin += kMostRows;
    if (at.begin >= at.end) {
      at.item += static_cast<int>(gridDim.x);
      Open(at, shared);
    }
    return true;
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

// A thread's part of a stage: codes and scales of weights, which are copied aside, and one group of
// one row of x, which passes through registers because its bytes change places.
class Loader {
 public:
  __device__ Loader(const Parameters& p, const ExpertTable& table, Shared& shared)
      : p_(p), table_(table), shared_(shared) {}

  // Row of x of this thread from the cursor's tile on; long before it is used.
  __device__ void OpenRow(const Cursor& at) {
    const int t = at.begin + Row();
    row_ = t < at.end ? (p_.source_row == nullptr ? t : p_.source_row[t]) : -1;
  }
  __device__ void Weights(const Cursor& at, int stage) const {
    const int expert = shared_.expert[at.live];
    const int thread = static_cast<int>(threadIdx.x);
    const int piece = thread % 8;
    const int left = p_.k / kGroup - at.slice * kGroups;
    const uint8_t* codes = table_.codes[expert] + at.slice * (kSlice / 2) + piece * 16;
    const uint32_t to = SharedAddress(shared_.stage[stage].codes);
#pragma unroll
    for (int i = 0; i < kBlockRows * 8 / kThreads; ++i) {
      const int row = thread / 8 + i * (kThreads / 8);
      // Channels beyond the last are computed from it and not stored.
      const int64_t n = min(at.n0 + row, p_.n - 1);
      if (piece < left) {
        CopyAsync16(to + static_cast<uint32_t>(row * (kSlice / 2) + (piece ^ row % 8) * 16),
                    codes + n * p_.codes_step);
      }
    }
    const int row = thread / 2;
    if (thread % 2 * 4 < left) {
      const int64_t n = min(at.n0 + row, p_.n - 1);
      CopyAsync4(SharedAddress(&shared_.stage[stage].scale[row][thread % 2]),
                 table_.scale[expert] + n * p_.scale_step + at.slice * kGroups + thread % 2 * 4);
    }
  }
  __device__ void FetchRow(const Cursor& at) {
    const int group = at.slice * kGroups + Group();
    there_ = row_ >= 0 && group * kGroup < p_.k;
    if (!there_) return;
    const uint8_t* from = p_.x + row_ * p_.x_step + int64_t{group} * kGroup;
    scale_ = p_.x_scale[row_ * p_.x_scale_step + group];
    if (p_.x_aligned) {
      low_ = *reinterpret_cast<const uint4*>(from);
      high_ = *reinterpret_cast<const uint4*>(from + 16);
    } else {
      low_ = Gather(from);
      high_ = Gather(from + 16);
    }
  }
  // Rows that do not exist stay what they were: their sums are not stored.
  __device__ void StoreRow(int stage) const {
    if (!there_) return;
    Stage& to = shared_.stage[stage];
    *reinterpret_cast<uint4*>(to.x[Group()][0][Row()]) = {
        __byte_perm(low_.x, low_.y, 0x6420), __byte_perm(low_.z, low_.w, 0x6420),
        __byte_perm(high_.x, high_.y, 0x6420), __byte_perm(high_.z, high_.w, 0x6420)};
    *reinterpret_cast<uint4*>(to.x[Group()][1][Row()]) = {
        __byte_perm(low_.x, low_.y, 0x7531), __byte_perm(low_.z, low_.w, 0x7531),
        __byte_perm(high_.x, high_.y, 0x7531), __byte_perm(high_.z, high_.w, 0x7531)};
    to.x_scale[Group()][Row()] = DecodeE8m0(static_cast<uint8_t>(scale_));
  }

 private:
  __device__ static int Row() { return static_cast<int>(threadIdx.x) % kMostRows; }
  __device__ static int Group() { return static_cast<int>(threadIdx.x) / kMostRows; }
  __device__ static uint4 Gather(const uint8_t* from) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word[i] = from[4 * i] | from[4 * i + 1] << 8 | from[4 * i + 2] << 16 |
                uint32_t{from[4 * i + 3]} << 24;
    }
    return {word[0], word[1], word[2], word[3]};
  }

  const Parameters& p_;
  const ExpertTable& table_;
  Shared& shared_;
  int64_t row_ = -1;
  bool there_ = false;
  uint32_t scale_ = 0;
  uint4 low_ = {}, high_ = {};
};

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
  const uint64_t x = wgmma::PlainOperand(SharedAddress(stage.x), kMostRows * 16, 128);
  const uint2 scale[2] = {*reinterpret_cast<const uint2*>(stage.scale[warp * 16 + lane / 4]),
                          *reinterpret_cast<const uint2*>(stage.scale[warp * 16 + lane / 4 + 8])};
  const float* x_scale = &stage.x_scale[0][lane % 4 * 2];
  float part[2][kTiles * 4];
  const auto add = [&](int g) {
    wgmma::Settle(part[g % 2]);
    const float upper = ScaleOf(g < 4 ? scale[0].x : scale[0].y, g % 4);
    const float lower = ScaleOf(g < 4 ? scale[1].x : scale[1].y, g % 4);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float2 s = *reinterpret_cast<const float2*>(x_scale + g * kMostRows + tile * 8);
      const float* from = part[g % 2] + tile * 4;
      float* to = sum + tile * 4;
      to[0] = fmaf(from[0], upper * s.x, to[0]);
      to[1] = fmaf(from[1], upper * s.y, to[1]);
      to[2] = fmaf(from[2], lower * s.x, to[2]);
      to[3] = fmaf(from[3], lower * s.y, to[3]);
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
    wgmma::Product(part[g % 2], a[g % 2], x + static_cast<uint64_t>(g * (2 * kMostRows)));
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

__global__ void __launch_bounds__(kThreads, 2)
    ExpertFp4Kernel(const __grid_constant__ ExpertTable table,
                    const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Work work;
  work.blocks = (p.n + kBlockRows - 1) / kBlockRows;
  work.slices = (p.k + kSlice - 1) / kSlice;
  work.items = FindLive(p, shared) * work.blocks;
  Cursor load = {};
  load.item = static_cast<int>(blockIdx.x);
  work.Open(load, shared);
  Cursor at = load;
  Loader loader(p, table, shared);
  const auto advance = [&] {
    if (work.Advance(load, shared) && load.item < work.items) loader.OpenRow(load);
  };
  if (load.item < work.items) loader.OpenRow(load);
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (load.item < work.items) {
      loader.Weights(load, stage);
      loader.FetchRow(load);
      loader.StoreRow(stage);
      advance();
    }
    CommitCopies();
  }
  float sum[kMostRows / 2] = {};
  for (unsigned step = 0; at.item < work.items; ++step) {
    WaitForCopies<kStages - 2>();
    FenceForProducts();
    __syncthreads();
    const int next = static_cast<int>((step + kStages - 1) % kStages);
    const bool more = load.item < work.items;
    if (more) {
      loader.Weights(load, next);
      loader.FetchRow(load);
      advance();
    }
    CommitCopies();
    const Stage& stage = shared.stage[step % kStages];
    const int groups = min(kGroups, p.k / kGroup - at.slice * kGroups);
    const int rows = at.end - at.begin;
    if (rows <= 8) {
      AddStage<1>(stage, groups, sum);
    } else if (rows <= 16) {
      AddStage<2>(stage, groups, sum);
    } else {
      AddStage<4>(stage, groups, sum);
    }
    if (more) loader.StoreRow(next);
    if (at.slice + 1 == work.slices) StoreTile(p, at, sum);
    work.Advance(at, shared);
  }
}

}  // namespace skein::kernels::sm90::fp4
