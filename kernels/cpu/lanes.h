// Eight f32 lanes, twice: ScalarLanes in plain C++ and VectorLanes with vector instructions. Both
// do the same IEEE operations in the same order, so an algorithm written on lanes gives the same
// bits on either. VectorLanes exists only where the file is compiled for AVX2, FMA and F16C, as a
// type of its own for each instruction set, so that no two files share a symbol; such a file must
// not run code of it before CpuHasAvx2 (CpuHasAvx512) said yes.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define SKEIN_AVX2_LANES 1
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__) && defined(__AVX512VNNI__)
#define SKEIN_AVX512_LANES 1
#endif
#endif

#include "kernels/cpu/register.h"
#include "kernels/formats.h"

namespace skein::kernels::cpu {

inline constexpr int64_t kLanes = 8;
inline constexpr int64_t kUnit = 32;  // channels that are decoded together
inline constexpr int64_t kLanesPerUnit = kUnit / kLanes;

constexpr int64_t RoundUpToUnit(int64_t count) { return (count + kUnit - 1) / kUnit * kUnit; }

// Scale byte of a weight as a factor of codes that were decoded 2^-8 too small. Bytes above 246 do
// not fit and count as NaN: the row is poisoned, never wrong.
inline float WeightScale(uint8_t byte) {
  if (byte > 246) return std::bit_cast<float>(uint32_t{0x7FC00000});
  return std::bit_cast<float>((uint32_t{byte} + 8) << 23);
}

// Scales that a product takes: bytes 2^-53 to 2^50, within which no product or sum of e4m3 and e2m1
// codes leaves the normal numbers, so that it does not matter where a scale is applied.
inline constexpr int kLeastProductScale = 74;
inline constexpr int kMostProductScale = 177;
inline bool IsProductScale(uint8_t byte) {
  return byte >= kLeastProductScale && byte <= kMostProductScale;
}

class ScalarLanes {
 public:
  static ScalarLanes Set(float value) {
    ScalarLanes out;
    for (float& lane : out.lane_) lane = value;
    return out;
  }
  static ScalarLanes Zero() { return Set(0); }
  static ScalarLanes Load(const float* from) {
    ScalarLanes out;
    std::memcpy(out.lane_, from, sizeof(out.lane_));
    return out;
  }
  static ScalarLanes LoadBf16(const uint16_t* from) {
    ScalarLanes out;
    for (int i = 0; i < 8; ++i) out.lane_[i] = DecodeBf16(from[i]);
    return out;
  }
  void Store(float* to) const { std::memcpy(to, lane_, sizeof(lane_)); }
  void StoreBf16(uint16_t* to) const {
    for (int i = 0; i < 8; ++i) to[i] = EncodeBf16(lane_[i]);
  }
  void StoreE4m3(uint8_t* to) const {
    for (int i = 0; i < 8; ++i) to[i] = EncodeE4m3(lane_[i]);
  }

