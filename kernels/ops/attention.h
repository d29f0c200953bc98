// Sparse latent attention with window, selected compressed rows and sink. Class R.
// Source: model section 3.5; catalogue 5.4, 5.5.
#pragma once

#include "kernels/op.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/step_rows.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// out[t, h] = sum_j e^(s_j - m) v_j / (sum_j e^(s_j - m) + e^(sink_h - m)), s_j = scale * q.v_j,
// over the window entries (ascending position) and then the selected rows (ascending). Keys are
// values. No entry at all: zeros. m is the maximum of the scores, kept so that a large sink does
// not overflow.
//   q, out  [T, H, D]
//   window_begin, window_end [T] i32: positions [begin, end) that row t attends to
//   fresh   pool of T rows: the window vector of each row of this step (row t = row t)
//   ring    pool: row slot*ring_rows + position % ring_rows holds an earlier position
//           A position at or after its sequence's first position of this step is read from `fresh`
//           (row first_row + position - first_position), an earlier one from `ring`.
//   selected [T, K] i32 (optional) compressed-row numbers, -1: absent
//   history  pool of compressed rows, addressed through block_table as in IndexScores
//   sink    [H] f32, natural-log domain
struct SparseAttention {
  static constexpr OpId kId = OpId::kSparseAttention;
  struct Problem {
    int heads = 0;
    int head_dim = 0;
    int window = 0;    // most window entries of a row
    int selected = 0;  // K, 0: window only
    int ratio = 1;     // of the history
    KvFormat window_format = KvFormat::kFp8Group32;
    KvFormat history_format = KvFormat::kFp4Group16;
    DType dtype = DType::kBf16;
    int max_rows = 0;
  };
  struct Args {
    StepRows rows;
    TensorView q;
    TensorView window_begin, window_end;
    KvPool fresh, ring;
    int ring_rows = 0;
    TensorView selected;
    KvPool history;
    TensorView sink;
    TensorView out;
    float scale = 0;
  };
};

}  // namespace skein::kernels
