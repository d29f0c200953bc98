// Matrix products y = x * W^T with weights in their checkpoint formats. Class R: the order of a
// row's sum depends on K (and N) alone. Source: model section 2.2; per-32 scales are kept, never
// requantised. No bias anywhere.
#pragma once

#include <span>

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

enum class WeightFormat : uint8_t {
  kBf16,       // [N, K] bf16
  kF32,        // [N, K] f32
  kE4m3Block,  // [N, K] e4m3 with e8m0 scale per block: [ceil(N/block), ceil(K/block)]
  kE2m1Row32,  // [N, K/2] e2m1x2 with e8m0 scale per row and 32 inputs: [N, K/32]
};

// A weight as stored. `scale` is absent for kBf16 and kF32.
struct Weight {
  TensorView codes;
  TensorView scale;
};

// y[t, n] (+)= sum_k x[t, k] * w[n, k], one rounding to y's type.
//   x        [T, K]    e4m3 codes with x_scale [T, K/32] e8m0, or bf16 / f32 / f64 without scale;
//                      row stride free
//   y        [T, N]    bf16, f32 or f64; row stride free
//   accumulate: y += product (f32 or f64 y only)
struct Linear {
  static constexpr OpId kId = OpId::kLinear;
  struct Problem {
    int n = 0;
    int k = 0;
    WeightFormat format = WeightFormat::kBf16;
    int block = 32;  // edge of a scale block of kE4m3Block
    DType x_dtype = DType::kBf16;
    DType y_dtype = DType::kBf16;
    bool accumulate = false;
    int max_rows = 0;
  };
  struct Args {
    TensorView x, x_scale;
    Weight w;
    TensorView y;
  };
};

// Block-diagonal product of the output projection: group g reads its own K inputs.
//   x [T, G, K] bf16 (or f64) unquantised;  w [G*N, K], rows [g*N, (g+1)*N) of group g;  y [T, G,
//   N]
struct GroupedLinear {
  static constexpr OpId kId = OpId::kGroupedLinear;
  struct Problem {
    int groups = 0;
    int n = 0;  // outputs of one group
    int k = 0;
    WeightFormat format = WeightFormat::kE4m3Block;
    int block = 32;
    DType x_dtype = DType::kBf16;
    DType y_dtype = DType::kBf16;
    int max_rows = 0;
  };
  struct Args {
    TensorView x;
    Weight w;
    TensorView y;
  };
};

// One product per expert over the assignments routed to it (layout of MoeLayout).
//   expert_offset [E+1] i32   assignments [expert_offset[e], expert_offset[e+1]) belong to expert e
//   source_row    [A] i32     row of x of each assignment; absent: assignment i reads row i
//   x [T or A, K] and x_scale as in Linear;  w[e] weight of expert e [N, K];  y [A, N]
//   w_second, y_second        a second product of the same rows, as gate and up; both or neither
struct ExpertLinear {
  static constexpr OpId kId = OpId::kExpertLinear;
  struct Problem {
    int num_experts = 0;
    int n = 0;
    int k = 0;
    WeightFormat format = WeightFormat::kE2m1Row32;
    int block = 32;
    DType x_dtype = DType::kE4m3;
    DType y_dtype = DType::kBf16;
    int max_rows = 0;  // assignments
  };
  struct Args {
    TensorView expert_offset, source_row;
    TensorView x, x_scale;
    std::span<const Weight> w;
    TensorView y;
    std::span<const Weight> w_second;
    TensorView y_second;
  };
};

}  // namespace skein::kernels
