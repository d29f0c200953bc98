// encoding_resource.json: with wording that is accepted a conversation that needs all of it has a
// prompt which holds the conversation's own text; a refusal says what is wrong.
// Thread: one.
// Must never: depend on anything but the input.
#include "protocol/base/strings.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/small_vocabulary.h"

namespace skein::tests {
namespace {

using coordinator::ChatConversation;
using coordinator::ChatRole;
using coordinator::ChatTemplate;
using protocol::StatusText;

constexpr std::string_view kSchema = R"({"name":"f｜DSML｜"})";

// Every role, and calls of both kinds: as a client gives them and as the model wrote them.
ChatConversation AllOfIt() {
  ChatConversation conversation;
  conversation.messages.push_back({ChatRole::kSystem, "s", {}, {}, {}});
  conversation.messages.push_back({ChatRole::kUser, "hello", {}, {}, {}});
  conversation.messages.push_back(
      {ChatRole::kAssistant, "a", "r", {{"1", "f", R"({"x":"y","z":[1]})"}, {"2", "f", ""}}, {}});
  conversation.messages.push_back({ChatRole::kTool, "result two", {}, {}, "2"});
  conversation.messages.push_back({ChatRole::kTool, "result one", {}, {}, "1"});
  conversation.messages.push_back(
      {ChatRole::kAssistant, "", "", {{"3", "g", "", {"<", " invoke"}}}, {}});
  conversation.messages.push_back({ChatRole::kLatestReminder, "reminder", {}, {}, {}});
  conversation.messages.push_back({ChatRole::kUser, "bye", {}, {}, {}});
  conversation.tool_schemas = {std::string(kSchema)};
  conversation.response_schema = "{}";
  conversation.reasoning_effort = 33;
  return conversation;
}

// Conversations that have no prompt, whatever the wording.
void CheckRefusals(const ChatTemplate& chat) {
  ChatConversation conversation;
  conversation.messages.push_back({ChatRole::kAssistant, "a", {}, {{"1", "f", "[]"}}, {}});
  Require(!chat.Render(conversation).ok(), "an answer has something to answer");
  conversation.messages.push_back({ChatRole::kTool, "t", {}, {}, "unknown"});
  Require(!chat.Render(conversation).ok(), "a result belongs to a call");
  conversation.messages.back().tool_call_id = "1";
  Require(!chat.Render(conversation).ok(), "arguments are an object");
}

void Check(std::string_view text) {
  const auto chat = ChatTemplate::Create(SmallTokenizer(), text);
  if (!chat.ok()) return Require(!StatusText(chat.status()).empty(), "a refusal has a reason");
  CheckRefusals(**chat);
  const auto prompt = (*chat)->Render(AllOfIt());
  if (!prompt.ok()) {
    return Require(absl::IsUnimplemented(prompt.status()), "only wording can be missing",
                   StatusText(prompt.status()));
  }
  const std::string shown = SmallTokenizer().Decode(prompt->ids).value();
  Require(shown.find("hello") != std::string::npos && shown.find(kSchema) != std::string::npos &&
              shown.find("33") != std::string::npos,
          "a prompt holds its conversation", shown);
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
