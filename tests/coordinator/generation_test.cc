// Tests of generations whose client does not keep up; the rest is in api_server_test.
// Thread: the test's, beside the listener's and the control loop's.
// Must never: wait for time to pass without a condition.
#include "coordinator/api/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/api_fixture.h"
#include "tests/protocol/raw_connection.h"

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using tests::RawConnection;
using GenerationTest = ApiFixture;

std::string StreamRequest(std::string_view fields) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"go on"}],"thinking":{"type":"disabled"},)"
      R"("stream":true,"ignore_eos":true)" +
      std::string(fields) + "}";
  return "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string LongAnswer() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "The quick brown fox jumps over it. ";
  return text;
}

// The content of all chat chunks in the bytes of a streamed response.
std::string ContentOf(std::string_view response) {
  std::string content;
  for (size_t at = response.find("data: {"); at != std::string_view::npos;
       at = response.find("data: {", at + 1)) {
    const std::string_view event = response.substr(at + 6, response.find("\n\n", at) - at - 6);
    const auto parsed = protocol::ParseJson(event);
    EXPECT_TRUE(parsed.ok()) << event;
    const protocol::JsonValue* text = parsed->Find("choices")->elements()[0].Find("delta");
    if (text->Find("content") != nullptr) content += text->Find("content")->string();
  }
  return content;
}

TEST_F(GenerationTest, SlowReadersGetMergedEventsAndEveryByte) {
  answer_ = LongAnswer();
  RawConnection client(server_->port(), 2048);
  client.Send(StreamRequest(""));
  // The server is done before the first byte is read: it kept what the socket did not take.
  const std::string& response = client.ReadUntilText("data: [DONE]");
  EXPECT_THAT(response, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_EQ(ContentOf(response), answer_);
}

TEST_F(GenerationTest, ClientsThatDoNotReadAreCancelledWithAnErrorEvent) {
  protocol::HttpLimits limits;
  limits.egress_bytes_max = 32 * 1024;
  StartServer(limits);
  for (int i = 0; i < 8; ++i) answer_ += LongAnswer();
  RawConnection client(server_->port(), 2048);
  client.Send(StreamRequest(R"(,"logprobs":true,"top_logprobs":20)"));
  const protocol::RequestId id = control_.TakeSubmitted().id;
  EXPECT_EQ(control_.TakeCancelled(), id);
  const std::string& response = client.ReadToEnd();
  EXPECT_TRUE(client.closed_by_peer());
  EXPECT_THAT(response, HasSubstr("\"code\":\"request_timeout\",\"retryable\":true"));
  EXPECT_THAT(response, Not(HasSubstr("[DONE]")));
}

}  // namespace
}  // namespace skein::coordinator
