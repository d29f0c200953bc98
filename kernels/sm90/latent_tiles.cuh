// What the blocks of the latent attention share: the division of a row's list into tiles, and the
// warps that find places, fetch their codes and decode them to shared memory. Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/arrival.cuh"
#include "kernels/sm90/async_copy.cuh"
#include "kernels/sm90/bf16_pairs.cuh"

namespace skein::kernels::sm90::latent {

inline constexpr int kDim = 512;
inline constexpr int kHeads = 64;
inline constexpr int kTile = 64;  // places of the list
inline constexpr int kMultiplyThreads = 256;
inline constexpr int kDecodeThreads = 256;
inline constexpr int kThreads = kMultiplyThreads + kDecodeThreads;
inline constexpr int kDecodeRegisters = 64;
inline constexpr int kMultiplyRegisters = 192;
inline constexpr int kStages = 2;          // tiles in shared memory
inline constexpr int kBlocks = kDim / 64;  // of 64 channels: 128 bytes of a row
inline constexpr int kMostParts = 4;
inline constexpr int kFewTiles = 5;        // of a block, where more blocks can be had
inline constexpr int kRowStep = kDim + 8;  // of a head's sums: no bank conflicts
inline constexpr float kLog2E = 1.4426950408889634f;

// Blocks that share a row's list, and tiles of each.
struct Division {
  int parts, tiles;
};
constexpr int TilesOf(int places) { return (places + kTile - 1) / kTile; }
constexpr Division DivisionOf(int tiles) {
  const int few = tiles < kFewTiles ? tiles : kFewTiles;
  const int least = (tiles + kMostParts - 1) / kMostParts;
  const int each = few > least ? few : least;
  return {each == 0 ? 1 : (tiles + each - 1) / each, each};
}

// Division of numbers below 2^31: a product and a shift.
struct Divisor {
  uint32_t by = 1, factor = 0;
  int shift = 0;

  Divisor() = default;
  explicit Divisor(int64_t divisor) : by(divisor < 1 ? 1 : static_cast<uint32_t>(divisor)) {
    for (shift = 31; uint64_t{1} << (shift - 31) < by;) ++shift;
    factor = static_cast<uint32_t>((uint64_t{1} << shift) / by + 1);
  }
  __device__ int Quotient(int number) const {
    return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(number)) * factor >> shift);
  }
  __device__ int Remainder(int number, int quotient) const {
    return number - quotient * static_cast<int>(by);
  }
};

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
  bool q_aligned, out_aligned;  // heads begin at multiples of 16 bytes
  // Rows of a pool are fewer than 2^31: no memory holds more of 512 channels.
  Divisor by_ring_rows, by_fresh_page, by_ring_page, by_history_page;
  Divisor by_block_rows;  // of the history in a cache block
};

// Brings the parameters to where instructions read them, which takes its time: before the kernel
// ahead of this one has ended.
__device__ inline void TouchParameters(const Parameters& p) {
  const auto* words = reinterpret_cast<const uint64_t*>(&p);
  uint64_t all = 0;
#pragma unroll
  for (size_t i = 0; i < sizeof(p) / 8; i += 4) all ^= words[i];
  if (all == 1) asm volatile("nanosleep.u32 0;");  // so that they are read
}

// A place of the list.
struct Place {
  const uint8_t* data = nullptr;  // null: nobody
  const uint8_t* scale = nullptr;
};

struct Shared {
  uint8_t q[kBlocks][kHeads][128];           // bf16, swizzled
  uint8_t kv[kStages][kBlocks][kTile][128];  // bf16, swizzled
  float4 half[2][4][128];   // scores of the other's places over a warpgroup's channels, by thread
  uint4 weight[2][2][128];  // of a warpgroup's places, by thread
  float largest_of[2][kHeads];           // of a warpgroup's places
  Place place[kDecodeThreads / 32][32];  // of a warp's rows of the tiles that come
  int present[kStages][kTile];
  uint64_t full[kStages], empty[kStages];
  float largest[kHeads], total[2][kHeads];  // of this block's places; scores times log2 e
  float factor[kMostParts][kHeads];
};
inline constexpr size_t kAlignment = 1024;