  friend ScalarLanes operator+(ScalarLanes a, ScalarLanes b) {
    return Map(a, b, [](float x, float y) { return x + y; });
  }
  friend ScalarLanes operator-(ScalarLanes a, ScalarLanes b) {
    return Map(a, b, [](float x, float y) { return x - y; });
  }
  friend ScalarLanes operator*(ScalarLanes a, ScalarLanes b) {
    return Map(a, b, [](float x, float y) { return x * y; });
  }
  friend ScalarLanes operator/(ScalarLanes a, ScalarLanes b) {
    return Map(a, b, [](float x, float y) { return x / y; });
  }
  // b where either is NaN or both are zero, as the instruction has it.
  static ScalarLanes Max(ScalarLanes a, ScalarLanes b) {
    return Map(a, b, [](float x, float y) { return x > y ? x : y; });
  }
  static ScalarLanes Min(ScalarLanes a, ScalarLanes b) {
    return Map(a, b, [](float x, float y) { return x < y ? x : y; });
  }
  static ScalarLanes Fma(ScalarLanes a, ScalarLanes b, ScalarLanes c) {
    ScalarLanes out;
    for (int i = 0; i < 8; ++i) out.lane_[i] = std::fma(a.lane_[i], b.lane_[i], c.lane_[i]);
    return out;
  }
  static ScalarLanes Abs(ScalarLanes a) {
    for (float& lane : a.lane_) lane = std::fabs(lane);
    return a;
  }
  static ScalarLanes Negate(ScalarLanes a) {
    for (float& lane : a.lane_) lane = -lane;
    return a;
  }
  // The even (odd) lane of each pair in both places: 0 0 2 2 4 4 6 6 (1 1 3 3 5 5 7 7).
  static ScalarLanes DupEven(ScalarLanes a) {
    for (int i = 1; i < 8; i += 2) a.lane_[i] = a.lane_[i - 1];
    return a;
  }
  static ScalarLanes DupOdd(ScalarLanes a) {
    for (int i = 0; i < 8; i += 2) a.lane_[i] = a.lane_[i + 1];
    return a;
  }
  // The fixed tree of every sum over lanes.
  float Sum() const {
    const float* v = lane_;
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
  }
  // Sum of each of four.
  static void Sums(const ScalarLanes* v, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = v[i].Sum();
  }
  // Sum of each of eight, as lanes.
  static ScalarLanes SumsOfEight(const ScalarLanes* v) {
    ScalarLanes out;
    for (int i = 0; i < 8; ++i) out.lane_[i] = v[i].Sum();
    return out;
  }
  // Bytes of a unit in the order of DecodeE2m1Raw: every fourth one, from the first four on.
  static void PermuteUnit(const uint8_t* from, uint8_t* to) {
    for (int64_t i = 0; i < kUnit; ++i) to[i] = from[i % 8 * 4 + i / 8];
  }
  // Rounds four floats to bf16.
  static void StoreBf16x4(const float* from, uint16_t* to) {
    for (int i = 0; i < 4; ++i) to[i] = EncodeBf16(from[i]);
  }
  // p * 2^k, where `shifted` is k + 1.5 * 2^23.
  static ScalarLanes TimesPow2(ScalarLanes p, ScalarLanes shifted) {
    for (int i = 0; i < 8; ++i) {
      const uint32_t k = std::bit_cast<uint32_t>(shifted.lane_[i]) - 0x4B400000u;
      const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(k) >> 1);
      const float first = std::bit_cast<float>((half + 127u) << 23);
      const float second = std::bit_cast<float>((k - half + 127u) << 23);
      p.lane_[i] = p.lane_[i] * first * second;
    }
    return p;
  }

  // 32 codes, decoded and multiplied by a factor of WeightScale, as four lanes of eight.
  static void DecodeE4m3(const uint8_t* codes, float scale, ScalarLanes* out) {
    for (int64_t i = 0; i < kUnit; ++i) {
      out[i / 8].lane_[i % 8] = skein::kernels::DecodeE4m3(codes[i]) * 0x1p-8f * scale;
    }
  }
  static void DecodeE2m1(const uint8_t* codes, float scale, ScalarLanes* out) {
    for (int64_t i = 0; i < kUnit; ++i) {
      const uint8_t code = static_cast<uint8_t>((codes[i / 2] >> (i % 2 * 4)) & 15);
      out[i / 8].lane_[i % 8] = skein::kernels::DecodeE2m1(code) * 0x1p-8f * scale;
    }
  }

  // 32 codes decoded 2^-8 too small, for products. NaN codes may decode to anything: see CodeGuard.
  static void DecodeE4m3Raw(const uint8_t* codes, ScalarLanes* out) { DecodeE4m3(codes, 1, out); }
  // The same times 2^-112 and a factor.
  static void DecodeE4m3Times(const uint8_t* codes, float factor, ScalarLanes* out) {
    for (int64_t i = 0; i < kUnit; ++i) {
      out[i / 8].lane_[i % 8] = skein::kernels::DecodeE4m3(codes[i]) * 0x1p-120f * factor;
    }
  }
  // Lane l of out[q] is channel 4 * l + q: the order of products with e2m1 weights.
  static void DecodeE2m1Raw(const uint8_t* codes, ScalarLanes* out) {
    for (int l = 0; l < 8; ++l) {
      for (int q = 0; q < 4; ++q) {
        const int code = (codes[2 * l + q / 2] >> (q % 2 * 4)) & 15;
        out[q].lane_[l] = skein::kernels::DecodeE2m1(static_cast<uint8_t>(code)) * 0x1p-8f;
      }
    }
  }

 private:
  template <typename Fn>
  static ScalarLanes Map(ScalarLanes a, ScalarLanes b, Fn fn) {
    ScalarLanes out;
    for (int i = 0; i < 8; ++i) out.lane_[i] = fn(a.lane_[i], b.lane_[i]);
    return out;
  }
  float lane_[8];
};

