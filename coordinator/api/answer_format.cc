// JSON of answers.
// Thread: any.
// Must never: leave out a field that the OpenAI schema requires.
#include "coordinator/api/answer_format.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

using protocol::JsonWriter;

constexpr float kLogprobMin = -9999.0F;  // stands for minus infinity, which JSON cannot say

double ShownLogprob(float logprob) {
  return std::isfinite(logprob) && logprob > kLogprobMin ? static_cast<double>(logprob)
                                                         : static_cast<double>(kLogprobMin);
}

void WriteToken(std::string_view name, std::string_view bytes, float logprob, JsonWriter* writer) {
  writer->Key("token");
  writer->String(name);
  writer->Key("logprob");
  writer->Double(ShownLogprob(logprob));
  writer->Key("bytes");
  writer->BeginArray();
  for (char byte : bytes) writer->Int(static_cast<uint8_t>(byte));
  writer->EndArray();
}

void AppendItem(std::string_view item, std::string* list) {
  if (!list->empty()) list->push_back(',');
  list->append(item);
}

void WriteCalls(const std::vector<ChatToolCall>& calls, JsonWriter* writer) {
  if (calls.empty()) return;
  writer->Key("tool_calls");
  writer->BeginArray();
  for (const ChatToolCall& call : calls) {
    writer->BeginObject();
    writer->Key("id");
    writer->String(call.id);
    writer->Key("type");
    writer->String("function");
    writer->Key("function");
    writer->BeginObject();
    writer->Key("name");
    writer->String(call.name);
    writer->Key("arguments");
    writer->String(call.arguments);
    writer->EndObject();
    writer->EndObject();
  }
  writer->EndArray();
}

// The member `name` with JSON text, unless it is not wanted.
void WriteRaw(std::string_view name, const std::optional<std::string>& json, JsonWriter* writer) {
  if (!json.has_value()) return;
  writer->Key(name);
  writer->Raw(*json);
}

void WriteChoice(const AnswerIdentity& identity, const ChoiceAnswer& answer, JsonWriter* writer) {
  writer->BeginObject();
  writer->Key("index");
  writer->Uint(answer.index);
  if (identity.form == RequestForm::kChat) {
    writer->Key("message");
    writer->BeginObject();
    writer->Key("role");
    writer->String("assistant");
    writer->Key("content");
    if (answer.text.content.empty() && !answer.calls.empty()) {
      writer->Null();
    } else {
      writer->String(answer.text.content);
    }
    if (answer.has_reasoning) {
      WriteReasoning(answer.text.reasoning, identity.names_reasoning, writer);
    }
    writer->Key("refusal");
    writer->Null();
    WriteCalls(answer.calls, writer);
    writer->EndObject();
  } else {
    writer->Key("text");
    writer->String(answer.text.content);
  }
  writer->Key("logprobs");
  writer->Raw(answer.logprobs);
  writer->Key("finish_reason");
  writer->String(answer.end.finish_reason);
  writer->Key("stop_reason");
  writer->Raw(answer.end.stop_reason);
  if (identity.form == RequestForm::kCompletion) {
    WriteIds("prompt_token_ids", answer.prompt_ids, writer);
    WriteRaw("prompt_logprobs", answer.prompt_logprobs, writer);
  }
  WriteIds("token_ids", answer.ids, writer);
  writer->EndObject();
}

}  // namespace

void WriteReasoning(std::string_view text, bool names_reasoning, JsonWriter* writer) {
  writer->Key("reasoning_content");
  writer->String(text);
  if (!names_reasoning) return;
  writer->Key("reasoning");
  writer->String(text);
}

std::string FormatLogprob(float logprob) {
  return protocol::FormatJsonDouble(ShownLogprob(logprob));
}

void WriteIds(std::string_view name, const std::optional<std::vector<int32_t>>& ids,
              JsonWriter* writer) {
  if (!ids.has_value()) return;
  writer->Key(name);
  writer->BeginArray();
  for (const int32_t id : *ids) writer->Int(id);
  writer->EndArray();
}

Usage& Usage::operator+=(const Usage& other) {
  prompt_tokens += other.prompt_tokens;
  completion_tokens += other.completion_tokens;
  cached_tokens += other.cached_tokens;
  reasoning_tokens += other.reasoning_tokens;
  num_steps += other.num_steps;
  num_draft_tokens += other.num_draft_tokens;
  num_accepted_draft_tokens += other.num_accepted_draft_tokens;
  return *this;
}

