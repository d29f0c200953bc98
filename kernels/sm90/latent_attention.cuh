// Sparse latent attention of 512 channels and up to 64 heads by warpgroup products.
// The list of a row (window, then selected rows) is divided into tiles of 64 places, the tiles
// among the blocks of a cluster: by the problem's capacities alone. A block decodes a tile to bf16
// (exact) in shared memory, keys and values at once; each of its two warpgroups sums scores over
// half of the channels, both add the halves, and each weighs its half of the channels. The blocks'
// results are combined in order. Channels of a group of eight lie in the order 0 4 1 5 2 6 3 7
// until they are stored. Device code.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "kernels/cuda/order.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/bf16_pairs.cuh"
#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace skein::kernels::sm90::latent {

inline constexpr int kDim = 512;
inline constexpr int kHeads = 64;
inline constexpr int kTile = 64;  // places of the list
inline constexpr int kThreads = 256;
inline constexpr int kBlocks = kDim / 64;  // of 64 channels: 128 bytes of a row
inline constexpr int kMostParts = 8;
inline constexpr int kRowStep = kDim + 8;  // of a head's sums: no bank conflicts
inline constexpr float kLog2E = 1.4426950408889634f;

// Blocks that share a row's list, and tiles of each.
struct Division {
  int parts, tiles;
};
constexpr Division DivisionOf(int places) {
  const int tiles = (places + kTile - 1) / kTile;
  const int most = tiles < 2 * kMostParts ? (tiles + 1) / 2 : kMostParts;
  const int each = most == 0 ? 0 : (tiles + most - 1) / most;
  return {each == 0 ? 1 : (tiles + each - 1) / each, each};
}

struct Parameters {
  cuda::Rows rows;
  const uint16_t* q;
  int64_t q_step, q_head_step;
  const int32_t* window_begin;
  const int32_t* window_end;
  cuda::Pool fresh, ring, history;
  int ring_rows;
  const int32_t* selected;
  int64_t selected_step;
  int window, num_selected, ratio;  // capacities of the list
  const float* sink;
  uint16_t* out;
  int64_t out_step, out_head_step;
  float scale;
  int heads, tiles;
  bool q_aligned;  // heads begin at multiples of 16 bytes
};

// A place of the list.
struct Place {
  const uint8_t* data = nullptr;  // null: nobody
  const uint8_t* scale = nullptr;
};
inline constexpr int kMostTiles = 4;  // whose places are found at once

struct Shared {
  uint8_t q[kBlocks][kHeads][128];  // bf16, swizzled
  uint8_t kv[kBlocks][kTile][128];  // bf16, swizzled
  float4 half[2][8][128];           // scores over half of the channels, by thread
  Place place[kMostTiles * kTile];  // of this block's tiles
  int present[kTile];
  float largest[kHeads], total[kHeads];  // of this block's places; scores times log2 e
  float factor[kMostParts][kHeads];
};
inline constexpr size_t kAlignment = 1024;

__device__ inline Place PlaceOf(const Parameters& p, int64_t t, int index) {
  const int sequence = p.rows.sequence[t];
  const cuda::Pool* pool = &p.history;
  int64_t row = 0;
  if (index < p.window) {
    const int64_t position = int64_t{p.window_begin[t]} + index;
    if (position >= p.window_end[t]) return {};
    const int64_t first = p.rows.first_position[sequence];
    pool = position >= first ? &p.fresh : &p.ring;
    row = position >= first ? p.rows.first_row[sequence] + position - first
                            : int64_t{p.rows.slot[sequence]} * p.ring_rows + position % p.ring_rows;
  } else {
    if (index - p.window >= p.num_selected) return {};
    const int32_t j = p.selected[t * p.selected_step + index - p.window];
    if (j < 0) return {};
    row = p.rows.HistoryRow(sequence, p.ratio, j);
  }
  return {pool->RowData(row), pool->RowScale(row)};
}

__device__ inline uint32_t Twice(uint32_t half) { return half | half << 16; }

