// The lane kernels one by one: every code, every bf16 value and a dense sample of f32 through all
// instruction sets that this processor has, against formats.h and the library.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/cpu/lane_kernels.h"
#include "kernels/formats.h"

namespace skein::kernels::cpu {
namespace {

std::vector<const LaneKernels*> Tables() {
  std::vector<const LaneKernels*> tables = {&ScalarLaneKernels()};
  if (CpuHasAvx2()) tables.push_back(&Avx2LaneKernels());
  if (CpuHasAvx512()) tables.push_back(&Avx512LaneKernels());
  return tables;
}

// Every 4099th bit pattern: all exponents, both signs, infinities and NaN among them.
std::vector<float> ManyFloats() {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (const float value : {0.0f, -0.0f, std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    values.push_back(value);
  }
  return values;
}

TEST(Lanes, NarrowRoundsEveryFloatAsTheFormatSays) {
  const std::vector<float> values = ManyFloats();
  for (const LaneKernels* table : Tables()) {
    std::vector<uint16_t> out(values.size());
    table->narrow(values.data(), static_cast<int64_t>(values.size()), out.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(out[i], EncodeBf16(values[i])) << values[i];
    }
  }
}

TEST(Lanes, WidenIsExactForEveryBf16) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const LaneKernels* table : Tables()) {
    std::vector<float> out(all.size());
    table->widen(all.data(), static_cast<int64_t>(all.size()), out.data());
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), uint32_t{all[i]} << 16);
    }
  }
}

TEST(Lanes, CastEncodesEveryFiniteFloatAsTheFormatSays) {
  std::vector<float> values = ManyFloats();
  std::erase_if(values, [](float v) { return !std::isfinite(v) || std::fabs(v) > 1e30f; });
  values.resize(values.size() / 32 * 32);
  const int64_t count = static_cast<int64_t>(values.size());
  for (const LaneKernels* table : Tables()) {
    // Groups of one value put each value at the top of its own scale, groups of 32 below others'.
    for (const int64_t group : {int64_t{1}, int64_t{7}, int64_t{32}}) {
      std::vector<uint8_t> codes(values.size());
      std::vector<uint8_t> scale(values.size());
      table->cast_f32(values.data(), count, group, codes.data(), scale.data());
      for (int64_t begin = 0; begin < count; begin += group) {
        const int64_t end = std::min(count, begin + group);
        float amax = 0;
        for (int64_t i = begin; i < end; ++i) {
          amax = std::max(amax, std::fabs(values[static_cast<size_t>(i)]));
        }
        const GroupScale s = ScaleOfGroup(CodeFormat::kE4m3Ue8m0, amax);
        ASSERT_EQ(scale[static_cast<size_t>(begin / group)], s.byte) << amax;
        for (int64_t i = begin; i < end; ++i) {
          ASSERT_EQ(codes[static_cast<size_t>(i)],
                    EncodeInGroup(CodeFormat::kE4m3Ue8m0, values[static_cast<size_t>(i)], s.value))
              << values[static_cast<size_t>(i)] << " under " << s.value;
        }
      }
    }
  }
}

TEST(Lanes, FakeE2m1IsEncodeAndDecodeForEveryFiniteBf16) {
  std::vector<uint16_t> finite;
  for (uint32_t i = 0; i < 65536; ++i) {
    if ((i & 0x7F80) != 0x7F80) finite.push_back(static_cast<uint16_t>(i));
  }
  for (const LaneKernels* table : Tables()) {
    // Alone a value is at the top of its scale; beside 6 and 3 it is rounded at every place.
    for (const float top : {0.0f, 3.0f, 6.0f}) {
      for (const uint16_t value : finite) {
        const std::vector<uint16_t> group = {value, EncodeBf16(top), EncodeBf16(-top / 2)};
        std::vector<uint16_t> got = group;
        ASSERT_TRUE(table->fake_e2m1(got.data(), 3));
        const float amax = std::max(std::fabs(DecodeBf16(value)), top);
        const GroupScale s = ScaleOfGroup(CodeFormat::kE2m1Ue8m0, amax);
        for (size_t i = 0; i < group.size(); ++i) {
          const uint8_t code = EncodeInGroup(CodeFormat::kE2m1Ue8m0, DecodeBf16(group[i]), s.value);
          ASSERT_EQ(got[i], EncodeBf16(DecodeE2m1(code) * s.value))
              << DecodeBf16(group[i]) << " beside " << DecodeBf16(value) << " and " << top;
        }
      }
    }
    for (const uint16_t odd : {uint16_t{0x7F80}, uint16_t{0xFF80}, uint16_t{0x7FC0}}) {
      std::vector<uint16_t> group(32, 0x3F80);
      group[17] = odd;
      const std::vector<uint16_t> before = group;
      EXPECT_FALSE(table->fake_e2m1(group.data(), 32));
      EXPECT_EQ(group, before);
    }
  }
}

