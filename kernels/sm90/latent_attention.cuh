// Sparse latent attention of 512 channels and up to 64 heads by warpgroup products.
// The list of a row (window, then selected rows) is divided into tiles of 64 places, the tiles
// among the blocks of a cluster: by the problem's capacities alone. Of a block, eight warps decode
// tiles to bf16 (exact) in shared memory, keys and values at once, one tile ahead of the eight
// warps that multiply. Each of their two warpgroups sums scores over half of the channels, adds the
// other's half for 32 of the places, and weighs its half of the channels by all places. Weights are
// relative to powers of two, so that moving from one to another is exact. The blocks' results are
// combined in order. Channels of a group of eight lie in the order 0 4 1 5 2 6 3 7 until they are
// stored. Device code.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "kernels/cuda/order.cuh"
#include "kernels/sm90/arrival.cuh"
#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/bf16_pairs.cuh"
#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/latent_tiles.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace skein::kernels::sm90::latent {

// Queries in the order of the tiles; heads that do not exist are zeros. All loads are under way
// before the first value is used.
template <bool kAligned>
__device__ void LoadQueries(const Parameters& p, int64_t t, Shared& shared) {
  constexpr int kPieces = kDim / 8;
  constexpr int kStep = kMultiplyThreads / kPieces;  // heads
  constexpr int kEach = kHeads / kStep;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const int first = static_cast<int>(threadIdx.x) / kPieces;
  const uint16_t* from = p.q + t * p.q_step + piece * 8;
  uint4 value[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const uint16_t* at = from + min(first + j * kStep, p.heads - 1) * p.q_head_step;
    if constexpr (kAligned) {
      value[j] = *reinterpret_cast<const uint4*>(at);
    } else {
      value[j] = {at[0] | uint32_t{at[1]} << 16, at[2] | uint32_t{at[3]} << 16,
                  at[4] | uint32_t{at[5]} << 16, at[6] | uint32_t{at[7]} << 16};
    }
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int head = first + j * kStep;
    const uint4& c = value[j];
    const uint4 turned = {__byte_perm(c.x, c.z, 0x5410), __byte_perm(c.x, c.z, 0x7632),
                          __byte_perm(c.y, c.w, 0x5410), __byte_perm(c.y, c.w, 0x7632)};
    *reinterpret_cast<uint4*>(&shared.q[piece / 8][head][((piece ^ head) & 7) * 16]) =
        head < p.heads ? turned : uint4{};
  }
}

// Scores times `scale` of the 32 places of warpgroup kGroup; -inf for who is not present.
template <int kGroup>
__device__ void Score(Shared& shared, int stage, float scale, float (&own)[16]) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  float score[32];
  const uint64_t all_q = wgmma::SwizzledOperand(SharedAddress(shared.q[kGroup * 4]));
  const uint64_t all_keys = wgmma::SwizzledOperand(SharedAddress(shared.kv[stage][kGroup * 4]));
  wgmma::Fence();
#pragma unroll
  for (int step = 0; step < 16; ++step) {
    const auto at = static_cast<uint32_t>(step / 4 * kTile * 128 + step % 4 * 32);
    const uint64_t q = wgmma::Advance(all_q, at);
    const uint64_t keys = wgmma::Advance(all_keys, at);
    if (step == 0) {
      wgmma::ProductBf16<false>(score, q, keys);
    } else {
      wgmma::ProductBf16<true>(score, q, keys);
    }
  }
  wgmma::Commit();
  wgmma::Wait<0>();
  wgmma::Settle(score);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    constexpr int kOther = (1 - kGroup) * 16;
    shared.half[kGroup][i][thread] = {score[kOther + 4 * i], score[kOther + 4 * i + 1],
                                      score[kOther + 4 * i + 2], score[kOther + 4 * i + 3]};
  }
  MeetMultiply();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 other = shared.half[1 - kGroup][i][thread];
    const int column = kGroup * 32 + i * 8 + thread % 4 * 2;
    const bool left = shared.present[stage][column] != 0;
    const bool right = shared.present[stage][column + 1] != 0;
    const float* mine = score + kGroup * 16 + 4 * i;
    own[4 * i] = left ? (mine[0] + other.x) * scale : -INFINITY;
    own[4 * i + 1] = right ? (mine[1] + other.y) * scale : -INFINITY;
    own[4 * i + 2] = left ? (mine[2] + other.z) * scale : -INFINITY;
    own[4 * i + 3] = right ? (mine[3] + other.w) * scale : -INFINITY;
  }
}

