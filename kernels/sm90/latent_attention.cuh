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

// Eight channels of a query from memory, and in the order of the tiles.
template <bool kAligned>
__device__ uint4 QueryPiece(const uint16_t* at) {
  if constexpr (kAligned) {
    return *reinterpret_cast<const uint4*>(at);
  } else {
    return {at[0] | uint32_t{at[1]} << 16, at[2] | uint32_t{at[3]} << 16,
            at[4] | uint32_t{at[5]} << 16, at[6] | uint32_t{at[7]} << 16};
  }
}
__device__ inline uint4 TurnPiece(const uint4& c) {
  return {__byte_perm(c.x, c.z, 0x5410), __byte_perm(c.x, c.z, 0x7632),
          __byte_perm(c.y, c.w, 0x5410), __byte_perm(c.y, c.w, 0x7632)};
}

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
    value[j] = QueryPiece<kAligned>(from + min(first + j * kStep, p.heads - 1) * p.q_head_step);
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int head = first + j * kStep;
    *reinterpret_cast<uint4*>(&shared.q[piece / 8][head][((piece ^ head) & 7) * 16]) =
        head < p.heads ? TurnPiece(value[j]) : uint4{};
  }
}

// Scores of 64 places over 256 channels.
__device__ inline void SumScores(uint64_t all_q, uint64_t all_keys, float (&score)[32]) {
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
}
// Adds the sums over the other channels, of two heads and two places, times `scale`; -inf for who
// is not present.
__device__ inline void AddHalves(const float* mine, const float4& other, bool left, bool right,
                                 float scale, float* own) {
  own[0] = left ? (mine[0] + other.x) * scale : -INFINITY;
  own[1] = right ? (mine[1] + other.y) * scale : -INFINITY;
  own[2] = left ? (mine[2] + other.z) * scale : -INFINITY;
  own[3] = right ? (mine[3] + other.w) * scale : -INFINITY;
}

// Scores of the 32 places of warpgroup kGroup.
template <int kGroup>
__device__ void Score(Shared& shared, int stage, float scale, float (&own)[16]) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  float score[32];
  SumScores(wgmma::SwizzledOperand(SharedAddress(shared.q[kGroup * 4])),
            wgmma::SwizzledOperand(SharedAddress(shared.kv[stage][kGroup * 4])), score);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* theirs = score + (1 - kGroup) * 16 + 4 * i;
    shared.half[kGroup][i][thread] = {theirs[0], theirs[1], theirs[2], theirs[3]};
  }
  MeetMultiply();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = kGroup * 32 + i * 8 + thread % 4 * 2;
    AddHalves(score + kGroup * 16 + 4 * i, shared.half[1 - kGroup][i][thread],
              shared.present[stage][column] != 0, shared.present[stage][column + 1] != 0, scale,
              own + 4 * i);
  }
}

__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
// Weights of 16 places as an operand of products.
__device__ inline uint4 PackStep(const float* own) {
  return {PackBf16(own[0], own[1]), PackBf16(own[2], own[3]), PackBf16(own[4], own[5]),
          PackBf16(own[6], own[7])};
}
__device__ inline void SpreadWords(const uint4& from, uint32_t (&to)[4]) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

// 2^exponent of a whole number that is at most 0.
__device__ inline float PowerOfTwo(float exponent) {
  return exponent < -126 ? 0.0f : __uint_as_float(static_cast<uint32_t>(exponent + 127.0f) << 23);
}

// Turns scores of 32 places into weights relative to `mine`, for each of a thread's two heads a
// whole number that none is above.
__device__ inline void WeighOwn(float (&own)[16], float (&mine)[2]) {
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
  }
}

// Of a step's weights as they are used, for each head.
__device__ inline void AddStep(const uint32_t (&weight)[4], float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[i % 2] += __uint_as_float(weight[i] << 16) + __uint_as_float(weight[i] & 0xFFFF0000);
  }
}

