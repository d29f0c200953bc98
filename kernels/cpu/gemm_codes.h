// Products of e4m3 activations with e4m3 and e2m1 weights, codes times codes: weights are decoded
// once for up to kMaxTile rows, and scales come in as one factor per unit. With e2m1 weights a
// lane's four products of a unit add up exactly in 32 bits and to fewer than 24, so integers give
// the float that plain lanes get, whatever the order; with e4m3 weights the chain is that of plain
// lanes, all values times a power of two. Included by gemm_lanes.h alone.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/lane_kernels.h"
#include "kernels/cpu/lanes.h"

namespace skein::kernels::cpu {

// Factor of a unit of weights whose scale no product takes: 0 if all codes are 0, else NaN.
inline float OddScale(const uint8_t* codes, int64_t bytes, uint8_t zero_mask) {
  for (int64_t i = 0; i < bytes; ++i) {
    if ((codes[i] & zero_mask) != 0) return std::bit_cast<float>(uint32_t{0x7FC00000});
  }
  return 0;
}
inline constexpr uint8_t kE2m1Magnitude = 0x77;
inline constexpr uint8_t kE4m3Magnitude = 0x7F;

// Bytes that weights are asked for ahead of their use, into the second cache, which has room for
// many requests: the processor's own prefetching stops at page ends, and files are mapped in small
// pages.
inline constexpr int64_t kPrefetchAhead = 8192;

// The same where a whole matrix is a few pages and the next one lies elsewhere.
inline constexpr int64_t kShortAhead = 1024;

// Rows of x that share decoded weights at most: their sums fill the registers.
inline constexpr int kMaxTile = static_cast<int>(kTileRows);

// Whether products on lanes L may use codes.
template <typename L>
struct CodeDot {
  static constexpr bool kUsed = false;
};

#if defined(SKEIN_AVX2_LANES)

template <CpuIsa isa>
struct CodeDot<VectorLanes<isa>> {
  using L = VectorLanes<isa>;
  static constexpr bool kUsed = true;
  static constexpr int64_t kScales = 8;  // scale bytes that are widened together

  // A weight row of an e4m3 (e2m1) matrix.
  struct Row {
    const uint8_t* codes = nullptr;
    const uint8_t* scale = nullptr;
    int shift = 0;  // units of a scale byte, as a power of two
  };
  static Row E4m3At(const GemmCall& call, int64_t n) {
    const int shift = std::countr_zero(static_cast<uint64_t>(call.block / kUnit));
    return {call.codes + n * call.codes_step, call.scale + (n / kUnit >> shift) * call.scale_step,
            shift};
  }
  static Row E2m1At(const GemmCall& call, int64_t n) {
    return {call.codes + n * call.codes_step, call.scale + n * call.scale_step, 0};
  }

  // Scale bytes of units [first, first + count), the first lowest; 127 behind them. In registers: a
  // load would wait for the bytes that were stored one by one.
  [[gnu::always_inline]] static inline uint64_t ScaleBytes(const Row& row, int64_t first,
                                                           int64_t count) {
    const uint8_t* scale = row.scale + first;
    uint64_t bytes = 0;
    if (row.shift != 0) [[unlikely]] {
      for (int64_t i = count - 1; i >= 0; --i) {
        bytes = bytes << 8 | row.scale[(first + i) >> row.shift];
      }
    } else if (count == kScales) {
      std::memcpy(&bytes, scale, sizeof(bytes));
      return bytes;
    } else if (count >= 4) {
      uint32_t low, high;
      std::memcpy(&low, scale, sizeof(low));
      std::memcpy(&high, scale + count - 4, sizeof(high));
      bytes = low | uint64_t{high} << (8 * (count - 4));
    } else {
      for (int64_t i = count - 1; i >= 0; --i) bytes = bytes << 8 | scale[i];
    }
    return count == kScales ? bytes : bytes | 0x7F7F7F7F7F7F7F7F << (8 * count);
  }

