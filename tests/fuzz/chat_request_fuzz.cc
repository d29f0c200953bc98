// Bodies of /v1/chat/completions. Accepted ones have every number within its range and a prompt
// whose special ids no text can change; a refusal names a field and shows no prompt.
// Thread: one.
// Must never: depend on anything but the input.
#include "coordinator/api/chat_request.h"
#include "coordinator/text/call_grammar.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/request_checks.h"

namespace skein::tests {
namespace {

void Check(std::string_view text) {
  const auto body = protocol::ParseJson(text);
  if (!body.ok()) return;
  const auto hidden = coordinator::ParseChatRequest(WithSecrets(*body), kRequestLimits);
  if (const auto* error = std::get_if<coordinator::ApiError>(&hidden))
    CheckHidesSecrets(*error, text);
  auto parsed = coordinator::ParseChatRequest(*body, kRequestLimits);
  if (const auto* error = std::get_if<coordinator::ApiError>(&parsed)) {
    return CheckError(*error, "/v1/chat/completions");
  }
  const auto& request = std::get<coordinator::ChatRequest>(parsed);
  CheckParams(request.params);
  CheckConversation(request.conversation);
  Require(coordinator::TextBytes(request.conversation) <= text.size() + 4096,
          "a conversation is no longer than its request");
  for (const auto& tool : request.tools) {
    Require(coordinator::IsFunctionName(tool.name), "a function has a name", tool.name);
  }
  Require(!request.demands_calls || !request.tools.empty(), "who demands calls has functions");
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
