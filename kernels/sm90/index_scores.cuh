// Index scores on tensor cores, of keys of 128 e2m1 codes scaled per 32. A warp takes 32 columns
// of a row: codes become bf16 with their scale (exact), a lane holding one scale group of a key,
// and heads are the rows of A. Sums over heads are f32 in one fixed order. Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/order.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/formats.h"
#include "kernels/sm90/bf16_pairs.cuh"

namespace skein::kernels::sm90::index_scores {

inline constexpr int kDim = 128;
inline constexpr int kThreads = 256;
inline constexpr int kWarpColumns = 32;  // four tiles of eight keys
inline constexpr int kKeyTiles = kWarpColumns / 8;
inline constexpr int kColumns = kThreads / cuda::kWarp * kWarpColumns;  // of a block
inline constexpr int kHeadTile = 16;
inline constexpr int kMostHeads = 64;
inline constexpr int kSteps = kDim / 16;

struct Parameters {
  cuda::Rows rows;
  const uint16_t* q;
  int64_t q_step, q_head_step;
  const uint16_t* weight;
  int64_t weight_step;
  float weight_scale;
  cuda::Pool keys;
  const int32_t* candidates;  // null: every column
  int64_t candidates_step;
  int num_candidates, candidate_block;
  float* score;
  int64_t score_step, num_columns;
  int heads, ratio;
  bool aligned;  // pages of keys begin at multiples of 16 bytes, else of four
};

struct Shared {
  // q as the A operand: of a lane and step, inputs 32 (l % 4) + 4 step and the three after it.
  uint4 q[kMostHeads / kHeadTile][kSteps][cuda::kWarp];
  float weight[kMostHeads];
  uint8_t candidate[kColumns + 1];  // by block of candidates, from the first column's on
};

__device__ inline uint32_t PairOf(const uint16_t* q) { return q[0] | uint32_t{q[1]} << 16; }

__device__ inline void BringQuery(const Parameters& p, int64_t t, Shared& shared) {
  const int tiles = (p.heads + kHeadTile - 1) / kHeadTile;
  for (int i = static_cast<int>(threadIdx.x); i < tiles * kSteps * cuda::kWarp; i += kThreads) {
    const int lane = i % cuda::kWarp, step = i / cuda::kWarp % kSteps;
    const int tile = i / (cuda::kWarp * kSteps);
    uint32_t word[2][2] = {};
    for (int half = 0; half < 2; ++half) {
      const int head = tile * kHeadTile + half * 8 + lane / 4;
      if (head >= p.heads) continue;
      const uint16_t* at = p.q + t * p.q_step + head * p.q_head_step + lane % 4 * 32 + step * 4;
      word[half][0] = PairOf(at);
      word[half][1] = PairOf(at + 2);
    }
    shared.q[tile][step][lane] = {word[0][0], word[1][0], word[0][1], word[1][1]};
  }
  for (int h = static_cast<int>(threadIdx.x); h < p.heads; h += kThreads) {
    const float scaled = DecodeBf16(p.weight[t * p.weight_step + h]) * p.weight_scale;
    shared.weight[h] = DecodeBf16(EncodeBf16(scaled));
  }
}

// Marks the candidates among the block's columns.
__device__ inline void MarkCandidates(const Parameters& p, int64_t t, int64_t c0, Shared& shared) {
  for (int i = static_cast<int>(threadIdx.x); i <= kColumns; i += kThreads) {
    shared.candidate[i] = 0;
  }
  __syncthreads();
  const auto first = static_cast<int32_t>(c0 / p.candidate_block);
  const auto last = static_cast<int32_t>((c0 + kColumns - 1) / p.candidate_block);
  const int32_t* list = p.candidates + t * p.candidates_step;
  for (int i = static_cast<int>(threadIdx.x); i < p.num_candidates; i += kThreads) {
    const int32_t block = list[i];
    if (block >= first && block <= last) shared.candidate[block - first] = 1;
  }
}

// Four codes as bf16 pairs 2^-126 too small, two and two.
__device__ inline uint32_t SpreadCodes(uint32_t codes) {
  return (codes & 0x8) << 12 | (codes & 0x7) << 6 | (codes & 0x80) << 24 | (codes & 0x70) << 18;
}

// A lane's part of a key: 32 codes and their scale, as B operands of all steps.
struct Key {
  uint32_t b[kSteps][2];

  __device__ void Decode(const uint4& codes, uint32_t scale_byte) {
    const uint32_t scale = ScalePair(scale_byte);
    const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t four = word[step / 2] >> (step % 2 * 16);
      b[step][0] = TimesPair(TimesPair(SpreadCodes(four), kUp126), scale);
      b[step][1] = TimesPair(TimesPair(SpreadCodes(four >> 8), kUp126), scale);
    }
  }
};

