// Pooling of the tokens of a completed group into one latent. Class R. Source: model section 3.8.
#pragma once

#include "kernels/op.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/step_rows.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// latent[g, c] = rn( sum_u softmax_u(gate_u[c]) * kv_u[c] ) over the `ratio` tokens of group g; the
// softmax is per channel over the tokens, with the maximum subtracted.
//   fresh     [T, 2*dim] wide     kv then gate of this step's rows
//   ring      pool of rows [2*dim] wide: row slot*ring_rows + position % ring_rows holds an earlier
//   token group_row [G] i32             step row of each completed group's last token, -1: skip
//   latent    [G, dim]
// A token at or after its sequence's first position of the step is read from `fresh`, an earlier
// one from `ring`.
struct Compress {
  static constexpr OpId kId = OpId::kCompress;
  struct Problem {
    int dim = 0;
    int ratio = 2;
    DType wide = DType::kF32;
    DType dtype = DType::kBf16;
  };
  struct Args {
    StepRows rows;
    TensorView fresh;
    KvPool ring;
    int ring_rows = 0;
    TensorView group_row, latent;
  };
};

}  // namespace skein::kernels
