// One step's metadata as the layers read it: views of device memory filled by BatchInput in one
// place. Plain data, borrowed for the step.
#pragma once

#include <compare>
#include <vector>

#include "kernels/ops/step_rows.h"
#include "kernels/tensor_view.h"

namespace skein::worker {

// Compressed rows that this step completes, for one ratio.
//   row     [G] i32  step row of each group's last token
//   target  [G] i64  row of the block pools of layers with this ratio
//   cos_sin [G, rope_dim] f32  rotary row of the group's first token
struct CompletedGroups {
  int ratio = 0;
  int count = 0;
  int max_columns = 0;  // most compressed rows any sequence of the step has after it
  kernels::TensorView row, target, cos_sin;
  // Where this step's tokens go in the ring of open groups: [T] i64, -1: nowhere. Ratios above 1.
  kernels::TensorView ring_target;
};

// A step in which every sequence has one decided token and up to `depth` drafts: sequence i has the
// rows i * (1 + depth) and following, of which those without a token are padding, as are the rows
// of sequences that the step does not have. So everything has its place before anything is drafted.
struct DecodeShape {
  int sequences = 0;
  int depth = 0;
  bool feeds_drafter = false;
  int rows() const { return sequences * (1 + depth); }
  friend auto operator<=>(const DecodeShape&, const DecodeShape&) = default;
};

// What is done to the logits of the sampled rows before their tokens are drawn, as EditLogits takes
// it. Views are absent in a step that edits nothing.
struct EditBatch {
  kernels::TensorView edits, entries, drafts, mask;
};

struct ModelBatch {
  int num_rows = 0;
  int num_sequences = 0;
  kernels::StepRows rows;
  kernels::TensorView ids;           // [T] i32
  kernels::TensorView window_begin;  // [T] i32
  kernels::TensorView window_end;    // [T] i32
  kernels::TensorView rope_plain;    // [T, rope_dim] f32
  kernels::TensorView rope_compress;
  kernels::TensorView ring_source;      // [T] i64: 0..T-1
  kernels::TensorView ring_target;      // [T] i64: row of the window rings, -1: not kept
  kernels::TensorView ngram;            // [T, n] i32, Engram models
  std::vector<CompletedGroups> groups;  // one per ratio of the model
  int num_samples = 0;
  kernels::TensorView sample_row;     // [S] i32: rows whose next token is wanted
  kernels::TensorView sample_params;  // [S, sizeof(SampleParams)] u8
  int num_verified = 0;               // of them rows to verify by rejection
  kernels::TensorView verify_params;  // [S, sizeof(VerifyParams)] u8
  EditBatch edits;                    // of the S rows
  bool feeds_drafter = false;         // the draft head sees this step's rows
  // Drafts that PlaceDrafts will put among the rows; only of a decode step (DecodeShape).
  kernels::TensorView draft_count;  // [R] i32

  const CompletedGroups* FindGroups(int ratio) const {
    for (const CompletedGroups& entry : groups) {
      if (entry.ratio == ratio) return &entry;
    }
    return nullptr;
  }
};

}  // namespace skein::worker
