// Products of routed experts with e2m1 weights and e4m3 activations, both scaled per 32 inputs: for
// up to 32 rows of an expert the time is that of reading its weights once.
// A block owns 128 output channels of one expert and all inputs, in slices of 256 that arrive in
// shared memory up to three slices ahead; blocks stay and take the next expert's channels, so that
// the copies never stop. One warp fills stages, eight multiply; a kernel before brings activations
// into the order that products want. Codes
// become e5m2 by moving bits (2^-14 too small, exact), are the A operand of warpgroup products from
// registers, and each product is one group of 32 inputs from zero: its sum times both scales is
// added in f32 (catalogue 13.3 K1'). The order of an output's sum is that of its inputs. Weight
// scales of byte 0 count as zero; byte 255 gives infinities or NaN. Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/order.cuh"
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
inline constexpr int kStages = 3;
inline constexpr int kMostRows = 32;  // rows of an expert at a time
inline constexpr int kMostExperts = 512;
inline constexpr float kCodeScale = 16384;  // what the codes are too small by

inline constexpr int kTileRows = 8;  // rows whose activations lie together
inline constexpr int kTiles = kMostRows / kTileRows;

struct Stage {
  uint8_t codes[kBlockRows][kSlice / 2];          // swizzled
  uint8_t x[kTiles][kGroups * 2][kTileRows][16];  // even inputs of a group, then odd ones
  float x_scale[kTiles][kGroups][kTileRows];
};

struct alignas(16) Shared {
  Stage stage[kStages];
  uint64_t full[kStages], empty[kStages];
  uint64_t scale_full[2], scale_empty[2];
  int first[kMostExperts + 1];  // row of each expert that has any, and the end
  uint16_t expert[kMostExperts];
  unsigned counts[cuda::kWarp];
};
// Behind it: scales of a block's channels, all inputs, once or twice.
constexpr int ScaleBytes(int k) { return kBlockRows * (k / kGroup); }
inline constexpr size_t kAlignment = 1024;  // of the swizzled rows

// What a block may take so that a multiprocessor holds two.
inline constexpr int kMostShared = 113 * 1024;
constexpr int ScaleBuffers(int k) {
  const int left = kMostShared - static_cast<int>(sizeof(Shared) + kAlignment);
  return left / ScaleBytes(k) < 2 ? left / ScaleBytes(k) : 2;
}

// Addresses of all experts' weights, those of a second product behind the first's.
struct ExpertTable {
  const uint8_t* codes[2 * kMostExperts];
  const uint8_t* scale[2 * kMostExperts];
  int count;
};

// Activations in the order of products, by tiles of eight rows of one expert: codes of a tile are
// [k / 16][8][16], of each group of inputs the even ones, then the odd ones; its scales are
// [k / 32][8], as f32. Row r of expert e lies at place r - offset + PlaceOf(e, offset), which needs
// no sums over the experts before it.
struct Arranged {
  uint8_t* codes;
  float* scale;
};
__host__ __device__ constexpr int PlaceOf(int expert, int offset) {
  return offset / kTileRows * kTileRows + kTileRows * expert;
}
constexpr int64_t PlacesOf(int64_t assignments, int experts) {
  return PlaceOf(experts, static_cast<int>(assignments)) + kTileRows;
}
constexpr size_t ArrangedBytes(int64_t places, int64_t k) {
  return static_cast<size_t>(places * (k + k / kGroup * 4));
}

// All of it travels as a kernel parameter, so a captured call needs no copy. Weights of a second
// product follow those of the first.
struct Parameters {
  CUtensorMap codes;                // of all weights
  int32_t place[2 * kMostExperts];  // of a weight in it
  const uint8_t* scale[2 * kMostExperts];
  Arranged x;
  const int32_t* expert_offset;
  uint16_t* y[2];
  int64_t y_step[2];
  int n, k, num_experts, num_products, scale_buffers;
};

struct Source {
  const uint8_t* x;
  int64_t x_step;
  const uint8_t* scale;
  int64_t scale_step;
  const int32_t* row;  // null: assignment i reads row i
  const int32_t* expert_offset;
  int num_experts, groups, assignments;
  bool aligned;  // rows of x begin at multiples of 16 bytes
};
// A block brings a tile's worth of assignments, this many groups of each.
inline constexpr int kArrangeGroups = 32;
inline constexpr int kArrangeThreads = kTileRows * kArrangeGroups;