// What a thread knows of its two heads.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};  // whole numbers: no weight is above 1
  float total[2] = {0, 0};                    // of this lane's places of the warpgroup

  // Makes the weights of 64 places, by steps of 16, relative to the largest of all so far, and says
  // by what the earlier sums shrink. Those of kGroup's 32 are relative to `mine`, with a sum of
  // `sum` in this lane, the others to `theirs`.
  template <int kGroup>
  __device__ void Join(const float (&mine)[2], const float (&theirs)[2], const float (&sum)[2],
                       uint32_t (&weight)[4][4], float (&keep)[2]) {
    uint32_t factor[2][2];  // of the places of a warpgroup, for each head
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = fmaxf(largest[h], fmaxf(mine[h], theirs[h]));
      const float base = most == -INFINITY ? 0.0f : most;
      const float own_factor = PowerOfTwo(mine[h] - base);
      const float other_factor = PowerOfTwo(theirs[h] - base);
      factor[kGroup][h] = PackBf16(own_factor, own_factor);
      factor[1 - kGroup][h] = PackBf16(other_factor, other_factor);
      keep[h] = PowerOfTwo(largest[h] - base);
      total[h] = fmaf(total[h], keep[h], sum[h] * own_factor);
      largest[h] = most;
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weight[step][i] = TimesPair(weight[step][i], factor[step / 2][i % 2]);
      }
    }
  }
  // Of all lanes that have the head.
  __device__ float Total(int h) const {
    const float two = total[h] + __shfl_xor_sync(0xFFFFFFFF, total[h], 1);
    return two + __shfl_xor_sync(0xFFFFFFFF, two, 2);
  }
};

// Turns scores of kGroup's places into weights of all, and says by what the earlier sums shrink.
template <int kGroup>
__device__ void Take(Shared& shared, float (&own)[16], Softmax& softmax, uint32_t (&weight)[4][4],
                     float (&keep)[2]) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int head = thread / 32 * 16 + thread % 32 / 4;
  float mine[2], theirs[2], sum[2] = {0, 0};
  WeighOwn(own, mine);
  if (thread % 4 == 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) shared.largest_of[kGroup][head + h * 8] = mine[h];
  }
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint4 packed = PackStep(own + step * 8);
    SpreadWords(packed, weight[kGroup * 2 + step]);
    AddStep(weight[kGroup * 2 + step], sum);
    shared.weight[kGroup][step][thread] = packed;
  }
  MeetMultiply();
#pragma unroll
  for (int h = 0; h < 2; ++h) theirs[h] = shared.largest_of[1 - kGroup][head + h * 8];
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    SpreadWords(shared.weight[1 - kGroup][step][thread], weight[(1 - kGroup) * 2 + step]);
  }
  softmax.Join<kGroup>(mine, theirs, sum, weight, keep);
}

// Adds the weighed values of a tile: 256 channels from `address` on, so many a product that a
// thread has kSums of them.
template <int kProducts, int kSums>
__device__ void AddWeighed(uint32_t address, uint32_t (&weight)[4][4], const float (&keep)[2],
                           float (&sum)[kProducts][kSums]) {
  if (keep[0] != 1 || keep[1] != 1) {
#pragma unroll
    for (auto& product : sum) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) product[i] *= keep[i / 2 % 2];
    }
  }
  constexpr uint32_t kBlockBytes = kTile * 128;
  const uint64_t values = wgmma::SwizzledColumns(address, kBlockBytes);
  for (auto& step : weight) wgmma::Settle(step);
  wgmma::Fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const auto at = static_cast<uint32_t>(i * (kSums / 32) * kBlockBytes + step * 16 * 128);
      wgmma::AddBf16Rows(sum[i], weight[step], wgmma::Advance(values, at));
    }
  }
  wgmma::Commit();
  wgmma::Wait<0>();
  for (auto& product : sum) wgmma::Settle(product);
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
    const float total = softmax.Total(h);
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
    Take<kGroup>(shared, own, softmax, weight, keep);
    AddWeighed(SharedAddress(shared.kv[stage][kGroup * 4]), weight, keep, sum);
    Arrive(SharedAddress(&shared.empty[stage]));
    ring.Advance();
  }
  MeetMultiply();
  Publish<kGroup>(shared, softmax, sum);
}

