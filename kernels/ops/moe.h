// Mixture of experts: gate, layout of assignments, activation, combine. Source: model section 3.9.
#pragma once

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// Scores and selects experts. Class R; the index set is exact given the logits.
//   logits [T, E] wide;  bias [E] f32 (selection only)
//   index  [T, k] i32 in order of selection;  weight [T, k] wide
// u = sqrt(softplus(logit / gate_temp)), softplus(x) = x for x > 20, else log1p(exp(x));
// k times the largest u + bias, the lowest expert on equal keys;
// weight = normalise ? u / (sum of the selected u + 1e-20) * route_scale : u * route_scale.
// Non-finite logits: Internal error naming the row, nothing is routed.
struct MoeGate {
  static constexpr OpId kId = OpId::kMoeGate;
  struct Problem {
    int num_experts = 0;
    int k = 0;
    DType wide = DType::kF32;
  };
  struct Args {
    TensorView logits, bias, index, weight;
    float gate_temp = 1;
    float route_scale = 1;
    bool normalise = true;
  };
};

// Orders the T*k assignments by expert, then by token. Class B.
//   index [T, k] i32 (-1: no expert)
//   expert_offset [E+1] i32;  assignment [T*k] i32: flat t*k+j of each place, -1 beyond the last
//   source_row [T*k] i32: token row t of each place
//   place [T, k] i32: place of assignment (t, j), or -1
struct MoeLayout {
  static constexpr OpId kId = OpId::kMoeLayout;
  struct Problem {
    int num_experts = 0;
    int k = 0;
    int max_rows = 0;
  };
  struct Args {
    TensorView index, expert_offset, assignment, source_row, place;
  };
};

// y = rn( weight * silu(min(gate, limit)) * clamp(up, -limit, limit) ). Class R.
//   gate, up, y [N, I] same dtype;  limit <= 0: no clamp
//   weight (optional) [T*k] wide (or [T, k]), read at assignment[i];  assignment [N] i32, -1: skip
// silu(g) = g / (1 + exp(-g)); product silu*up first, then the weight.
struct SwiGlu {
  static constexpr OpId kId = OpId::kSwiGlu;
  struct Problem {
    int channels = 0;
    DType dtype = DType::kBf16;
    DType wide = DType::kF32;
  };
  struct Args {
    TensorView gate, up, y;
    TensorView assignment, weight;
    float limit = 0;
  };
};

// y[t] = rn( sum_j routed[place[t, j]] + shared[t] ), j ascending, shared last. Class R.
//   routed [T*k, D], shared [T, D] (optional), y [T, D] same dtype;  place [T, k] i32
struct MoeCombine {
  static constexpr OpId kId = OpId::kMoeCombine;
  struct Problem {
    int channels = 0;
    int k = 0;
    DType dtype = DType::kBf16;
  };
  struct Args {
    TensorView routed, place, shared, y;
  };
};

// What a table says of chosen experts: who holds them, or their number there. Class B.
//   index, to [T, k] i32;  table [E] i32
// to[t, j] = table[index[t, j]] * stride + (numbered ? t * k + j : 0); -1 where no expert is chosen
// or the table has less than 0.
struct MapExperts {
  static constexpr OpId kId = OpId::kMapExperts;
  struct Problem {
    int num_experts = 0;
    int k = 0;
  };
  struct Args {
    TensorView index, table, to;
    int stride = 1;
    bool numbered = false;
  };
};

}  // namespace skein::kernels
