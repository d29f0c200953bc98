// Mixes of hyper-connections: products of a few rows with 8 to 24 rows of f32, and what is made of
// them. A cluster of eight blocks takes a tile of rows, each block an eighth of their inputs: a row
// of one token would otherwise be read by one multiprocessor alone. A warp owns a quarter of the
// mixes and every second 32 quads of inputs; a lane has a quad at a time.
// Order of a sum, whatever the tile: the quads of a lane ascending, a butterfly over lanes (16 to
// 1), two warps, then the eight blocks ascending. Device code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/order.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/cluster.cuh"

namespace skein::kernels::sm90::hc {

using cuda::kAllLanes;
using cuda::kWarp;

inline constexpr int kThreads = 256;
inline constexpr int kRanks = 8;   // blocks of a cluster
inline constexpr int kGroups = 4;  // of mixes, a warp of each half to a group
inline constexpr int kHalves = kThreads / kWarp / kGroups;
inline constexpr int kQuad = 4;           // inputs that a lane takes together
inline constexpr int kChunk = 640;        // quads in shared memory at a time
inline constexpr int kTogether = 2;       // quads of a lane under way
inline constexpr int kMostRows = kRanks;  // of a tile: a block finishes one row
static_assert(kChunk % (kWarp * kHalves * kTogether) == 0);

struct Parameters {
  const uint16_t* stream;
  int64_t row_step, stream_step, rows;
  const float* fn;
  int64_t fn_step;
  const float* base;
  const float* scale;
  float* pre;
  int64_t pre_step;
  float* post;
  int64_t post_step;
  float* comb;
  int64_t comb_step, comb_row_step;
  int channels, iters;
  float norm_eps, hc_eps;
  bool stream_aligned;  // quads of inputs lie in one stream at multiples of 8 bytes
  bool fn_aligned;      // quads of weights lie at multiples of 16 bytes, none crosses the end
};

constexpr int MixesOf(int streams) { return (2 + streams) * streams; }
// Mixes of a warp; the last group may have fewer.
constexpr int ShareOf(int streams) { return (MixesOf(streams) + kGroups - 1) / kGroups; }
// Rows whose squares a warp sums, of a tile.
constexpr int SquaresOf(int rows) { return (rows + kGroups - 1) / kGroups; }
constexpr size_t SharedBytes(int rows) { return size_t{kChunk} * sizeof(float4) * rows; }

// Inputs 4 * quad to 4 * quad + 3 of row t as bits; zero beyond the last.
template <int kStreams, bool kAligned>
__device__ uint2 LoadInputs(const Parameters& p, int64_t t, int quad) {
  const uint16_t* row = p.stream + t * p.row_step;
  const auto address = [&](int n) {
    int k = 0;
#pragma unroll
    for (int i = 1; i < kStreams; ++i) k += n >= i * p.channels ? 1 : 0;
    return row + k * p.stream_step + (n - k * p.channels);
  };
  const int n = quad * kQuad;
  if constexpr (kAligned) {
    return *reinterpret_cast<const uint2*>(address(n));
  } else {
    uint32_t bits[kQuad];
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      bits[i] = n + i < kStreams * p.channels ? *address(n + i) : 0;
    }
    return make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
  }
}

template <int kStreams, bool kAligned>
__device__ float4 LoadWeights(const Parameters& p, int mix, int quad) {
  const int n = quad * kQuad;
  const float* from = p.fn + mix * p.fn_step + n;
  if constexpr (kAligned) {
    return __ldg(reinterpret_cast<const float4*>(from));
  } else {
    float value[kQuad];
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      value[i] = n + i < kStreams * p.channels ? __ldg(from + i) : 0.0f;
    }
    return make_float4(value[0], value[1], value[2], value[3]);
  }
}

