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

// rule: R4.1 — a server's mode is that of the answers with logprobs.
TEST(GenerationParamsTest, TheServerSaysWhatLogprobsAreOf) {
  RequestLimits processed = kLimits;
  processed.processed_logprobs = true;
  const auto of = [](std::string_view fields, const RequestLimits& limits) {
    const auto body =
        ParseJson(R"({"messages":[{"role":"user","content":"hi"}])" + std::string(fields) + "}");
    return std::get<ChatRequest>(ParseChatRequest(body.value(), limits)).params.sampling;
  };
  EXPECT_TRUE(of(R"(,"logprobs":true)", processed).processed_logprobs);
  EXPECT_FALSE(of(R"(,"logprobs":true)", kLimits).processed_logprobs);
  EXPECT_FALSE(of("", processed).processed_logprobs) << "nobody asked";
}

// rule: R2.2
TEST(GenerationParamsTest, ReadsWhatEditsLogits) {
  const GenerationParams params =
      Chat(R"(,"thinking":{"type":"disabled"},"presence_penalty":0.5,"frequency_penalty":-1,)"
           R"("repetition_penalty":1.25,"logit_bias":{"0":-100,"4095":2.5},)"
           R"("allowed_token_ids":[0,4095],"bad_words":["no"," never"])")
          .params;
  EXPECT_EQ(params.edits.presence_penalty, 0.5F);
  EXPECT_EQ(params.edits.frequency_penalty, -1.0F);
  EXPECT_EQ(params.edits.repetition_penalty, 1.25F);
  EXPECT_THAT(params.edits.bias,
              ElementsAre(protocol::TokenBias{0, -100}, protocol::TokenBias{4095, 2.5F}));
  EXPECT_THAT(params.edits.allowed_tokens, ElementsAre(0, 4095));
  EXPECT_THAT(params.bad_words, ElementsAre("no", " never"));
  const ChatRequest thinking = Chat(R"(,"presence_penalty":1,"repetition_penalty":1.5)");
  EXPECT_EQ(thinking.params.edits, protocol::LogitEdits());
  EXPECT_TRUE(thinking.has_idle_penalties);
  EXPECT_FALSE(Chat(R"(,"presence_penalty":0,"repetition_penalty":1)").has_idle_penalties);
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