TEST(Lanes, DecodeE4m3IsExactForEveryCodeUnderManyScales) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  for (const LaneKernels* table : Tables()) {
    for (const int number : {0, 1, 100, 127, 240}) {
      const uint8_t byte = static_cast<uint8_t>(number);
      const std::vector<uint8_t> scale(8, byte);
      std::vector<float> out(256);
      // 250 values: the last unit is a partial one.
      table->decode_e4m3(codes.data(), scale.data(), 250, out.data());
      for (size_t i = 0; i < 250; ++i) {
        const float expected = DecodeE4m3(codes[i]) * DecodeE8m0(byte);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(out[i])) << i;
        } else {
          ASSERT_EQ(out[i], expected) << i << " " << int{byte};
        }
      }
    }
  }
}

TEST(Lanes, DecodeKvIsExactForEveryFp4ByteAndScale) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  for (const LaneKernels* table : Tables()) {
    for (const KvFormat format : {KvFormat::kFp4Group16, KvFormat::kFp4Group32}) {
      const size_t group = format == KvFormat::kFp4Group16 ? 16 : 32;
      for (int offset = 0; offset < 240; offset += 16) {
        std::vector<uint8_t> scale(512 / group);
        for (size_t g = 0; g < scale.size(); ++g) {
          scale[g] = static_cast<uint8_t>((static_cast<size_t>(offset) + g % 16) % 247);
        }
        std::vector<float> out(512);
        table->decode_kv(format, codes.data(), scale.data(), 506, out.data());
        for (size_t i = 0; i < 506; ++i) {
          const uint8_t code = static_cast<uint8_t>((codes[i / 2] >> (i % 2 * 4)) & 15);
          const uint8_t byte = scale[i / group];
          const float s = format == KvFormat::kFp4Group16 ? DecodeE4m3(byte) : DecodeE8m0(byte);
          const float expected = DecodeE2m1(code) * s;
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(out[i])) << i;
          } else {
            ASSERT_EQ(out[i], expected) << i << " " << int{byte};
          }
        }
      }
    }
  }
}

TEST(Lanes, ExpIsWithinTwoUlpAndTheSameInAllInstructionSets) {
  std::vector<float> values;
  for (int i = -110000; i <= 90000; ++i) values.push_back(static_cast<float>(i) * 0.001f);
  for (const float value : {-std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::infinity(), std::nanf("")}) {
    values.push_back(value);
  }
  const int64_t count = static_cast<int64_t>(values.size());
  std::vector<float> first(values.size());
  ScalarLaneKernels().exp(values.data(), count, first.data());
  for (size_t i = 0; i + 3 < values.size(); ++i) {
    const float expected = std::exp(values[i]);
    const float ulp = std::nextafter(expected, HUGE_VALF) - expected;
    if (std::isfinite(expected)) {
      ASSERT_NEAR(first[i], expected, 2 * ulp) << values[i];
    }
  }
  EXPECT_EQ(first[values.size() - 3], 0.0f);
  EXPECT_EQ(first[values.size() - 2], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(first.back()));
  for (const LaneKernels* table : Tables()) {
    std::vector<float> other(values.size());
    table->exp(values.data(), count, other.data());
    for (size_t i = 0; i + 1 < values.size(); ++i) ASSERT_EQ(first[i], other[i]) << values[i];
  }
}

TEST(Lanes, SayWhetherAvx512WasTested) {
  if (!CpuHasAvx512()) GTEST_SKIP() << "this processor lacks AVX-512 F, BW, DQ, VL or VNNI";
  EXPECT_NE(&Avx512LaneKernels(), &ScalarLaneKernels());
}

}  // namespace
}  // namespace skein::kernels::cpu
