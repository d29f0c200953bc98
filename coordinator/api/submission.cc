// Thread: the listener's.
// Must never: make a sequence that the context does not hold.
#include "coordinator/api/submission.h"

#include <algorithm>
#include <utility>

#include "coordinator/api/logit_edits.h"
#include "coordinator/api/min_tokens_constraint.h"
#include "protocol/base/strings.h"

namespace skein::coordinator {
namespace {

// Prompt tokens and their alternatives in one answer: about 64 MiB of JSON.
constexpr size_t kPromptEntriesMax = size_t{1} << 20;

// What the request asks for within the bounds of its key; of a request that asks for nothing, what
// is nearest to 0.
ApiOr<int32_t> PriorityOf(const GenerationParams& params, const SubmissionParts& parts) {
  const ApiKey* const key = parts.key;
  if (parts.policy == SchedulingPolicy::kFcfs) {
    if (params.priority.value_or(0) == 0) return 0;
    return UnsupportedParameter(
        "priority", "this server serves by arrival (--scheduling-policy fcfs); leave it out");
  }
  if (key == nullptr) return params.priority.value_or(0);
  const int32_t least = key->priority_min;
  const int32_t most = key->priority_max;
  const int32_t priority = params.priority.value_or(std::clamp(0, least, most));
  if (priority >= least && priority <= most) return priority;
  return InvalidValue(
      "priority",
      protocol::Concat("priority is ", priority, "; this API key may give ", least, " to ", most));
}

// The stop conditions behind a prompt of `size` tokens.
ApiOr<protocol::StopConditions> FitLengths(const GenerationParams& params, int64_t size,
                                           const SubmissionParts& parts) {
  const int64_t context = parts.max_model_len;
  const int64_t wanted = params.max_tokens.value_or(1);
  if (size + wanted > context) return ContextLengthExceeded(size, wanted, context);
  protocol::StopConditions stop = params.stop;
  stop.max_tokens = params.max_tokens.value_or(static_cast<int32_t>(context - size));
  if (stop.min_tokens > stop.max_tokens) {
    return InvalidValue("min_tokens",
                        protocol::Concat("min_tokens is ", stop.min_tokens, "; at most ",
                                         stop.max_tokens, " tokens fit behind the prompt"));
  }
  if (!stop.ignore_eos) stop.stop_token_ids.push_back(parts.chat.eos_id());
  return stop;
}

OutputOptions OutputOf(const GenerationParams& params, const GenerationInput& input,
                       const SubmissionParts& parts, uint64_t number) {
  OutputOptions options;
  options.form = input.form == RequestForm::kCompletion ? OutputForm::kRaw : OutputForm::kChat;
  options.starts_in_reasoning = input.starts_in_reasoning;
  options.end_think_id = parts.chat.end_think_id();
  options.stop = params.stop_strings;
  options.dsml_id = parts.chat.dsml_id();
  options.calls.tools = input.tools;
  options.calls.call_id = [&ids = parts.ids, number](size_t index) {
    return ids.CallId(number, index);
  };
  return options;
}

// The constraint of the form, under that of min_tokens.
std::shared_ptr<const scheduler::TokenConstraint> ConstraintOf(const protocol::StopConditions& stop,
                                                               const GenerationInput& input,
                                                               const SubmissionParts& parts) {
  if (stop.min_tokens < 2 || stop.stop_token_ids.empty()) return input.constraint;
  return std::make_shared<const MinTokensConstraint>(
      stop, parts.vocab_size, input.constraint == nullptr ? nullptr : input.constraint->Clone());
}

// Alternatives that the steps of a choice report for each prompt token, -1 for no logprobs of it. A
// chat shows those of its prompt once.
int32_t PromptLogprobsOf(const GenerationParams& params, RequestForm form, uint32_t choice) {
  if (form == RequestForm::kChat && choice > 0) return -1;
  const int32_t echoed = params.echo_logprobs ? params.sampling.num_top_logprobs : -1;
  return std::max(params.prompt_logprobs.value_or(-1), echoed);
}

// Bounds what an answer says of its prompts.
std::optional<ApiError> CheckPromptLogprobs(const GenerationParams& params,
                                            const GenerationInput& input) {
  const int32_t top = PromptLogprobsOf(params, input.form, 0);
  if (top < 0) return std::nullopt;
  size_t tokens = 0;
  for (const PromptTokens& prompt : input.prompts) tokens += prompt.ids.size();
  const size_t times = input.form == RequestForm::kChat ? 1 : params.n;
  const size_t entries = tokens * times * (1 + static_cast<size_t>(top));
  if (entries <= kPromptEntriesMax) return std::nullopt;
  const std::string_view name = params.prompt_logprobs.has_value() ? "prompt_logprobs" : "logprobs";
  return InvalidValue(
      std::string(name),
      protocol::Concat(name, " ", top, " for ", tokens, " prompt tokens and ", times,
                       " choices of each asks for ", entries, " entries; at most ",
                       kPromptEntriesMax, " are given: lower it or shorten the prompt"));
}

}  // namespace

ApiOr<PromptTokens> EncodePrompt(const Tokenizer& tokenizer, int32_t bos_id,
                                 const RawPrompt& prompt, bool echo) {
  const auto invalid = [](const absl::Status& status) {
    return InvalidValue("prompt", std::string(protocol::StatusText(status)));
  };
  PromptTokens tokens;
  if (prompt.is_text) {
    absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(prompt.text, SpecialTokens::kPlain);
    if (!ids.ok()) return invalid(ids.status());
    tokens.ids = *std::move(ids);
    if (prompt.add_bos) tokens.ids.insert(tokens.ids.begin(), bos_id);
    tokens.begins_hidden = prompt.add_bos;
    if (echo) tokens.echo = prompt.text;
    return tokens;
  }
  tokens.ids = prompt.ids;
  if (!echo) return tokens;
  absl::StatusOr<std::string> text = tokenizer.Decode(tokens.ids);
  if (!text.ok()) return invalid(text.status());
  tokens.echo = *std::move(text);
  return tokens;
}

KeyDemand DemandOf(const Submission& submission) {
  KeyDemand demand{0, static_cast<uint32_t>(submission.requests.size())};
  for (const SubmitRequest& request : submission.requests) {
    demand.prompt_tokens += request.prompt_ids.size();
  }
  return demand;
}

ApiOr<std::optional<std::chrono::steady_clock::time_point>> DeadlineOf(
    std::string_view header, const ApiKey& key, std::chrono::steady_clock::time_point arrival) {
  auto read = ReadTimeout(header);
  if (const auto* error = std::get_if<ApiError>(&read)) return *error;
  auto seconds = std::get<std::optional<double>>(read);
  if (key.deadline_s) seconds = std::min(*key.deadline_s, seconds.value_or(*key.deadline_s));
  std::optional<std::chrono::steady_clock::time_point> deadline;
  if (seconds) {
    deadline = arrival + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                             std::chrono::duration<double>(*seconds));
  }
  return deadline;
}