std::string UsageJson(const Usage& usage) {
  std::string out;
  JsonWriter writer(&out);
  const auto number = [&](std::string_view name, int64_t value) {
    writer.Key(name);
    writer.Int(value);
  };
  writer.BeginObject();
  number("prompt_tokens", usage.prompt_tokens);
  number("completion_tokens", usage.completion_tokens);
  number("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  writer.Key("prompt_tokens_details");
  writer.BeginObject();
  number("cached_tokens", usage.cached_tokens);
  writer.EndObject();
  writer.Key("completion_tokens_details");
  writer.BeginObject();
  number("reasoning_tokens", usage.reasoning_tokens);
  number("accepted_prediction_tokens", 0);
  number("rejected_prediction_tokens", 0);
  writer.EndObject();
  number("prompt_cache_hit_tokens", usage.cached_tokens);
  number("prompt_cache_miss_tokens", usage.prompt_tokens - usage.cached_tokens);
  writer.Key("skein");
  writer.BeginObject();
  number("steps", static_cast<int64_t>(usage.num_steps));
  number("draft_tokens", static_cast<int64_t>(usage.num_draft_tokens));
  number("accepted_draft_tokens", static_cast<int64_t>(usage.num_accepted_draft_tokens));
  writer.EndObject();
  writer.EndObject();
  return out;
}

void LogprobList::Append(const DeltaToken& token) {
  ++count_;
  if (form_ == RequestForm::kChat) {
    AppendChat(token);
  } else {
    AppendCompletion(token);
  }
}

std::string LogprobList::NameOf(int32_t token) const {
  return names_ == Names::kIds ? "token_id:" + std::to_string(token)
                               : std::string(tokenizer_.TokenBytes(token));
}

void LogprobList::AppendChat(const DeltaToken& token) {
  std::string entry;
  JsonWriter writer(&entry);
  writer.BeginObject();
  WriteToken(NameOf(token.id), tokenizer_.TokenBytes(token.id), token.logprob, &writer);
  writer.Key("top_logprobs");
  writer.BeginArray();
  const size_t count = std::min(token.top.size(), static_cast<size_t>(num_top_));
  for (size_t i = 0; i < count; ++i) {
    writer.BeginObject();
    const int32_t id = token.top[i].token;
    WriteToken(NameOf(id), tokenizer_.TokenBytes(id), token.top[i].logprob, &writer);
    writer.EndObject();
  }
  writer.EndArray();
  writer.EndObject();
  AppendItem(entry, &content_);
}

void LogprobList::AppendCompletion(const DeltaToken& token) {
  std::string text;
  protocol::AppendJsonString(NameOf(token.id), &text);
  AppendItem(text, &tokens_);
  AppendItem(FormatLogprob(token.logprob), &token_logprobs_);
  // Two tokens may have the same text once broken bytes are replaced: a key occurs once.
  std::vector<std::string> keys = {text};
  std::string entries = text + ":" + FormatLogprob(token.logprob);
  const size_t count = std::min(token.top.size(), static_cast<size_t>(num_top_));
  for (size_t i = 0; i < count; ++i) {
    std::string key;
    protocol::AppendJsonString(NameOf(token.top[i].token), &key);
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    AppendItem(key + ":" + FormatLogprob(token.top[i].logprob), &entries);
    keys.push_back(std::move(key));
  }
  AppendItem("{" + entries + "}", &top_logprobs_);
  AppendOffset(tokenizer_.TokenBytes(token.id));
}

void LogprobList::AppendFirst(int32_t token, Shown shown) {
  ++count_;
  std::string text;
  protocol::AppendJsonString(NameOf(token), &text);
  AppendItem(text, &tokens_);
  AppendItem("null", &token_logprobs_);
  AppendItem("null", &top_logprobs_);
  AppendOffset(shown == Shown::kYes ? tokenizer_.TokenBytes(token) : std::string_view());
}

// The next token begins here, and the one after it behind these bytes.
void LogprobList::AppendOffset(std::string_view bytes) {
  AppendItem(std::to_string(text_offset_), &text_offsets_);
  text_offset_ += std::count_if(bytes.begin(), bytes.end(), [](char byte) {
    return (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
  });
}

std::string LogprobList::Take() {
  count_ = 0;
  if (form_ == RequestForm::kChat) {
    return "{\"content\":[" + std::exchange(content_, {}) + "],\"refusal\":null}";
  }
  return "{\"tokens\":[" + std::exchange(tokens_, {}) + "],\"token_logprobs\":[" +
         std::exchange(token_logprobs_, {}) + "],\"top_logprobs\":[" +
         std::exchange(top_logprobs_, {}) + "],\"text_offset\":[" +
         std::exchange(text_offsets_, {}) + "]}";
}

std::string AnswerJson(const AnswerIdentity& identity, std::span<const ChoiceAnswer> choices,
                       const Usage& usage) {
  std::string out;
  JsonWriter writer(&out);
  writer.BeginObject();
  writer.Key("id");
  writer.String(identity.id);
  writer.Key("object");
  writer.String(identity.form == RequestForm::kChat ? "chat.completion" : "text_completion");
  writer.Key("created");
  writer.Int(identity.created);
  writer.Key("model");
  writer.String(identity.model);
  writer.Key("system_fingerprint");
  writer.String(identity.fingerprint);
  writer.Key("choices");
  writer.BeginArray();
  for (const ChoiceAnswer& choice : choices) WriteChoice(identity, choice, &writer);
  writer.EndArray();
  if (identity.form == RequestForm::kChat) {
    WriteIds("prompt_token_ids", choices.front().prompt_ids, &writer);
    WriteRaw("prompt_logprobs", choices.front().prompt_logprobs, &writer);
  }
  writer.Key("usage");
  writer.Raw(UsageJson(usage));
  writer.EndObject();
  return out;
}

std::string ModelJson(std::string_view name, int64_t created, int64_t max_model_len) {
  std::string out;
  JsonWriter writer(&out);
  writer.BeginObject();
  writer.Key("id");
  writer.String(name);
  writer.Key("object");
  writer.String("model");
  writer.Key("created");
  writer.Int(created);
  writer.Key("owned_by");
  writer.String("skein");
  writer.Key("max_model_len");
  writer.Int(max_model_len);
  writer.EndObject();
  return out;
}

std::string TokensJson(std::span<const int32_t> ids, int64_t max_model_len) {
  std::string out;
  JsonWriter writer(&out);
  writer.BeginObject();
  writer.Key("count");
  writer.Uint(ids.size());
  writer.Key("max_model_len");
  writer.Int(max_model_len);
  writer.Key("tokens");
  writer.BeginArray();
  for (const int32_t id : ids) writer.Int(id);
  writer.EndArray();
  writer.EndObject();
  return out;
}

}  // namespace skein::coordinator
