// The largest keys of a row by radix descent in one block: exact, ties to the lower index, so the
// set does not depend on threads or grid. Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/reduce.cuh"

namespace skein::kernels::cuda {

inline constexpr int kDigits = 256;

// Order-preserving key of a float; -0 equals +0. NaN is the caller's to exclude.
__device__ inline uint32_t OrderedKey(float value) {
  const uint32_t bits = __float_as_uint(value == 0 ? 0.0f : value);
  return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFu : 0x80000000u);
}
inline constexpr uint32_t kMinusInfinityKey = 0x007FFFFF;  // OrderedKey(-inf)

// Which elements are among the chosen: those with a larger key than `key`, and of those that equal
// it the `equal` with the lowest indices.
struct Cut {
  uint32_t key = 0;
  uint64_t equal = 0;
};

struct SelectScratch {
  unsigned long long mass[kDigits];
  unsigned long long before;
  unsigned digit;
};

// The cut after which the mass of the chosen, taken in descending order of keys, first reaches
// `wanted` (> 0, at most the total). `key(i)` and `mass(i)` of element i in [0, count); elements of
// mass 0 take part only when nothing else can. All threads of the block call it.
template <typename Key, typename Mass>
__device__ Cut FindCut(int64_t count, unsigned long long wanted, const Key& key, const Mass& mass,
                       SelectScratch& scratch) {
  uint32_t prefix = 0;
  uint32_t known = 0;  // mask of the digits found so far
  unsigned long long before = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += static_cast<int>(blockDim.x)) {
      scratch.mass[i] = 0;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const uint32_t k = key(i);
      if ((k & known) != prefix) continue;
      const unsigned long long m = mass(i);
      if (m != 0) atomicAdd(&scratch.mass[k >> shift & (kDigits - 1)], m);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long sum = before;
      int digit = kDigits - 1;
      for (; digit > 0 && sum + scratch.mass[digit] < wanted; --digit) sum += scratch.mass[digit];
      scratch.before = sum;
      scratch.digit = static_cast<unsigned>(digit);
    }
    __syncthreads();
    before = scratch.before;
    prefix |= scratch.digit << shift;
    known |= 0xFFu << shift;
    __syncthreads();
  }
  // All elements at the cut have one key, hence one mass: the caller knows it.
  return {prefix, wanted - before};
}

// Number of set flags before this thread in the block, and in total. `scratch` holds 32 counts.
struct Position {
  unsigned before = 0, total = 0;
};
__device__ inline Position BlockCount(bool flag, unsigned* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned mask = __ballot_sync(kAllLanes, flag);
  if (lane == 0) scratch[warp] = static_cast<unsigned>(__popc(mask));
  __syncthreads();
  const bool exists = lane < static_cast<int>(blockDim.x) / kWarp;
  const unsigned count = exists ? scratch[lane] : 0;
  Position position;
  position.before = WarpSum(lane < warp ? count : 0) + __popc(mask & ((1u << lane) - 1));
  position.total = WarpSum(count);
  __syncthreads();
  return position;
}

struct CountScratch {
  unsigned count[kDigits];
  unsigned of_warp[kDigits / kWarp];
  unsigned before;
  unsigned digit;
};

// FindCut where each of the keys above `floor` counts as one: a warp adds equal digits together.
// Ends early where all keys with the digits found so far are chosen. The block has 256 threads or
// more.
template <typename Key>
__device__ Cut FindCountCut(int64_t count, unsigned wanted, uint32_t floor, const Key& key,
                            CountScratch& scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  uint32_t prefix = 0;
  uint32_t known = 0;  // mask of the digits found so far
  unsigned before = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < kDigits) scratch.count[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t begin = 0; begin < count; begin += blockDim.x) {
      const int64_t i = begin + threadIdx.x;
      const uint32_t k = i < count ? key(i) : 0;
      const bool counts = i < count && k > floor && (k & known) == prefix;
      const unsigned active = __ballot_sync(kAllLanes, counts);
      if (!counts) continue;
      const unsigned digit = k >> shift & (kDigits - 1);
      const unsigned peers = __match_any_sync(active, digit);
      if (lane == __ffs(static_cast<int>(peers)) - 1) {
        atomicAdd(&scratch.count[digit], static_cast<unsigned>(__popc(peers)));
      }
    }
    __syncthreads();
    // Thread d of the first 256 has digit 255 - d, so sums run from the largest down.
    const bool scans = threadIdx.x < kDigits;
    const unsigned own = scans ? scratch.count[kDigits - 1 - threadIdx.x] : 0;
    unsigned through = own;
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const unsigned other = __shfl_up_sync(kAllLanes, through, offset);
      if (lane >= offset) through += other;
    }
    if (scans && lane == kWarp - 1) scratch.of_warp[warp] = through;
    __syncthreads();
    if (scans) {
      for (int w = 0; w < warp; ++w) through += scratch.of_warp[w];
      if (before + through >= wanted && before + through - own < wanted) {
        scratch.before = before + through - own;
        scratch.digit = kDigits - 1 - threadIdx.x;
      }
    }
    __syncthreads();
    before = scratch.before;
    prefix |= scratch.digit << shift;
    known |= 0xFFu << shift;
    const bool all = before + scratch.count[scratch.digit] == wanted;
    __syncthreads();
    if (all && prefix > 0) return {prefix - 1, 0};
  }
  return {prefix, wanted - before};
}

// Writes the indices of the `wanted` largest of `count` keys to out[0, capacity), ascending, -1
// after them; keys at or below `floor` are not chosen. All threads of the block, 256 or more, call
// it. `counts` holds 32 values.
template <typename Key>
__device__ void SelectLargest(int64_t count, int64_t wanted, uint32_t floor, const Key& key,
                              int32_t* out, int64_t capacity, CountScratch& scratch,
                              unsigned* counts) {
  unsigned eligible = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) eligible += key(i) > floor ? 1 : 0;
  __shared__ unsigned sums[kWarp + 1];
  const unsigned total = BlockSum(eligible, sums);
  Cut cut{floor, 0};
  if (wanted > 0 && static_cast<int64_t>(total) > wanted) {
    cut = FindCountCut(count, static_cast<unsigned>(wanted), floor, key, scratch);
  }
  unsigned written = 0;
  unsigned long long equal = 0;
  for (int64_t begin = 0; begin < count && wanted > 0; begin += blockDim.x) {
    const int64_t i = begin + threadIdx.x;
    const uint32_t k = i < count ? key(i) : 0;
    bool chosen = i < count && k > cut.key && k > floor;
    if (cut.equal > 0) {
      const bool same = i < count && k == cut.key;
      const Position ties = BlockCount(same, counts);
      chosen = chosen || (same && equal + ties.before < cut.equal);
      equal += ties.total;
    }
    const Position place = BlockCount(chosen, counts);
    if (chosen) out[written + place.before] = static_cast<int32_t>(i);
    written += place.total;
  }
  for (int64_t i = written + threadIdx.x; i < capacity; i += blockDim.x) out[i] = -1;
}

}  // namespace skein::kernels::cuda
