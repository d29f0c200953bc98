// The sums of latent_attention.cuh for few rows, bit for bit, with twice the blocks: a cluster has
// two blocks for each part of a row's list, and each of the two has half of the channels, as a
// warpgroup has there. Sixteen warps decode their half of a tile; two warpgroups take tiles in
// turn: they sum scores over the block's channels, send the sums of 32 places to the other block,
// add what it sends of the other 32 and send the weights of these; the last warpgroup weighs the
// block's channels by all places. So one tile is weighed while others are scored and decoded. At
// the end each part's blocks send the others their share of the heads, and the warps that decoded
// combine what has come. Device code.
#pragma once

#include <cstdint>

#include "kernels/sm90/latent_attention.cuh"

namespace skein::kernels::sm90::latent::spread {

inline constexpr int kMostRows = 30;        // more would not all find room at once
inline constexpr int kChannels = kDim / 2;  // of a block
inline constexpr int kLines = kChannels / 64;
inline constexpr int kStages = 4;
inline constexpr int kScoreThreads = 256;
inline constexpr int kWeighThreads = 128;
inline constexpr int kDecodeThreads = 512;
inline constexpr int kWarpRows = kTile / (kDecodeThreads / 32);  // that a warp decodes
inline constexpr int kThreads = kScoreThreads + kWeighThreads + kDecodeThreads;
inline constexpr int kWeighRegisters = 200;
inline constexpr int kDecodeRegisters = 40;
inline constexpr int kRowStep = kChannels + 8;  // of a head's sums: no bank conflicts

struct Shared {
  uint8_t q[kLines][kHeads][128];           // bf16, swizzled
  uint8_t kv[kStages][kLines][kTile][128];  // bf16, swizzled
  uint4 own[kStages][4][128];               // the other block's scores of this block's places, by
                                            // thread; then the weights of these places
  uint4 other[kStages][2][128];             // weights of the other block's places
  float largest_of[kStages][2][kHeads];     // of a block's places
  Place place[kDecodeThreads / 32][32];     // of a warp's rows of the tiles that come
  alignas(8) uint8_t present[kStages][kTile / kWarpRows];  // a bit for each row of a warp
  uint64_t full[kStages], empty[kStages];                  // tiles
  uint64_t scored[kStages], weights[kStages];
  uint64_t told, landed;
  alignas(16) float largest_total[2 * kMostParts][2][kHeads];  // of a part, of a block's places
  float factor[kMostParts][kHeads];
};

__device__ inline void MeetScore() {
  asm volatile("bar.sync 1, %0;" ::"n"(kScoreThreads) : "memory");
}
// The warps that score and the warps that weigh.
__device__ inline void MeetWeigh() {
  asm volatile("bar.sync 2, %0;" ::"n"(kScoreThreads + kWeighThreads) : "memory");
}
// The warps that weigh and those that decoded.
__device__ inline void MeetCombine() {
  asm volatile("bar.sync 3, %0;" ::"n"(kWeighThreads + kDecodeThreads) : "memory");
}
// The warps that decoded.
__device__ inline void MeetDecode() {
  asm volatile("bar.sync 4, %0;" ::"n"(kDecodeThreads) : "memory");
}

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int DecodeWarp() {
  return (static_cast<int>(threadIdx.x) - kScoreThreads - kWeighThreads) / 32;
}

// This block's channels of the queries, as latent::LoadQueries.
template <bool kAligned>
__device__ void LoadQueries(const Parameters& p, int64_t t, int first_channel, Shared& shared) {
  constexpr int kPieces = kChannels / 8;
  constexpr int kStep = kScoreThreads / kPieces;  // heads
  constexpr int kEach = kHeads / kStep;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const int first = static_cast<int>(threadIdx.x) / kPieces;
  const uint16_t* from = p.q + t * p.q_step + first_channel + piece * 8;
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

// Every second tile from `tile` on, by a warpgroup of block kGroup of a part.
template <int kGroup>
__device__ void Score(const Parameters& p, int tile, int tiles, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int head = thread / 32 * 16 + thread % 32 / 4;
  const uint32_t peer = cluster::Rank() ^ 1;
  const float scale = p.scale * (kLog2E / kSmaller);
  const uint64_t all_q = wgmma::SwizzledOperand(SharedAddress(shared.q));
  for (; tile < tiles; tile += 2) {
    const int stage = tile % kStages;
    const uint32_t parity = tile / kStages % 2;
    const uint32_t scored = SharedAddress(&shared.scored[stage]);
    const uint32_t weights = SharedAddress(&shared.weights[stage]);
    WaitForPhase(SharedAddress(&shared.full[stage]), parity);
    float score[32];
    const uint64_t all_keys = wgmma::SwizzledOperand(SharedAddress(shared.kv[stage]));
    SumScores(all_q, all_keys, score);
    const uint32_t to = cluster::At(SharedAddress(&shared.own[stage][0][thread]), peer);
    const uint32_t scored_there = cluster::At(scored, peer);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* theirs = score + (1 - kGroup) * 16 + 4 * i;
      cluster::Send(to + i * sizeof(shared.own[0][0]),
                    {__float_as_uint(theirs[0]), __float_as_uint(theirs[1]),
                     __float_as_uint(theirs[2]), __float_as_uint(theirs[3])},
                    scored_there);
    }
    if (thread == 0) ArriveExpecting(scored, sizeof(shared.own[0]));
    cluster::WaitForSent(scored, parity);
    float own[16], mine[2];
    static_assert(kWarpRows == 4);
    const auto words = *reinterpret_cast<const uint2*>(&shared.present[stage][kGroup * 8]);
    const int first_bit = thread % 4 / 2 * 8 + thread % 2 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto other = *reinterpret_cast<const float4*>(&shared.own[stage][i][thread]);
      const uint32_t present = (i < 2 ? words.x : words.y) >> (i % 2 * 16 + first_bit);
      AddHalves(score + kGroup * 16 + 4 * i, other, (present & 1) != 0, (present & 2) != 0, scale,
                own + 4 * i);
    }
    WeighOwn(own, mine);
    const uint32_t weight_to = cluster::At(SharedAddress(&shared.other[stage][0][thread]), peer);
    const uint32_t weights_there = cluster::At(weights, peer);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const uint4 packed = PackStep(own + step * 8);
      cluster::Send(weight_to + step * sizeof(shared.other[0][0]), packed, weights_there);
      shared.own[stage][step][thread] = packed;
    }
    if (thread % 4 == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& largest = shared.largest_of[stage][kGroup][head + h * 8];
        largest = mine[h];
        cluster::Send(cluster::At(SharedAddress(&largest), peer), mine[h], weights_there);
      }
    }
    if (thread == 0) {
      ArriveExpecting(weights, sizeof(shared.other[0]) + sizeof(shared.largest_of[0][0]));
    } else {
      Arrive(weights);
    }
  }
}

