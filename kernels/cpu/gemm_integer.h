// Products of e4m3 activations with e2m1 weights in integers: a lane's four products of a unit add
// up exactly in 32 bits and to fewer than 24, so the unit's sum is the float that plain lanes get,
// whatever the order; scale and chain are the same. Included by gemm_lanes.h alone.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/lane_kernels.h"
#include "kernels/cpu/lanes.h"

namespace skein::kernels::cpu {

// Factor of a unit of e2m1 weights whose scale no product takes: 0 if all codes are 0, else NaN.
inline float OddScale(const uint8_t* codes, int64_t bytes, uint8_t zero_mask) {
  for (int64_t i = 0; i < bytes; ++i) {
    if ((codes[i] & zero_mask) != 0) return std::bit_cast<float>(uint32_t{0x7FC00000});
  }
  return 0;
}
inline constexpr uint8_t kE2m1Magnitude = 0x77;
inline constexpr uint8_t kE4m3Magnitude = 0x7F;

// Bytes that weights are asked for ahead of their use: the processor's own prefetching stops at
// page ends, and files are mapped in small pages.
inline constexpr int64_t kPrefetchAhead = 4096;

// Whether products on lanes L may use integers.
template <typename L>
struct IntegerDot {
  static constexpr bool kUsed = false;
};

#if defined(SKEIN_AVX2_LANES)

template <CpuIsa isa>
struct IntegerDot<VectorLanes<isa>> {
  using L = VectorLanes<isa>;
  static constexpr bool kUsed = true;
  static constexpr int64_t kScales = 8;  // scale bytes that are widened together

  // Values of e2m1 codes in halves.
  static __m128i Table() {
    return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  }

  // Factors of `count` units, from their scale bytes; the units' codes are the next `bytes` or
  // fewer.
  static __m256 WeightFactors(const uint8_t* scale, int64_t count, const uint8_t* codes,
                              int64_t bytes) {
    uint8_t some[kScales] = {127, 127, 127, 127, 127, 127, 127, 127};
    if (count < kScales) std::memcpy(some, scale, static_cast<size_t>(count));
    const __m128i packed =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(count < kScales ? some : scale));
    const __m128i above = _mm_subs_epu8(_mm_sub_epi8(packed, _mm_set1_epi8(kLeastProductScale)),
                                        _mm_set1_epi8(kMostProductScale - kLeastProductScale));
    const __m256 factors = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(packed), 23));
    if (_mm_cvtsi128_si64(above) == 0) [[likely]]
      return factors;
    float slow[kScales];
    _mm256_storeu_ps(slow, factors);
    for (int64_t i = 0; i < count; ++i) {
      if (!IsProductScale(scale[i])) {
        slow[i] =
            OddScale(codes + i * 16, bytes - i * 16 < 16 ? bytes - i * 16 : 16, kE2m1Magnitude);
      }
    }
    return _mm256_loadu_ps(slow);
  }

  template <int kRows, int kCols>
  static void Run(const GemmCall& call, int64_t first_row, int64_t n, float (*sums)[kCols]) {
    const IntegerRows& x = *call.x_integers;
    const uint8_t* codes[kCols];
    const uint8_t* scale[kCols];
    const int16_t* parts[kRows];
    const float* factor[kRows];
    const uint8_t* has_low[kRows];
    __m256 sum[kRows][kCols];
#pragma GCC unroll 4
    for (int j = 0; j < kCols; ++j) {
      codes[j] = call.codes + (call.first_row + n + j) * call.codes_step;
      scale[j] = call.scale + (call.first_row + n + j) * call.scale_step;
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const int64_t row =
          call.x_row == nullptr ? call.x_first + first_row + i : call.x_row[first_row + i];
      parts[i] = x.parts + row * x.units * 64;
      factor[i] = x.factor + row * x.factor_step;
      has_low[i] = x.has_low + row * x.factor_step;
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) sum[i][j] = _mm256_setzero_ps();
    }
    const __m128i table = Table();
    const __m128i nibble = _mm_set1_epi8(15);
    alignas(32) float factors[kRows][kCols][kScales];
    for (int64_t first = 0; first < x.units; first += kScales) {
      const int64_t count = kScales < x.units - first ? kScales : x.units - first;
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) {
        // The group's codes fill two cache lines.
        __builtin_prefetch(codes[j] + first * 16 + kPrefetchAhead);
        __builtin_prefetch(codes[j] + first * 16 + kPrefetchAhead + 64);
        const __m256 weights = WeightFactors(scale[j] + first, count, codes[j] + first * 16,
                                             (call.k + 1) / 2 - first * 16);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          _mm256_store_ps(factors[i][j],
                          _mm256_mul_ps(weights, _mm256_loadu_ps(factor[i] + first)));
        }
      }
      for (int64_t u = 0; u < count; ++u) {
        const int64_t unit = first + u;
#pragma GCC unroll 4
        for (int j = 0; j < kCols; ++j) {
          __m128i packed;
          if (unit * 32 + 32 <= call.k) [[likely]] {
            packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes[j] + unit * 16));
          } else {
            uint8_t tail[16] = {};
            std::memcpy(tail, codes[j] + unit * 16,
                        static_cast<size_t>((call.k + 1) / 2 - unit * 16));
            packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tail));
          }
          const __m256i even =
              _mm256_cvtepi8_epi16(_mm_shuffle_epi8(table, _mm_and_si128(packed, nibble)));
          const __m256i odd = _mm256_cvtepi8_epi16(
              _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(packed, 4), nibble)));
#pragma GCC unroll 4
          for (int i = 0; i < kRows; ++i) {
            const __m256i* part = reinterpret_cast<const __m256i*>(parts[i] + unit * 64);
            __m256i total = _mm256_add_epi32(_mm256_madd_epi16(even, _mm256_load_si256(part)),
                                             _mm256_madd_epi16(odd, _mm256_load_si256(part + 1)));
            if (has_low[i][unit] != 0) {
              const __m256i low =
                  _mm256_add_epi32(_mm256_madd_epi16(even, _mm256_load_si256(part + 2)),
                                   _mm256_madd_epi16(odd, _mm256_load_si256(part + 3)));
              total = _mm256_add_epi32(_mm256_slli_epi32(total, 3), low);
            }
            sum[i][j] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total),
                                        _mm256_broadcast_ss(&factors[i][j][u]), sum[i][j]);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) sums[i][j] = L(sum[i][j]).Sum();
    }
  }
};

#endif

}  // namespace skein::kernels::cpu
