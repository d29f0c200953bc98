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

}  // namespace
}  // namespace skein::coordinator
