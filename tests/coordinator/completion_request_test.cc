// Tests of good completion requests; bad ones are in malformed_requests_test.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using protocol::ParseJson;
using ::testing::ElementsAre;

const RequestLimits kLimits = {4096, 4096, 20};

TEST(CompletionRequestTest, ReadsEachPromptForm) {
  const auto prompt = [](std::string_view body) {
    auto parsed = ParseCompletionRequest(ParseJson(body).value(), kLimits);
    EXPECT_TRUE(std::holds_alternative<CompletionRequest>(parsed)) << body;
    return std::get<CompletionRequest>(parsed).prompts.front();
  };
  EXPECT_EQ(prompt(R"({"prompt":"x"})").text, "x");
  EXPECT_TRUE(prompt(R"({"prompt":""})").add_bos);
  EXPECT_EQ(prompt(R"({"prompt":["x"]})").text, "x");
  EXPECT_THAT(prompt(R"({"prompt":[1,2]})").ids, ElementsAre(1, 2));
  EXPECT_THAT(prompt(R"({"prompt":[[3]]})").ids, ElementsAre(3));
  EXPECT_FALSE(prompt(R"({"prompt":[[3]]})").is_text);
}

TEST(CompletionRequestTest, ReadsListsOfPrompts) {
  auto parsed = ParseCompletionRequest(
      ParseJson(R"({"prompt":["x",[1,2],"y"],"n":2,"echo":true})").value(), kLimits);
  const auto& request = std::get<CompletionRequest>(parsed);
  ASSERT_EQ(request.prompts.size(), 3u);
  EXPECT_EQ(request.prompts[0].text, "x");
  EXPECT_THAT(request.prompts[1].ids, ElementsAre(1, 2));
  EXPECT_EQ(request.prompts[2].text, "y");
  EXPECT_EQ(request.params.n, 2u);
  EXPECT_TRUE(request.echo);
}

}  // namespace
}  // namespace skein::coordinator
