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
    return std::get<CompletionRequest>(parsed).prompt;
  };
  EXPECT_EQ(prompt(R"({"prompt":"x"})").text, "x");
  EXPECT_TRUE(prompt(R"({"prompt":""})").add_bos);
  EXPECT_EQ(prompt(R"({"prompt":["x"]})").text, "x");
  EXPECT_THAT(prompt(R"({"prompt":[1,2]})").ids, ElementsAre(1, 2));
  EXPECT_THAT(prompt(R"({"prompt":[[3]]})").ids, ElementsAre(3));
  EXPECT_FALSE(prompt(R"({"prompt":[[3]]})").is_text);
}

}  // namespace
}  // namespace skein::coordinator
