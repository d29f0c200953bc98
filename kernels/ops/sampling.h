// Choosing a token per row from logits, with raw logprobs. Class R/S. Source: catalogue section 6.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// One row's sampling parameters; plain data, laid out the same on host and device.
struct SampleParams {
  uint64_t seed = 0;
  uint32_t position = 0;  // absolute position of the token being chosen
  int32_t top_k = 0;      // <= 0: off
  float temperature = 1;  // < 1e-5: greedy
  float top_p = 1;
  float min_p = 0;
  int32_t num_top = 0;  // entries of top_id / top_logprob wanted
};

// What is known of a sampled row.
struct SampleRecord {
  int32_t token = -1;  // chosen token; -1: no allowed token
  int32_t argmax = -1;
  float logprob = 0;  // raw: logit - logsumexp of the row as given (no temperature, no cut)
  float argmax_logprob = 0;
  uint32_t flags = 0;  // kSampleNonFinite, kSampleAllMasked
};
inline constexpr uint32_t kSampleNonFinite = 1;  // a NaN was seen; token is -1
inline constexpr uint32_t kSampleAllMasked = 2;  // every logit is -inf; token is -1

// Truncation order top_k -> top_p -> min_p on the tempered distribution; draw by the Gumbel race of
// catalogue 6.4 with the PLAIN stream at (seed, position), decided in f64. Greedy: argmax, the
// lowest id on ties, no random number. Equal logits: the lower id first, everywhere.
//   logits [R, V] wide;  params [R] SampleParams (kU8 view);  record [R] SampleRecord (kU8 view)
//   top_id [R, n] i32, top_logprob [R, n] f32 (optional): the num_top largest logits, descending,
//   raw logprobs; unused entries -1 and 0
struct SampleTokens {
  static constexpr OpId kId = OpId::kSampleTokens;
  struct Problem {
    int vocab = 0;
    int max_top = 0;  // n
    DType wide = DType::kF32;
    int max_rows = 0;
  };
  struct Args {
    TensorView logits, params, record, top_id, top_logprob;
  };
};

}  // namespace skein::kernels
