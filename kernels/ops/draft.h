// Drafted tokens on their way into the step that verifies them, without the host. Class B. Source:
// model section 3.10 for the n-grams, 3.12 for the order of a block.
#pragma once

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// A sequence r of a step has 1 + depth rows: its decided token, then its drafts. Draft j, from 1 to
// count[r], is record[r][j-1].token; a token outside the vocabulary counts as -1 everywhere.
//   record        [R, depth * sizeof(SampleRecord)] u8
//   count         [R] i32, at most depth
//   ids           [R, 1 + depth] i32: entry j becomes draft j
//   ngram         (optional) [R, (1 + depth) * n] i32: row j gets the compressed ids of the tokens
//     0, 1, ... n-1 before it: of drafts by token_map (0 for -1), of earlier ones as row 0 has them
//   token_map     [vocab] i32, with ngram
//   verify_params [R, (1 + depth) * sizeof(VerifyParams)] u8: row j-1 gets draft j as draft_token
// What belongs to other rows, entry 0 of ids and row 0 of ngram, stays.
struct PlaceDrafts {
  static constexpr OpId kId = OpId::kPlaceDrafts;
  struct Problem {
    int depth = 0;
    int ngram = 0;  // 0: none
    int vocab = 0;
  };
  struct Args {
    TensorView record, count, ids, ngram, token_map, verify_params;
  };
};

}  // namespace skein::kernels