#if defined(SKEIN_AVX2_LANES)

template <CpuIsa isa>
class VectorLanes {
 public:
  VectorLanes() = default;
  static VectorLanes Set(float value) { return VectorLanes(_mm256_set1_ps(value)); }
  static VectorLanes Zero() { return VectorLanes(_mm256_setzero_ps()); }
  static VectorLanes Load(const float* from) { return VectorLanes(_mm256_loadu_ps(from)); }
  static VectorLanes LoadBf16(const uint16_t* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return VectorLanes(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)));
  }
  void Store(float* to) const { _mm256_storeu_ps(to, lane_); }
  void StoreBf16(uint16_t* to) const {
    const __m256i bits = _mm256_castps_si256(lane_);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(lane_, lane_, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
  }
  void StoreE4m3(uint8_t* to) const {
    const __m256i bits = _mm256_castps_si256(lane_);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    const __m256 magnitude =
        _mm256_min_ps(_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF))),
                      _mm256_set1_ps(448.0f));
    const __m256i value = _mm256_castps_si256(magnitude);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(value, 20), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(_mm256_add_epi32(value, _mm256_set1_epi32(0x7FFFF)), odd);
    const __m256i normal =
        _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
    const __m256i small =
        _mm256_and_si256(_mm256_castps_si256(_mm256_add_ps(magnitude, _mm256_set1_ps(0x1p14f))),
                         _mm256_set1_epi32(0xF));
    const __m256i is_normal =
        _mm256_castps_si256(_mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1p-6f), _CMP_GE_OQ));
    const __m256i code = _mm256_or_si256(_mm256_blendv_epi8(small, normal, is_normal), sign);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(lane_, lane_, _CMP_UNORD_Q));
    const __m256i codes = _mm256_blendv_epi8(code, _mm256_set1_epi32(kE4m3Nan), nan);
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
  }

  friend VectorLanes operator+(VectorLanes a, VectorLanes b) {
    return VectorLanes(_mm256_add_ps(a.lane_, b.lane_));
  }
  friend VectorLanes operator-(VectorLanes a, VectorLanes b) {
    return VectorLanes(_mm256_sub_ps(a.lane_, b.lane_));
  }
  friend VectorLanes operator*(VectorLanes a, VectorLanes b) {
    return VectorLanes(_mm256_mul_ps(a.lane_, b.lane_));
  }
  friend VectorLanes operator/(VectorLanes a, VectorLanes b) {
    return VectorLanes(_mm256_div_ps(a.lane_, b.lane_));
  }
  static VectorLanes Max(VectorLanes a, VectorLanes b) {
    return VectorLanes(_mm256_max_ps(a.lane_, b.lane_));
  }
  static VectorLanes Min(VectorLanes a, VectorLanes b) {
    return VectorLanes(_mm256_min_ps(a.lane_, b.lane_));
  }
  static VectorLanes Fma(VectorLanes a, VectorLanes b, VectorLanes c) {
    return VectorLanes(_mm256_fmadd_ps(a.lane_, b.lane_, c.lane_));
  }
  static VectorLanes Abs(VectorLanes a) {
    return VectorLanes(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.lane_));
  }
  static VectorLanes Negate(VectorLanes a) {
    return VectorLanes(_mm256_xor_ps(_mm256_set1_ps(-0.0f), a.lane_));
  }
  static VectorLanes DupEven(VectorLanes a) { return VectorLanes(_mm256_moveldup_ps(a.lane_)); }
  static VectorLanes DupOdd(VectorLanes a) { return VectorLanes(_mm256_movehdup_ps(a.lane_)); }
  float Sum() const {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(lane_), _mm256_extractf128_ps(lane_, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static void Sums(const VectorLanes* v, float* out) {
    __m128 four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      four[i] =
          _mm_add_ps(_mm256_castps256_ps128(v[i].lane_), _mm256_extractf128_ps(v[i].lane_, 1));
    }
    // Lanes 0 + 2 of both, then 1 + 3 of both.
    const __m128 ab =
        _mm_add_ps(_mm_unpacklo_ps(four[0], four[1]), _mm_unpackhi_ps(four[0], four[1]));
    const __m128 cd =
        _mm_add_ps(_mm_unpacklo_ps(four[2], four[3]), _mm_unpackhi_ps(four[2], four[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
  }
  [[gnu::always_inline]] static inline VectorLanes SumsOfEight(const VectorLanes* v) {
    __m256 four[4];  // of v[i] and v[i + 4]
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      four[i] = _mm256_add_ps(_mm256_permute2f128_ps(v[i].lane_, v[i + 4].lane_, 0x20),
                              _mm256_permute2f128_ps(v[i].lane_, v[i + 4].lane_, 0x31));
    }
    const __m256d ab = _mm256_castps_pd(
        _mm256_add_ps(_mm256_unpacklo_ps(four[0], four[1]), _mm256_unpackhi_ps(four[0], four[1])));
    const __m256d cd = _mm256_castps_pd(
        _mm256_add_ps(_mm256_unpacklo_ps(four[2], four[3]), _mm256_unpackhi_ps(four[2], four[3])));
    return VectorLanes(_mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)),
                                     _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd))));
  }
  static void PermuteUnit(const uint8_t* from, uint8_t* to) {
    const __m128i fourths = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m128i* in = reinterpret_cast<const __m128i*>(from);
    const __m128i low = _mm_shuffle_epi8(_mm_loadu_si128(in), fourths);
    const __m128i high = _mm_shuffle_epi8(_mm_loadu_si128(in + 1), fourths);
    __m128i* out = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(out, _mm_unpacklo_epi32(low, high));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi32(low, high));
  }
  static void StoreBf16x4(const float* from, uint16_t* to) {
    const __m128 value = _mm_loadu_ps(from);
    const __m128i bits = _mm_castps_si128(value);
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
    const __m128i rounded =
        _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7FFF)), odd), 16);
    const __m128i quiet = _mm_or_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(0x40));
    const __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(value, value));
    const __m128i words = _mm_blendv_epi8(rounded, quiet, nan);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi32(words, words));
  }
  static VectorLanes TimesPow2(VectorLanes p, VectorLanes shifted) {
    const __m256i k =
        _mm256_sub_epi32(_mm256_castps_si256(shifted.lane_), _mm256_set1_epi32(0x4B400000));
    const __m256i half = _mm256_srai_epi32(k, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, half), bias), 23);
    return VectorLanes(_mm256_mul_ps(_mm256_mul_ps(p.lane_, _mm256_castsi256_ps(first)),
                                     _mm256_castsi256_ps(second)));
  }

  static void DecodeE4m3(const uint8_t* codes, float scale, VectorLanes* out) {
    const __m256 factor = _mm256_set1_ps(scale);
#pragma GCC unroll 2
    for (int64_t i = 0; i < kUnit; i += 16) {
      // Sign and magnitude moved to their places in f16, whose value is 2^-8 of the code's.
      const __m256i wide =
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
      const __m256i magnitude =
          _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7F)), 7);
      const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
      const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7F << 7));
      const __m256i half = _mm256_or_si256(_mm256_or_si256(magnitude, sign), nan);
      const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
      const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
      out[i / 8] = VectorLanes(_mm256_mul_ps(low, factor));
      out[i / 8 + 1] = VectorLanes(_mm256_mul_ps(high, factor));
    }
  }
  static void DecodeE2m1(const uint8_t* codes, float scale, VectorLanes* out) {
    // f16 of value * 2^-8 has a zero low byte, so a table of high bytes is enough.
    const __m128i table =
        _mm_setr_epi8(0x00, 0x18, 0x1C, 0x1E, 0x20, 0x22, 0x24, 0x26, 0x00, static_cast<char>(0x98),
                      static_cast<char>(0x9C), static_cast<char>(0x9E), static_cast<char>(0xA0),
                      static_cast<char>(0xA2), static_cast<char>(0xA4), static_cast<char>(0xA6));
    const __m256 factor = _mm256_set1_ps(scale);
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(packed, nibble));
    const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(packed, 4), nibble));
    const __m128i zero = _mm_setzero_si128();
    const __m128i first = _mm_unpacklo_epi8(even, odd);
    const __m128i last = _mm_unpackhi_epi8(even, odd);
    const __m128i halves[4] = {_mm_unpacklo_epi8(zero, first), _mm_unpackhi_epi8(zero, first),
                               _mm_unpacklo_epi8(zero, last), _mm_unpackhi_epi8(zero, last)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      out[i] = VectorLanes(_mm256_mul_ps(_mm256_cvtph_ps(halves[i]), factor));
    }
  }

  static void DecodeE4m3Raw(const uint8_t* codes, VectorLanes* out) {
    // Each code at the top of 32 bits, then moved down to where f32 has exponent and fraction: that
    // is 2^-120 of its value, also below the normal numbers. Half-float conversion is slower.
    const __m256i first =
        _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1, 4,
                         -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7);
    const __m256i last = _mm256_add_epi8(first, _mm256_set1_epi32(8 << 24));
    const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(0x87F00000));
    const __m256 factor = _mm256_set1_ps(0x1p112f);
