// Casts between bf16/f32 rows and scaled low-precision codes. Class B: every step is defined on f32
// bits (catalogue 2.1, 2.2, 4.2, 4.3). Formats that the cache stores are in kv_cache.h.
#pragma once

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

enum class CodeFormat : uint8_t {
  kE4m3Ue8m0,  // e4m3 codes, power-of-two scale: amax clamped to 1e-4, 2^ceil(log2(amax *
               // rn(1/448)))
  kE2m1Ue8m0,  // e2m1 codes, power-of-two scale: amax clamped to 6*2^-126
  kE2m1E4m3,   // e2m1 codes, e4m3 scale: amax clamped to 6*2^-9, scale = rn_e4m3(min(amax/6, 448))
};

// Quantises rows in groups of channels (A8 in front of FP8 and FP4 linears).
//   x      [T, h]            bf16, f32 or f64
//   codes  [T, h] e4m3
//   scale  [T, ceil(h/group)] e8m0; a last partial group uses its valid elements only
// code = rn_e4m3(clamp(x / s, -448, 448)) by IEEE division. NaN in a group: scale 255, codes NaN.
struct PerTokenCast {
  static constexpr OpId kId = OpId::kPerTokenCast;
  struct Problem {
    int channels = 0;
    int group = 32;
    DType x_dtype = DType::kBf16;
  };
  struct Args {
    TensorView x, codes, scale;
  };
};

// y = code * scale, rounded once to y's type (exact for the model's formats).
//   codes [T, h] e4m3 or [T, h/2] e2m1x2;  scale [T, ceil(h/group)] e8m0;  y [T, h]
struct CastBack {
  static constexpr OpId kId = OpId::kCastBack;
  struct Problem {
    int channels = 0;
    int group = 32;
    DType codes_dtype = DType::kE4m3;
    DType y_dtype = DType::kBf16;
  };
  struct Args {
    TensorView codes, scale, y;
  };
};

// Quantises and dequantises in place: index queries (e2m1, groups of 32).
//   x [T, h] or [T, H, d] (groups along the last dimension, which `group` divides)
struct FakeQuant {
  static constexpr OpId kId = OpId::kFakeQuant;
  struct Problem {
    int channels = 0;  // extent of the last dimension
    int group = 32;
    CodeFormat format = CodeFormat::kE2m1Ue8m0;
    DType dtype = DType::kBf16;
  };
  struct Args {
    TensorView x;
  };
};

}  // namespace skein::kernels
