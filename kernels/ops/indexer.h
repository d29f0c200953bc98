// Scoring and choosing compressed rows. Columns are compressed-row numbers j of the sequence; row t
// sees the first n_t = (position+1)/ratio of them. Source: model sections 3.7, 3.8; catalogue 5.6.
#pragma once

#include "kernels/op.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/step_rows.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// score[t, j] = sum_h weight'[t, h] * relu(q[t, h] . key_j), heads ascending. Class R.
//   q      [T, Hi, di]   fake-quantised
//   keys   pool; row j of a sequence: block_table[s][j / rows_per_block] * rows_per_block + j %
//   rows_per_block,
//          rows_per_block = block_tokens / ratio
//   weight [T, Hi]       projection output; weight' = weight * weight_scale, rounded to its dtype
//   score  [T, N] wide   columns j >= n_t: -inf
//   candidates (optional) [T, C] i32 blocks of `candidate_block` columns, ascending, -1 padded:
//          columns outside them are -inf; inside, bits equal the unrestricted form
struct IndexScores {
  static constexpr OpId kId = OpId::kIndexScores;
  struct Problem {
    int heads = 0;
    int head_dim = 0;
    KvFormat format = KvFormat::kFp4Group32;
    int ratio = 1;
    DType dtype = DType::kBf16;
    DType wide = DType::kF32;
  };
  struct Args {
    StepRows rows;
    TensorView q, weight;
    KvPool keys;
    float weight_scale = 1;
    TensorView candidates;
    int candidate_block = 0;
    TensorView score;
  };
};

// Blocks of `block` columns with the largest maximum, the block of the newest visible column always
// among them. Equal maxima: the lower block. Blocks whose maximum is -inf are not chosen.
//   score [T, N] wide;  candidates [T, C] i32 ascending, -1 padded. Class B given the scores.
struct CandidateBlocks {
  static constexpr OpId kId = OpId::kCandidateBlocks;
  struct Problem {
    int block = 8;
    int count = 0;  // C
    int ratio = 1;
    DType wide = DType::kF32;
  };
  struct Args {
    StepRows rows;
    TensorView score, candidates;
  };
};

// The k visible columns with the largest scores, ascending by column, -1 padded. Equal scores
// (-0 equals +0): the lower column. Columns at -inf are not chosen. NaN: Internal error.
//   score [T, N] wide;  selected [T, k] i32. Class B given the scores.
struct TopK {
  static constexpr OpId kId = OpId::kTopK;
  struct Problem {
    int k = 0;
    int ratio = 1;
    DType wide = DType::kF32;
  };
  struct Args {
    StepRows rows;
    TensorView score, selected;
  };
};

}  // namespace skein::kernels
