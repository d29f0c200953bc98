// The number formats: every code decoded and encoded again, every tie, every scale boundary, and
// the f64 exp and log against the library.
#include "kernels/formats.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/exact_math.h"

namespace skein::kernels {
namespace {

double E4m3ByDefinition(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(Formats, E4m3EveryCodeDecodesByDefinitionAndEncodesBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = DecodeE4m3(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    EXPECT_EQ(value, E4m3ByDefinition(code)) << code;
    EXPECT_EQ(std::signbit(value), (code & 0x80) != 0) << code;
    EXPECT_EQ(EncodeE4m3(value), code);
  }
  EXPECT_EQ(DecodeE4m3(0x7E), 448.0f);
}

TEST(Formats, E4m3RoundsBetweenNeighboursToNearestAndTiesToEven) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = DecodeE4m3(static_cast<uint8_t>(code));
    const float high = DecodeE4m3(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(EncodeE4m3(middle), even) << middle;
    EXPECT_EQ(EncodeE4m3(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(EncodeE4m3(std::nextafter(middle, 1e9f)), code + 1);
    EXPECT_EQ(EncodeE4m3(-middle), even | 0x80);
  }
}

TEST(Formats, E4m3ClampsAndKeepsNan) {
  EXPECT_EQ(EncodeE4m3(1e30f), 0x7E);
  EXPECT_EQ(EncodeE4m3(-std::numeric_limits<float>::infinity()), 0xFE);
  EXPECT_EQ(EncodeE4m3(-std::numeric_limits<float>::quiet_NaN()), kE4m3Nan);
  EXPECT_EQ(EncodeE4m3(-0.0f), 0x80);
}

TEST(Formats, E2m1TiesGoToTheEvenCode) {
  const std::vector<std::pair<float, float>> ties = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2},
                                                     {2.5f, 2},  {3.5f, 4},  {5.0f, 4}};
  for (const auto& [value, rounded] : ties) {
    EXPECT_EQ(DecodeE2m1(EncodeE2m1(value)), rounded) << value;
    EXPECT_EQ(DecodeE2m1(EncodeE2m1(-value)), -rounded) << value;
    EXPECT_LE(DecodeE2m1(EncodeE2m1(std::nextafter(value, 0.0f))), value);
    EXPECT_GE(DecodeE2m1(EncodeE2m1(std::nextafter(value, 9.0f))), value);
  }
  for (int code = 0; code < 16; ++code) {
    const uint8_t byte = static_cast<uint8_t>(code);
    EXPECT_EQ(EncodeE2m1(DecodeE2m1(byte)), code == 8 ? 0 : code);
  }
  EXPECT_EQ(EncodeE2m1(-0.0f), 8);
  EXPECT_FALSE(std::signbit(DecodeE2m1(8)));
  EXPECT_EQ(EncodeE2m1(-1e30f), 15);
}

TEST(Formats, E8m0IsAPowerOfTwoAtBothEnds) {
  EXPECT_EQ(DecodeE8m0(0), std::ldexp(1.0, -127));
  for (int byte = 1; byte < 255; ++byte) {
    EXPECT_EQ(DecodeE8m0(static_cast<uint8_t>(byte)), std::ldexp(1.0, byte - 127));
  }
  EXPECT_TRUE(std::isnan(DecodeE8m0(255)));
}

TEST(Formats, Bf16RoundsToNearestEven) {
  for (uint32_t high = 0; high < 0x7F80; ++high) {
    const uint32_t bits = high << 16;
    EXPECT_EQ(EncodeBf16(std::bit_cast<float>(bits)), high);
    EXPECT_EQ(EncodeBf16(std::bit_cast<float>(bits | 0x7FFF)), high);
    EXPECT_EQ(EncodeBf16(std::bit_cast<float>(bits | 0x8000)), high + (high & 1));
    EXPECT_EQ(EncodeBf16(std::bit_cast<float>(bits | 0x8001)), high + 1);
  }
  EXPECT_TRUE(std::isnan(DecodeBf16(EncodeBf16(std::numeric_limits<float>::quiet_NaN()))));
}

// Smallest power of two >= amax / most, for amax = most * 2^k and its neighbours.
TEST(Formats, PowerOfTwoScalesAtTheirBoundaries) {
  for (const auto& [format, most] :
       {std::pair{CodeFormat::kE4m3Ue8m0, 448.0f}, std::pair{CodeFormat::kE2m1Ue8m0, 6.0f}}) {
    for (int k = -10; k < 60; ++k) {
      const float amax = std::ldexp(most, k);
      EXPECT_EQ(ScaleOfGroup(format, amax).byte, 127 + k);
      EXPECT_EQ(ScaleOfGroup(format, std::nextafter(amax, 0.0f)).byte, 127 + k);
      EXPECT_EQ(ScaleOfGroup(format, std::nextafter(amax, 1e38f)).byte, 128 + k);
    }
  }
  EXPECT_EQ(ScaleOfGroup(CodeFormat::kE4m3Ue8m0, 0).value, 0x1p-22f);
  EXPECT_EQ(ScaleOfGroup(CodeFormat::kE2m1Ue8m0, 0).value, 0x1p-126f);
  EXPECT_EQ(ScaleOfGroup(CodeFormat::kE2m1E4m3, 0).value, 0x1p-9f);
  EXPECT_EQ(ScaleOfGroup(CodeFormat::kE2m1E4m3, 1e9f).value, 448.0f);
  // 6.2 / 6 lies between 1 and 1.125 and rounds down, so the largest value clamps.
  EXPECT_EQ(ScaleOfGroup(CodeFormat::kE2m1E4m3, 6.2f).value, 1.0f);
}

TEST(Formats, ANanOrInfinitePoisonsItsGroup) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity}) {
    EXPECT_EQ(ScaleOfGroup(CodeFormat::kE4m3Ue8m0, bad).byte, 255);
    EXPECT_EQ(ScaleOfGroup(CodeFormat::kE2m1Ue8m0, bad).byte, 255);
    EXPECT_EQ(ScaleOfGroup(CodeFormat::kE2m1E4m3, bad).byte, kE4m3Nan);
    EXPECT_TRUE(std::isnan(ScaleOfGroup(CodeFormat::kE2m1E4m3, bad).value));
  }
  EXPECT_EQ(EncodeInGroup(CodeFormat::kE4m3Ue8m0, 1.0f, nan), kE4m3Nan);
}