__device__ inline uint4 Gather(const uint8_t* from) {
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    word[i] = from[4 * i] | from[4 * i + 1] << 8 | from[4 * i + 2] << 16 |
              uint32_t{from[4 * i + 3]} << 24;
  }
  return {word[0], word[1], word[2], word[3]};
}

// Neighbouring threads have neighbouring assignments, whose pieces lie together. What is asked of
// memory does not wait for each other but for rows.
__global__ void __launch_bounds__(kArrangeThreads) ArrangeKernel(Source from, Arranged to) {
  cuda::BeginAfterLast();
  __shared__ int offset[kMostExperts + 1];
  const int thread = static_cast<int>(threadIdx.x);
  const int assignment = static_cast<int>(blockIdx.x) * kTileRows + thread % kTileRows;
  const int group = static_cast<int>(blockIdx.y) * kArrangeGroups + thread / kTileRows;
  int64_t row = -1;
  if (assignment < from.assignments && group < from.groups) {
    row = from.row == nullptr ? assignment : from.row[assignment];
  }
  for (int e = thread; e <= from.num_experts; e += kArrangeThreads) {
    offset[e] = from.expert_offset[e];
  }
  uint4 low = {}, high = {};
  uint8_t scale = 0;
  if (row >= 0) {
    const uint8_t* x = from.x + row * from.x_step + int64_t{group} * kGroup;
    low = from.aligned ? *reinterpret_cast<const uint4*>(x) : Gather(x);
    high = from.aligned ? *reinterpret_cast<const uint4*>(x + 16) : Gather(x + 16);
    scale = from.scale[row * from.scale_step + group];
  }
  __syncthreads();
  // The expert is as many as end at or before the assignment.
  int expert = 0;
  for (int count = from.num_experts; count > 0;) {
    const int half = count / 2;
    const bool before = offset[expert + half + 1] <= assignment;
    expert += before ? half + 1 : 0;
    count = before ? count - half - 1 : half;
  }
  if (row < 0 || expert == from.num_experts) return;
  const int place = assignment - offset[expert] + PlaceOf(expert, offset[expert]);
  const int64_t at = int64_t{place / kTileRows} * from.groups + group;  // a group of a tile
  auto* even = reinterpret_cast<uint4*>(to.codes) + at * (2 * kTileRows) + place % kTileRows;
  *even = {__byte_perm(low.x, low.y, 0x6420), __byte_perm(low.z, low.w, 0x6420),
           __byte_perm(high.x, high.y, 0x6420), __byte_perm(high.z, high.w, 0x6420)};
  even[kTileRows] = {__byte_perm(low.x, low.y, 0x7531), __byte_perm(low.z, low.w, 0x7531),
                     __byte_perm(high.x, high.y, 0x7531), __byte_perm(high.z, high.w, 0x7531)};
  to.scale[at * kTileRows + place % kTileRows] = DecodeE8m0(scale);
}

// Where a warp is: up to 32 rows of an expert, for a block of channels of one of its products.
struct Cursor {
  int item, product, n0, first, begin, end, live;
};

struct Work {
  int items, products, blocks, slices;

  __device__ void Open(Cursor& at, const Shared& shared) const {
    if (at.item >= items) return;
    const int whole = at.item / blocks;  // products before
    at.n0 = (at.item - whole * blocks) * kBlockRows;
    at.live = products == 1 ? whole : whole / 2;
    at.product = whole - at.live * products;
    at.first = at.begin = shared.first[at.live];
    at.end = shared.first[at.live + 1];
  }
  // The next rows or channels.
  __device__ void Advance(Cursor& at, const Shared& shared) const {
    at.begin += kMostRows;
    if (at.begin < at.end) return;
    at.item += static_cast<int>(gridDim.x);
    Open(at, shared);
  }
};

// The experts that have rows, in order; they are neighbours in the rows. All threads call it,
// before the kernel ahead has ended: that one brings rows together and follows the layout, so what
// is read here is there; past the first cache, which may hold an older layout.
__device__ inline int FindLive(const Parameters& p, Shared& shared) {
  unsigned live = 0;
  for (int base = 0; base < p.num_experts; base += kThreads) {
    const int e = base + static_cast<int>(threadIdx.x);
    int begin = 0, end = 0;
    if (e < p.num_experts) {
      begin = __ldcg(p.expert_offset + e);
      end = __ldcg(p.expert_offset + e + 1);
    }
    const cuda::Position place = cuda::BlockCount(end > begin, shared.counts);
    if (end > begin) {
      shared.first[live + place.before] = begin;
      shared.expert[live + place.before] = static_cast<uint16_t>(e);
    }
    live += place.total;
  }
  if (threadIdx.x == 0) shared.first[live] = __ldcg(p.expert_offset + p.num_experts);
  __syncthreads();
  return static_cast<int>(live);
}