// 16 bytes of codes.
__device__ inline uint4 LoadCodes(const uint8_t* from, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint4*>(from);
  const auto* words = reinterpret_cast<const uint32_t*>(from);
  return {words[0], words[1], words[2], words[3]};
}

__device__ inline void Mma(float (&c)[4], const uint4& a, const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
}

// Adds 16 heads' weighted scores of a tile of keys: sum[i] of column 2 (l % 4) + i, the lane's two
// heads of them.
__device__ inline void AddHeads(const Shared& shared, int tile, int heads, const Key& key,
                                float (&sum)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  // Two short chains: what tensor cores cut off of a sum grows with its length.
  float dot[2][4] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    Mma(dot[step / (kSteps / 2)], shared.q[tile][step][lane], key.b[step]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = tile * kHeadTile + lane / 4 + i / 2 * 8;
    if (head >= heads) continue;
    const float value = dot[0][i] + dot[1][i];
    // A NaN must stay one: only what is smaller than zero becomes zero.
    sum[i % 2] = fmaf(shared.weight[head], value < 0 ? 0.0f : value, sum[i % 2]);
  }
}

__global__ void __launch_bounds__(kThreads) IndexScoresFp4Kernel(Parameters p) {
  cuda::BeginAfterLast();
  __shared__ Shared shared;
  const int64_t t = blockIdx.y;
  const int sequence = p.rows.sequence[t];
  if (sequence < 0) return;
  const int64_t c0 = int64_t{blockIdx.x} * kColumns;
  const int64_t visible = p.rows.Visible(t, p.ratio, p.num_columns);
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int64_t w0 = c0 + static_cast<int>(threadIdx.x) / cuda::kWarp * kWarpColumns;
  float* out = p.score + t * p.score_step;
  if (c0 >= visible) {
    for (int64_t c = c0 + threadIdx.x; c < c0 + kColumns && c < p.num_columns; c += kThreads) {
      out[c] = -INFINITY;
    }
    return;
  }
  BringQuery(p, t, shared);
  if (p.candidates != nullptr) MarkCandidates(p, t, c0, shared);
  __syncthreads();
  const auto candidate_block =
      static_cast<uint32_t>(p.candidates == nullptr ? 1 : p.candidate_block);
  const uint32_t first_block = static_cast<uint32_t>(c0) / candidate_block;
  const auto wanted = [&](int64_t c) {
    if (c >= visible) return false;
    return p.candidates == nullptr ||
           shared.candidate[static_cast<uint32_t>(c) / candidate_block - first_block] != 0;
  };
  const auto per_block = static_cast<uint32_t>(p.rows.block_tokens / p.ratio);
  const int tiles = (p.heads + kHeadTile - 1) / kHeadTile;
  float mine[2] = {};  // of the tile that this lane stores
  uint4 codes[kKeyTiles];
  uint32_t scale[kKeyTiles];
#pragma unroll
  for (int i = 0; i < kKeyTiles; ++i) {
    const int64_t column = w0 + i * 8 + lane / 4;
    codes[i] = {0, 0, 0, 0};
    scale[i] = 0;
    if (!wanted(column)) continue;
    const auto c = static_cast<uint32_t>(column);
    const int64_t block = p.rows.block_table[sequence * p.rows.block_step + c / per_block];
    const auto row = static_cast<uint32_t>(block * per_block + c % per_block);
    const auto page_rows = static_cast<uint32_t>(p.keys.page_rows);
    const uint8_t* page = p.keys.data + row / page_rows * p.keys.page_bytes;
    const uint32_t inside = row % page_rows;
    codes[i] = LoadCodes(page + inside * (kDim / 2) + lane % 4 * 16, p.aligned);
    scale[i] = page[page_rows * (kDim / 2) + inside * (kDim / 32) + lane % 4];
  }
#pragma unroll
  for (int i = 0; i < kKeyTiles; ++i) {
    Key key;
    key.Decode(codes[i], scale[i]);
    float sum[2] = {};
    for (int tile = 0; tile < tiles; ++tile) AddHeads(shared, tile, p.heads, key, sum);
#pragma unroll
    for (int offset = 4; offset < cuda::kWarp; offset *= 2) {
      sum[0] += __shfl_xor_sync(cuda::kAllLanes, sum[0], offset);
      sum[1] += __shfl_xor_sync(cuda::kAllLanes, sum[1], offset);
    }
    if (lane / 4 != i) continue;
    mine[0] = sum[0];
    mine[1] = sum[1];
  }
  if (lane / 4 >= kKeyTiles) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t column = w0 + lane / 4 * 8 + lane % 4 * 2 + i;
    if (column < p.num_columns) out[column] = wanted(column) ? mine[i] : -INFINITY;
  }
}

}  // namespace skein::kernels::sm90::index_scores
