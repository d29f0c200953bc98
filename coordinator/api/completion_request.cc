// The prompt and the completion-only fields.
// Thread: any.
// Must never: show the text of a prompt in an error.
#include "coordinator/api/completion_request.h"

#include <utility>

#include "protocol/base/strings.h"

namespace skein::coordinator {
namespace {

using protocol::Concat;
using protocol::JsonValue;

constexpr size_t kPromptsMax = 32;
constexpr std::string_view kNotYet = "is not supported by this server; leave it out";

void ReadPromptList(FieldReader* reader, const JsonValue& list, const RequestLimits& limits,
                    RawPrompt* prompt) {
  const auto elements = list.elements();
  if (elements.empty()) return reader->Invalid("prompt", "is an empty array");
  if (elements[0].IsNumber()) {
    prompt->is_text = false;
    return ReadTokenIds(reader, "prompt", list, limits, &prompt->ids);
  }
  if (elements.size() > kPromptsMax) {
    return reader->Invalid("prompt", Concat("has ", elements.size(), " prompts; at most ",
                                            kPromptsMax, " are accepted"));
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    if (elements[i].IsString() || elements[i].IsArray()) continue;
    return reader->WrongKind(Concat("prompt[", i, "]"), elements[i],
                             "a string or an array of token ids");
  }
  if (elements.size() > 1) {
    return reader->Unsupported("prompt", "has several prompts; this server takes one a request");
  }
  if (elements[0].IsString()) {
    prompt->text = std::string(elements[0].string());
    return;
  }
  prompt->is_text = false;
  ReadTokenIds(reader, "prompt[0]", elements[0], limits, &prompt->ids);
}

}  // namespace

void ReadTokenIds(FieldReader* reader, std::string_view name, const JsonValue& list,
                  const RequestLimits& limits, std::vector<int32_t>* ids) {
  const auto elements = list.elements();
  if (elements.empty()) return reader->Invalid(name, "has no token ids");
  if (elements.size() > static_cast<size_t>(limits.max_model_len)) {
    return reader->Keep(
        ContextLengthExceeded(static_cast<int64_t>(elements.size()), 1, limits.max_model_len));
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    const std::string path = Concat(reader->Path(name), "[", i, "]");
    if (!elements[i].IsNumber()) {
      return reader->WrongKind(Concat(name, "[", i, "]"), elements[i], "a token id");
    }
    const auto id = elements[i].AsInt64(path, 0, limits.vocab_size - 1);
    if (!id.ok()) {
      return reader->Keep(InvalidValue(path, std::string(protocol::StatusText(id.status()))));
    }
    ids->push_back(static_cast<int32_t>(*id));
  }
}

void ReadRawPrompt(FieldReader* reader, const RequestLimits& limits, RawPrompt* prompt) {
  prompt->add_bos = reader->Bool("add_special_tokens").value_or(true);
  const JsonValue* value = reader->Find("prompt");
  if (value == nullptr) return reader->Invalid("prompt", "is missing");
  if (value->IsString()) {
    prompt->text = std::string(value->string());
    if (prompt->text.empty() && !prompt->add_bos) {
      reader->Invalid("prompt", "is empty and add_special_tokens is false");
    }
  } else if (value->IsArray()) {
    ReadPromptList(reader, *value, limits, prompt);
  } else {
    reader->WrongKind("prompt", *value, "a string or an array of token ids");
  }
}

ApiOr<CompletionRequest> ParseCompletionRequest(const JsonValue& body,
                                                const RequestLimits& limits) {
  if (!body.IsObject()) return InvalidJson("the body must be a JSON object");
  FieldReader reader(body);
  CompletionRequest request;
  ReadRawPrompt(&reader, limits, &request.prompt);
  request.params = ReadGenerationParams(&reader, limits, RequestForm::kCompletion);
  ReadPenalties(&reader, Penalties::kApply, &request.params.edits);
  if (reader.Bool("echo").value_or(false)) reader.Unsupported("echo", kNotYet);
  if (reader.Find("suffix") != nullptr) reader.Unsupported("suffix", kNotYet);
  if (const auto best_of = reader.Int("best_of", 1, 20); best_of.has_value() && *best_of > 1) {
    reader.Unsupported("best_of", kNotYet);
  }
  if (const JsonValue* format = reader.Find("response_format")) {
    reader.Unsupported("response_format",
                       Concat("is ", format->Describe(), "; completions are raw and take none"));
  }
  if (reader.error().has_value()) return *reader.error();
  request.unknown_fields = reader.UnknownNames();
  return request;
}

}  // namespace skein::coordinator
