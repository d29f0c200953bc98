// Tests of good chat requests; bad ones are in malformed_requests_test.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/chat_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using protocol::ParseJson;
using ::testing::ElementsAre;

const RequestLimits kLimits = {4096, 4096, 20};

ChatRequest Chat(std::string_view fields) {
  const auto body =
      ParseJson(R"({"messages":[{"role":"user","content":"hi"}])" + std::string(fields) + "}");
  auto parsed = ParseChatRequest(body.value(), kLimits);
  EXPECT_TRUE(std::holds_alternative<ChatRequest>(parsed))
      << fields << ": " << std::get<ApiError>(parsed).message;
  return std::get<ChatRequest>(parsed);
}

TEST(ChatRequestTest, ThinkingAndEffort) {
  struct Case {
    std::string fields;
    ThinkingMode mode;
    int32_t effort;
  };
  for (const Case& test : {
           Case{"", ThinkingMode::kEnabled, 75},
           Case{R"(,"thinking":{"type":"disabled"})", ThinkingMode::kDisabled, 75},
           Case{R"(,"reasoning_effort":"none")", ThinkingMode::kDisabled, 75},
           Case{R"(,"reasoning_effort":"minimal")", ThinkingMode::kEnabled, 50},
           Case{R"(,"reasoning_effort":"low")", ThinkingMode::kEnabled, 50},
           Case{R"(,"reasoning_effort":"medium")", ThinkingMode::kEnabled, 75},
           Case{R"(,"reasoning_effort":"xhigh")", ThinkingMode::kEnabled, 75},
           Case{R"(,"reasoning_effort":"max")", ThinkingMode::kEnabled, 100},
           Case{R"(,"reasoning_effort":33)", ThinkingMode::kEnabled, 33},
           Case{R"(,"chat_template_kwargs":{"thinking":false})", ThinkingMode::kDisabled, 75},
       }) {
    const ChatRequest request = Chat(test.fields);
    EXPECT_EQ(request.conversation.thinking, test.mode) << test.fields;
    EXPECT_EQ(request.conversation.reasoning_effort, test.effort) << test.fields;
  }
}

TEST(ChatRequestTest, PenaltiesHaveNoEffectWhileThinking) {
  Chat(R"(,"presence_penalty":1.5,"repetition_penalty":1.2)");
  Chat(R"(,"thinking":{"type":"disabled"},"presence_penalty":0,"repetition_penalty":1)");
}

TEST(ChatRequestTest, DefaultsOfWhatIsNotSupportedAreAccepted) {
  const ChatRequest request =
      Chat(R"(,"n":1,"tools":[],"tool_choice":"auto","parallel_tool_calls":true,)"
           R"("response_format":{"type":"text"},"logit_bias":{},"bad_words":[],"echo":true,)"
           R"("speculation":{"enabled":false},"speculation_hint":1,"store":false)");
  EXPECT_THAT(request.unknown_fields, ElementsAre("echo", "speculation_hint"));
}

TEST(ChatRequestTest, ReadsEveryRole) {
  const auto body = ParseJson(
      R"({"messages":[{"role":"developer","content":"d"},{"role":"user","content":)"
      R"([{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"x"},)"
      R"({"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":"c1",)"
      R"("type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]},)"
      R"({"role":"tool","tool_call_id":"c1","content":"t"},)"
      R"({"role":"latest_reminder","content":"l"},{"role":"user","content":"q"}]})");
  auto parsed = ParseChatRequest(body.value(), kLimits);
  ASSERT_TRUE(std::holds_alternative<ChatRequest>(parsed)) << std::get<ApiError>(parsed).message;
  const auto& messages = std::get<ChatRequest>(parsed).conversation.messages;
  ASSERT_EQ(messages.size(), 6u);
  EXPECT_EQ(messages[0].role, ChatRole::kSystem);
  EXPECT_EQ(messages[1].content, "a\n\nb");
  EXPECT_EQ(messages[2].reasoning_content, "r");
  EXPECT_EQ(messages[2].tool_calls[0].arguments, "{\"x\": 1}");
  EXPECT_EQ(messages[3].role, ChatRole::kTool);
  EXPECT_EQ(messages[3].tool_call_id, "c1");
  EXPECT_EQ(messages[4].role, ChatRole::kLatestReminder);
}

}  // namespace
}  // namespace skein::coordinator