__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 2^exponent of a whole number that is at most 0.
__device__ inline float PowerOfTwo(float exponent) {
  return exponent < -126 ? 0.0f : __uint_as_float(static_cast<uint32_t>(exponent + 127.0f) << 23);
}

// What a thread knows of its two heads.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};  // whole numbers: no weight is above 1
  float total[2] = {0, 0};                    // of this lane's places of the warpgroup

  // Turns scores of kGroup's places into weights of all, by steps of 16 places, and says by what
  // the earlier sums shrink.
  template <int kGroup>
  __device__ void Take(Shared& shared, float (&own)[16], uint32_t (&weight)[4][4],
                       float (&keep)[2]) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int head = thread / 32 * 16 + thread % 32 / 4;
    float sum[2], mine[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = -INFINITY;
#pragma unroll
      for (int i = 0; i < 8; ++i) most = fmaxf(most, own[i / 2 * 4 + h * 2 + i % 2]);
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, 1));
      most = ceilf(fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, 2)));
      const float base = most == -INFINITY ? 0.0f : most;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& s = own[i / 2 * 4 + h * 2 + i % 2];
        s = exp2f(s - base);
      }
      mine[h] = most;
      if (thread % 4 == 0) shared.largest_of[kGroup][head + h * 8] = most;
    }
    // What is summed are the weights as they are used.
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t* to = weight[kGroup * 2 + step];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (step * 2 + i / 2) * 4 + i % 2 * 2;
        to[i] = PackBf16(own[at], own[at + 1]);
        sum[i % 2] += __uint_as_float(to[i] << 16) + __uint_as_float(to[i] & 0xFFFF0000);
      }
      shared.weight[kGroup][step][thread] = {to[0], to[1], to[2], to[3]};
    }
    MeetMultiply();
    uint32_t factor[2][2];  // of the places of a warpgroup, for each head
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float theirs = shared.largest_of[1 - kGroup][head + h * 8];
      const float most = fmaxf(largest[h], fmaxf(mine[h], theirs));
      const float base = most == -INFINITY ? 0.0f : most;
      const float own_factor = PowerOfTwo(mine[h] - base);
      const float other_factor = PowerOfTwo(theirs - base);
      factor[kGroup][h] = PackBf16(own_factor, own_factor);
      factor[1 - kGroup][h] = PackBf16(other_factor, other_factor);
      keep[h] = PowerOfTwo(largest[h] - base);
      total[h] = fmaf(total[h], keep[h], sum[h] * own_factor);
      largest[h] = most;
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const uint4 other = shared.weight[1 - kGroup][step][thread];
      uint32_t* to = weight[(1 - kGroup) * 2 + step];
      to[0] = other.x, to[1] = other.y, to[2] = other.z, to[3] = other.w;
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weight[step][i] = TimesPair(weight[step][i], factor[step / 2][i % 2]);
      }
    }
  }
};

// Adds the weighed values of the tile: 256 channels of this warpgroup, in two halves.
template <int kGroup>
__device__ void Weigh(const Shared& shared, int stage, uint32_t (&weight)[4][4],
                      const float (&keep)[2], float (&sum)[2][64]) {
  if (keep[0] != 1 || keep[1] != 1) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 64; ++i) sum[half][i] *= keep[i / 2 % 2];
    }
  }
  constexpr uint32_t kBlockBytes = kTile * 128;
  const uint64_t values =
      wgmma::SwizzledColumns(SharedAddress(shared.kv[stage][kGroup * 4]), kBlockBytes);
  for (auto& step : weight) wgmma::Settle(step);
  wgmma::Fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto at = static_cast<uint32_t>(half * 2 * kBlockBytes + step * 16 * 128);
      wgmma::AddBf16Rows(sum[half], weight[step], wgmma::Advance(values, at));
    }
  }
  wgmma::Commit();
  wgmma::Wait<0>();
  wgmma::Settle(sum[0]);
  wgmma::Settle(sum[1]);
}

