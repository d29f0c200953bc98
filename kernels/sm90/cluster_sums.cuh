// The end of a product whose inputs are divided among the blocks of a cluster: their sums are added
// in the order of the blocks. Device code.
#pragma once

#include <cstdint>

#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/cluster.cuh"

namespace skein::kernels::sm90::cluster {

inline constexpr int kMostParts = 8;

// Every block holds sums[kRows][kChannels] of its part in shared memory; each takes some of the
// rows and calls store(row, channel, total). All threads of all blocks call it, after a Synchronize
// and before another.
template <int kRows, int kChannels, int kThreads, typename Store>
__device__ void AddParts(const float* sums, const Store& store) {
  const int parts = static_cast<int>(Size());
  const int rows = kRows / parts;
  const int first = static_cast<int>(Rank()) * rows * kChannels;
  for (int i = static_cast<int>(threadIdx.x) * 4; i < rows * kChannels; i += kThreads * 4) {
    const int at = first + i;
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