// Inputs of `count` quads from `first` on, of the tile from row t0 on, to x[row][quad]; zeros after
// them, and the last row again beyond the last.
template <int kStreams, int kRows, bool kAligned>
__device__ void Stage(const Parameters& p, int64_t t0, int first, int count, float4* x) {
  constexpr int kEach = (kChunk + kThreads - 1) / kThreads;
  constexpr int kBatch = kRows < 4 ? kRows : 4;  // rows whose loads are under way together
#pragma unroll
  for (int begin = 0; begin < kRows; begin += kBatch) {
    uint2 bits[kBatch][kEach];
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
      const int64_t t = min(t0 + begin + r, p.rows - 1);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int quad = i * kThreads + static_cast<int>(threadIdx.x);
        bits[r][i] = LoadInputs<kStreams, kAligned>(p, t, first + min(quad, count - 1));
      }
    }
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int quad = i * kThreads + static_cast<int>(threadIdx.x);
        const uint2 two = quad < count ? bits[r][i] : make_uint2(0, 0);
        if (quad < kChunk) {
          x[(begin + r) * kChunk + quad] =
              make_float4(__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xFFFF0000),
                          __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xFFFF0000));
        }
      }
    }
  }
}

// sum + a.x * b.x + ... + a.w * b.w, from the left.
__device__ inline float AddProducts(float sum, const float4& a, const float4& b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// What a lane has summed: of its warp's mixes [mix][row], and the squares of rows group, group + 4.
template <int kStreams, int kRows>
struct Sums {
  float mix[ShareOf(kStreams) * kRows] = {};
  float square[SquaresOf(kRows)] = {};
};

// The next quads of a lane, from `quad` on. kWhole: the warp's are all below `count` and aligned.
template <int kStreams, int kRows, bool kWhole>
__device__ void MultiplyQuads(const Parameters& p, const float4* x, int first, int count, int quad,
                              Sums<kStreams, kRows>& sums) {
  constexpr int kShare = ShareOf(kStreams);
  constexpr int kStep = kHalves * kWarp;
  const int group = static_cast<int>(threadIdx.x) / kWarp % kGroups;
  float4 weight[kTogether][kShare];
#pragma unroll
  for (int u = 0; u < kTogether; ++u) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int mix = min(group * kShare + i, MixesOf(kStreams) - 1);
      if (kWhole || quad + u * kStep < count) {
        weight[u][i] = LoadWeights<kStreams, kWhole>(p, mix, first + quad + u * kStep);
      } else {
        weight[u][i] = make_float4(0, 0, 0, 0);
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kTogether; ++u) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 input = x[r * kChunk + quad + u * kStep];
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        sums.mix[i * kRows + r] = AddProducts(sums.mix[i * kRows + r], input, weight[u][i]);
      }
      if (r % kGroups == group) {
        sums.square[r / kGroups] = AddProducts(sums.square[r / kGroups], input, input);
      }
    }
  }
}

template <int kStreams, int kRows>
__device__ void Multiply(const Parameters& p, const float4* x, int first, int count,
                         Sums<kStreams, kRows>& sums) {
  constexpr int kStep = kHalves * kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int half = static_cast<int>(threadIdx.x) / kWarp / kGroups;
#pragma unroll 1
  for (int begin = half * kWarp; begin < count; begin += kTogether * kStep) {
    if (p.fn_aligned && begin + (kTogether - 1) * kStep + kWarp <= count) {
      MultiplyQuads<kStreams, kRows, true>(p, x, first, count, begin + lane, sums);
    } else {
      MultiplyQuads<kStreams, kRows, false>(p, x, first, count, begin + lane, sums);
    }
  }
}

// How often `count` values can be halved, at most once for each bit of a lane.
constexpr int HalvingsOf(int count) {
  int halvings = 0;
  for (; halvings < 5 && count % 2 == 0; count /= 2) ++halvings;
  return halvings;
}

