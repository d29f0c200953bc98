// The prompts of one HTTP request as sequences for the control loop, and as choices of the answer.
// Owns: nothing; a function of plain values.
// Thread: the listener's.
// Must never: make a sequence that the context does not hold.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/api_error.h"
#include "coordinator/api/api_keys.h"
#include "coordinator/api/choice.h"
#include "coordinator/api/completion_request.h"
#include "coordinator/api/generation_params.h"
#include "coordinator/api/key_limits.h"
#include "coordinator/api/request_ids.h"
#include "coordinator/front_door.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/tokenizer.h"
#include "scheduler/token_constraint.h"

namespace skein::coordinator {

// What choices begin with.
struct PromptTokens {
  std::vector<int32_t> ids;
  std::string echo = {};       // stands before the text of its choices
  bool begins_hidden = false;  // the first token was added and is not part of `echo`
};

// What a request asks to be generated, whatever its form was.
struct GenerationInput {
  RequestForm form = RequestForm::kChat;
  std::vector<PromptTokens> prompts;
  bool starts_in_reasoning = false;
  std::vector<DeclaredTool> tools = {};  // that may be called
  std::shared_ptr<const scheduler::TokenConstraint> constraint = nullptr;
};

// Who of a key is served first: by the field priority, then arrival, or by arrival alone.
enum class SchedulingPolicy { kPriority, kFcfs };

// What the server adds.
struct SubmissionParts {
  const Tokenizer& tokenizer;
  const ChatTemplate& chat;
  const RequestIds& ids;
  int32_t max_model_len = 0;
  int32_t vocab_size = 0;
  std::function<uint64_t()> next_number;  // of a sequence
  std::function<void(ChatToolCall)> on_call;
  const ApiKey* key = nullptr;  // of the request; null: nobody's
  SchedulingPolicy policy = SchedulingPolicy::kPriority;
  std::chrono::steady_clock::time_point arrival = {};
  std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt;
};

struct Submission {
  std::vector<SubmitRequest> requests;  // by choice; without sinks
  std::vector<Choice::Setup> choices;
};

// The prompt of a completion in tokens; with `echo` its text goes before the answer.
ApiOr<PromptTokens> EncodePrompt(const Tokenizer& tokenizer, int32_t bos_id,
                                 const RawPrompt& prompt, bool echo);

// What its sequences take of the limits of a key.
KeyDemand DemandOf(const Submission& submission);

// When a request must have ended: by its header x-request-timeout, in seconds from its arrival, and
// by the bound of its key.
ApiOr<std::optional<std::chrono::steady_clock::time_point>> DeadlineOf(
    std::string_view header, const ApiKey& key, std::chrono::steady_clock::time_point arrival);

// `n` choices of each prompt, prompt by prompt. The seed of choice k of a prompt is k more than the
// request's: a prompt gives the same alone and in a list.
ApiOr<Submission> MakeSubmission(GenerationParams params, GenerationInput input,
                                 const SubmissionParts& parts);

}  // namespace skein::coordinator
