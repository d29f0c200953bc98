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

// A text, or an array of ids.
void ReadPrompt(FieldReader* reader, std::string_view name, const JsonValue& value,
                const RequestLimits& limits, RawPrompt* prompt) {
  if (value.IsString()) {
    prompt->text = std::string(value.string());
    if (prompt->text.empty() && !prompt->add_bos) {
      reader->Invalid(name, "is empty and add_special_tokens is false");
    }
  } else if (value.IsArray()) {
    prompt->is_text = false;
    ReadTokenIds(reader, name, value, limits, &prompt->ids);
  } else {
    reader->WrongKind(name, value, "a string or an array of token ids");
  }
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

void ReadRawPrompts(FieldReader* reader, const RequestLimits& limits,
                    std::vector<RawPrompt>* prompts) {
  RawPrompt empty;
  empty.add_bos = reader->Bool("add_special_tokens").value_or(true);
  const JsonValue* value = reader->Find("prompt");
  if (value == nullptr) return reader->Invalid("prompt", "is missing");
  const auto elements = value->elements();
  if (value->IsArray() && elements.empty()) return reader->Invalid("prompt", "is an empty array");
  if (!value->IsArray() || elements[0].IsNumber()) {
    return ReadPrompt(reader, "prompt", *value, limits, &prompts->emplace_back(empty));
  }
  if (elements.size() > kPromptsMax) {
    return reader->Invalid("prompt", Concat("has ", elements.size(), " prompts; at most ",
                                            kPromptsMax, " are accepted"));
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    ReadPrompt(reader, Concat("prompt[", i, "]"), elements[i], limits,
               &prompts->emplace_back(empty));
  }
}

ApiOr<CompletionRequest> ParseCompletionRequest(const JsonValue& body,
                                                const RequestLimits& limits) {
  if (!body.IsObject()) return InvalidJson("the body must be a JSON object");
  FieldReader reader(body);
  CompletionRequest request;
  ReadRawPrompts(&reader, limits, &request.prompts);
  request.params = ReadGenerationParams(&reader, limits, RequestForm::kCompletion);
  ReadPenalties(&reader, Penalties::kApply, &request.params.edits);
  request.echo = reader.Bool("echo").value_or(false);
  request.params.echo_logprobs = request.echo && request.params.sampling.logprobs;
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
