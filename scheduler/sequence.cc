#include "scheduler/sequence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace skein::scheduler {

std::optional<EndReason> EndOf(const Sequence& sequence, uint32_t max_model_len) {
  const uint32_t generated = sequence.num_generated();
  if (generated == 0) return std::nullopt;
  const auto& stops = sequence.stop.stop_token_ids;
  const bool stop = std::find(stops.begin(), stops.end(), sequence.tokens.back()) != stops.end();
  if (stop && generated >= static_cast<uint32_t>(std::max(sequence.stop.min_tokens, 0))) {
    return EndReason::kStopToken;
  }
  if (generated >= static_cast<uint32_t>(sequence.stop.max_tokens)) return EndReason::kLength;
  if (sequence.length() >= max_model_len) return EndReason::kLength;
  return std::nullopt;
}

std::optional<Undrafted> WhyUndrafted(const Sequence& sequence, uint32_t max_model_len) {
  const bool asked = sequence.speculation.enabled && sequence.speculation.max_draft_tokens > 0;
  if (!asked) return Undrafted::kByRequest;
  if (sequence.length() + 1 >= max_model_len) return Undrafted::kNearTheEnd;
  const bool last = sequence.num_generated() + 1 >= static_cast<uint32_t>(sequence.stop.max_tokens);
  if (last || sequence.alone()) return std::nullopt;
  return sequence.bound() ? Undrafted::kByGrammar : Undrafted::kByLoad;
}

absl::Status CheckKnown(const Sequence& sequence, const protocol::CacheGeometry& geometry) {
  const bool edits = sequence.sampling.edits != nullptr || sequence.constraint != nullptr;
  const char* lacks = edits && !geometry.edits_logits ? "penalties, biases, token lists and tools"
                      : sequence.scores_prompt() && !geometry.scores_prompts ? "logprobs of prompts"
                      : sequence.sampling.processed_logprobs && !geometry.processes_logprobs
                          ? "processed logprobs"
                          : nullptr;
  if (lacks == nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the worker is of a version without ", lacks,
                                             "; try again when the rollout has ended"));
}

std::shared_ptr<const protocol::SequenceEdits> EditsOf(const Sequence& sequence) {
  auto out = std::make_shared<protocol::SequenceEdits>();
  out->edits = *sequence.sampling.edits;
  out->prompt_length = sequence.prompt_length;
  const bool counts_prompt = out->edits.repetition_penalty != 1;
  out->history_begin = counts_prompt ? 0 : std::min(sequence.prompt_length, sequence.planned);
  out->history.assign(sequence.tokens.begin() + out->history_begin,
                      sequence.tokens.begin() + sequence.planned);
  return out;
}

}  // namespace skein::scheduler
