// RMS normalisation and the partial rotary embedding. Class R.
#pragma once

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// y = rn( w * (x * rsqrt(mean(x^2) + eps)) ), f32 (reference: f64) inside, one rounding.
//   x, y [T, h] same dtype, row strides free, y may alias x;  weight [h] bf16 or f32
// Source: model section 3.2. An all-zero row gives zeros.
struct RmsNorm {
  static constexpr OpId kId = OpId::kRmsNorm;
  struct Problem {
    int channels = 0;
    DType dtype = DType::kBf16;
    DType weight_dtype = DType::kBf16;
  };
  struct Args {
    TensorView x, weight, y;
    float eps = 0;
  };
};

enum class RopeDirection : uint8_t { kForward, kInverse };

// Rotates adjacent pairs of the last `rope_dim` channels of each head, in place.
//   x       [T, H, d]      any float dtype, outer strides free
//   cos_sin [T, rope_dim]  f32 row of the token: rope_dim/2 cosines, then rope_dim/2 sines
// a' = fma(a, c, -(b*s)), b' = fma(a, s, b*c); inverse uses -s. One rounding to the dtype.
// Source: model section 3.4, catalogue 4.8. Kernels get table rows; none computes an angle.
struct Rope {
  static constexpr OpId kId = OpId::kRope;
  struct Problem {
    int head_dim = 0;
    int rope_dim = 0;
    DType dtype = DType::kBf16;
  };
  struct Args {
    TensorView x, cos_sin;
    RopeDirection direction = RopeDirection::kForward;
  };
};

}  // namespace skein::kernels