// This block's sums, unscaled, and what they stand for, where the cluster finds them.
template <int kGroup>
__device__ void Publish(Shared& shared, const Softmax& softmax, const float (&sum)[2][64]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  auto* sums = reinterpret_cast<float*>(&shared);  // over queries and values
  static_assert(offsetof(Shared, half) >= sizeof(float) * kRowStep * kHeads);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
      const int channel = kGroup * 256 + half * 128 + i / 4 * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(sums + (head + i / 2 % 2 * 8) * kRowStep + channel) = {
          sum[half][i], sum[half][i + 1]};
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = softmax.total[h];
    total += __shfl_xor_sync(0xFFFFFFFF, total, 1);
    total += __shfl_xor_sync(0xFFFFFFFF, total, 2);
    if (lane % 4 == 0) {
      shared.total[kGroup][head + h * 8] = total;
      if (kGroup == 0) shared.largest[head + h * 8] = softmax.largest[h];
    }
  }
}

// The warps that multiply.
template <int kGroup>
__device__ void Multiply(const Parameters& p, int tiles, Shared& shared) {
  float sum[2][64] = {};
  Softmax softmax;
  Ring<kStages> ring;
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = static_cast<int>(ring.stage);
    WaitForPhase(SharedAddress(&shared.full[stage]), ring.parity);
    float own[16], keep[2];
    uint32_t weight[4][4];
    Score<kGroup>(shared, stage, p.scale * (kLog2E / kSmaller), own);
    softmax.Take<kGroup>(shared, own, weight, keep);
    Weigh<kGroup>(shared, stage, weight, keep, sum);
    Arrive(SharedAddress(&shared.empty[stage]));
    ring.Advance();
  }
  MeetMultiply();
  Publish<kGroup>(shared, softmax, sum);
}

// By what a head's sums of each block are multiplied.
__device__ inline void FindFactors(const Parameters& p, Shared& shared, int parts) {
  const int head = static_cast<int>(threadIdx.x);
  if (head >= p.heads) return;
  float largest[kMostParts], total_of[kMostParts][2];
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    const auto part = static_cast<uint32_t>(min(i, parts - 1));
    largest[i] = cluster::Load(SharedAddress(&shared.largest[head]), part);
    total_of[i][0] = cluster::Load(SharedAddress(&shared.total[0][head]), part);
    total_of[i][1] = cluster::Load(SharedAddress(&shared.total[1][head]), part);
  }
  const float sink = p.sink[head] * kLog2E;
  float most = sink;
  bool any = false;
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    any = any || largest[i] != -INFINITY;
    most = fmaxf(most, largest[i]);
  }
  float total = sink == -INFINITY ? 0.0f : sink == most ? 1.0f : exp2f(sink - most);
  float factor[kMostParts];
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    const float part = total_of[i][0] + total_of[i][1];
    const float weight = largest[i] == -INFINITY ? 0.0f
                         : largest[i] == most    ? 1.0f
                                                 : exp2f(largest[i] - most);
    // A NaN stays one even where the block has no largest score.
    factor[i] = part != part ? part : weight;
    if (i < parts) total = fmaf(part, weight, total);
  }
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    shared.factor[i][head] = any ? factor[i] / total / kSmaller : 0.0f;
  }
}