// Sums each of the first kCount values over the lanes that differ in the bits up to kOffset. While
// values can be halved, a lane passes on the half that the other one keeps: afterwards it has the
// first kCount >> HalvingsOf(kCount) places of `value` for the values from the returned one on. The
// bits are those of a butterfly for each value.
template <int kCount, int kOffset, int kAll>
__device__ int SumOverLanes(float (&value)[kAll]) {
  if constexpr (kOffset == 0) {
    return 0;
  } else if constexpr (kCount % 2 == 0) {
    constexpr int kHalf = kCount / 2;
    const bool upper = (static_cast<int>(threadIdx.x) & kOffset) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float passed = upper ? value[i] : value[kHalf + i];
      const float kept = upper ? value[kHalf + i] : value[i];
      value[i] = kept + __shfl_xor_sync(kAllLanes, passed, kOffset);
    }
    return (upper ? kHalf : 0) + SumOverLanes<kHalf, kOffset / 2>(value);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      value[i] += __shfl_xor_sync(kAllLanes, value[i], kOffset);
    }
    return SumOverLanes<kCount, kOffset / 2>(value);
  }
}

// Sums of a block: of each half [row][mix], the squares last.
template <int kStreams, int kRows>
using Partial = float[kHalves][kRows][MixesOf(kStreams) + 1];

template <int kStreams, int kRows>
__device__ void StoreSums(Sums<kStreams, kRows>& sums, Partial<kStreams, kRows>& partial) {
  constexpr int kValues = ShareOf(kStreams) * kRows;
  constexpr int kHalvings = HalvingsOf(kValues);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = static_cast<int>(threadIdx.x) / kWarp % kGroups;
  const int half = static_cast<int>(threadIdx.x) / kWarp / kGroups;
  const int first = SumOverLanes<kValues, kWarp / 2>(sums.mix);
#pragma unroll
  for (int i = 0; i < kValues >> kHalvings; ++i) {
    const int mix = group * ShareOf(kStreams) + (first + i) / kRows;
    if (lane % (kWarp >> kHalvings) == 0 && mix < MixesOf(kStreams)) {
      partial[half][(first + i) % kRows][mix] = sums.mix[i];
    }
  }
#pragma unroll
  for (int i = 0; i < SquaresOf(kRows); ++i) {
    const float square = cuda::WarpSum(sums.square[i]);
    const int row = i * kGroups + group;
    if (lane == 0 && row < kRows) partial[half][row][MixesOf(kStreams)] = square;
  }
}

// Lane i: sum i of a row over all blocks.
template <int kStreams, int kRows>
__device__ float SumOverRanks(const Partial<kStreams, kRows>& partial, int row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int i = min(lane, MixesOf(kStreams));
  float part[kRanks][kHalves];
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      part[rank][half] =
          cluster::Load(SharedAddress(&partial[half][row][i]), static_cast<uint32_t>(rank));
    }
  }
  float total = 0;
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    float block = part[rank][0];
#pragma unroll
    for (int half = 1; half < kHalves; ++half) block += part[rank][half];
    total += block;
  }
  return total;
}

__device__ inline float Sigmoid(float value) { return 1.0f / (1.0f + expf(-value)); }

// One element of a matrix in each lane from `kFirst` on, row after row; other lanes follow the
// first or the last one. Softmax over each row, then alternating column and row divisions. Returns
// the element of this lane.
template <int kStreams, int kFirst>
__device__ float Sinkhorn(float logit, int iters, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int element = min(max(lane - kFirst, 0), kStreams * kStreams - 1);
  const int row = kFirst + element / kStreams * kStreams;
  const int column = kFirst + element % kStreams;
  const auto sum_row = [&](float value) {
    float sum = __shfl_sync(kAllLanes, value, row);
#pragma unroll
    for (int k = 1; k < kStreams; ++k) sum += __shfl_sync(kAllLanes, value, row + k);
    return sum;
  };
  const auto sum_column = [&](float value) {
    float sum = __shfl_sync(kAllLanes, value, column);
#pragma unroll
    for (int j = 1; j < kStreams; ++j) sum += __shfl_sync(kAllLanes, value, column + j * kStreams);
    return sum;
  };
  float largest = __shfl_sync(kAllLanes, logit, row);
#pragma unroll
  for (int k = 1; k < kStreams; ++k) {
    largest = fmaxf(largest, __shfl_sync(kAllLanes, logit, row + k));
  }
  float value = expf(__shfl_sync(kAllLanes, logit, kFirst + element) - largest);
  value = value / sum_row(value) + eps;
  value /= sum_column(value) + eps;
  for (int iter = 1; iter < iters; ++iter) {
    value /= sum_row(value) + eps;
    value /= sum_column(value) + eps;
  }
  return value;
}

