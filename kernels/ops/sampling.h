// Choosing a token per row from logits, with logprobs. Class R/S. Source: catalogue section 6.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/philox.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// Which distribution the logprobs of a row are of.
enum class LogprobForm : uint32_t {
  kRaw,  // the model's: before any edit, temperature and cut
  // The one that the token is drawn from: after edits, temperature and truncation. A token that
  // cannot be drawn has -inf. Greedy: after edits, at temperature 1, nothing cut.
  kProcessed,
};

// One row's sampling parameters; plain data, laid out the same on host and device.
struct SampleParams {
  uint64_t seed = 0;
  uint32_t position = 0;  // absolute position of the token being chosen
  int32_t top_k = 0;      // <= 0: off
  float temperature = 1;  // < 1e-5: greedy
  float top_p = 1;
  float min_p = 0;
  int32_t num_top = 0;                            // entries of top_id / top_logprob wanted
  RandomPurpose purpose = RandomPurpose::kPlain;  // stream of the draw: kPlain or kDraft
  LogprobForm logprobs = LogprobForm::kRaw;
};
// The same, as it says what the row's processed logprobs are of.
constexpr SampleParams LogprobParams(SampleParams params) {
  if (params.temperature >= 1e-5f) return params;
  params.temperature = 1;
  params.top_k = 0;
  params.top_p = 1;
  params.min_p = 0;
  return params;
}

// What is known of a sampled row.
struct SampleRecord {
  int32_t token = -1;  // chosen token; -1: no allowed token
  int32_t argmax = -1;
  float logprob = 0;  // in the row's form
  float argmax_logprob = 0;
  uint32_t flags = 0;  // kSampleNonFinite, kSampleAllMasked
};
inline constexpr uint32_t kSampleNonFinite = 1;  // a NaN was seen; token is -1
inline constexpr uint32_t kSampleAllMasked = 2;  // every logit is -inf; token is -1

// Truncation order top_k -> top_p -> min_p on the tempered distribution; draw by the Gumbel race of
// catalogue 6.4 with the row's stream at (seed, position), decided in f64. Greedy: argmax, the
// lowest id on ties, no random number. Equal logits: the lower id first, everywhere.
//   logits [R, V] wide;  params [R] SampleParams (kU8 view)
//   raw [R, V] wide (optional): the logits before EditLogits, of which raw logprobs and their
//     top_id are; absent where nothing was edited. A NaN in either is kSampleNonFinite
//   record [R, sizeof(SampleRecord)] u8, rows aligned to 4 bytes
//   top_id [R, n] i32, top_logprob [R, n] f32 (optional): the num_top most likely tokens in the
//   row's form, descending, without those that cannot be drawn; unused entries -1 and 0
//   chosen [R] i32 (optional): the record's token, for an operator that follows
struct SampleTokens {
  static constexpr OpId kId = OpId::kSampleTokens;
  struct Problem {
    int vocab = 0;
    int max_top = 0;  // n
    DType wide = DType::kF32;
    int max_rows = 0;
  };
  struct Args {
    TensorView logits;
    TensorView raw = {};
    TensorView params, record, top_id, top_logprob, chosen;
  };
};

// How the draft of a row was chosen.
enum class DraftForm : uint32_t {
  kNone,    // there is no draft: the row's outputs are cleared (recovered -1)
  kPoint,   // as if with probability 1: q is 1 at the draft and 0 elsewhere
  kLogits,  // drawn from draft_logits under the row's own temperature and truncation
};

// One row to verify.
struct VerifyParams {
  SampleParams sampling;  // of the target; temperature > 0; purpose and num_top are not used
  int32_t draft_token = -1;
  DraftForm form = DraftForm::kNone;
  int32_t draft_row = 0;  // row of draft_logits, form kLogits
  uint32_t reserved = 0;
};
// Whether the row is verified: one whose token or row of draft_logits does not exist is as kNone.
constexpr bool HasDraft(const VerifyParams& row, int vocab, int64_t draft_rows) {
  if (row.form == DraftForm::kNone || row.draft_token < 0 || row.draft_token >= vocab) return false;
  return row.form == DraftForm::kPoint || (row.draft_row >= 0 && row.draft_row < draft_rows);
}
inline constexpr int32_t kVerifyNonFinite = 1;     // a NaN in the target row; recovered is -1
inline constexpr int32_t kVerifyAllMasked = 2;     // every target logit is -inf; recovered is -1
inline constexpr int32_t kVerifyDraftMissing = 4;  // q(draft) is 0 or draft_logits are not finite

// What rejection sampling needs of a row (catalogue 7.2, 7.3): p and q are the target's and the
// draft's distributions after temperature and truncation, computed in f64.
//   logits, raw [R, V] wide, as in SampleTokens; draft_logits [D, V] wide, row draft_row is read
//   for rows of form kLogits;
//     may be absent
//   params [R] VerifyParams (kU8 view)
//   target_probability, draft_probability [R] f32: p(draft), q(draft)
//   residual_mass [R] f32: sum over v of max(p(v) - q(v), 0)
//   recovered [R] i32: drawn from that residual by the Gumbel race with the RESIDUAL stream at
//     (seed, position); from p where the mass is at most 2^-30 or q is not finite
//   draft_logprob, recovered_logprob [R] f32: in the row's form, as in SampleRecord
//   flags [R] i32
struct VerifyDrafts {
  static constexpr OpId kId = OpId::kVerifyDrafts;
  struct Problem {
    int vocab = 0;
    DType wide = DType::kF32;
    int max_rows = 0;
  };
  struct Args {
    TensorView logits;
    TensorView raw = {};
    TensorView draft_logits, params;
    TensorView target_probability, draft_probability, residual_mass, recovered, draft_logprob,
        recovered_logprob, flags;
  };
};
inline constexpr double kResidualMassMin = 0x1p-30;

}  // namespace skein::kernels
