// How much of a sequence goes into a step: the token budget and chunked prefill. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "scheduler/sequence.h"

namespace skein::scheduler {

// Rows left in a step.
struct StepBudget {
  uint32_t tokens = 0;
  uint32_t sequences = 0;
  uint32_t scores = protocol::kStepScoresMax;  // rows whose prompt tokens are scored
};

// Tokens of the next chunk of a sequence within the budget; 0 when nothing is left.
inline uint32_t ChunkLength(const Sequence& sequence, const StepBudget& budget) {
  if (budget.sequences == 0) return 0;
  return std::min(sequence.length() - sequence.planned, budget.tokens);
}

// Drafts that may follow the newest token of a decoding sequence: as many as may still be of use
// within its limits and the model's, each of which one more token follows.
uint32_t DraftsMax(const Sequence& sequence, uint32_t max_model_len);

// Blocks that hold `tokens` tokens.
inline uint32_t BlocksFor(uint32_t tokens, uint32_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

// Whom to preempt so that `wanting` can go on: of the running sequences without a step in flight
// the one that is served last, if it is served after `wanting`; null otherwise. `running` is in
// order of service.
Sequence* ChooseVictim(std::span<Sequence* const> running, const Sequence& wanting);

}  // namespace skein::scheduler