ApiOr<Submission> MakeSubmission(GenerationParams params, GenerationInput input,
                                 const SubmissionParts& parts) {
  const auto priority = PriorityOf(params, parts);
  if (const auto* error = std::get_if<ApiError>(&priority)) return *error;
  if (auto error = SetEdits(parts.tokenizer, &params)) return *error;
  if (auto error = CheckPromptLogprobs(params, input)) return *error;
  Submission submission;
  for (const PromptTokens& prompt : input.prompts) {
    const auto size = static_cast<int64_t>(prompt.ids.size());
    auto stop = FitLengths(params, size, parts);
    if (const auto* error = std::get_if<ApiError>(&stop)) return *error;
    for (uint32_t k = 0; k < params.n; ++k) {
      const uint64_t number = parts.next_number();
      SubmitRequest& request = submission.requests.emplace_back();
      request.id = protocol::RequestId(number);
      request.prompt_ids = prompt.ids;
      request.sampling = params.sampling;
      request.sampling.seed =
          params.sampling.has_seed ? params.sampling.seed + k : parts.ids.SamplingSeed(number);
      request.sampling.num_prompt_logprobs = PromptLogprobsOf(params, input.form, k);
      request.stop = std::get<protocol::StopConditions>(stop);
      request.speculation = params.speculation;
      request.constraint = ConstraintOf(request.stop, input, parts);
      request.priority = std::get<int32_t>(priority);
      if (parts.key != nullptr) {
        request.tenant = parts.key->tenant;
        request.flow = parts.key->id;
        request.weight = parts.key->weight;
      }
      request.cache_salt = params.cache_salt;
      request.arrival = parts.arrival;
      request.deadline = parts.deadline;
      Choice::Setup& choice = submission.choices.emplace_back();
      choice.index = submission.choices.size() - 1;
      choice.request = request.id;
      choice.prompt_tokens = k == 0 ? size : 0;
      choice.echo = prompt.echo;
      if (params.return_ids) choice.prompt_ids = prompt.ids;
      if (request.sampling.num_prompt_logprobs >= 0) {
        choice.scored_prompt = {prompt.ids, prompt.begins_hidden};
      }
      choice.output = OutputOf(params, input, parts, number);
      choice.eos_id = parts.chat.eos_id();
      choice.on_call = parts.on_call;
    }
  }
  return submission;
}

}  // namespace skein::coordinator
