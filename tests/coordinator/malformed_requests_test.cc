// Malformed requests: status, code, param and the value in the message, with streams running.
// Thread: the test's, beside the listener's and the control loop's.
// Must never: let a refused request reach the control loop.
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/api_fixture.h"
#include "tests/coordinator/malformed_cases.h"

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;
using tests::MalformedCase;
using MalformedRequestsTest = ApiFixture;

constexpr char kChat[] = "/v1/chat/completions";

// rule: R2.2, R2.3, R2.4
TEST_F(MalformedRequestsTest, EachIsRefusedWhileStreamsRunExactly) {
  const std::string good =
      R"({"messages":[{"role":"user","content":"capital?"}],"thinking":{"type":"disabled"},)"
      R"("stream":true})";
  control_.Hold();
  std::vector<std::string> texts(8);
  std::vector<std::thread> streams;
  for (std::string& text : texts) {
    streams.emplace_back([&] {
      for (const std::string& event : Stream(kChat, good)) {
        if (event == "[DONE]" || event.find("\"delta\":{}") != std::string::npos) continue;
        text += TextAt(event, {"choices", "0", "delta", "content"});
      }
    });
  }
  for (size_t i = 0; i < texts.size(); ++i) control_.TakeSubmitted();

  int num_cases = 0;
  for (const MalformedCase& test : tests::MalformedCases()) {
    const protocol::HttpResult result = Post(test.path, test.body);
    EXPECT_EQ(result.status, test.status) << test.body << "\n" << result.body;
    EXPECT_EQ(TextAt(result.body, {"error", "code"}), test.code) << test.body;
    if (test.param.empty()) {
      EXPECT_TRUE(At(result.body, {"error", "param"}).IsNull()) << result.body;
    } else {
      EXPECT_EQ(TextAt(result.body, {"error", "param"}), test.param) << test.body;
    }
    const std::string message = TextAt(result.body, {"error", "message"});
    EXPECT_THAT(message, HasSubstr(test.detail)) << test.body;
    EXPECT_EQ(message.find("secret words"), std::string::npos) << message;
    EXPECT_EQ(result.Header("x-should-retry"), "false");
    ++num_cases;
  }
  EXPECT_GE(num_cases, 90);
  EXPECT_EQ(control_.num_submitted(), 0u);

  control_.Release();
  for (std::thread& stream : streams) stream.join();
  for (const std::string& text : texts) EXPECT_EQ(text, answer_);
}

}  // namespace
}  // namespace skein::coordinator