#pragma GCC unroll 2
    for (int64_t i = 0; i < kUnit; i += 16) {
      const __m256i wide =
          _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
      const __m256i low =
          _mm256_and_si256(_mm256_srai_epi32(_mm256_shuffle_epi8(wide, first), 4), mask);
      const __m256i high =
          _mm256_and_si256(_mm256_srai_epi32(_mm256_shuffle_epi8(wide, last), 4), mask);
      out[i / 8] = VectorLanes(_mm256_mul_ps(_mm256_castsi256_ps(low), factor));
      out[i / 8 + 1] = VectorLanes(_mm256_mul_ps(_mm256_castsi256_ps(high), factor));
    }
  }
  // Two codes at the tops of the halves of 32 bits, so that half of them need one shift in all.
  static void DecodeE4m3Times(const uint8_t* codes, float factor, VectorLanes* out) {
    const __m256i halves =
        _mm256_setr_epi8(-1, 0, -1, 8, -1, 1, -1, 9, -1, 2, -1, 10, -1, 3, -1, 11, -1, 4, -1, 12,
                         -1, 5, -1, 13, -1, 6, -1, 14, -1, 7, -1, 15);
    const __m256 times = _mm256_set1_ps(factor);
#pragma GCC unroll 2
    for (int64_t i = 0; i < 2; ++i) {
      const __m256i wide = _mm256_broadcastsi128_si256(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i * 16)));
      const __m256i both = _mm256_and_si256(_mm256_srai_epi16(_mm256_shuffle_epi8(wide, halves), 4),
                                            _mm256_set1_epi16(static_cast<int16_t>(0x87F0)));
      const __m256i odd =
          _mm256_and_si256(both, _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000)));
      const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
      out[2 * i] = VectorLanes(_mm256_mul_ps(even, times));
      out[2 * i + 1] = VectorLanes(_mm256_mul_ps(_mm256_castsi256_ps(odd), times));
    }
  }
  static void DecodeE2m1Raw(const uint8_t* codes, VectorLanes* out) {
    const __m128i table =
        _mm_setr_epi8(0x00, 0x18, 0x1C, 0x1E, 0x20, 0x22, 0x24, 0x26, 0x00, static_cast<char>(0x98),
                      static_cast<char>(0x9C), static_cast<char>(0x9E), static_cast<char>(0xA0),
                      static_cast<char>(0xA2), static_cast<char>(0xA4), static_cast<char>(0xA6));
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i upper = _mm_set1_epi16(static_cast<int16_t>(0xFF00));
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(packed, nibble));
    const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(packed, 4), nibble));
    out[0] = VectorLanes(_mm256_cvtph_ps(_mm_slli_epi16(even, 8)));
    out[1] = VectorLanes(_mm256_cvtph_ps(_mm_slli_epi16(odd, 8)));
    out[2] = VectorLanes(_mm256_cvtph_ps(_mm_and_si128(even, upper)));
    out[3] = VectorLanes(_mm256_cvtph_ps(_mm_and_si128(odd, upper)));
  }
  __m256 lane() const { return lane_; }
  explicit VectorLanes(__m256 lane) : lane_(lane) {}

 private:
  __m256 lane_;
};

