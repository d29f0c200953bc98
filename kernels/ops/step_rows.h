// How the flattened rows of a step are laid out: the part of a batch that several operators read.
// A sequence's rows of one step are consecutive and its positions rise by one from row to row.
#pragma once

#include "kernels/tensor_view.h"

namespace skein::kernels {

// T rows over R sequences. A row whose sequence is -1 is padding: operators skip it.
//   position       [T] i32   absolute position of the row's token
//   sequence       [T] i32   index of its sequence in this step, or -1
//   first_row      [R] i32   first row of the sequence in this step
//   first_position [R] i32   position of that row
//   slot           [R] i32   state slot of the sequence
//   block_table    [R, B] i32  cache block of tokens [b*block_tokens, (b+1)*block_tokens)
struct StepRows {
  TensorView position;
  TensorView sequence;
  TensorView first_row;
  TensorView first_position;
  TensorView slot;
  TensorView block_table;
  int block_tokens = 0;
};

}  // namespace skein::kernels
