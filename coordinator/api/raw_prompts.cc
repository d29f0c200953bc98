// Thread: any.
// Must never: show the text of a prompt in an error.
#include "coordinator/api/raw_prompts.h"

#include <algorithm>
#include <utility>

#include "coordinator/api/answer_format.h"
#include "coordinator/api/chat_request.h"
#include "coordinator/api/field_reader.h"
#include "coordinator/api/submission.h"
#include "protocol/base/strings.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {

using protocol::JsonValue;

namespace {

ApiOr<std::vector<int32_t>> EncodeMessages(FieldReader* reader, const RequestLimits& limits,
                                           const Tokenizer& tokenizer, const ChatTemplate& chat) {
  ChatConversation conversation;
  ReadMessages(reader, &conversation.messages);
  if (reader->error().has_value()) return *reader->error();
  if (auto error = CheckTextSize(TextBytes(conversation), tokenizer, limits.max_model_len)) {
    return *error;
  }
  absl::StatusOr<ChatPrompt> prompt = chat.Render(conversation);
  if (!prompt.ok()) return FromStatus(prompt.status());
  return std::move(prompt->ids);
}

ApiOr<std::vector<int32_t>> EncodeOne(FieldReader* reader, const RequestLimits& limits,
                                      const Tokenizer& tokenizer, const ChatTemplate& chat) {
  std::vector<RawPrompt> prompts;
  ReadRawPrompts(reader, limits, &prompts);
  if (prompts.size() > 1) reader->Unsupported("prompt", "has several prompts; give one");
  if (reader->error().has_value()) return *reader->error();
  const RawPrompt& prompt = prompts.front();
  if (auto error = CheckTextSize(prompt.text.size(), tokenizer, limits.max_model_len)) {
    return *error;
  }
  auto encoded = EncodePrompt(tokenizer, chat.bos_id(), prompt, false);
  if (const auto* error = std::get_if<ApiError>(&encoded)) return *error;
  return std::move(std::get<PromptTokens>(encoded).ids);
}

}  // namespace

std::optional<ApiError> CheckTextSize(size_t text_bytes, const Tokenizer& tokenizer,
                                      int32_t max_model_len) {
  const int64_t least = static_cast<int64_t>(text_bytes / tokenizer.longest_token_bytes());
  if (least < max_model_len) return std::nullopt;
  return ContextLengthExceeded(least, 1, max_model_len);
}

std::optional<ApiError> RefuseSpecialIds(const RawPrompt& prompt, const Tokenizer& tokenizer) {
  const auto special = std::find_if(prompt.ids.begin(), prompt.ids.end(),
                                    [&](int32_t id) { return tokenizer.IsSpecial(id); });
  if (special == prompt.ids.end()) return std::nullopt;
  ApiError error =
      Forbidden(protocol::Concat("this API key may not send special token ids, and ", *special,
                                 " is one; leave it out or ask the operator for the right"));
  error.param = "prompt";
  return error;
}

ApiOr<std::string> Tokenized(const JsonValue& body, const RequestLimits& limits,
                             const Tokenizer& tokenizer, const ChatTemplate& chat) {
  FieldReader reader(body);
  const bool is_chat = reader.Find("messages") != nullptr;
  auto ids = (is_chat ? EncodeMessages : EncodeOne)(&reader, limits, tokenizer, chat);
  if (const auto* error = std::get_if<ApiError>(&ids)) return *error;
  return TokensJson(std::get<std::vector<int32_t>>(ids), limits.max_model_len);
}

ApiOr<std::string> Detokenized(const JsonValue& body, const RequestLimits& limits,
                               const Tokenizer& tokenizer) {
  FieldReader reader(body);
  std::vector<int32_t> ids;
  const JsonValue* tokens = reader.Find("tokens");
  if (tokens == nullptr || !tokens->IsArray()) {
    reader.Invalid("tokens", "must be an array of token ids");
  } else {
    ReadTokenIds(&reader, "tokens", *tokens, limits, &ids);
  }
  if (reader.error().has_value()) return *reader.error();
  const absl::StatusOr<std::string> text = tokenizer.Decode(ids);
  if (!text.ok()) return InvalidValue("tokens", std::string(protocol::StatusText(text.status())));
  std::string out;
  protocol::JsonWriter writer(&out);
  writer.BeginObject();
  writer.Key("prompt");
  writer.String(*text);
  writer.EndObject();
  return out;
}

}  // namespace skein::coordinator