using Avx2Lanes = VectorLanes<CpuIsa::kAvx2>;
using Avx512Lanes = VectorLanes<CpuIsa::kAvx512>;

#endif

// Sees whether codes of e4m3 weights are NaN, which DecodeE4m3Raw does not.
template <typename L>
class CodeGuard {
 public:
  void Add(const uint8_t*) {}
  bool HasNan() const { return false; }  // raw decoding of plain lanes keeps NaN
};

#if defined(SKEIN_AVX2_LANES)

template <CpuIsa isa>
class CodeGuard<VectorLanes<isa>> {
 public:
  CodeGuard() : largest_(_mm256_setzero_si256()) {}
  void Add(const uint8_t* unit) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit));
    largest_ = _mm256_max_epu8(largest_, _mm256_and_si256(codes, _mm256_set1_epi8(0x7F)));
  }
  bool HasNan() const {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(largest_, _mm256_set1_epi8(0x7F))) != 0;
  }

 private:
  __m256i largest_;
};

#endif

// Partial loads and stores: `count` < 8 elements, the other lanes zero.
template <typename L>
L LoadPart(const float* from, int64_t count) {
  float slot[kLanes] = {};
  std::memcpy(slot, from, static_cast<size_t>(count) * sizeof(float));
  return L::Load(slot);
}
template <typename L>
L LoadPart(const uint16_t* from, int64_t count) {
  uint16_t slot[kLanes] = {};
  std::memcpy(slot, from, static_cast<size_t>(count) * sizeof(uint16_t));
  return L::LoadBf16(slot);
}
template <typename L>
void StorePart(L value, float* to, int64_t count) {
  float slot[kLanes];
  value.Store(slot);
  std::memcpy(to, slot, static_cast<size_t>(count) * sizeof(float));
}
template <typename L>
void StorePart(L value, uint16_t* to, int64_t count) {
  uint16_t slot[kLanes];
  value.StoreBf16(slot);
  std::memcpy(to, slot, static_cast<size_t>(count) * sizeof(uint16_t));
}
// Loads and stores of whole lanes chosen by the element type.
template <typename L>
L LoadLanes(const float* from) {
  return L::Load(from);
}
template <typename L>
L LoadLanes(const uint16_t* from) {
  return L::LoadBf16(from);
}
template <typename L>
void StoreLanes(L value, float* to) {
  value.Store(to);
}
template <typename L>
void StoreLanes(L value, uint16_t* to) {
  value.StoreBf16(to);
}

