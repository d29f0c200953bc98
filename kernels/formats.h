// Number formats of the model and their conversions, on bits: bf16, e4m3, e2m1, e8m0, and the scale
// of a group of values. Every backend uses these, so a code is the same byte everywhere. Pure
// functions, any thread. Source: catalogue sections 2.1 and 2.2.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/ops/quant.h"

namespace skein::kernels {

inline constexpr uint8_t kE4m3Nan = 0x7F;
inline constexpr uint8_t kE8m0Nan = 0xFF;

// Widening is exact.
constexpr float DecodeBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest, ties to even. NaN stays NaN (quiet), overflow becomes infinity.
constexpr uint16_t EncodeBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// 2^(byte - 127); byte 0 is 2^-127, byte 255 is NaN.
constexpr float DecodeE8m0(uint8_t byte) {
  if (byte == kE8m0Nan) return std::bit_cast<float>(uint32_t{0x7FC00000});
  if (byte == 0) return std::bit_cast<float>(uint32_t{0x00400000});
  return std::bit_cast<float>(uint32_t{byte} << 23);
}

// Exact value of an e4m3 code: 1-4-3, bias 7, no infinity, 0x7F and 0xFF are NaN.
constexpr float DecodeE4m3(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000u);
  // Field of a normal number re-biased by 120; a subnormal is a count of 2^-9.
  if (magnitude >= 8) return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
  const float value = static_cast<float>(magnitude) * 0x1p-9f;
  return sign == 0 ? value : -value;
}

// Clamp to [-448, 448], then round to nearest, ties to even. The sign of zero stays; any NaN gives
// the one code 0x7F.
constexpr uint8_t EncodeE4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80;
  uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return kE4m3Nan;
  if (magnitude > std::bit_cast<uint32_t>(448.0f)) magnitude = std::bit_cast<uint32_t>(448.0f);
  if (magnitude >= std::bit_cast<uint32_t>(0x1p-6f)) {
    const uint32_t rounded = magnitude + 0x7FFFF + ((magnitude >> 20) & 1);
    return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
  }
  // Subnormal: adding 2^14 leaves multiples of 2^-9 in the mantissa, rounded to even.
  const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
  return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) & 0xF));
}

// Value of an e2m1 code; -0 (code 8) decodes to 0.
constexpr float DecodeE2m1(uint8_t code) {
  constexpr float kMagnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float magnitude = kMagnitude[code & 7];
  return (code & 8) != 0 && magnitude != 0 ? -magnitude : magnitude;
}

// Clamp to [-6, 6], then round to nearest, ties to the even code: 0.25->0, 0.75->1, 1.25->1,
// 1.75->2, 2.5->2, 3.5->4, 5->4. The sign of zero stays in the code. NaN gives code 7.
constexpr uint8_t EncodeE2m1(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFF);
  uint32_t code = 7;
  if (magnitude <= 0.25f) {
    code = 0;
  } else if (magnitude < 0.75f) {
    code = 1;
  } else if (magnitude <= 1.25f) {
    code = 2;
  } else if (magnitude < 1.75f) {
    code = 3;
  } else if (magnitude <= 2.5f) {
    code = 4;
  } else if (magnitude < 3.5f) {
    code = 5;
  } else if (magnitude <= 5.0f) {
    code = 6;
  }
  return static_cast<uint8_t>(((bits >> 28) & 8) | code);
}

// Exponent byte of the smallest power of two >= value (value > 0 and normal).
constexpr uint8_t CeilPow2Byte(float value) {
  return static_cast<uint8_t>((std::bit_cast<uint32_t>(value) + 0x007FFFFF) >> 23);
}

// A group's scale: the byte that is stored and its value.
struct GroupScale {
  uint8_t byte = 0;
  float value = 0;
};

// Scale of a group of largest magnitude `amax`. A NaN or infinite amax poisons the group: NaN.
constexpr GroupScale ScaleOfGroup(CodeFormat format, float amax) {
  const bool finite = (std::bit_cast<uint32_t>(amax) & 0x7FFFFFFF) < 0x7F800000;
  switch (format) {
    case CodeFormat::kE4m3Ue8m0: {
      if (!finite) return {kE8m0Nan, DecodeE8m0(kE8m0Nan)};
      const uint8_t byte = CeilPow2Byte((amax < 1e-4f ? 1e-4f : amax) * (1.0f / 448.0f));
      return {byte, DecodeE8m0(byte)};
    }
    case CodeFormat::kE2m1Ue8m0: {
      if (!finite) return {kE8m0Nan, DecodeE8m0(kE8m0Nan)};
      constexpr float kLeast = 6 * 0x1p-126f;
      const uint8_t byte = CeilPow2Byte((amax < kLeast ? kLeast : amax) * (1.0f / 6.0f));
      return {byte, DecodeE8m0(byte)};
    }
    case CodeFormat::kE2m1E4m3: {
      if (!finite) return {kE4m3Nan, DecodeE4m3(kE4m3Nan)};
      constexpr float kLeast = 6 * 0x1p-9f;
      const uint8_t byte = EncodeE4m3((amax < kLeast ? kLeast : amax) / 6.0f);
      return {byte, DecodeE4m3(byte)};
    }
  }
  return {};
}

// Code of one value under a group's scale: IEEE division, clamp, round.
constexpr uint8_t EncodeInGroup(CodeFormat format, float value, float scale) {
  return format == CodeFormat::kE4m3Ue8m0 ? EncodeE4m3(value / scale) : EncodeE2m1(value / scale);
}

constexpr float DecodeCode(CodeFormat format, uint8_t code) {
  return format == CodeFormat::kE4m3Ue8m0 ? DecodeE4m3(code) : DecodeE2m1(code);
}

}  // namespace skein::kernels