// Eight e2m1 codes times a scale.
__device__ inline uint4 DecodePacked(uint32_t word, uint32_t scale) {
  constexpr uint32_t kMagnitude = 0x01C001C0, kSign = 0x80008000;
  return {TimesPair(TimesPair((word << 6 & kMagnitude) | (word << 12 & kSign), kUp126), scale),
          TimesPair(TimesPair((word << 2 & kMagnitude) | (word << 8 & kSign), kUp126), scale),
          TimesPair(TimesPair((word >> 2 & kMagnitude) | (word << 4 & kSign), kUp126), scale),
          TimesPair(TimesPair((word >> 6 & kMagnitude) | (word & kSign), kUp126), scale)};
}

// Two e4m3 codes, in the upper bytes of the halves, times a scale.
__device__ inline uint32_t DecodePair(uint32_t codes, uint32_t scale) {
  return TimesPair(TimesPair(SpreadPair(codes), kUp120), scale);
}
__device__ inline uint4 DecodeEight(uint32_t low, uint32_t high, uint32_t scale) {
  return {DecodePair(__byte_perm(low, high, 0x4000), scale),
          DecodePair(__byte_perm(low, high, 0x5010), scale),
          DecodePair(__byte_perm(low, high, 0x6020), scale),
          DecodePair(__byte_perm(low, high, 0x7030), scale)};
}

// A thread's quarter of a place: 128 channels of entry threadIdx.x % 64.
struct Quarter {
  uint4 codes[8];
  uint32_t scale[2];

  __device__ void Fetch(const Place& place, bool packed, int quarter) {
    const int pieces = packed ? 4 : 8;
    const auto* from = reinterpret_cast<const uint4*>(place.data) + quarter * pieces;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < pieces) codes[i] = from[i];
    }
    const auto* words = reinterpret_cast<const uint32_t*>(place.scale);
    scale[0] = words[packed ? quarter * 2 : quarter];
    scale[1] = packed ? words[quarter * 2 + 1] : 0;
  }
  __device__ uint32_t ScaleByte(int i) const { return scale[i / 4] >> (i % 4 * 8) & 255; }

  // e2m1 with an e4m3 scale per 16 channels.
  __device__ void StorePacked(uint8_t* line[2], int row) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t byte = ScaleByte(i);
      const uint32_t bits = __float_as_uint(__uint_as_float((byte & 127) << 20) * 0x1p120f);
      const uint32_t value = (byte & 127) == 127 ? 0x7FC00000u : bits;
      const uint32_t factor = Twice(value >> 16 | (byte & 128) << 8);
      const uint4& four = codes[i / 2];
      const uint4 first = DecodePacked(i % 2 == 0 ? four.x : four.z, factor);
      const uint4 second = DecodePacked(i % 2 == 0 ? four.y : four.w, factor);
      uint8_t* to = line[i / 4];
      *reinterpret_cast<uint4*>(to + ((i % 4 * 2 ^ row) & 7) * 16) = first;
      *reinterpret_cast<uint4*>(to + ((i % 4 * 2 + 1 ^ row) & 7) * 16) = second;
    }
  }
  // e4m3 with an e8m0 scale per 32 channels.
  __device__ void StoreCodes(uint8_t* line[2], int row) const {
    uint32_t nan = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t byte = ScaleByte(i / 2);
      const uint32_t factor = ScalePair(byte);
      const uint4& four = codes[i];
      for (const uint32_t word : {four.x, four.y, four.z, four.w}) {
        nan |= (word & 0x7F7F7F7F) + 0x01010101 & 0x80808080;
      }
      uint8_t* to = line[i / 4];
      *reinterpret_cast<uint4*>(to + ((i % 4 * 2 ^ row) & 7) * 16) =
          DecodeEight(four.x, four.y, factor);
      *reinterpret_cast<uint4*>(to + ((i % 4 * 2 + 1 ^ row) & 7) * 16) =
          DecodeEight(four.z, four.w, factor);
    }
    // A NaN code: every score of the place is NaN.
    if (nan != 0) *reinterpret_cast<uint32_t*>(line[0] + (row & 7) * 16) = 0x7FC07FC0;
  }
};

