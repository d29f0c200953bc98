// One choice of an answer: committed tokens to text, calls, logprobs and counts.
// Owns: the output state of one sequence.
// Thread: one object is used by one thread.
// Must never: take a token after its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/api/answer_format.h"
#include "coordinator/api/generation_params.h"
#include "coordinator/api/prompt_logprobs.h"
#include "coordinator/api/repetition_guard.h"
#include "coordinator/front_door.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/output_parser.h"
#include "coordinator/text/tokenizer.h"
#include "protocol/base/ids.h"

namespace skein::coordinator {

class Choice {
 public:
  struct Setup {
    size_t index = 0;
    protocol::RequestId request;                         // its sequence
    std::optional<std::vector<int32_t>> prompt_ids;      // to be shown, if wanted
    std::optional<PromptLogprobs::Setup> scored_prompt;  // whose logprobs are wanted
    int64_t prompt_tokens = 0;                           // 0 when an earlier choice counts them
    std::string echo;  // text that stands before the generated one
    OutputOptions output;
    int32_t eos_id = -1;
    std::function<void(ChatToolCall)> on_call;  // a call was closed; with its original text
  };

  // `tokenizer` outlives the choice. `form`: of the answer.
  Choice(Setup setup, const GenerationParams& params, RequestForm form, const Tokenizer& tokenizer);

  size_t index() const { return setup_.index; }
  protocol::RequestId request() const { return setup_.request; }
  const std::optional<ChoiceEnd>& end() const { return end_; }

  // Takes the work that a delta reports.
  void TakeCounts(const TokenDelta& delta);
  // Takes logprobs of the prompt.
  void TakeScores(std::span<const protocol::TokenScore> scores);
  // Adds a token of the text. The choice may have ended: by a stop string or a block of calls.
  void Append(const DeltaToken& token);
  // Counts a token that is not shown.
  void Count(const DeltaToken& token);
  // The generation ended as the delta says.
  void End(const TokenDelta& delta);

  // What was not taken yet of a stream.
  bool has_unsent() const;
  size_t unsent_bytes() const { return text_.size() + logprobs_.waiting_bytes(); }
  ChoicePiece Take();
  // The whole choice, at its end.
  ChoiceAnswer TakeWhole();

  Usage usage() const;
  // That computed it last; nothing before its first delta.
  std::optional<uint32_t> engine() const { return engine_; }
  const ParseCounts& call_counts() const { return parser_.call_counts(); }
  std::optional<ParseResult> reasoning_result() const { return parser_.reasoning_result(); }
  const std::optional<std::vector<int32_t>>& prompt_ids() const { return setup_.prompt_ids; }
  bool starts_in_reasoning() const { return setup_.output.starts_in_reasoning; }

 private:
  void EndAs(ChoiceEnd end);
  void AddText(OutputText text);
  void AddCall(const ToolCallDelta& delta);
  // An echo is shown with its logprobs.
  bool waits_for_prompt() const { return echoes_logprobs_ && !prompt_->complete(); }

  const Setup setup_;
  const RequestForm form_;
  const bool streams_, lists_ids_, lists_logprobs_, echoes_logprobs_;
  const std::optional<int32_t> listed_prompt_logprobs_;
  const int32_t min_tokens_;
  RepetitionGuard guard_;
  OutputParser parser_;
  LogprobList logprobs_;
  std::optional<PromptLogprobs> prompt_;
  Usage usage_;
  std::optional<uint32_t> engine_;
  OutputText text_;                  // not taken yet
  std::vector<int32_t> ids_;         // the same
  std::vector<ChatToolCall> calls_;  // begun ones; the last may be open
  bool has_open_call_ = false;
  bool is_first_piece_ = true;
  std::optional<ChoiceEnd> end_;
};

}  // namespace skein::coordinator
