#include "scheduler/rejection_sampler.h"

#include "protocol/base/log.h"
#include "scheduler/philox.h"

namespace skein::scheduler {

using protocol::RowSummary;
using protocol::VerificationMode;

namespace {

bool KeepsDraft(const RowSummary& row, VerificationMode mode, uint64_t seed) {
  if (row.draft_token < 0 || (row.flags & protocol::kRowNonFinite) != 0) return false;
  switch (mode) {
    case VerificationMode::kGreedy:
      return row.draft_token == row.argmax_token;
    case VerificationMode::kCoupled:
      return row.draft_token == row.plain_token;
    case VerificationMode::kRejection:
      break;
  }
  if ((row.flags & protocol::kRowDraftMissing) != 0) return false;
  return AcceptanceCoin(seed, row.position) * static_cast<double>(row.draft_probability) <
         static_cast<double>(row.target_probability);
}

}  // namespace

VerificationOutcome VerifyDraft(std::span<const RowSummary> rows, VerificationMode mode,
                                uint64_t seed) {
  SKEIN_CHECK(!rows.empty()) << "a sampled sequence has at least one row";
  VerificationOutcome outcome;
  while (outcome.num_accepted + 1 < rows.size() &&
         KeepsDraft(rows[outcome.num_accepted], mode, seed)) {
    ++outcome.num_accepted;
  }
  const RowSummary& row = rows[outcome.num_accepted];
  if (row.plain_token < 0) return outcome;  // the row allows no token, in any mode
  if (mode == VerificationMode::kGreedy) {
    outcome.next = NextToken::kArgmax;
    outcome.token = row.argmax_token;
    outcome.logprob = row.argmax_logprob;
  } else if (mode == VerificationMode::kRejection && row.draft_token >= 0) {
    outcome.next = NextToken::kRecovered;
    outcome.token = row.recovered_token;
    outcome.logprob = row.recovered_logprob;
  } else {
    outcome.next = NextToken::kPlain;
    outcome.token = row.plain_token;
    outcome.logprob = row.plain_logprob;
  }
  return outcome;
}

float DraftLogprob(const RowSummary& row, VerificationMode mode) {
  switch (mode) {
    case VerificationMode::kGreedy:
      return row.argmax_logprob;
    case VerificationMode::kCoupled:
      return row.plain_logprob;
    case VerificationMode::kRejection:
      break;
  }
  return row.draft_logprob;
}

}  // namespace skein::scheduler
