// The server's --logprobs-mode: what the logprobs of its answers are of, and that it changes
// nothing else.
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/http/http_client.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::JsonValue;

constexpr char kBody[] =
    R"({"messages":[{"role":"user","content":"Tell me about rivers."}],"temperature":0.7,)"
    R"("top_k":3,"seed":11,"max_tokens":40,"ignore_eos":true,"logprobs":true,"top_logprobs":5,)"
    R"("thinking":{"type":"disabled"},"presence_penalty":1,"prompt_logprobs":2})";

JsonValue Answer(uint16_t port) {
  protocol::HttpCall call;
  call.port = port;
  call.method = "POST";
  call.target = "/v1/chat/completions";
  call.body = kBody;
  const auto answer = protocol::CallHttp(call);
  EXPECT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 200) << answer->body;
  auto json = protocol::ParseJson(answer->body);
  EXPECT_TRUE(json.ok()) << json.status();
  return *std::move(json);
}

const JsonValue& ChoiceOf(const JsonValue& answer) { return answer.Find("choices")->elements()[0]; }

double LogprobOf(const JsonValue& entry) {
  return entry.Find("logprob")->AsDouble("logprob").value();
}

// rule: R4.1
TEST(LogprobsModeTest, ProcessedOnesAreOfWhatIsSampled) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--logprobs-mode", "processed_logprobs"})) << server.output();
  const JsonValue processed = Answer(server.port());
  LiveServer plain;
  ASSERT_TRUE(plain.StartReady()) << plain.output();
  const JsonValue raw = Answer(plain.port());
  EXPECT_EQ(ChoiceOf(processed).Find("message")->Find("content")->string(),
            ChoiceOf(raw).Find("message")->Find("content")->string());
  EXPECT_EQ(protocol::WriteJson(*processed.Find("prompt_logprobs")),
            protocol::WriteJson(*raw.Find("prompt_logprobs")));
  const auto& entries = ChoiceOf(processed).Find("logprobs")->Find("content")->elements();
  ASSERT_EQ(entries.size(), 40u);
  for (const JsonValue& entry : entries) {
    // Three tokens are left of the cut, and nothing else can be drawn.
    const auto& top = entry.Find("top_logprobs")->elements();
    ASSERT_EQ(top.size(), 3u);
    double sum = 0;
    std::set<double> listed;
    for (const JsonValue& token : top) {
      sum += std::exp(LogprobOf(token));
      listed.insert(LogprobOf(token));
    }
    EXPECT_NEAR(sum, 1, 1e-5);
    EXPECT_TRUE(listed.contains(LogprobOf(entry)));
  }
  const auto& before = ChoiceOf(raw).Find("logprobs")->Find("content")->elements();
  ASSERT_EQ(before.size(), 40u);
  for (const JsonValue& entry : before) {
    EXPECT_EQ(entry.Find("top_logprobs")->elements().size(), 5u);
  }
}

}  // namespace
}  // namespace skein::tests
