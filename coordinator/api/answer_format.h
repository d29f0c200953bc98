// JSON of answers: usage, logprobs, whole chat and text completions.
// Owns: nothing; functions of plain values.
// Thread: any.
// Must never: leave out a field that the OpenAI schema requires.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/generation_params.h"
#include "coordinator/front_door.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/output_parser.h"
#include "coordinator/text/tokenizer.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {

// What every object of one answer repeats.
struct AnswerIdentity {
  RequestForm form = RequestForm::kChat;
  std::string id;
  std::string model;
  std::string fingerprint;
  int64_t created = 0;           // Unix seconds
  bool names_reasoning = false;  // reasoning stands there a second time, as "reasoning"
};

// The members of a message or delta with its reasoning.
void WriteReasoning(std::string_view text, bool names_reasoning, protocol::JsonWriter* writer);

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;
  uint64_t num_steps = 0;
  uint64_t num_draft_tokens = 0;
  uint64_t num_accepted_draft_tokens = 0;

  Usage& operator+=(const Usage& other);
};

// The usage object.
std::string UsageJson(const Usage& usage);

// How a choice ended: "stop", "length" or "tool_calls", and the detail as JSON text ("null", a
// string, an id).
struct ChoiceEnd {
  std::string finish_reason;
  std::string stop_reason = "null";
  bool by_stop_string = false;  // which `stop_reason` names
};

// The JSON number of a logprob: -9999.0 stands for minus infinity.
std::string FormatLogprob(float logprob);

// Logprobs of the tokens of one chunk or answer, as the request form wants them.
class LogprobList {
 public:
  // How tokens are named: by their text, or "token_id:N".
  enum class Names { kText, kIds };

  // `tokenizer` outlives the list. `num_top` alternatives are shown per token.
  LogprobList(const Tokenizer& tokenizer, RequestForm form, int32_t num_top,
              Names names = Names::kText)
      : tokenizer_(tokenizer), form_(form), num_top_(num_top), names_(names) {}

  // Whether a token is part of the text.
  enum class Shown { kNo, kYes };
  void Append(const DeltaToken& token);
  // The first token of a completion's prompt, which has no logprob.
  void AppendFirst(int32_t token, Shown shown);
  bool empty() const { return count_ == 0; }
  // Bytes of JSON that wait to be taken.
  size_t waiting_bytes() const {
    return content_.size() + tokens_.size() + token_logprobs_.size() + top_logprobs_.size();
  }
  // The logprobs object of everything appended since the last call.
  std::string Take();

 private:
  std::string NameOf(int32_t token) const;
  void AppendChat(const DeltaToken& token);
  void AppendCompletion(const DeltaToken& token);
  void AppendOffset(std::string_view bytes);

  const Tokenizer& tokenizer_;
  const RequestForm form_;
  const int32_t num_top_;
  const Names names_;
  size_t count_ = 0;
  std::string content_;  // chat: entries joined by commas
  std::string tokens_, token_logprobs_, top_logprobs_, text_offsets_;
  int64_t text_offset_ = 0;  // in code points, over the whole choice
};

// What a stream says of a choice in one chunk. `logprobs` is JSON text or "null".
struct ChoicePiece {
  OutputText text = {};
  std::string logprobs = "null";
  // The tokens, and in the first piece of a completion those of the prompt; null: not wanted.
  std::optional<std::vector<int32_t>> ids = std::nullopt;
  std::optional<std::vector<int32_t>> prompt_ids = std::nullopt;
};

// A whole choice. `logprobs` is JSON text or "null". `has_reasoning` says whether thinking was on.
struct ChoiceAnswer {
  size_t index = 0;
  OutputText text = {};
  bool has_reasoning = false;
  std::vector<ChatToolCall> calls = {};
  std::string logprobs = "null";
  ChoiceEnd end = {};
  // The tokens and those of the prompt; null: not wanted.
  std::optional<std::vector<int32_t>> ids = std::nullopt;
  std::optional<std::vector<int32_t>> prompt_ids = std::nullopt;
  std::optional<std::string> prompt_logprobs = std::nullopt;  // JSON text; null: not wanted
};
std::string AnswerJson(const AnswerIdentity& identity, std::span<const ChoiceAnswer> choices,
                       const Usage& usage);

// A model of /v1/models. `created`: Unix seconds.
std::string ModelJson(std::string_view name, int64_t created, int64_t max_model_len);
// The answer of /tokenize.
std::string TokensJson(std::span<const int32_t> ids, int64_t max_model_len);

// The member `name` with a list of ids, unless it is not wanted.
void WriteIds(std::string_view name, const std::optional<std::vector<int32_t>>& ids,
              protocol::JsonWriter* writer);

}  // namespace skein::coordinator