// Calls step(i, load, store) over [0, count) in groups of eight; load and store take the base
// pointer of a row and handle the last partial group.
// Always inlined: otherwise sums that a step keeps would live in memory.
template <typename L, typename Step>
[[gnu::always_inline]] inline void OverLanes(int64_t count, const Step& step) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    step([i](const auto* from) { return LoadLanes<L>(from + i); },
         [i](auto* to, L value) { StoreLanes<L>(value, to + i); });
  }
  if (const int64_t rest = count - i; rest > 0) {
    step([i, rest](const auto* from) { return LoadPart<L>(from + i, rest); },
         [i, rest](auto* to, L value) { StorePart<L>(value, to + i, rest); });
  }
}

// e^x: range reduction by ln 2 in two parts and a polynomial of degree seven; within 2 ulp. Below
// -105 it is 0, above 89 infinity; NaN stays.
template <typename L>
L Exp(L x) {
  x = L::Min(L::Set(89.0f), L::Max(L::Set(-105.0f), x));
  const L magic = L::Set(0x1.8p23f);
  const L shifted = L::Fma(x, L::Set(0x1.715476p0f), magic);
  const L k = L::Negate(shifted - magic);
  const L r = L::Fma(k, L::Set(-0x1.05c610p-29f), L::Fma(k, L::Set(0x1.62e430p-1f), x));
  L p = L::Set(0x1.a01a02p-13f);
  p = L::Fma(p, r, L::Set(0x1.6c16c2p-10f));
  p = L::Fma(p, r, L::Set(0x1.111112p-7f));
  p = L::Fma(p, r, L::Set(0x1.555556p-5f));
  p = L::Fma(p, r, L::Set(0x1.555556p-3f));
  p = L::Fma(p, r, L::Set(0.5f));
  p = L::Fma(p, r, L::Set(1.0f));
  p = L::Fma(p, r, L::Set(1.0f));
  return L::TimesPow2(p, shifted);
}

template <typename L>
L Sigmoid(L x) {
  return L::Set(1.0f) / (L::Set(1.0f) + Exp(L::Negate(x)));
}

// Dot product of `count` values in eight lanes, ascending, then the fixed tree.
template <typename L, typename A, typename B>
float DotLanes(const A* a, const B* b, int64_t count) {
  L sum = L::Zero();
  OverLanes<L>(count, [&](const auto& load, const auto&) { sum = L::Fma(load(a), load(b), sum); });
  return sum.Sum();
}

}  // namespace skein::kernels::cpu