__device__ inline Place PlaceAt(const cuda::Pool& pool, const Divisor& by_page, int row) {
  const int page = by_page.Quotient(row);
  const int64_t in_page = by_page.Remainder(row, page);
  const uint8_t* data = pool.data + page * pool.page_bytes;
  return {data + in_page * pool.data_bytes,
          data + pool.page_rows * pool.data_bytes + in_page * pool.scale_bytes};
}

// Finds the places of a warp's rows of as many tiles as it has lanes for, one a lane. The window's
// tiles come first; no tile has places of both. What a place depends on is asked for before the
// place is wanted, as loads that wait for each other take most of the time: selected rows of the
// tiles after the next, and of those the block.
template <int kRows>
struct Finder {
  static constexpr int kTiles = 32 / kRows;  // found at once
  const Parameters& p;
  const int64_t t;
  const int index;  // of this lane in the list, at first
  const int end;    // of the block's tiles, in the list
  int window_begin, window_end, first_position, first_row, slot;
  const int32_t* table;
  int row, next_row, block;

  // For rows from `row` on of tiles [begin, begin + tiles) of the list.
  __device__ Finder(const Parameters& parameters, int64_t of, int sequence, int begin, int tiles,
                    int row)
      : p(parameters),
        t(of),
        index((begin + static_cast<int>(threadIdx.x) % 32 / kRows) * kTile + row +
              static_cast<int>(threadIdx.x) % kRows),
        end((begin + tiles) * kTile) {
    this->row = Selected(0);
    next_row = Selected(1);
    window_begin = p.window_begin[t];
    window_end = p.window_end[t];
    first_position = p.rows.first_position[sequence];
    first_row = p.rows.first_row[sequence];
    slot = p.rows.slot[sequence];
    // All are under way before the first is used.
    asm volatile(""
                 : "+r"(window_begin), "+r"(window_end), "+r"(first_position), "+r"(first_row),
                   "+r"(slot));
    table = p.rows.block_table + sequence * p.rows.block_step;
    block = Block();
  }
  // Of the next tiles.
  __device__ Place Take(int group) {
    const Place place = At(index + group * (kTiles * kTile));
    row = next_row;
    block = Block();
    next_row = Selected(group + 2);
    return place;
  }

 private:
  __device__ int OfWindow() const { return TilesOf(p.window) * kTile; }
  __device__ int Selected(int group) const {
    const int i = index + group * (kTiles * kTile);
    const int at = i - OfWindow();
    const bool exists = i < end && at >= 0 && at < p.num_selected;
    return exists ? p.selected[t * p.selected_step + at] : -1;
  }
  __device__ int Block() const { return row < 0 ? 0 : table[p.by_block_rows.Quotient(row)]; }
  __device__ Place At(int i) const {
    if (i < OfWindow()) {
      const int position = window_begin + i;
      if (i >= end || i >= p.window || position >= window_end) return {};
      if (position >= first_position) {
        return PlaceAt(p.fresh, p.by_fresh_page, first_row + position - first_position);
      }
      const Divisor& ring = p.by_ring_rows;
      const int turn = ring.Remainder(position, ring.Quotient(position));
      return PlaceAt(p.ring, p.by_ring_page, slot * p.ring_rows + turn);
    }
    if (row < 0) return {};
    const Divisor& rows = p.by_block_rows;
    const int in_block = rows.Remainder(row, rows.Quotient(row));
    return PlaceAt(p.history, p.by_history_page, block * static_cast<int>(rows.by) + in_block);
  }
};

// Numbers in shared memory are 2^-8 of what they stand for, so that one factor brings e2m1 codes,
// as bf16 numbers 2^-126 too small, to their size times a scale.
inline constexpr float kSmaller = 0x1p-8f;

