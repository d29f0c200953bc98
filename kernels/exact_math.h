// exp and log in f64 from fixed polynomials: the same bits in every backend and compiler mode, as
// each step is one IEEE operation (no fused multiply-add, no library). Used where a discrete
// choice hangs on the value: sampling keys and integer weights. Error below 2 ulp. Any thread.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace skein::kernels {

constexpr double ExactExp(double x) {
  if (!(x >= -745.2)) return x != x ? x : 0.0;
  if (x > 709.79) return std::numeric_limits<double>::infinity();
  constexpr double kMagic = 0x1.8p52;
  const double shifted = x * 0x1.71547652b82fep0 + kMagic;
  const double k = shifted - kMagic;
  const double r = (x - k * 0x1.62e42fefa3800p-1) - k * 0x1.ef35793c76730p-45;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = (p * r) * r + r + 1.0;
  const int64_t exponent = static_cast<int64_t>(k);
  const int64_t half = exponent / 2;
  const double first = std::bit_cast<double>(static_cast<uint64_t>(half + 1023) << 52);
  const double second = std::bit_cast<double>(static_cast<uint64_t>(exponent - half + 1023) << 52);
  return p * first * second;
}

// Natural logarithm; 0 gives -inf, a negative number or NaN gives NaN.
constexpr double ExactLog(double x) {
  if (!(x > 0)) {
    return x == 0 ? -std::numeric_limits<double>::infinity()
                  : std::numeric_limits<double>::quiet_NaN();
  }
  if (x == std::numeric_limits<double>::infinity()) return x;
  int64_t exponent = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    exponent = -54;
  }
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (m > 0x1.6a09e667f3bcdp0) {
    m *= 0.5;
    ++exponent;
  }
  // log(m) = 2 atanh(s), s = f / (2 + f); written f - s * (f - tail) to keep the bits of f.
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = 2.0 / 23.0;
  p = p * z + 2.0 / 21.0;
  p = p * z + 2.0 / 19.0;
  p = p * z + 2.0 / 17.0;
  p = p * z + 2.0 / 15.0;
  p = p * z + 2.0 / 13.0;
  p = p * z + 2.0 / 11.0;
  p = p * z + 2.0 / 9.0;
  p = p * z + 2.0 / 7.0;
  p = p * z + 2.0 / 5.0;
  p = p * z + 2.0 / 3.0;
  const double tail = p * z;
  const double e = static_cast<double>(exponent);
  const double low = s * (f - tail) - e * 0x1.ef35793c76730p-45;
  return e * 0x1.62e42fefa3800p-1 - (low - f);
}

// Gumbel noise -ln(-ln u) of 64 random bits, u = (high + (low + 1/2) * 2^-32) * 2^-32, kept
// below 1. At most kMostGumbelNoise.
constexpr double GumbelNoise(uint32_t high, uint32_t low) {
  const double fraction = (static_cast<double>(low) + 0.5) * 0x1p-32;
  const double u = (static_cast<double>(high) + fraction) * 0x1p-32;
  constexpr double kMost = 1 - 0x1p-53;
  return -ExactLog(-ExactLog(u < kMost ? u : kMost));
}
inline constexpr double kMostGumbelNoise = 36.75;

}  // namespace skein::kernels
