// A line that does not move: newcomers are refused and told when to come back, and what was
// accepted is answered whole and exact.
#include <cstdlib>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/clock.h"
#include "tests/process/chat_client.h"
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

}  // namespace
}  // namespace skein::tests
