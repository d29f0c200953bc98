// Tests of the common request fields; bad ones are in malformed_requests_test.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/generation_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/api/chat_request.h"

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

TEST(GenerationParamsTest, ReadsStopsAndLogprobs) {
  const GenerationParams params =
      Chat(R"(,"stop":["a","b"],"stop_token_ids":[1,2],"logprobs":true,"top_logprobs":0)").params;
  EXPECT_THAT(params.stop_strings.strings, ElementsAre("a", "b"));
  EXPECT_THAT(params.stop.stop_token_ids, ElementsAre(1, 2));
  EXPECT_TRUE(params.sampling.logprobs);
  EXPECT_EQ(params.sampling.num_top_logprobs, 0);
  EXPECT_EQ(Chat(R"(,"seed":18446744073709551615)").params.sampling.seed, 18446744073709551615u);
  EXPECT_EQ(Chat(R"(,"max_tokens":5,"max_completion_tokens":5)").params.max_tokens, 5);
}

protocol::VerificationMode ModeOf(std::string_view fields) {
  return Chat(fields).params.speculation.mode;
}

TEST(GenerationParamsTest, TheVerificationModeFollowsFromSeedNameAndTemperature) {
  using enum protocol::VerificationMode;
  EXPECT_EQ(ModeOf(""), kRejection) << "the default";
  EXPECT_EQ(ModeOf(R"(,"seed":0)"), kCoupled) << "same tokens again is promised";
  EXPECT_EQ(ModeOf(R"(,"speculation":{"verification":"coupled"})"), kCoupled);
  EXPECT_EQ(ModeOf(R"(,"speculation":{"verification":"rejection"})"), kRejection);
  EXPECT_EQ(ModeOf(R"(,"seed":7,"speculation":{"verification":"rejection"})"), kRejection);
  EXPECT_EQ(ModeOf(R"(,"seed":7,"speculation":{"max_draft_tokens":2})"), kCoupled);
  for (const char* fields : {R"(,"temperature":0)", R"(,"temperature":0.000001,"seed":7)",
                             R"(,"temperature":0,"speculation":{"verification":"rejection"})",
                             R"(,"temperature":0,"speculation":{"verification":"coupled"})"}) {
    EXPECT_EQ(ModeOf(fields), kGreedy) << fields;
  }
}

TEST(GenerationParamsTest, DraftsAreBoundedOrTurnedOff) {
  const auto of = [](std::string_view fields) { return Chat(fields).params.speculation; };
  EXPECT_TRUE(of("").enabled);
  EXPECT_EQ(of("").max_draft_tokens, ~0u) << "the server's bound is the only one";
  EXPECT_EQ(of(R"(,"speculation":{})"), of(""));
  EXPECT_EQ(of(R"(,"speculation":{"max_draft_tokens":2})").max_draft_tokens, 2u);
  EXPECT_EQ(of(R"(,"speculation":{"enabled":true,"max_draft_tokens":63})").max_draft_tokens, 63u);
  EXPECT_FALSE(of(R"(,"speculation":{"enabled":false})").enabled);
  EXPECT_FALSE(of(R"(,"speculation":{"enabled":false,"max_draft_tokens":5})").enabled);
  EXPECT_FALSE(of(R"(,"speculation":{"enabled":true,"max_draft_tokens":0})").enabled);
}

}  // namespace
}  // namespace skein::coordinator