// Combines the cluster's sums in order and stores this block's share of them. A thread has pieces
// of four sums under way, so that a warp reads contiguous memory of another block; lanes that are
// neighbours have the halves of eight channels.
__device__ inline void Combine(const Parameters& p, int64_t t, Shared& shared) {
  constexpr int kAtOnce = 8;
  constexpr int kPieces = kDim / 4;
  const int parts = static_cast<int>(cluster::Size());
  const int rank = static_cast<int>(cluster::Rank());
  FindFactors(p, shared, parts);
  MeetMultiply();
  const int stride = parts * kMultiplyThreads;
  const int end = p.heads * kPieces;
  const bool odd = threadIdx.x % 2 != 0;
#pragma unroll 1
  for (int begin = rank * kMultiplyThreads + static_cast<int>(threadIdx.x); begin < end;
       begin += kAtOnce * stride) {
    float4 out[kAtOnce] = {};
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
      float4 from[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int i = min(begin + n * stride, end - 1);
        const int at = i / kPieces * kRowStep + i % kPieces * 4;
        const auto* own = reinterpret_cast<const float*>(&shared) + at;
        from[n] = part == rank ? *reinterpret_cast<const float4*>(own)
                               : cluster::LoadFour(SharedAddress(own), static_cast<uint32_t>(part));
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const float factor = shared.factor[part][min(begin + n * stride, end - 1) / kPieces];
        out[n].x = fmaf(from[n].x, factor, out[n].x);
        out[n].y = fmaf(from[n].y, factor, out[n].y);
        out[n].z = fmaf(from[n].z, factor, out[n].z);
        out[n].w = fmaf(from[n].w, factor, out[n].w);
      }
    }
    // Sums of channels 0 4 1 5 and 2 6 3 7: one lane gets the first four channels, one the others.
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const uint32_t low = PackBf16(out[n].x, out[n].z), high = PackBf16(out[n].y, out[n].w);
      const uint32_t theirs = __shfl_xor_sync(0xFFFFFFFF, odd ? low : high, 1);
      const int i = begin + n * stride;
      if (i >= end) continue;
      uint16_t* to = p.out + t * p.out_step + i / kPieces * p.out_head_step + i % kPieces * 4;
      const uint2 value = odd ? uint2{theirs, high} : uint2{low, theirs};
      if (p.out_aligned) {
        *reinterpret_cast<uint2*>(to) = value;
      } else {
        to[0] = static_cast<uint16_t>(value.x);
        to[1] = static_cast<uint16_t>(value.x >> 16);
        to[2] = static_cast<uint16_t>(value.y);
        to[3] = static_cast<uint16_t>(value.y >> 16);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    LatentAttentionKernel(const __grid_constant__ Parameters p) {
  extern __shared__ uint8_t memory[];
  const uint32_t base = SharedAddress(memory);
  Shared& shared = *reinterpret_cast<Shared*>(memory + (-base & (kAlignment - 1)));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitArrivals(SharedAddress(&shared.full[i]), kDecodeThreads);
      InitArrivals(SharedAddress(&shared.empty[i]), kMultiplyThreads);
    }
  }
  __syncthreads();
  cuda::BeginAfterLast();
  const int64_t t = blockIdx.x / cluster::Size();
  if (p.rows.sequence[t] < 0) return;
  const int first = static_cast<int>(cluster::Rank()) * p.tiles;
  const int tiles = min(p.tiles, TilesOf(p.window) + TilesOf(p.num_selected) - first);
  const int begin = first * kTile;
  // The same for all lanes, and known to be.
  const int group = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0);
  if (group >= kMultiplyThreads / 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kDecodeRegisters));
    Decode(p, t, begin, tiles, shared);
    cluster::Synchronize();
    cluster::Synchronize();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplyRegisters));
    if (p.q_aligned) {
      LoadQueries<true>(p, t, shared);
    } else {
      LoadQueries<false>(p, t, shared);
    }
    FenceForProducts();
    MeetMultiply();
    if (group == 0) {
      Multiply<0>(p, tiles, shared);
    } else {
      Multiply<1>(p, tiles, shared);
    }
    cluster::Synchronize();
    Combine(p, t, shared);
    cluster::Synchronize();
  }
}

}  // namespace skein::kernels::sm90::latent