  // Factors of units [first, first + count) of `row`, kUnitBytes of codes each, k channels in all.
  template <int64_t kUnitBytes>
  [[gnu::always_inline]] static inline __m256 WeightFactors(const Row& row, int64_t first,
                                                            int64_t count, int64_t k) {
    const __m128i packed = _mm_cvtsi64_si128(static_cast<int64_t>(ScaleBytes(row, first, count)));
    const __m128i above = _mm_subs_epu8(_mm_sub_epi8(packed, _mm_set1_epi8(kLeastProductScale)),
                                        _mm_set1_epi8(kMostProductScale - kLeastProductScale));
    const __m256 factors = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(packed), 23));
    if (_mm_cvtsi128_si64(above) == 0) [[likely]]
      return factors;
    return OddFactors<kUnitBytes>(row, first, count, k, factors);
  }
  // The same where some scale byte is none that a product takes.
  template <int64_t kUnitBytes>
  [[gnu::noinline]] static __m256 OddFactors(const Row& row, int64_t first, int64_t count,
                                             int64_t k, __m256 factors) {
    float slow[kScales];
    _mm256_storeu_ps(slow, factors);
    for (int64_t i = 0; i < count; ++i) {
      if (IsProductScale(row.scale[(first + i) >> row.shift])) continue;
      const int64_t channels = k - (first + i) * kUnit < kUnit ? k - (first + i) * kUnit : kUnit;
      slow[i] = OddScale(row.codes + (first + i) * kUnitBytes,
                         (channels * kUnitBytes + kUnit - 1) / kUnit,
                         kUnitBytes == kUnit ? kE4m3Magnitude : kE2m1Magnitude);
    }
    return _mm256_loadu_ps(slow);
  }

  // The codes of unit `unit`, from `tail` (zeros behind the row's end) where the row ends in it.
  template <int64_t kUnitBytes>
  static const uint8_t* UnitCodes(const Row& row, int64_t unit, int64_t k, uint8_t* tail) {
    const uint8_t* codes = row.codes + unit * kUnitBytes;
    const int64_t rest = k - unit * kUnit;
    if (rest >= kUnit) [[likely]]
      return codes;
    std::memset(tail, 0, kUnitBytes);
    std::memcpy(tail, codes, static_cast<size_t>((rest * kUnitBytes + kUnit - 1) / kUnit));
    return tail;
  }

  // Calls step(u, j, codes) for units [first, first + count) of each of kCols rows, u from 0.
  template <int64_t kUnitBytes, int kCols, typename Step>
  static void ForUnits(const Row* row, int64_t first, int64_t count, int64_t k, const Step& step) {
    if (count == kScales && (first + kScales) * kUnit <= k) [[likely]] {
#pragma GCC unroll 4
      for (int64_t u = 0; u < kScales; ++u) {
#pragma GCC unroll 2
        for (int j = 0; j < kCols; ++j) step(u, j, row[j].codes + (first + u) * kUnitBytes);
      }
      return;
    }
    for (int64_t u = 0; u < count; ++u) {
#pragma GCC unroll 2
      for (int j = 0; j < kCols; ++j) {
        uint8_t tail[kUnitBytes];
        step(u, j, UnitCodes<kUnitBytes>(row[j], first + u, k, tail));
      }
    }
  }

  static int64_t RowOfX(const GemmCall& call, int64_t row) {
    return call.x_row == nullptr ? call.x_first + row : call.x_row[row];
  }

  // Units that a column takes at a time: whole rows of weights, or with several rows of x so few
  // that these stay in the first cache for the next column.
  template <int kRows>
  static int64_t BlockUnits(int64_t units) {
    return kRows <= 2 ? units : 128 / kRows / kScales * kScales;
  }
  // Columns of e2m1 weights that are taken side by side: the sums of few rows would wait for each
  // other.
  template <int kRows>
  static constexpr int Together() {
    return kRows <= 2 ? 2 : 1;
  }
  // How far ahead weights are asked for: at least the columns that are worked on together.
  template <int kRows>
  static int64_t Ahead(const GemmCall& call) {
    const int64_t together = kRows <= 2 ? 0 : kPanelRows * call.codes_step;
    return together > kPrefetchAhead ? together : kPrefetchAhead;
  }

  // A constant that stays in its register: with AVX-512 GCC makes it again each time it is used.
  template <typename V>
  [[gnu::always_inline]] static inline V Kept(V constant) {
    if constexpr (isa == CpuIsa::kAvx512) asm("" : "+v"(constant));
    return constant;
  }

  // 32 e4m3 codes as floats: two codes at the tops of the halves of 32 bits, moved down to where
  // f32 has exponent and fraction, 2^-120 too small. For several rows multiplied out of the
  // subnormal numbers, once, since products of these are slow: then 2^-100 too small.
  struct E4m3Decoder {
    template <int kRows>
    [[gnu::always_inline]] inline void Decode(const uint8_t* codes, __m256* out) const {
#pragma GCC unroll 2
      for (int64_t i = 0; i < 2; ++i) {
        const __m256i wide = _mm256_broadcastsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i * 16)));
        const __m256i both = _mm256_srai_epi16(_mm256_shuffle_epi8(wide, halves), 4);
        out[2 * i] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(both, 16), mask));
        out[2 * i + 1] = _mm256_castsi256_ps(_mm256_and_si256(both, mask));
        if constexpr (kRows > 1) {
          out[2 * i] = _mm256_mul_ps(out[2 * i], factor);
          out[2 * i + 1] = _mm256_mul_ps(out[2 * i + 1], factor);
        }
      }
    }
    __m256i halves =
        Kept(_mm256_setr_epi8(-1, 0, -1, 8, -1, 1, -1, 9, -1, 2, -1, 10, -1, 3, -1, 11, -1, 4, -1,
                              12, -1, 5, -1, 13, -1, 6, -1, 14, -1, 7, -1, 15));
    __m256i mask = Kept(_mm256_set1_epi32(static_cast<int32_t>(0x87F00000)));
    __m256 factor = Kept(_mm256_set1_ps(0x1p20f));
  };

  // Adds units [begin, end) of weight row n, times kRows rows of raw codes (GemmCall::x_factor), to
  // their lane sums. The guard sees the weight codes.
  template <int kRows>
  static void AddE4m3(const GemmCall& call, int64_t first_row, int64_t n, int64_t begin,
                      int64_t end, L* sums, CodeGuard<L>* guard) {
    const Row w = E4m3At(call, n);
    const int64_t ahead = Ahead<kRows>(call);
    const float* x[kRows];
    const float* factor[kRows];
    __m256 sum[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = RowOfX(call, first_row + i);
      x[i] = call.x + row * call.x_step;
      factor[i] = call.x_factor + row * call.x_factor_step;
      sum[i] = sums[i].lane();
    }
    CodeGuard<L> seen = *guard;
    const E4m3Decoder decoder;
    alignas(32) float factors[kRows][kScales];
    for (int64_t first = begin; first < end; first += kScales) {
      const int64_t count = kScales < end - first ? kScales : end - first;
      __m256 weights = WeightFactors<kUnit>(w, first, count, call.k);
      if constexpr (kRows == 1) weights = _mm256_mul_ps(weights, _mm256_set1_ps(0x1p20f));
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        _mm256_store_ps(factors[i], _mm256_mul_ps(weights, _mm256_loadu_ps(factor[i] + first)));
      }
      ForUnits<kUnit, 1>(&w, first, count, call.k, [&](int64_t u, int, const uint8_t* codes) {
        __builtin_prefetch(w.codes + (first + u) * kUnit + ahead, 0, 2);
        seen.Add(codes);
        __m256 weight[kLanesPerUnit];
        decoder.template Decode<kRows>(codes, weight);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          const float* from = x[i] + (first + u) * kUnit;
          __m256 part = _mm256_mul_ps(_mm256_load_ps(from), weight[0]);
#pragma GCC unroll 4
          for (int64_t q = 1; q < kLanesPerUnit; ++q) {
            part = _mm256_fmadd_ps(_mm256_load_ps(from + q * kLanes), weight[q], part);
          }
          sum[i] = _mm256_fmadd_ps(part, _mm256_broadcast_ss(&factors[i][u]), sum[i]);
        }
      });
    }
    *guard = seen;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) sums[i] = L(sum[i]);
  }

  // Values of 32 e2m1 codes in halves, times 256, from 16 bytes: the lower and the upper ones.
  struct E2m1Decoder {
    [[gnu::always_inline]] inline void Decode(const uint8_t* codes, __m256i* even,
                                              __m256i* odd) const {
      const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
#if defined(SKEIN_AVX512_LANES)
      // Looked up with four bits of each half.
      const __m256i wide = _mm256_cvtepu8_epi16(packed);
      *even = _mm256_permutexvar_epi16(wide, table);
      *odd = _mm256_permutexvar_epi16(_mm256_srli_epi16(wide, 4), table);
#else
      const __m256i tops =
          _mm256_setr_epi8(-1, 0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7, -1, 8, -1, 9, -1,
                           10, -1, 11, -1, 12, -1, 13, -1, 14, -1, 15);
      const __m256i wide = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(packed), tops);
      *even = _mm256_shuffle_epi8(table, _mm256_and_si256(wide, _mm256_set1_epi16(0x0F00)));
      // The lower byte of a half has zeros where the table is looked up: entry 0 or nothing.
      *odd = _mm256_shuffle_epi8(table, _mm256_srli_epi16(wide, 4));
#endif
    }