__device__ inline float* SumsOf(Shared& shared) {
  static_assert(offsetof(Shared, kv[2]) >= sizeof(float) * kRowStep * kHeads);
  return reinterpret_cast<float*>(&shared);
}
// Heads that the blocks of a part combine.
struct Share {
  int each, first, count;

  __device__ Share(int heads, int part, int parts)
      : each((heads + parts - 1) / parts),
        first(min(part * each, heads)),
        count(min(each, heads - first)) {}
};
// Sums that another part's block sent of this block's share.
__device__ inline float* LandingOf(Shared& shared, int from, int to, int each) {
  static_assert(offsetof(Shared, own) - offsetof(Shared, kv[2]) >=
                sizeof(float) * kRowStep * kHeads * 3 / 4);
  return reinterpret_cast<float*>(shared.kv[2]) + (from - (from > to ? 1 : 0)) * each * kRowStep;
}

// This block's sums, unscaled, and what they stand for: over queries and the first two tiles.
__device__ inline void Publish(Shared& shared, int rank, const Softmax& softmax,
                               const float (&sum)[4][32]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  float* sums = SumsOf(shared);
#pragma unroll
  for (int line = 0; line < kLines; ++line) {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int channel = line * 64 + i / 4 * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(sums + (head + i / 2 % 2 * 8) * kRowStep + channel) = {
          sum[line][i], sum[line][i + 1]};
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = softmax.Total(h);
    if (lane % 4 == 0) {
      shared.largest_total[rank][0][head + h * 8] = softmax.largest[h];
      shared.largest_total[rank][1][head + h * 8] = total;
    }
  }
}