// Coefficients of row t by one warp: lane i has the sum of mix i, the one after the last that of
// the squares.
template <int kStreams>
__device__ void Finish(const Parameters& p, int64_t t, float total, float scale, float base) {
  constexpr int kMixes = MixesOf(kStreams);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float width = static_cast<float>(kStreams) * static_cast<float>(p.channels);
  const float mean = __shfl_sync(kAllLanes, total, kMixes) / width;
  const float reciprocal = 1.0f / sqrtf(mean + p.norm_eps);
  const float mix = total * reciprocal * scale + base;
  if (lane < kStreams) {
    p.pre[t * p.pre_step + lane] = Sigmoid(mix) + p.hc_eps;
  } else if (lane < 2 * kStreams) {
    p.post[t * p.post_step + lane - kStreams] = 2.0f * Sigmoid(mix);
  }
  __syncwarp();
  const float value = Sinkhorn<kStreams, 2 * kStreams>(mix, p.iters, p.hc_eps);
  const int element = lane - 2 * kStreams;
  if (element >= 0 && lane < kMixes) {
    p.comb[t * p.comb_step + element / kStreams * p.comb_row_step + element % kStreams] = value;
  }
}

// Asks for the weights of quads [begin, end) while the inputs come.
template <int kStreams>
__device__ void AskForWeights(const Parameters& p, int begin, int end) {
  constexpr int kLine = 128 / sizeof(float4);  // quads
  const int lines = (end - begin + kLine - 1) / kLine;
  for (int i = static_cast<int>(threadIdx.x); i < MixesOf(kStreams) * lines; i += kThreads) {
    const float* from = p.fn + i / lines * p.fn_step + (begin + i % lines * kLine) * kQuad;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  }
}

template <int kStreams, int kRows>
__global__ void __launch_bounds__(kThreads, 2) MixKernel(Parameters p) {
  cuda::BeginAfterLast();
  static_assert(kRows <= kMostRows);
  extern __shared__ float4 x[];
  __shared__ Partial<kStreams, kRows> partial;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int rank = static_cast<int>(cluster::Rank());
  const int64_t t0 = int64_t{blockIdx.x / kRanks} * kRows;
  const int quads = (kStreams * p.channels + kQuad - 1) / kQuad;
  const int share = (quads + kRanks - 1) / kRanks;
  const int begin = min(rank * share, quads);
  const int end = min(begin + share, quads);
  if (t0 == 0) AskForWeights<kStreams>(p, begin, end);
  Sums<kStreams, kRows> sums;
  for (int first = begin; first < end; first += kChunk) {
    const int count = min(kChunk, end - first);
    if (first != begin) __syncthreads();
    if (p.stream_aligned) {
      Stage<kStreams, kRows, true>(p, t0, first, count, x);
    } else {
      Stage<kStreams, kRows, false>(p, t0, first, count, x);
    }
    __syncthreads();
    Multiply<kStreams, kRows>(p, x, first, count, sums);
  }
  const int mix = min(lane, MixesOf(kStreams) - 1);
  const float base = __ldg(p.base + mix);
  const float scale = __ldg(p.scale + min(mix / kStreams, 2));
  StoreSums<kStreams, kRows>(sums, partial);
  cluster::Synchronize();
  const bool finishes = threadIdx.x < kWarp && rank < kRows && t0 + rank < p.rows;
  float total = 0;
  if (finishes) total = SumOverRanks<kStreams, kRows>(partial, rank);
  __syncwarp();
  cluster::Arrive();
  if (finishes) Finish<kStreams>(p, t0 + rank, total, scale, base);
  __syncwarp();
  cluster::Wait();  // the others may still read the sums of this block
}

}  // namespace skein::kernels::sm90::hc