// Finds the places of the next tiles, so that nobody waits for them one tile at a time.
__device__ inline void FindPlaces(const Parameters& p, int64_t t, int first, int count,
                                  Shared& shared) {
  for (int i = static_cast<int>(threadIdx.x); i < count * kTile; i += kThreads) {
    shared.place[i] = PlaceOf(p, t, first + i);
  }
}

__device__ inline void DecodeTile(const Parameters& p, int first, int tile, Shared& shared) {
  const int entry = static_cast<int>(threadIdx.x) % kTile;
  const int quarter = static_cast<int>(threadIdx.x) / kTile;
  const Place place = shared.place[tile * kTile + entry];
  const KvFormat format = first + entry < p.window ? p.fresh.format : p.history.format;
  if (quarter == 0) shared.present[entry] = place.data != nullptr ? 1 : 0;
  uint8_t* line[2] = {shared.kv[quarter * 2][entry], shared.kv[quarter * 2 + 1][entry]};
  if (place.data == nullptr) {
    for (int i = 0; i < 16; ++i) *reinterpret_cast<uint4*>(line[i / 8] + i % 8 * 16) = {};
    return;
  }
  Quarter codes;
  if (format == KvFormat::kFp4Group16) {
    codes.Fetch(place, true, quarter);
    codes.StorePacked(line, entry);
  } else {
    codes.Fetch(place, false, quarter);
    codes.StoreCodes(line, entry);
  }
}

// Eight channels of a head in the order of the tiles; heads that do not exist are zeros.
__device__ inline uint4 QueriesAt(const Parameters& p, int64_t t, int head, int piece) {
  if (head >= p.heads) return {};
  const uint16_t* from = p.q + t * p.q_step + head * p.q_head_step + piece * 8;
  uint32_t c[4];
  if (p.q_aligned) {
    *reinterpret_cast<uint4*>(c) = *reinterpret_cast<const uint4*>(from);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) c[j] = from[2 * j] | uint32_t{from[2 * j + 1]} << 16;
  }
  return {__byte_perm(c[0], c[2], 0x5410), __byte_perm(c[0], c[2], 0x7632),
          __byte_perm(c[1], c[3], 0x5410), __byte_perm(c[1], c[3], 0x7632)};
}

__device__ inline void LoadQueries(const Parameters& p, int64_t t, Shared& shared) {
  constexpr int kAtOnce = 8;
  constexpr int kPieces = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kPieces; i += kAtOnce * kThreads) {
    uint4 value[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int item = i + j * kThreads;
      value[j] = QueriesAt(p, t, item / kPieces, item % kPieces);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int item = i + j * kThreads;
      const int head = item / kPieces, piece = item % kPieces;
      *reinterpret_cast<uint4*>(&shared.q[piece / 8][head][((piece ^ head) & 7) * 16]) = value[j];
    }
  }
}

// Scores of the tile times `scale`, the same in both warpgroups; -inf for who is not present.
__device__ inline void Score(Shared& shared, float scale, float (&score)[32]) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
  for (int i = 0; i < 32; ++i) score[i] = 0;
  wgmma::Fence();
#pragma unroll
  for (int step = 0; step < 16; ++step) {
    const int block = group * 4 + step / 4;
    const uint32_t inside = static_cast<uint32_t>(step % 4 * 32);
    wgmma::AddBf16(score, wgmma::SwizzledOperand(SharedAddress(shared.q[block]) + inside),
                   wgmma::SwizzledOperand(SharedAddress(shared.kv[block]) + inside));
  }
  wgmma::Commit();
  wgmma::Wait<0>();
  wgmma::Settle(score);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    shared.half[group][i][thread] = {score[4 * i], score[4 * i + 1], score[4 * i + 2],
                                     score[4 * i + 3]};
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 other = shared.half[1 - group][i][thread];
    const int column = i * 8 + thread % 4 * 2;
    const bool left = shared.present[column] != 0, right = shared.present[column + 1] != 0;
    score[4 * i] = left ? (score[4 * i] + other.x) * scale : -INFINITY;
    score[4 * i + 1] = right ? (score[4 * i + 1] + other.y) * scale : -INFINITY;
    score[4 * i + 2] = left ? (score[4 * i + 2] + other.z) * scale : -INFINITY;
    score[4 * i + 3] = right ? (score[4 * i + 3] + other.w) * scale : -INFINITY;
  }
}

