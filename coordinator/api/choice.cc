// Thread: one object is used by one thread.
// Must never: take a token after its end.
#include "coordinator/api/choice.h"

#include <utility>

#include "protocol/json/json_writer.h"

namespace skein::coordinator {

Choice::Choice(Setup setup, const GenerationParams& params, RequestForm form,
               const Tokenizer& tokenizer)
    : setup_(std::move(setup)),
      form_(form),
      streams_(params.stream),
      lists_ids_(params.return_ids),
      lists_logprobs_(params.sampling.logprobs),
      echoes_logprobs_(params.echo_logprobs),
      listed_prompt_logprobs_(params.prompt_logprobs),
      min_tokens_(params.stop.min_tokens),
      guard_(params.repetition_ngram),
      parser_(tokenizer, setup_.output),
      logprobs_(tokenizer, form, params.sampling.num_top_logprobs,
                params.tokens_as_ids ? LogprobList::Names::kIds : LogprobList::Names::kText) {
  usage_.prompt_tokens = setup_.prompt_tokens;
  text_.content = setup_.echo;
  if (setup_.scored_prompt.has_value()) prompt_.emplace(*setup_.scored_prompt, tokenizer);
  if (echoes_logprobs_ && prompt_->complete()) prompt_->AppendTo(&logprobs_);
}

void Choice::TakeScores(std::span<const protocol::TokenScore> scores) {
  if (scores.empty()) return;
  prompt_->Append(scores);
  if (echoes_logprobs_ && prompt_->complete()) prompt_->AppendTo(&logprobs_);
}

void Choice::TakeCounts(const TokenDelta& delta) {
  // Those of a prompt count once.
  if (setup_.prompt_tokens > 0) usage_.cached_tokens = delta.cached_tokens;
  usage_.num_steps = delta.num_steps;
  usage_.num_draft_tokens = delta.num_draft_tokens;
  if (delta.engine.has_value()) engine_ = delta.engine;
}

void Choice::Count(const DeltaToken& token) {
  ++usage_.completion_tokens;
  usage_.num_accepted_draft_tokens += token.drafted ? 1 : 0;
  if (lists_ids_) ids_.push_back(token.id);
}

void Choice::Append(const DeltaToken& token) {
  Count(token);
  if (lists_logprobs_) logprobs_.Append(token);
  const bool honour = usage_.completion_tokens >= min_tokens_;
  AddText(parser_.Append(token.id,
                         honour ? Detokenizer::Honour::kStops : Detokenizer::Honour::kNoStops));
  const bool circles = guard_.Append(token.id) && honour;
  if (parser_.matched_stop().has_value()) {
    ChoiceEnd end{"stop", {}, true};
    protocol::AppendJsonString(*parser_.matched_stop(), &end.stop_reason);
    EndAs(std::move(end));
  } else if (parser_.done()) {
    EndAs({"tool_calls", "null"});
  } else if (circles) {
    EndAs({parser_.has_calls() ? "tool_calls" : "stop", "\"repetition\""});
  }
}

void Choice::End(const TokenDelta& delta) {
  if (delta.finish == FinishReason::kLength) return EndAs({"length", "null"});
  if (parser_.has_calls()) return EndAs({"tool_calls", "null"});
  if (delta.stop_token_id != setup_.eos_id) {
    return EndAs({"stop", std::to_string(delta.stop_token_id)});
  }
  EndAs({"stop", parser_.in_reasoning() ? "\"reasoning_unclosed\"" : "null"});
}

void Choice::EndAs(ChoiceEnd end) {
  AddText(parser_.Finish());
  end_ = std::move(end);
}

void Choice::AddText(OutputText text) {
  text_.reasoning += text.reasoning;
  text_.content += text.content;
  for (ToolCallDelta& delta : text.calls) {
    AddCall(delta);
    if (streams_) AppendCallDelta(std::move(delta), &text_.calls);
  }
}

// Puts deltas of calls together, for whole answers and replays.
void Choice::AddCall(const ToolCallDelta& delta) {
  if (!delta.id.empty()) {
    if (has_open_call_) calls_.pop_back();  // it broke off
    calls_.push_back({delta.id, delta.name, {}, {}});
    has_open_call_ = true;
  }
  calls_.back().arguments += delta.arguments;
  if (!delta.closes) return;
  has_open_call_ = false;
  calls_.back().original = delta.original;
  if (setup_.on_call) setup_.on_call(calls_.back());
}

bool Choice::has_unsent() const {
  return !waits_for_prompt() && (!text_.empty() || !logprobs_.empty() || !ids_.empty());
}

ChoicePiece Choice::Take() {
  ChoicePiece piece;
  if (!logprobs_.empty()) piece.logprobs = logprobs_.Take();
  piece.text = std::exchange(text_, {});
  if (lists_ids_) piece.ids = std::exchange(ids_, {});
  // A chat shows it in the chunk that opens the choice.
  if (std::exchange(is_first_piece_, false) && form_ == RequestForm::kCompletion) {
    piece.prompt_ids = setup_.prompt_ids;
  }
  return piece;
}

ChoiceAnswer Choice::TakeWhole() {
  ChoiceAnswer answer;
  answer.index = setup_.index;
  answer.has_reasoning = setup_.output.starts_in_reasoning;
  if (lists_logprobs_) answer.logprobs = logprobs_.Take();
  answer.text = std::exchange(text_, {});
  // Half a call is no call.
  if (has_open_call_) calls_.pop_back();
  answer.calls = std::move(calls_);
  answer.end = *end_;
  if (lists_ids_) answer.ids = std::move(ids_);
  answer.prompt_ids = setup_.prompt_ids;
  if (prompt_.has_value() && listed_prompt_logprobs_.has_value()) {
    answer.prompt_logprobs = prompt_->Json(*listed_prompt_logprobs_);
  }
  return answer;
}

Usage Choice::usage() const {
  Usage usage = usage_;
  usage.reasoning_tokens = static_cast<int64_t>(parser_.reasoning_tokens());
  return usage;
}

}  // namespace skein::coordinator