// The warpgroup that weighs.
template <int kGroup>
__device__ void Weigh(int tiles, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int head = thread / 32 * 16 + thread % 32 / 4;
  float sum[kLines][32] = {};
  Softmax softmax;
  Ring<kStages> ring;
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = static_cast<int>(ring.stage);
    cluster::WaitForSent(SharedAddress(&shared.weights[stage]), ring.parity);
    uint32_t weight[4][4];
    float mine[2], theirs[2], sum_here[2] = {0, 0}, keep[2];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      SpreadWords(shared.own[stage][step][thread], weight[kGroup * 2 + step]);
      AddStep(weight[kGroup * 2 + step], sum_here);
      SpreadWords(shared.other[stage][step][thread], weight[(1 - kGroup) * 2 + step]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      mine[h] = shared.largest_of[stage][kGroup][head + h * 8];
      theirs[h] = shared.largest_of[stage][1 - kGroup][head + h * 8];
    }
    softmax.Join<kGroup>(mine, theirs, sum_here, weight, keep);
    AddWeighed(SharedAddress(shared.kv[stage]), weight, keep, sum);
    Arrive(SharedAddress(&shared.empty[stage]));
    ring.Advance();
  }
  cluster::Arrive();  // what others send may lie over the last two tiles
  MeetWeigh();        // no warp reads the others any more
  Publish(shared, static_cast<int>(cluster::Rank()), softmax, sum);
}

// A warp's half rows of a tile. Their codes lie where they are decoded, piece by piece: 16
// bytes a lane, of as many rows at once as there are lanes for.
template <bool kPacked>
struct HalfRows {
  static constexpr int kOfRow = kChannels / (kPacked ? 32 : 16);  // pieces
  static constexpr int kRows = 32 / kOfRow;                       // of a piece
  static constexpr int kPieces = kWarpRows / kRows;

  // Memory of a piece's codes and of its scales.
  __device__ static uint8_t* Codes(Shared& shared, int stage, int row) {
    const int line = kPacked ? 0 : Lane() / 16;
    return shared.kv[stage][line][row] + (kPacked ? Lane() : Lane() % 16) * 16;
  }
  __device__ static uint8_t* Scales(Shared& shared, int stage, int row) {
    return shared.kv[stage][2][row] + Lane() / kOfRow * (kPacked ? 16 : 8);
  }
  __device__ static void Fetch(const Parameters& p, const Place* places, int half, int stage,
                               Shared& shared) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const Place place = places[i * kRows + Lane() / kOfRow];
      const bool exists = place.data != nullptr;
      const auto* nothing = reinterpret_cast<const uint8_t*>(p.sink);
      const int row = DecodeWarp() * kWarpRows + i * kRows;
      CopyAhead<16>(SharedAddress(Codes(shared, stage, row)),
                    exists ? place.data + (half * kOfRow + Lane() % kOfRow) * 16 : nothing, exists);
      constexpr int kScales = kPacked ? 16 : 8;
      if (Lane() % kOfRow != 0) continue;
      CopyAhead<kScales>(SharedAddress(Scales(shared, stage, row)),
                         exists ? place.scale + half * kScales : nothing, exists);
    }
  }
  __device__ static void Decode(int stage, Shared& shared) {
    const int piece = Lane() % kOfRow;
#pragma unroll 1
    for (int i = 0; i < kPieces; ++i) {
      const int first = DecodeWarp() * kWarpRows + i * kRows;
      const uint4 codes = *reinterpret_cast<const uint4*>(Codes(shared, stage, first));
      const uint8_t* scales = Scales(shared, stage, first);
      const uint32_t scale =
          kPacked ? reinterpret_cast<const uint16_t*>(scales)[piece] : scales[piece / 2];
      __syncwarp();
      const int row = first + Lane() / kOfRow;
      const uint32_t line = SharedAddress(shared.kv[stage][piece / (kPacked ? 2 : 4)][row]);
      if constexpr (kPacked) {
        StorePacked(line, row, codes, scale);
      } else {
        StoreCodes(line, row, codes, scale);
      }
    }
  }
};