// Eight e2m1 codes times a factor.
__device__ inline uint4 DecodePacked(uint32_t word, uint32_t factor) {
  constexpr uint32_t kMagnitude = 0x01C001C0, kSign = 0x80008000;
  return {TimesPair((word << 6 & kMagnitude) | (word << 12 & kSign), factor),
          TimesPair((word << 2 & kMagnitude) | (word << 8 & kSign), factor),
          TimesPair((word >> 2 & kMagnitude) | (word << 4 & kSign), factor),
          TimesPair((word >> 6 & kMagnitude) | (word & kSign), factor)};
}
// The factors of two e4m3 scales, each twice.
struct Factors {
  uint32_t low, high;
};
__device__ inline Factors FactorsOf(uint32_t scales) {
  constexpr uint32_t kUp118 = 0x7A807A80;
  uint32_t pair = TimesPair(TimesPair(SpreadPair(__byte_perm(scales, 0, 0x1404)), kUp120), kUp118);
  if ((scales & 0x7F) == 0x7F) pair |= 0x7FC0;
  if ((scales & 0x7F00) == 0x7F00) pair |= 0x7FC00000;
  return {__byte_perm(pair, 0, 0x1010), __byte_perm(pair, 0, 0x3232)};
}

// Two e4m3 codes, in the upper bytes of the halves, times a scale.
__device__ inline uint32_t DecodePair(uint32_t codes, uint32_t scale) {
  constexpr uint32_t kUp112 = 0x77807780;
  return TimesPair(TimesPair(SpreadPair(codes), kUp112), scale);
}
__device__ inline uint4 DecodeEight(uint32_t low, uint32_t high, uint32_t scale) {
  return {DecodePair(__byte_perm(low, high, 0x4000), scale),
          DecodePair(__byte_perm(low, high, 0x5010), scale),
          DecodePair(__byte_perm(low, high, 0x6020), scale),
          DecodePair(__byte_perm(low, high, 0x7030), scale)};
}

__device__ inline void StoreShared(uint32_t to, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// A lane's piece of a row to a line of 64 channels, of e2m1 with an e4m3 scale per 16 channels:
// lanes begin with different words, so that eight with pieces of one row have no bank conflicts.
__device__ inline void StorePacked(uint32_t line, int row, const uint4& c, uint32_t scale) {
  const Factors factors = FactorsOf(scale);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = lane % 8 / 2;
  const bool one = first % 2 != 0, two = first >= 2;
  const uint4 turned = {one ? c.y : c.x, one ? c.x : c.y, one ? c.w : c.z, one ? c.z : c.w};
  const uint32_t word[4] = {two ? turned.z : turned.x, two ? turned.w : turned.y,
                            two ? turned.x : turned.z, two ? turned.y : turned.w};
  const uint32_t near = two ? factors.high : factors.low;
  const uint32_t far = two ? factors.low : factors.high;
  const uint32_t to = line | (lane % 2 * 4 + first ^ row & 7) * 16;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    StoreShared(to ^ static_cast<uint32_t>(j * 16), DecodePacked(word[j], j < 2 ? near : far));
  }
}
// Of e4m3 with an e8m0 scale per 32 channels.
__device__ inline void StoreCodes(uint32_t line, int row, const uint4& c, uint32_t scale) {
  const uint32_t factor = ScalePair(scale);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool turn = lane / 4 % 2 != 0;
  const uint32_t to = line | (lane % 4 * 2 + (turn ? 1 : 0) ^ row & 7) * 16;
  const uint32_t word[4] = {turn ? c.z : c.x, turn ? c.w : c.y, turn ? c.x : c.z, turn ? c.y : c.w};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t a = word[2 * j], b = word[2 * j + 1];
    uint4 value = DecodeEight(a, b, factor);
    // A NaN code: every score of the place is NaN.
    const uint32_t nan =
        ((a & 0x7F7F7F7F) + 0x01010101 | (b & 0x7F7F7F7F) + 0x01010101) & 0x80808080;
    if (nan != 0) value.x = 0x7FC07FC0;
    StoreShared(to ^ static_cast<uint32_t>(j * 16), value);
  }
}