TEST(Formats, RealCheckpointBytesDecode) {
  const uint8_t codes[8] = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5};
  const double expected[8] = {-0.00390625, 0.03515625,  -0.0390625, 0.0703125,
                              0.03125,     0.017578125, -0.03125,   -0.0126953125};
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(double{DecodeE4m3(codes[i])} * double{DecodeE8m0(0x73)}, expected[i]);
  }
}

TEST(ExactMath, ExpStaysWithinTwoUlpOfTheLibrary) {
  for (int i = -200000; i <= 200000; ++i) {
    const double x = i * 0.0035;
    const double expected = std::exp(x);
    ASSERT_NEAR(ExactExp(x), expected, 2 * (std::nextafter(expected, 1e308) - expected)) << x;
  }
  EXPECT_EQ(ExactExp(0), 1.0);
  EXPECT_EQ(ExactExp(-1e9), 0.0);
  EXPECT_EQ(ExactExp(1e9), std::numeric_limits<double>::infinity());
  EXPECT_EQ(ExactExp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_TRUE(std::isnan(ExactExp(std::numeric_limits<double>::quiet_NaN())));
}

TEST(ExactMath, LogStaysWithinTwoUlpOfTheLibrary) {
  for (int i = 1; i <= 400000; ++i) {
    const double x = std::ldexp(1.0 + (i % 1000) * 0.001, i / 1000 - 200) + i * 1e-7;
    const double expected = std::log(x);
    const double ulp = std::nextafter(std::fabs(expected), 1e9) - std::fabs(expected);
    ASSERT_NEAR(ExactLog(x), expected, 2 * ulp) << x;
  }
  for (const double x : {1 - 0x1p-53, 1 + 0x1p-52, 1 - 0x1p-30, 0x1p-1074, 0x1p-65}) {
    const double ulp = std::nextafter(std::fabs(std::log(x)), 1e9) - std::fabs(std::log(x));
    EXPECT_NEAR(ExactLog(x), std::log(x), 2 * ulp) << x;
  }
  EXPECT_EQ(ExactLog(1), 0.0);
  EXPECT_EQ(ExactLog(0), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(ExactLog(-1)));
}

}  // namespace
}  // namespace skein::kernels