// What a thread knows of its two heads.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};  // of this lane's places

  // Turns scores into weights and says by what the earlier sums shrink.
  __device__ void Take(float (&score)[32], float (&keep)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = largest[h];
#pragma unroll
      for (int i = 0; i < 16; ++i) most = fmaxf(most, score[i / 2 * 4 + h * 2 + i % 2]);
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, 2));
      const float base = most == -INFINITY ? 0.0f : most;
      keep[h] = exp2f(largest[h] - base);
      largest[h] = most;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float& s = score[i / 2 * 4 + h * 2 + i % 2];
        s = exp2f(s - base);
        sum += s;
      }
      total[h] = fmaf(total[h], keep[h], sum);
    }
  }
};

__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Adds the weighed values of the tile: 256 channels of this warpgroup, in two halves.
__device__ inline void Weigh(const Shared& shared, const float (&weight)[32],
                             const float (&keep)[2], float (&sum)[2][64]) {
  const int group = static_cast<int>(threadIdx.x) / 128;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[half][i] *= keep[i / 2 % 2];
  }
  uint32_t a[4][4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (step * 2 + i / 2) * 4 + i % 2 * 2;
      a[step][i] = PackBf16(weight[at], weight[at + 1]);
    }
  }
  constexpr uint32_t kBlockBytes = kTile * 128;
  wgmma::Fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t at = SharedAddress(shared.kv[group * 4 + half * 2]) + step * 16 * 128;
      wgmma::AddBf16Rows(sum[half], a[step], wgmma::SwizzledColumns(at, kBlockBytes));
    }
  }
  wgmma::Commit();
  wgmma::Wait<0>();
  wgmma::Settle(sum[0]);
  wgmma::Settle(sum[1]);
}

// This block's sums, unscaled, and what they stand for, where the cluster finds them.
__device__ inline void Publish(Shared& shared, const Softmax& softmax, const float (&sum)[2][64]) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  auto* sums = reinterpret_cast<float*>(&shared);  // over queries, values and halves of scores
  static_assert(offsetof(Shared, present) >= sizeof(float) * kRowStep * kHeads);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
      const int channel = group * 256 + half * 128 + i / 4 * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(sums + (head + i / 2 % 2 * 8) * kRowStep + channel) = {
          sum[half][i], sum[half][i + 1]};
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = softmax.total[h];
    total += __shfl_xor_sync(0xFFFFFFFF, total, 1);
    total += __shfl_xor_sync(0xFFFFFFFF, total, 2);
    if (group == 0 && lane % 4 == 0) {
      shared.largest[head + h * 8] = softmax.largest[h];
      shared.total[head + h * 8] = total;
    }
  }
}

// By what a head's sums of each block are multiplied.
__device__ inline void FindFactors(const Parameters& p, Shared& shared, int parts) {
  const int head = static_cast<int>(threadIdx.x);
  if (head >= p.heads) return;
  float largest[kMostParts];
  const float sink = p.sink[head] * kLog2E;
  float most = sink;
  bool any = false;
  for (int i = 0; i < kMostParts; ++i) {
    if (i >= parts) break;
    largest[i] = cluster::Load(SharedAddress(&shared.largest[head]), static_cast<uint32_t>(i));
    any = any || largest[i] != -INFINITY;
    most = fmaxf(most, largest[i]);
  }
  float total = sink == -INFINITY ? 0.0f : sink == most ? 1.0f : exp2f(sink - most);
  for (int i = 0; i < kMostParts; ++i) {
    if (i >= parts) break;
    const float part = cluster::Load(SharedAddress(&shared.total[head]), static_cast<uint32_t>(i));
    const float weight = largest[i] == -INFINITY ? 0.0f
                         : largest[i] == most    ? 1.0f
                                                 : exp2f(largest[i] - most);
    // A NaN stays one even where the block has no largest score.
    total = fmaf(part, weight, total);
    shared.factor[i][head] = part != part ? part : weight;
  }
  for (int i = 0; i < kMostParts; ++i) {
    if (i < parts) shared.factor[i][head] = any ? shared.factor[i][head] / total : 0.0f;
  }
}