#if defined(SKEIN_AVX512_LANES)
    __m256i table = Kept(_mm256_setr_epi16(0, 256, 512, 768, 1024, 1536, 2048, 3072, 0, -256, -512,
                                           -768, -1024, -1536, -2048, -3072));
#else
    __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
#endif
  };

  // Exact sums of a unit's products with 32 parts, times 256.
  static __m256i UnitSum(__m256i even, __m256i odd, const int16_t* parts) {
    const __m256i* part = reinterpret_cast<const __m256i*>(parts);
    const __m256i sum = _mm256_madd_epi16(even, _mm256_load_si256(part));
#if defined(SKEIN_AVX512_LANES)
    return _mm256_dpwssd_epi32(sum, odd, _mm256_load_si256(part + 1));
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, _mm256_load_si256(part + 1)));
#endif
  }

  // UnitSum of unit u for each row.
  template <int kRows>
  [[gnu::always_inline]] static inline void UnitSums(const E2m1Decoder& decoder,
                                                     const uint8_t* codes,
                                                     const int16_t* const* parts, int64_t u,
                                                     __m256i* total) {
    __m256i even, odd;
    decoder.Decode(codes, &even, &odd);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) total[i] = UnitSum(even, odd, parts[i] + u * 64);
  }

  // For rows with low parts in unit u: `total` and the low parts' sum in units of the latter; a
  // whole number of weights' 256.
  template <int kRows>
  static void AddLow(const E2m1Decoder& decoder, const uint8_t* codes, const int16_t* const* parts,
                     const uint8_t* const* has_low, int64_t u, __m256i* total) {
    __m256i even, odd;
    decoder.Decode(codes, &even, &odd);
    for (int i = 0; i < kRows; ++i) {
      if (has_low[i][u] == 0) continue;
      const __m256i low = UnitSum(even, odd, parts[i] + u * 64 + 32);
      total[i] = _mm256_add_epi32(_mm256_srai_epi32(total[i], 5), _mm256_srai_epi32(low, 8));
    }
  }

  // The same for rows of integers and kCols e2m1 weight rows from n on, which lie side by side so
  // that their chains overlap; column j at sums + j * kRows.
  template <int kRows, int kCols>
  static void AddE2m1(const GemmCall& call, int64_t first_row, int64_t n, int64_t begin,
                      int64_t end, L* sums) {
    const IntegerRows& x = *call.x_integers;
    Row w[kCols];
    __m256 sum[kCols][kRows];
#pragma GCC unroll 2
    for (int j = 0; j < kCols; ++j) {
      w[j] = E2m1At(call, n + j);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sum[j][i] = sums[j * kRows + i].lane();
    }
    const int64_t ahead = Ahead<kRows>(call);
    const int16_t* parts[kRows];
    const float* factor[kRows];
    const uint8_t* has_low[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = RowOfX(call, first_row + i);
      parts[i] = x.parts + row * x.units * 64;
      factor[i] = x.factor + row * x.factor_step;
      has_low[i] = x.has_low + row * x.factor_step;
    }
    const E2m1Decoder decoder;
    alignas(32) float factors[kCols][kRows][kScales];
    for (int64_t first = begin; first < end; first += kScales) {
      const int64_t count = kScales < end - first ? kScales : end - first;
#pragma GCC unroll 2
      for (int j = 0; j < kCols; ++j) {
        // The group's codes fill two cache lines.
        __builtin_prefetch(w[j].codes + first * 16 + ahead, 0, 2);
        __builtin_prefetch(w[j].codes + first * 16 + ahead + 64, 0, 2);
        const __m256 weights = WeightFactors<kUnit / 2>(w[j], first, count, call.k);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          _mm256_store_ps(factors[j][i],
                          _mm256_mul_ps(weights, _mm256_loadu_ps(factor[i] + first)));
        }
      }
      uint64_t low = 0;  // a byte per unit: whether any row has low parts there
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        uint64_t some;
        std::memcpy(&some, has_low[i] + first, sizeof(some));
        low |= some;
      }
      const auto add = [&](int64_t u, int j, const __m256i* total) {
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          sum[j][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[i]),
                                      _mm256_broadcast_ss(&factors[j][i][u]), sum[j][i]);
        }
      };
      if (low == 0) [[likely]] {
        ForUnits<kUnit / 2, kCols>(w, first, count, call.k,
                                   [&](int64_t u, int j, const uint8_t* codes) {
                                     __m256i total[kRows];
                                     UnitSums<kRows>(decoder, codes, parts, first + u, total);
                                     add(u, j, total);
                                   });
        continue;
      }
      ForUnits<kUnit / 2, kCols>(
          w, first, count, call.k, [&](int64_t u, int j, const uint8_t* codes) {
            __m256i total[kRows];
            UnitSums<kRows>(decoder, codes, parts, first + u, total);
            if ((low >> (8 * u) & 1) != 0)
              AddLow<kRows>(decoder, codes, parts, has_low, first + u, total);
            add(u, j, total);
          });
    }