// Scales of a block of channels, which are contiguous: whole 16 bytes by the copy engine.
__device__ inline void FillScales(const uint8_t* from, int bytes, uint8_t* to, uint64_t* full) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int whole = bytes / 16 * 16;
  if (lane != 0) return;
  for (int i = whole; i < bytes; ++i) to[i] = from[i];
  ArriveExpecting(SharedAddress(full), static_cast<uint32_t>(whole));
  if (whole > 0) {
    CopyBytes(SharedAddress(to), from, static_cast<uint32_t>(whole), SharedAddress(full));
  }
}

// One slice of a step, by one thread: first the codes of the weights, which are there, and how many
// bytes will come; then rows and their scales, which the kernel before brings together.
struct Slice {
  const Parameters& p;
  const Cursor& at;
  int expert, index;

  __device__ int weight() const { return expert + at.product * p.num_experts; }

  __device__ int groups() const { return p.k / kGroup; }
  __device__ uint32_t here() const {
    return static_cast<uint32_t>(min(kGroups, groups() - index * kGroups));
  }
  __device__ int tiles() const {
    return (min(at.end - at.begin, kMostRows) + kTileRows - 1) / kTileRows;
  }
  __device__ uint32_t code_bytes() const { return here() * (kGroup * kTileRows); }
  __device__ uint32_t scale_bytes() const { return here() * (4 * kTileRows); }

  __device__ void AskWeights(Stage& stage, uint64_t* full) const {
    const uint32_t barrier = SharedAddress(full);
    ArriveExpecting(barrier, static_cast<uint32_t>(sizeof(stage.codes)) +
                                 static_cast<uint32_t>(tiles()) * (code_bytes() + scale_bytes()));
    CopyBox(SharedAddress(stage.codes), p.codes, index * (kSlice / 2), p.place[weight()], at.n0,
            barrier);
  }
  __device__ void AskRows(Stage& stage, uint64_t* full) const {
    const uint32_t barrier = SharedAddress(full);
    const int64_t tile = (PlaceOf(expert, at.first) + at.begin - at.first) / kTileRows;
    const uint8_t* codes = p.x.codes + tile * kTileRows * p.k + index * (kSlice * kTileRows);
    const float* scale = p.x.scale + (tile * groups() + index * kGroups) * kTileRows;
    for (int i = 0; i < tiles(); ++i) {
      CopyBytes(SharedAddress(stage.x[i]), codes, code_bytes(), barrier);
      CopyBytes(SharedAddress(stage.x_scale[i]), scale, scale_bytes(), barrier);
      codes += int64_t{kTileRows} * p.k;
      scale += groups() * kTileRows;
    }
  }
};

// The warp that has the copy engine fill stages and scales. The first stages' weights come while
// the kernel before still brings rows together.
__device__ inline void Fill(const Parameters& p, const Work& work, Shared& shared,
                            uint8_t* scales) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int groups = p.k / kGroup;
  if (lane == 0) PrefetchMap(p.codes);
  Cursor at = {};
  at.item = static_cast<int>(blockIdx.x);
  work.Open(at, shared);
  Ring<kStages> ring;
  uint32_t buffer = 0, parity = 1;
  const int ahead = at.item < work.items ? min(work.slices, kStages) : 0;
  if (lane == 0) {
    for (int i = 0; i < ahead; ++i) {
      Slice{p, at, shared.expert[at.live], i}.AskWeights(shared.stage[i], &shared.full[i]);
    }
  }
  cuda::WaitForLast();
  cuda::LetNextBegin();
  int asked = ahead;  // slices whose weights are on their way
  while (at.item < work.items) {
    const int expert = shared.expert[at.live];
    WaitForPhase(SharedAddress(&shared.scale_empty[buffer]), parity);
    FillScales(p.scale[Slice{p, at, expert, 0}.weight()] + int64_t{at.n0} * groups,
               min(kBlockRows, p.n - at.n0) * groups,
               scales + buffer * static_cast<uint32_t>(ScaleBytes(p.k)),
               &shared.scale_full[buffer]);
    if (++buffer == static_cast<uint32_t>(p.scale_buffers)) {
      buffer = 0;
      parity ^= 1;
    }
    for (int slice = 0; slice < work.slices; ++slice) {
      WaitForPhase(SharedAddress(&shared.empty[ring.stage]), ring.parity ^ 1);
      if (lane == 0) {
        const Slice part{p, at, expert, slice};
        uint64_t* full = &shared.full[ring.stage];
        if (slice >= asked) part.AskWeights(shared.stage[ring.stage], full);
        part.AskRows(shared.stage[ring.stage], full);
      }
      __syncwarp();
      ring.Advance();
    }
    asked = 0;
    work.Advance(at, shared);
  }
}