__device__ inline int DecodeThread() { return static_cast<int>(threadIdx.x) - kMultiplyThreads; }

// All threads that multiply.
__device__ inline void MeetMultiply() {
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiplyThreads) : "memory");
}

// Pieces of a tile's rows on their way to shared memory: 16 bytes of codes each, so that lanes that
// are neighbours read neighbours. A warp has eight rows, packed two at a time, else one.
struct Pieces {
  static constexpr int kCount = 4;
  uint4 codes[kCount];
  uint32_t scale[kCount];
  uint32_t present;  // a bit each

  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int FirstRow() { return DecodeThread() / 32 * 8; }
  // Codes that are not packed take two halves.
  template <bool kPacked>
  __device__ static int RowOf(int half, int i) {
    return kPacked ? i * 2 + Lane() / 16 : half * kCount + i;
  }
  template <bool kPacked>
  __device__ void Fetch(const Place* places, int half) {
    const int piece = Lane() % (kPacked ? 16 : 32);
    present = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Place place = places[RowOf<kPacked>(half, i)];
      codes[i] = {};
      scale[i] = 0;
      if (place.data == nullptr) continue;
      present |= 1u << i;
      codes[i] = reinterpret_cast<const uint4*>(place.data)[piece];
      scale[i] =
          kPacked ? reinterpret_cast<const uint16_t*>(place.scale)[piece] : place.scale[piece / 2];
    }
  }
  template <bool kPacked>
  __device__ void Store(Shared& shared, int stage, int half) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = FirstRow() + RowOf<kPacked>(half, i);
      if constexpr (kPacked) {
        StorePacked(SharedAddress(shared.kv[stage][Lane() % 16 / 2][row]), row, codes[i], scale[i]);
      } else {
        StoreCodes(SharedAddress(shared.kv[stage][Lane() / 4][row]), row, codes[i], scale[i]);
      }
      if (Lane() % (kPacked ? 16 : 32) == 0) shared.present[stage][row] = present >> i & 1;
    }
  }
};

// The warps that decode. They ask for a tile's codes as soon as they have stored those of the tile
// before.
__device__ inline void Decode(const Parameters& p, int64_t t, int sequence, int begin, int tiles,
                              Shared& shared) {
  const int of_window = TilesOf(p.window);
  const auto packed = [&](int tile) {
    const KvFormat format = begin + tile < of_window ? p.fresh.format : p.history.format;
    return format == KvFormat::kFp4Group16;
  };
  Place* place = shared.place[DecodeThread() / 32];
  using OfWarp = Finder<8>;
  OfWarp finder(p, t, sequence, begin, tiles, Pieces::FirstRow());
  Pieces pieces;
  const auto fetch = [&](int tile) {
    if (tile % OfWarp::kTiles == 0) {  // all have fetched the tiles before
      const Place own = finder.Take(tile / OfWarp::kTiles);
      __syncwarp();
      place[Pieces::Lane()] = own;
      __syncwarp();
    }
    const Place* from = place + tile % OfWarp::kTiles * 8;
    if (packed(tile)) {
      pieces.Fetch<true>(from, 0);
    } else {
      pieces.Fetch<false>(from, 0);
    }
  };
  if (tiles > 0) fetch(0);
  Ring<kStages> ring;
  for (int tile = 0; tile < tiles; ++tile) {
    const auto stage = static_cast<int>(ring.stage);
    WaitForPhase(SharedAddress(&shared.empty[stage]), ring.parity ^ 1);
    if (packed(tile)) {
      pieces.Store<true>(shared, stage, 0);
    } else {
      pieces.Store<false>(shared, stage, 0);
      pieces.Fetch<false>(place + tile % OfWarp::kTiles * 8, 1);
      pieces.Store<false>(shared, stage, 1);
    }
    FenceForProducts();
    Arrive(SharedAddress(&shared.full[stage]));
    ring.Advance();
    if (tile + 1 < tiles) fetch(tile + 1);
  }
}

}  // namespace skein::kernels::sm90::latent
