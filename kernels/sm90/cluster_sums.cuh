// The end of a product whose inputs are divided among the blocks of a cluster: their sums are added
// in the order of the blocks. Device code.
#pragma once

#include <cstdint>

#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/cluster.cuh"

namespace skein::kernels::sm90::cluster {

inline constexpr int kMostParts = 8;

// Every block holds sums[kRows][kChannels] of its part in shared memory; each takes some of
// them and calls store(row, channel, total). All threads of all blocks call it, after a Synchronize
// and before another.
template <int kRows, int kChannels, int kThreads, typename Store>
__device__ void AddParts(const float* sums, const Store& store) {
  constexpr int kItems = kRows * kChannels / 4;
  const int parts = static_cast<int>(Size());
  const int rank = static_cast<int>(Rank());
  const int end = (rank + 1) * kItems / parts;
  for (int i = rank * kItems / parts + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    const int at = i * 4;
    float4 part[kMostParts];
#pragma unroll
    for (int j = 0; j < kMostParts; ++j) {
      if (j < parts) part[j] = LoadFour(SharedAddress(sums + at), static_cast<uint32_t>(j));
    }
    float4 total = {};
#pragma unroll
    for (int j = 0; j < kMostParts; ++j) {
      if (j >= parts) continue;
      total.x += part[j].x;
      total.y += part[j].y;
      total.z += part[j].z;
      total.w += part[j].w;
    }
    store(at / kChannels, at % kChannels, total.x);
    store(at / kChannels, at % kChannels + 1, total.y);
    store(at / kChannels, at % kChannels + 2, total.z);
    store(at / kChannels, at % kChannels + 3, total.w);
  }
}

}  // namespace skein::kernels::sm90::cluster