// Eight codes as two registers of e5m2: the even ones and the odd ones.
__device__ inline void Spread(uint32_t word, uint32_t& even, uint32_t& odd) {
  even = (word << 4 & 0x80808080u) | (word << 1 & 0x0E0E0E0Eu);
  odd = (word & 0x80808080u) | (word >> 3 & 0x0E0E0E0Eu);
}

__device__ inline float ScaleOf(uint32_t bytes, int i) {
  return __uint_as_float(__byte_perm(bytes, 0, 0x4440 + i) << 23);
}

// Adds kCount groups of a stage to the sums of kUsed tiles of eight rows. `scales` points at the
// slice's scales of the lane's upper channel, `lower` bytes lead to its lower one.
template <int kUsed, int kCount>
__device__ void AddGroups(const Stage& stage, const uint8_t* scales, int lower,
                          float (&sum)[kUsed * 4]) {
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int row = warp * 16 + lane % 16;
  const uint32_t codes = SharedAddress(stage.codes[row]);
  const uint32_t piece = static_cast<uint32_t>(lane / 16 ^ row % 8);
  const uint64_t x = wgmma::PlainOperand(SharedAddress(stage.x), 128, sizeof(stage.x[0]));
  uint32_t scale[2][kCount / 4];
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    scale[0][i] = *reinterpret_cast<const uint32_t*>(scales + 4 * i);
    scale[1][i] = *reinterpret_cast<const uint32_t*>(scales + lower + 4 * i);
  }
  const float* x_scale = &stage.x_scale[0][0][lane % 4 * 2];
  // Products under way, as far as registers go.
  constexpr int kDepth = kUsed == 1 ? 4 : kUsed == 2 ? 3 : 2;
  float part[kDepth][kUsed * 4];
  const auto add = [&](int g) {
    const auto x_scales = [&](int tile) {
      return *reinterpret_cast<const float2*>(x_scale + (tile * kGroups + g) * kTileRows);
    };
    // Scales are fetched while the product is formed, as far as registers go.
    constexpr int kEarly = kUsed < 4 ? kUsed : 1;
    float2 early[kEarly];
#pragma unroll
    for (int tile = 0; tile < kEarly; ++tile) early[tile] = x_scales(tile);
    const int behind = kCount - 1 - g;  // products after this one
    if (behind >= kDepth - 1) {
      wgmma::Wait<kDepth - 1>();
    } else if (behind == 2) {
      wgmma::Wait<2>();
    } else if (behind == 1) {
      wgmma::Wait<1>();
    } else {
      wgmma::Wait<0>();
    }
    wgmma::Settle(part[g % kDepth]);
    const float upper = ScaleOf(scale[0][g / 4], g % 4);
    const float under = ScaleOf(scale[1][g / 4], g % 4);
#pragma unroll
    for (int tile = 0; tile < kUsed; ++tile) {
      const float2 s = tile < kEarly ? early[tile] : x_scales(tile);
      const float* from = part[g % kDepth] + tile * 4;
      float* to = sum + tile * 4;
      to[0] = fmaf(from[0], upper * s.x, to[0]);
      to[1] = fmaf(from[1], upper * s.y, to[1]);
      to[2] = fmaf(from[2], under * s.x, to[2]);
      to[3] = fmaf(from[3], under * s.y, to[3]);
    }
  };
  uint32_t raw[4];
  uint32_t a[kDepth][4];
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
    if (g % 2 == 0) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(raw[0]), "=r"(raw[1]), "=r"(raw[2]), "=r"(raw[3])
                   : "r"(codes + ((piece ^ static_cast<uint32_t>(g)) << 4)));
    }
    uint32_t(&spread)[4] = a[g % kDepth];
    Spread(raw[g % 2 * 2], spread[0], spread[2]);
    Spread(raw[g % 2 * 2 + 1], spread[1], spread[3]);
    wgmma::Fence();
    wgmma::Product(part[g % kDepth], spread, wgmma::Advance(x, static_cast<uint32_t>(g * 256)));
    wgmma::Commit();
    if (g >= kDepth - 1) add(g - (kDepth - 1));
  }
