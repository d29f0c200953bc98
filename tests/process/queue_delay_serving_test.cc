// A line that does not move: newcomers are refused and told when to come back, and what was
// accepted is answered whole and exact.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/clock.h"
#include "tests/process/chat_client.h"
#include "tests/process/key_file.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using ::testing::HasSubstr;

// rule: A1, AB6
TEST(QueueDelayServingTest, AStandingDelayIsRefusedAndTheRestIsExact) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--max-num-seqs", "1", "--max-queue-delay", "0.5"}))
      << server.output();
  const ChatCall call = {.content = "Tell me about rivers.", .max_tokens = 2000};
  const ChatAnswer undisturbed = Ask(server.port(), call);
  ASSERT_EQ(undisturbed.entries.size(), 2000u);
  std::vector<std::unique_ptr<ChatStream>> accepted = OpenStreams(server.port(), call, 4);
  for (const auto& stream : accepted) ASSERT_TRUE(stream->WaitAccepted());
  EXPECT_TRUE(server.WaitForMetric("skein_requests_waiting", 3));
  // The bound and its second.
  const absl::Time begin = protocol::MonotonicNow();
  EXPECT_TRUE(WaitUntil([&] { return protocol::MonotonicNow() - begin > absl::Seconds(1.6); }));
  ASSERT_FALSE(accepted.back()->ended());
  for (int i = 0; i < 5; ++i) {
    const ChatAnswer refused = Ask(server.port(), call);
    EXPECT_EQ(refused.status, 503);
    EXPECT_THAT(refused.refusal, HasSubstr("none of which began within 0.5 s"));
    EXPECT_THAT(refused.refusal, HasSubstr("\"code\":\"server_overloaded\""));
    EXPECT_GE(std::strtol(refused.retry_after.c_str(), nullptr, 10), 1);
  }
  EXPECT_FALSE(accepted.back()->ended()) << "all of this happened beside it";
  for (const auto& stream : accepted) EXPECT_EQ(stream->Join(), undisturbed);
  EXPECT_EQ(server.Metric("skein_admission_rejections_total"), 5);
  EXPECT_TRUE(server.WaitForMetric("skein_requests_waiting", 0));
  EXPECT_EQ(Ask(server.port(), {.content = "Hello", .max_tokens = 5}).status, 200);
}

// Keys take turns, so who has nobody waiting is not behind those that are late.
// rule: A1, A2
TEST(QueueDelayServingTest, AKeyOfWhichNobodyWaitsIsLetIn) {
  LiveServer server;
  const std::string file = server.directory() + "/keys.yaml";
  auto keys = WriteKeyFile(file, {{"alice", ""}, {"bob", ""}});
  ASSERT_EQ(keys.size(), 2u);
  ASSERT_TRUE(server.StartReady(
      {"--max-num-seqs", "1", "--max-queue-delay", "0.5", "--api-key-file", file}))
      << server.output();
  ChatCall alices = {.content = "Tell me about rivers.", .max_tokens = 2000};
  alices.key = keys["alice"];
  ChatCall bobs = alices;
  bobs.key = keys["bob"];
  const ChatAnswer undisturbed = Ask(server.port(), bobs);
  ASSERT_EQ(undisturbed.entries.size(), 2000u);
  const auto late = OpenStreams(server.port(), alices, 3);
  for (const auto& stream : late) ASSERT_TRUE(stream->WaitAccepted());
  EXPECT_TRUE(server.WaitForStatus("\"waiting\":2")) << server.Admin("GET", "/admin/status").body;
  const absl::Time begin = protocol::MonotonicNow();
  EXPECT_TRUE(WaitUntil([&] { return protocol::MonotonicNow() - begin > absl::Seconds(1.6); }));
  EXPECT_EQ(Ask(server.port(), alices).status, 503);
  ASSERT_FALSE(late.back()->ended());
  const auto fresh = OpenStreams(server.port(), bobs, 1);
  EXPECT_TRUE(fresh[0]->WaitAccepted()) << "nobody of this key waits";
  const ChatAnswer second = Ask(server.port(), bobs);
  EXPECT_EQ(second.status, 503) << "now somebody does";
  EXPECT_THAT(second.refusal, HasSubstr("none of which began within 0.5 s"));
  EXPECT_GE(std::strtol(second.retry_after.c_str(), nullptr, 10), 1);
  EXPECT_EQ(fresh[0]->Join(), undisturbed);
  for (const auto& stream : late) EXPECT_EQ(stream->Join(), undisturbed);
}

}  // namespace
}  // namespace skein::tests
