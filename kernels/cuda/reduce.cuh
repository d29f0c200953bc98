// Sums and maxima over a warp or a block in one fixed order: the same bits for the same inputs
// whatever the grid. Device code.
#pragma once

#include <cstdint>

namespace skein::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFF;
inline constexpr int kWarp = 32;

template <typename T, typename Combine>
__device__ T WarpReduce(T value, const Combine& combine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

template <typename T>
__device__ T WarpSum(T value) {
  return WarpReduce(value, [](T a, T b) { return a + b; });
}

// Over all threads of the block, at most 32 whole warps; every thread gets the result. The order is
// that of a tree over the lanes of a warp, then of one over the warps. `scratch` holds 32 values
// and may be used again after the call.
template <typename T, typename Combine>
__device__ T BlockReduce(T value, T* scratch, const Combine& combine) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = WarpReduce(value, combine);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  // Every warp does the same. Lane i has the warps from i to i + offset - 1, as far as they exist.
  value = scratch[lane < warps ? lane : 0];
  for (int offset = 1; offset < warps; offset *= 2) {
    const T other = __shfl_down_sync(kAllLanes, value, offset);
    if (lane + offset < warps) value = combine(value, other);
  }
  value = __shfl_sync(kAllLanes, value, 0);
  __syncthreads();
  return value;
}

template <typename T>
__device__ T BlockSum(T value, T* scratch) {
  return BlockReduce(value, scratch, [](T a, T b) { return a + b; });
}

// Larger of two; NaN wins.
struct LargerOrNan {
  __device__ float operator()(float a, float b) const {
    if (a != a) return a;
    return b != b || b > a ? b : a;
  }
};

}  // namespace skein::kernels::cuda