// By what a head's sums of each part are multiplied. The parts' largest scores and totals of two
// warpgroups are found by largest_of(part, head) and total_of(part, group, head).
template <typename Largest, typename Total>
__device__ void FindFactors(const Parameters& p, int head, int parts, const Largest& largest_of,
                            const Total& total_of, float (&factors)[kMostParts][kHeads]) {
  if (head >= p.heads) return;
  float largest[kMostParts], total_of_group[kMostParts][2];
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    if (i >= parts) break;
    largest[i] = largest_of(i, head);
    total_of_group[i][0] = total_of(i, 0, head);
    total_of_group[i][1] = total_of(i, 1, head);
  }
  const float sink = p.sink[head] * kLog2E;
  float most = sink;
  bool any = false;
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    if (i >= parts) break;
    any = any || largest[i] != -INFINITY;
    most = fmaxf(most, largest[i]);
  }
  float total = sink == -INFINITY ? 0.0f : sink == most ? 1.0f : exp2f(sink - most);
  float factor[kMostParts];
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    if (i >= parts) break;
    const float part = total_of_group[i][0] + total_of_group[i][1];
    const float weight = largest[i] == -INFINITY ? 0.0f
                         : largest[i] == most    ? 1.0f
                                                 : exp2f(largest[i] - most);
    // A NaN stays one even where the block has no largest score.
    factor[i] = part != part ? part : weight;
    total = fmaf(part, weight, total);
  }
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    if (i >= parts) break;
    factors[i][head] = any ? factor[i] / total / kSmaller : 0.0f;
  }
}

__device__ inline void AddScaled(const float4& from, float factor, float4& out) {
  out.x = fmaf(from.x, factor, out.x);
  out.y = fmaf(from.y, factor, out.y);
  out.z = fmaf(from.z, factor, out.z);
  out.w = fmaf(from.w, factor, out.w);
}
// Stores four of a head's sums from `channel` on, if they exist. Neighbours have sums of channels
// 0 4 1 5 and 2 6 3 7: one lane gets the first four channels, one the others.
__device__ inline void StoreFour(const Parameters& p, int64_t t, int head, int channel, bool exist,
                                 const float4& out) {
  const bool odd = threadIdx.x % 2 != 0;
  const uint32_t low = PackBf16(out.x, out.z), high = PackBf16(out.y, out.w);
  const uint32_t theirs = __shfl_xor_sync(0xFFFFFFFF, odd ? low : high, 1);
  if (!exist) return;
  uint16_t* to = p.out + t * p.out_step + head * p.out_head_step + channel;
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

// Combines the cluster's sums in order and stores this block's share of them. A thread has pieces
// of four sums under way, so that a warp reads contiguous memory of another block.
__device__ inline void Combine(const Parameters& p, int64_t t, Shared& shared) {
  constexpr int kAtOnce = 8;
  constexpr int kPieces = kDim / 4;
  const int parts = static_cast<int>(cluster::Size());
  const int rank = static_cast<int>(cluster::Rank());
  const auto total = [&](int part, int group, int head) {
    return cluster::Load(SharedAddress(&shared.total[group][head]), static_cast<uint32_t>(part));
  };
  const auto largest = [&](int part, int head) {
    return cluster::Load(SharedAddress(&shared.largest[head]), static_cast<uint32_t>(part));
  };
  FindFactors(p, static_cast<int>(threadIdx.x), parts, largest, total, shared.factor);
  MeetMultiply();
  const int stride = parts * kMultiplyThreads;
  const int end = p.heads * kPieces;
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
        AddScaled(from[n], shared.factor[part][min(begin + n * stride, end - 1) / kPieces], out[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = begin + n * stride;
      StoreFour(p, t, i / kPieces, i % kPieces * 4, i < end, out[n]);
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
  TouchParameters(p);
  cuda::BeginAfterLast();
  const int64_t t = blockIdx.x / cluster::Size();
  const int sequence = p.rows.sequence[t];
  if (sequence < 0) return;
  const int first = static_cast<int>(cluster::Rank()) * p.tiles;
  const int tiles = min(p.tiles, TilesOf(p.window) + TilesOf(p.num_selected) - first);
  // The same for all lanes, and known to be.
  const int group = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0);
  if (group >= kMultiplyThreads / 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kDecodeRegisters));
    Decode(p, t, sequence, first, tiles, shared);
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
