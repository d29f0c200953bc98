// Bodies of /v1/messages and of its counting. Accepted ones have every number within its range and
// a prompt whose special ids no text can change; a refusal names a field and shows no prompt.
// Thread: one.
// Must never: depend on anything but the input.
#include "coordinator/api/anthropic_messages.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/request_checks.h"

namespace skein::tests {
namespace {

using coordinator::MessagesUse;

void Check(std::string_view text) {
  (void)coordinator::WithoutBillingLines(text);
  const auto body = protocol::ParseJson(text);
  if (!body.ok()) return;
  const protocol::JsonValue secrets = WithSecrets(*body);
  bool accepted[2] = {};
  for (const MessagesUse use : {MessagesUse::kAnswer, MessagesUse::kCount}) {
    const auto hidden = coordinator::ParseMessagesRequest(secrets, kRequestLimits, use);
    if (const auto* error = std::get_if<coordinator::ApiError>(&hidden))
      CheckHidesSecrets(*error, text);
    auto parsed = coordinator::ParseMessagesRequest(*body, kRequestLimits, use);
    if (const auto* error = std::get_if<coordinator::ApiError>(&parsed)) {
      CheckError(*error, "/v1/messages");
      continue;
    }
    accepted[static_cast<int>(use)] = true;
    const auto& request = std::get<coordinator::ChatRequest>(parsed);
    CheckParams(request.params);
    CheckConversation(request.conversation);
  }
  Require(accepted[1] || !accepted[0], "what is answered can be counted");
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