// Combines the cluster's sums in order and stores this block's share of them.
__device__ inline void Combine(const Parameters& p, int64_t t, Shared& shared) {
  const int parts = static_cast<int>(cluster::Size());
  const int rank = static_cast<int>(cluster::Rank());
  FindFactors(p, shared, parts);
  __syncthreads();
  const uint32_t sums = SharedAddress(&shared);
  for (int i = rank * kThreads + static_cast<int>(threadIdx.x); i < p.heads * (kDim / 8);
       i += parts * kThreads) {
    const int head = i / (kDim / 8);
    const int piece = i % (kDim / 8);
    const uint32_t at = sums + static_cast<uint32_t>(head * kRowStep + piece * 8) * 4;
    float4 low[kMostParts], high[kMostParts];
#pragma unroll
    for (int part = 0; part < kMostParts; ++part) {
      if (part >= parts) break;
      low[part] = cluster::LoadFour(at, static_cast<uint32_t>(part));
      high[part] = cluster::LoadFour(at + 16, static_cast<uint32_t>(part));
    }
    float out[8] = {};
#pragma unroll
    for (int part = 0; part < kMostParts; ++part) {
      if (part >= parts) break;
      const float factor = shared.factor[part][head];
      const float from[8] = {low[part].x,  low[part].y,  low[part].z,  low[part].w,
                             high[part].x, high[part].y, high[part].z, high[part].w};
#pragma unroll
      for (int j = 0; j < 8; ++j) out[j] = fmaf(from[j], factor, out[j]);
    }
    uint16_t* to = p.out + t * p.out_step + head * p.out_head_step + piece * 8;
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j % 2 * 4 + j / 2] = EncodeBf16(out[j]);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    LatentAttentionKernel(const __grid_constant__ Parameters p) {
  cuda::BeginAfterLast();
  extern __shared__ uint8_t memory[];
  const uint32_t base = SharedAddress(memory);
  Shared& shared = *reinterpret_cast<Shared*>(memory + (-base & (kAlignment - 1)));
  const int64_t t = blockIdx.x / cluster::Size();
  if (p.rows.sequence[t] < 0) return;
  const int places = p.window + p.num_selected;
  const int begin = static_cast<int>(cluster::Rank()) * p.tiles * kTile;
  const int tiles = min(p.tiles, (places - begin + kTile - 1) / kTile);
  FindPlaces(p, t, begin, min(tiles, kMostTiles), shared);
  LoadQueries(p, t, shared);
  float sum[2][64] = {};
  Softmax softmax;
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = begin + tile * kTile;
    __syncthreads();
    if (tile > 0 && tile % kMostTiles == 0) {
      FindPlaces(p, t, first, min(tiles - tile, kMostTiles), shared);
      __syncthreads();
    }
    DecodeTile(p, first, tile % kMostTiles, shared);
    FenceForProducts();
    __syncthreads();
    float score[32], keep[2];
    Score(shared, p.scale * kLog2E, score);
    softmax.Take(score, keep);
    Weigh(shared, score, keep, sum);
  }
  __syncthreads();
  Publish(shared, softmax, sum);
  cluster::Synchronize();
  Combine(p, t, shared);
  cluster::Synchronize();
}

}  // namespace skein::kernels::sm90::latent
