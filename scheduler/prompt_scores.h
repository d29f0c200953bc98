// Which prompt tokens a step scores, and what a commit learns of them. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/messages/step.h"
#include "scheduler/group_scheduler.h"
#include "scheduler/sequence.h"

namespace skein::scheduler {

// What the next chunk of a sequence scores: its rows that a prompt token follows whose logprob is
// not known yet. Nothing unless the sequence wants logprobs of its prompt.
protocol::PromptScoring ScoringOf(const Sequence& sequence, uint32_t chunk);

// The sequence wants logprobs of prompt tokens that it does not have yet.
bool ScoresMore(const Sequence& sequence);

// The longest front of a chunk that scores at most `scores` rows.
uint32_t LimitScores(const Sequence& sequence, uint32_t chunk, uint32_t scores);

// Tokens at the front of a sequence whose rows need not be computed for a score.
uint32_t SkippableLength(const Sequence& sequence);

// Puts the scores of a step into the commit. One that is not a number is the sequence's error.
void AppendScores(std::span<const protocol::TokenScore> scores, Sequence& sequence,
                  SequenceDelta& delta, std::vector<protocol::TokenScore>& out);

}  // namespace skein::scheduler
