// What a request asks to be done to logits before a token is chosen: a mask of allowed tokens,
// penalties of repetition, biases. Class B. Source: catalogue sections 6.1 and 8.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// Words of 32 tokens in a row of a mask.
constexpr int64_t MaskWords(int64_t vocab) { return (vocab + 31) / 32; }

// What is edited of one token, plain data as on the device. A sequence has at most one per token.
struct TokenEdit {
  int32_t token = 0;         // outside the vocabulary: skipped
  int32_t output_count = 0;  // times that the output has it so far
  uint32_t in_prompt = 0;    // 1: the prompt has it
  float bias = 0;            // added last; -infinity: the token is not allowed
};

// One row's edits. The rows of a block to verify share their entries: what row j sees beyond them
// are the drafts before it.
struct LogitEdit {
  int32_t mask_row = -1;  // row of `mask`; -1: every token is allowed
  int32_t first_entry = 0, num_entries = 0;
  int32_t first_draft = 0, num_drafts = 0;  // of `drafts`, counted as output
  float presence = 0;                       // subtracted once a token is in the output
  float frequency = 0;                      // subtracted for each time that it is
  float repetition = 1;  // > 0; divides a positive logit of a token in prompt or output, multiplies
                         // another one
};

// The value of logit z of a token that the mask allows, `drafted` times among the row's drafts.
template <typename Real>
constexpr Real EditedLogit(Real z, const TokenEdit& entry, int32_t drafted, const LogitEdit& edit) {
  const int32_t count = entry.output_count + drafted;
  if (entry.bias == -std::numeric_limits<float>::infinity()) {
    return -std::numeric_limits<Real>::infinity();
  }
  if (edit.repetition != 1 && (count > 0 || entry.in_prompt != 0)) {
    z = z > 0 ? z / Real{edit.repetition} : z * Real{edit.repetition};
  }
  if (count > 0) {
    if (edit.frequency != 0) z = z - Real{edit.frequency} * static_cast<Real>(count);
    if (edit.presence != 0) z = z - Real{edit.presence};
  }
  return entry.bias == 0 ? z : z + Real{entry.bias};
}

// logits = raw with the edits of each row, in the order mask, penalties, bias. Equal to raw, bit
// for bit, where nothing is edited. A row whose mask allows nothing is -infinity throughout, which
// the sampler reports: it never draws an unmasked token.
//   raw, logits [R, V] wide
//   edits [R] LogitEdit (kU8 view)
//   entries [E, sizeof(TokenEdit)] u8;  drafts [D] i32: optional, ranges of rows lie inside them
//   mask [M, MaskWords(V)] i32 (optional): bit v % 32 of word v / 32 is 1 if v is allowed
struct EditLogits {
  static constexpr OpId kId = OpId::kEditLogits;
  struct Problem {
    int vocab = 0;
    DType wide = DType::kF32;
  };
  struct Args {
    TensorView raw, logits, edits, entries, drafts, mask;
  };
};

}  // namespace skein::kernels
