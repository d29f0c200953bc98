#include "scheduler/prompt_scores.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace skein::scheduler {

protocol::PromptScoring ScoringOf(const Sequence& sequence, uint32_t chunk) {
  if (!sequence.scores_prompt()) return {};
  // The row of a token scores the one behind it.
  const uint32_t first = std::max(sequence.planned, sequence.scored - 1);
  const uint32_t end = std::min(sequence.planned + chunk, sequence.prompt_length - 1);
  if (first >= end) return {};
  protocol::PromptScoring scoring;
  scoring.from = first - sequence.planned;
  scoring.count = end - first;
  if (end == sequence.planned + chunk) scoring.next_token = sequence.tokens[end];
  scoring.num_top_logprobs = sequence.sampling.num_prompt_logprobs;
  return scoring;
}

bool ScoresMore(const Sequence& sequence) {
  return sequence.scores_prompt() && sequence.scored < sequence.prompt_length;
}

uint32_t LimitScores(const Sequence& sequence, uint32_t chunk, uint32_t scores) {
  const protocol::PromptScoring scoring = ScoringOf(sequence, chunk);
  return scoring.count <= scores ? chunk : scoring.from + scores;
}

uint32_t SkippableLength(const Sequence& sequence) {
  // The last row is always computed: it decides the next token.
  const uint32_t longest = sequence.length() - 1;
  return ScoresMore(sequence) ? std::min(longest, sequence.scored - 1) : longest;
}

void AppendScores(std::span<const protocol::TokenScore> scores, Sequence& sequence,
                  SequenceDelta& delta, std::vector<protocol::TokenScore>& out) {
  delta.first_score = static_cast<uint32_t>(out.size());
  for (const protocol::TokenScore& score : scores) {
    if (std::isnan(score.logprob)) {
      delta.error =
          absl::InternalError(absl::StrCat("no logprob of the prompt token at position ",
                                           sequence.scored, ": the logits are not finite"));
      return;
    }
    out.push_back(score);
    ++delta.num_scores;
    ++sequence.scored;
  }
}

}  // namespace skein::scheduler