// The warps that decode this block's half of each row. They ask for tiles as soon as there is room.
__device__ inline void Decode(const Parameters& p, int64_t t, int sequence, int begin, int tiles,
                              int half, Shared& shared) {
  const auto packed = [&](int tile) {
    const bool in_window = begin + tile < TilesOf(p.window);
    return (in_window ? p.fresh.format : p.history.format) == KvFormat::kFp4Group16;
  };
  Place* place = shared.place[DecodeWarp()];
  using OfWarp = Finder<kWarpRows>;
  OfWarp finder(p, t, sequence, begin, tiles, DecodeWarp() * kWarpRows);
  uint32_t who = 0;  // of the places that were found last
  const auto fetch = [&](int tile) {
    const int stage = tile % kStages, at = tile % OfWarp::kTiles;
    if (at == 0) {  // all have asked for the tiles before
      const Place own = finder.Take(tile / OfWarp::kTiles);
      who = __ballot_sync(0xFFFFFFFF, own.data != nullptr);
      __syncwarp();
      place[Lane()] = own;
      __syncwarp();
    }
    if (Lane() == 0) {
      shared.present[stage][DecodeWarp()] =
          static_cast<uint8_t>(who >> at * kWarpRows & (1 << kWarpRows) - 1);
    }
    if (packed(tile)) {
      HalfRows<true>::Fetch(p, place + at * kWarpRows, half, stage, shared);
    } else {
      HalfRows<false>::Fetch(p, place + at * kWarpRows, half, stage, shared);
    }
    CommitCopies();
  };
  int asked = 0;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll 1
    while (asked < min(tiles, tile + kStages)) {
      const uint32_t empty = SharedAddress(&shared.empty[asked % kStages]);
      const uint32_t parity = asked / kStages % 2 ^ 1;
      if (asked > tile && Uniform(PhaseHasEnded(empty, parity) ? 1 : 0) == 0) break;
      WaitForPhase(empty, parity);
      fetch(asked++);
    }
    switch (asked - tile) {
      case 1:
        WaitForCopies<0>();
        break;
      case 2:
        WaitForCopies<1>();
        break;
      case 3:
        WaitForCopies<2>();
        break;
      default:
        WaitForCopies<3>();
        break;
    }
    __syncwarp();
    const int stage = tile % kStages;
    if (packed(tile)) {
      HalfRows<true>::Decode(stage, shared);
    } else {
      HalfRows<false>::Decode(stage, shared);
    }
    FenceForProducts();
    __syncwarp();
    if (Lane() == 0) Arrive(SharedAddress(&shared.full[stage]));
  }
}

// Tells the others of the cluster what this block's sums stand for, and sends them their share: a
// thread for each.
__device__ inline void SendShares(const Parameters& p, Shared& shared) {
  const int to = static_cast<int>(threadIdx.x) % 128;
  const int rank = static_cast<int>(cluster::Rank());
  const int size = static_cast<int>(cluster::Size());
  if (to >= size || to == rank) return;
  const auto at = [to](const void* here) {
    return cluster::At(SharedAddress(here), static_cast<uint32_t>(to));
  };
  const auto& known = shared.largest_total[rank];
  cluster::SendBytes(at(known), SharedAddress(known), sizeof(known), at(&shared.told));
  const Share theirs(p.heads, to / 2, size / 2);
  if (to % 2 != rank % 2 || theirs.count == 0) return;
  cluster::SendBytes(at(LandingOf(shared, rank / 2, to / 2, theirs.each)),
                     SharedAddress(SumsOf(shared) + theirs.first * kRowStep),
                     static_cast<uint32_t>(theirs.count) * kRowStep * sizeof(float),
                     at(&shared.landed));
}

// Combines the parts' sums of this block's share in order and stores them.
__device__ inline void Combine(const Parameters& p, int64_t t, int thread, Shared& shared) {
  constexpr int kAtOnce = 2;
  constexpr int kPieces = kChannels / 4;
  constexpr int kStep = kDecodeThreads / kPieces;  // heads
  static_assert(kDecodeThreads % kPieces == 0);
  const int parts = static_cast<int>(cluster::Size()) / 2;
  const int half = static_cast<int>(cluster::Rank()) % 2;
  const int part_here = static_cast<int>(cluster::Rank()) / 2;
  const Share share(p.heads, part_here, parts);
  const int channel = thread % kPieces * 4;
#pragma unroll 1
  for (int head = thread / kPieces; head < share.count; head += kAtOnce * kStep) {
    float4 out[kAtOnce] = {};
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
      const float* from = part == part_here ? SumsOf(shared) + share.first * kRowStep
                                            : LandingOf(shared, part, part_here, share.each);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int row = min(head + n * kStep, share.count - 1);
        AddScaled(*reinterpret_cast<const float4*>(from + row * kRowStep + channel),
                  shared.factor[part][share.first + row], out[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int row = head + n * kStep;
      StoreFour(p, t, share.first + row, half * kChannels + channel, row < share.count, out[n]);
    }
  }
}

// What the warps that decoded do at the end.
__device__ inline void FindAndCombine(const Parameters& p, int64_t t, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x) - kScoreThreads - kWeighThreads;
  cluster::Arrive();
  MeetCombine();  // this block's sums are there
  cluster::Wait();
  cluster::WaitForSent(SharedAddress(&shared.told), 0);
  const auto total = [&](int part, int block, int head) {
    return shared.largest_total[part * 2 + block][1][head];
  };
  const auto largest = [&](int part, int head) { return shared.largest_total[part * 2][0][head]; };
  if (thread < kHeads) {
    FindFactors(p, thread, static_cast<int>(cluster::Size()) / 2, largest, total, shared.factor);
  }
  MeetDecode();
  cluster::WaitForSent(SharedAddress(&shared.landed), 0);
  cluster::Arrive();  // who sent to this block may end
  Combine(p, t, thread, shared);
  cluster::Wait();
}