#pragma GCC unroll 2
    for (int j = 0; j < kCols; ++j) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sums[j * kRows + i] = L(sum[j][i]);
    }
  }

  // Rows of x that a short tile works on: whole rows of up to kScales units, all of them full.
  template <int kRows>
  struct ShortRows {
    ShortRows(const GemmCall& call, int64_t first_row) : units(call.k / kUnit) {
      const IntegerRows& x = *call.x_integers;
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const int64_t row = RowOfX(call, first_row + i);
        parts[i] = x.parts + row * x.units * 64;
        has_low[i] = x.has_low + row * x.factor_step;
        factor[i] = x.factor + row * x.factor_step;
        for (int64_t u = 0; u < units; ++u) any_low |= has_low[i][u] != 0;
      }
    }
    int64_t units;
    const int16_t* parts[kRows];
    const uint8_t* has_low[kRows];
    const float* factor[kRows];
    bool any_low = false;
  };

  static bool IsShort(const GemmCall& call) {
    return call.x_integers != nullptr && call.k <= kScales * kUnit && call.k % kUnit == 0;
  }

  // Lane sums of weight row n of e2m1 codes with the rows, as AddE2m1 has them from zero.
  template <int kRows, bool kLow>
  [[gnu::always_inline]] static inline void ShortColumn(const GemmCall& call,
                                                        const ShortRows<kRows>& x, int64_t n,
                                                        L* sums) {
    const Row w = E2m1At(call, n);
    for (int64_t line = 0; line < x.units * (kUnit / 2); line += 64) {
      __builtin_prefetch(w.codes + line + kShortAhead);
    }
    const E2m1Decoder decoder;
    alignas(32) float factors[kRows][kScales];
    const __m256 weights = WeightFactors<kUnit / 2>(w, 0, x.units, call.k);
    __m256 sum[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      _mm256_store_ps(factors[i], _mm256_mul_ps(weights, _mm256_loadu_ps(x.factor[i])));
      sum[i] = _mm256_setzero_ps();
    }
#pragma GCC unroll 2
    for (int64_t u = 0; u < x.units; ++u) {
      const uint8_t* codes = w.codes + u * (kUnit / 2);
      __m256i total[kRows];
      UnitSums<kRows>(decoder, codes, x.parts, u, total);
      if constexpr (kLow) AddLow<kRows>(decoder, codes, x.parts, x.has_low, u, total);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        sum[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[i]), _mm256_broadcast_ss(&factors[i][u]),
                                 sum[i]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) sums[i] = L(sum[i]);
  }

  // Row of raw codes, for e4m3 weights: codes times 2^112, k padded with zeros, and a factor per
  // unit. A scale that no product takes makes the factor NaN unless all codes are 0.
  static void RawRow(const uint8_t* codes, const uint8_t* scale, int64_t k, float* out,
                     float* factor) {
    for (int64_t u = 0; u * kUnit < k; ++u) {
      uint8_t tail[kUnit];
      const uint8_t* unit = UnitCodes<kUnit>({codes, scale, 0}, u, k, tail);
      L lanes[kLanesPerUnit];
      L::DecodeE4m3(unit, 0x1p120f, lanes);
#pragma GCC unroll 4
      for (int64_t q = 0; q < kLanesPerUnit; ++q) lanes[q].Store(out + u * kUnit + q * kLanes);
      factor[u] = 0x1p-12f * RowScale(unit, scale[u]);
    }
    PadFactors(k, factor);
  }

  // Row `row` of `out`, for e2m1 weights: a code as high * 2^-6 or, where that is not whole, as low
  // * 2^-9; even channels, then odd ones.
  static void PackRow(const uint8_t* codes, const uint8_t* scale, int64_t k, const IntegerRows& out,
                      int64_t row) {
    int16_t* parts = out.parts + row * out.units * 64;
    float* factor = out.factor + row * out.factor_step;
    uint8_t* has_low = out.has_low + row * out.factor_step;
    for (int64_t u = 0; u < out.units; ++u, parts += 64) {
      uint8_t tail[kUnit];
      const uint8_t* unit = UnitCodes<kUnit>({codes, scale, 0}, u, k, tail);
      CodeGuard<L> guard;
      guard.Add(unit);
      L lanes[kLanesPerUnit];
      L::DecodeE4m3(unit, 0x1p17f, lanes);
      __m256i high[kLanesPerUnit], low[kLanesPerUnit];
      __m256i any = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int64_t q = 0; q < kLanesPerUnit; ++q) {
        const __m256i fine = _mm256_cvttps_epi32(lanes[q].lane());
        const __m256i whole = _mm256_cmpeq_epi32(_mm256_and_si256(fine, _mm256_set1_epi32(7)),
                                                 _mm256_setzero_si256());
        high[q] = _mm256_and_si256(_mm256_srai_epi32(fine, 3), whole);
        low[q] = _mm256_andnot_si256(whole, fine);
        any = _mm256_or_si256(any, low[q]);
      }
      StoreParts(high, parts);
      StoreParts(low, parts + 32);
      has_low[u] = _mm256_testz_si256(any, any) == 0;
      // Weights count halves, and 256 times that without low parts.
      const float value = guard.HasNan() ? DecodeE8m0(kE8m0Nan) : RowScale(unit, scale[u]);
      factor[u] = value * (has_low[u] != 0 ? 0x1p-10f : 0x1p-15f);
    }
    PadFactors(k, factor);
  }

 private:
  static float RowScale(const uint8_t* unit, uint8_t byte) {
    return IsProductScale(byte) ? DecodeE8m0(byte) : OddScale(unit, kUnit, kE4m3Magnitude);
  }

  static void PadFactors(int64_t k, float* factor) {
    const int64_t units = (k + kUnit - 1) / kUnit;
    for (int64_t u = units; u % kScales != 0; ++u) factor[u] = 0;
  }

  // 32 numbers of 16 bits: those of even channels, then those of odd ones.
  static void StoreParts(const __m256i* value, int16_t* to) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256 v[kLanesPerUnit];
#pragma GCC unroll 4
    for (int64_t q = 0; q < kLanesPerUnit; ++q) v[q] = _mm256_castsi256_ps(value[q]);
    const __m256i even =
        _mm256_packs_epi32(_mm256_castps_si256(_mm256_shuffle_ps(v[0], v[1], 0x88)),
                           _mm256_castps_si256(_mm256_shuffle_ps(v[2], v[3], 0x88)));
    const __m256i odd =
        _mm256_packs_epi32(_mm256_castps_si256(_mm256_shuffle_ps(v[0], v[1], 0xDD)),
                           _mm256_castps_si256(_mm256_shuffle_ps(v[2], v[3], 0xDD)));
    __m256i* out = reinterpret_cast<__m256i*>(to);
    _mm256_store_si256(out, _mm256_permutevar8x32_epi32(even, order));
    _mm256_store_si256(out + 1, _mm256_permutevar8x32_epi32(odd, order));
  }
};

#endif

}  // namespace skein::kernels::cpu
