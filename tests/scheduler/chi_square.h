// The chi-square tail that the tests of distributions share. Pure; any thread.
#pragma once

#include <cmath>

namespace skein::tests {

// Upper tail of the chi-square distribution (regularised incomplete gamma function).
inline double TailProbability(double chi, int freedom) {
  const double a = freedom / 2.0;
  const double x = chi / 2.0;
  if (x <= 0) return 1;
  if (x < a + 1) {
    double term = 1 / a;
    double sum = term;
    for (int n = 1; n < 500; ++n) sum += term *= x / (a + n);
    return 1 - sum * std::exp(-x + a * std::log(x) - std::lgamma(a));
  }
  double b = x + 1 - a;
  double c = 1e300;
  double d = 1 / b;
  double h = d;
  for (int i = 1; i < 500; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
  }
  return std::exp(-x + a * std::log(x) - std::lgamma(a)) * h;
}

}  // namespace skein::tests
