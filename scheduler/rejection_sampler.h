// The acceptance rule of speculative decoding, stated once: which drafts of a step are kept and
// which token follows them. A pure function of the worker's summary, the mode and the seed; any
// process that repeats it gets the same answer. Usable from any thread.
#pragma once

#include <cstdint>
#include <span>

#include "protocol/messages/step.h"

namespace skein::scheduler {

// The token that ends a step's output, after the accepted drafts.
enum class NextToken : uint8_t {
  kPlain,      // drawn from the target of its row
  kArgmax,     // the most likely token of its row
  kRecovered,  // drawn from what the target has beyond the draft's distribution
};

struct VerificationOutcome {
  uint32_t num_accepted = 0;  // leading rows whose drafts are kept
  NextToken next = NextToken::kPlain;
  int32_t token = -1;  // -1: row num_accepted has no token (see its flags)
  float logprob = 0;   // of `token`
};

// Walks the rows in order. A row keeps its draft d when
//   kGreedy     d is the argmax token
//   kCoupled    d is the plain token
//   kRejection  u * q(d) < p(d), with u the coin of (seed, position of the row)
// At the first row that does not, its argmax, plain or recovered token ends the output; the last
// row has no draft and gives the bonus token. A row without a draft before the last, or one whose
// draft probability is missing, keeps nothing. `rows` has at least one entry.
// Source: catalogue sections 7.2, 7.4 and 7.5.
VerificationOutcome VerifyDraft(std::span<const protocol::RowSummary> rows,
                                protocol::VerificationMode mode, uint64_t seed);

// Logprob of a kept draft.
float DraftLogprob(const protocol::RowSummary& row, protocol::VerificationMode mode);

}  // namespace skein::scheduler