// The row's sequence, once the kernel ahead of this one has ended.
__device__ inline int BeginRow(const Parameters& p, int64_t t) {
  cuda::BeginAfterLast();
  return p.rows.sequence[t];
}

// What blocks of the cluster will send at the end.
__device__ inline void ExpectShares(const Parameters& p, Shared& shared) {
  const int size = static_cast<int>(cluster::Size());
  const Share share(p.heads, static_cast<int>(cluster::Rank()) / 2, size / 2);
  ArriveExpecting(SharedAddress(&shared.told),
                  static_cast<uint32_t>(size - 1) * sizeof(shared.largest_total[0]));
  ArriveExpecting(SharedAddress(&shared.landed),
                  static_cast<uint32_t>((size / 2 - 1) * share.count) * kRowStep * sizeof(float));
}

// What the warps that score do.
template <int kGroup>
__device__ void LoadAndScore(const Parameters& p, int64_t t, int group, int tiles, Shared& shared) {
  if (p.q_aligned) {
    LoadQueries<true>(p, t, kGroup * kChannels, shared);
  } else {
    LoadQueries<false>(p, t, kGroup * kChannels, shared);
  }
  FenceForProducts();
  MeetScore();
  cluster::Wait();
  Score<kGroup>(p, group, tiles, shared);
  MeetWeigh();
  cluster::Synchronize();
  cluster::Synchronize();
}

__global__ void __launch_bounds__(kThreads, 1)
    SpreadAttentionKernel(const __grid_constant__ Parameters p) {
  extern __shared__ uint8_t memory[];
  const uint32_t base = SharedAddress(memory);
  Shared& shared = *reinterpret_cast<Shared*>(memory + (-base & (kAlignment - 1)));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitArrivals(SharedAddress(&shared.full[i]), kDecodeThreads / 32);
      InitArrivals(SharedAddress(&shared.empty[i]), kWeighThreads);
      InitArrivals(SharedAddress(&shared.scored[i]), 1);
      InitArrivals(SharedAddress(&shared.weights[i]), 128);
    }
    InitArrivals(SharedAddress(&shared.told), 1);
    InitArrivals(SharedAddress(&shared.landed), 1);
    cluster::ShowBarriers();
    ExpectShares(p, shared);
  }
  __syncthreads();
  cluster::Arrive();  // the others may send once they have waited
  TouchParameters(p);
  const int64_t t = blockIdx.x / cluster::Size();
  const int half = static_cast<int>(cluster::Rank()) % 2;
  const int first = static_cast<int>(cluster::Rank()) / 2 * p.tiles;
  const int tiles = min(p.tiles, TilesOf(p.window) + TilesOf(p.num_selected) - first);
  // The same for all lanes, and known to be.
  const int group = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0);
  if (group > 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kDecodeRegisters));
    const int sequence = BeginRow(p, t);
    if (sequence >= 0) Decode(p, t, sequence, first, tiles, half, shared);
    cluster::Wait();
    if (sequence < 0) return;
    FindAndCombine(p, t, shared);
  } else if (group == 2) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kWeighRegisters));
    const int sequence = BeginRow(p, t);
    cluster::Wait();
    if (sequence < 0) return;
    if (half == 0) {
      Weigh<0>(tiles, shared);
    } else {
      Weigh<1>(tiles, shared);
    }
    FenceForProducts();
    MeetCombine();
    cluster::Wait();
    SendShares(p, shared);
    cluster::Arrive();
    cluster::Wait();
  } else {
    if (BeginRow(p, t) < 0) {
      cluster::Wait();
      return;
    }
    if (half == 0) {
      LoadAndScore<0>(p, t, group, tiles, shared);
    } else {
      LoadAndScore<1>(p, t, group, tiles, shared);
    }
  }
}

}  // namespace skein::kernels::sm90::latent::spread
