// Bodies of /v1/completions, /tokenize and /detokenize. Accepted ones have every number within its
// range, ids of the vocabulary, and answers that are JSON; a refusal names a field and shows no
// prompt.
// Thread: one.
// Must never: depend on anything but the input.
#include "coordinator/api/completion_request.h"
#include "coordinator/api/raw_prompts.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/request_checks.h"
#include "tests/fuzz/small_vocabulary.h"

namespace skein::tests {
namespace {

using coordinator::ApiError;
using coordinator::ApiOr;
using protocol::JsonValue;

void CheckAnswer(const ApiOr<std::string>& answer, std::string_view route) {
  if (const auto* error = std::get_if<ApiError>(&answer)) return CheckError(*error, route);
  Require(protocol::ParseJson(std::get<std::string>(answer)).ok(), "an answer is JSON",
          std::get<std::string>(answer));
}

void CheckCompletion(const JsonValue& body, std::string_view text) {
  const auto hidden = coordinator::ParseCompletionRequest(WithSecrets(body), kRequestLimits);
  if (const auto* error = std::get_if<ApiError>(&hidden)) CheckHidesSecrets(*error, text);
  auto parsed = coordinator::ParseCompletionRequest(body, kRequestLimits);
  if (const auto* error = std::get_if<ApiError>(&parsed))
    return CheckError(*error, "/v1/completions");
  const auto& request = std::get<coordinator::CompletionRequest>(parsed);
  CheckParams(request.params);
  Require(!request.prompts.empty(), "there is a prompt");
  for (const coordinator::RawPrompt& prompt : request.prompts) {
    for (const int32_t id : prompt.ids) {
      Require(id >= 0 && id < kRequestLimits.vocab_size, "an id is of the vocabulary");
    }
    const auto error = coordinator::RefuseSpecialIds(prompt, SmallTokenizer());
    if (error) CheckError(*error, "/v1/completions");
    if (const auto too_long = coordinator::CheckTextSize(prompt.text.size(), SmallTokenizer(), 8)) {
      CheckError(*too_long, "/v1/completions");
    }
  }
}

void Check(std::string_view text) {
  const auto body = protocol::ParseJson(text);
  if (!body.ok()) return;
  CheckCompletion(*body, text);
  CheckAnswer(coordinator::Tokenized(*body, kRequestLimits, SmallTokenizer(), SmallChat()),
              "/tokenize");
  CheckAnswer(coordinator::Detokenized(*body, kRequestLimits, SmallTokenizer()), "/detokenize");
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