#pragma unroll
  for (int g = kCount - (kDepth - 1); g < kCount; ++g) add(g);
}

// Rounds and stores sums.
template <int kUsed>
__device__ void StoreSums(const Parameters& p, const Cursor& at, const float (&sum)[kUsed * 4]) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int n = at.n0 + static_cast<int>(threadIdx.x) / cuda::kWarp * 16 + lane / 4;
  uint16_t* y = p.y[at.product];
  const int64_t step = p.y_step[at.product];
#pragma unroll
  for (int i = 0; i < kUsed * 4; ++i) {
    const int t = at.begin + i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int channel = n + i / 2 % 2 * 8;
    if (t < at.end && channel < p.n) y[t * step + channel] = EncodeBf16(sum[i] * kCodeScale);
  }
}

// One item, its rows in kUsed tiles of eight.
template <int kUsed>
__device__ void MultiplyItem(const Parameters& p, const Cursor& at, Shared& shared,
                             const uint8_t* scale, Ring<kStages>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int groups = p.k / kGroup;
  float sum[kUsed * 4] = {};
  for (int left = groups; left > 0; left -= kGroups) {
    WaitForPhase(SharedAddress(&shared.full[ring.stage]), ring.parity);
    const Stage& stage = shared.stage[Uniform(ring.stage)];
    if (left < kGroups) {
      AddGroups<kUsed, kGroups / 2>(stage, scale, 8 * groups, sum);
    } else {
      AddGroups<kUsed, kGroups>(stage, scale, 8 * groups, sum);
    }
    __syncwarp();
    if (lane == 0) Arrive(SharedAddress(&shared.empty[ring.stage]));
    ring.Advance();
    scale += kGroups;
  }
  StoreSums<kUsed>(p, at, sum);
}

// The warps that multiply.
__device__ inline void Multiply(const Parameters& p, const Work& work, Shared& shared,
                                const uint8_t* scales) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int groups = p.k / kGroup;
  const uint8_t* own =
      scales + (static_cast<int>(threadIdx.x) / cuda::kWarp * 16 + lane / 4) * groups;
  Cursor at = {};
  at.item = static_cast<int>(blockIdx.x);
  work.Open(at, shared);
  Ring<kStages> ring;
  uint32_t buffer = 0, parity = 0;
  while (at.item < work.items) {
    const int rows = at.end - at.begin;
    WaitForPhase(SharedAddress(&shared.scale_full[buffer]), parity);
    const uint8_t* scale = own + buffer * static_cast<uint32_t>(ScaleBytes(p.k));
    if (rows <= 8) {
      MultiplyItem<1>(p, at, shared, scale, ring);
    } else if (rows <= 16) {
      MultiplyItem<2>(p, at, shared, scale, ring);
    } else {
      MultiplyItem<4>(p, at, shared, scale, ring);
    }
    if (lane == 0) Arrive(SharedAddress(&shared.scale_empty[buffer]));
    if (++buffer == static_cast<uint32_t>(p.scale_buffers)) {
      buffer = 0;
      parity ^= 1;
    }
    work.Advance(at, shared);
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    ExpertFp4Kernel(const __grid_constant__ Parameters p) {
  extern __shared__ uint8_t memory[];
  const uint32_t base = SharedAddress(memory);
  Shared& shared = *reinterpret_cast<Shared*>(memory + (-base & (kAlignment - 1)));
  auto* scales = reinterpret_cast<uint8_t*>(&shared) + sizeof(Shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitArrivals(SharedAddress(&shared.full[i]), 1);
      InitArrivals(SharedAddress(&shared.empty[i]), kMultiplyWarps);
    }
    for (int i = 0; i < 2; ++i) {
      InitArrivals(SharedAddress(&shared.scale_full[i]), 1);
      InitArrivals(SharedAddress(&shared.scale_empty[i]), kMultiplyWarps);
    }
    FenceForProducts();
  }
  Work work;
  work.blocks = (p.n + kBlockRows - 1) / kBlockRows;
  work.slices = (p.k + kSlice - 1) / kSlice;
  work.products = p.num_products;
  work.items = FindLive(p, shared) * work.products * work.blocks;  // ends with a barrier
  if (static_cast<int>(threadIdx.x) / cuda::kWarp < kMultiplyWarps) {
    Multiply(p, work, shared, scales);
  } else {
    Fill(p, work, shared, scales);
  }
}

}  // namespace skein::kernels::sm90::fp4
