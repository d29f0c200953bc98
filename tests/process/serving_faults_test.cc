// Real processes that are killed or stopped while they serve: streams go on over the loss of a
// worker, are recognisably cut with the coordinator, end in order on TERM, and nothing survives.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/base/clock.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const ChatCall kStory = {.content = "Tell me about rivers.", .max_tokens = 600};
const ChatCall kSeededStory = {
    .content = "Tell me about rivers.", .temperature = 0.8, .seed = 7, .max_tokens = 600};

// rule: HA1
// The pause before the restart is long enough to be seen from outside.
TEST(ServingFaultsTest, StreamsOutliveTheWorker) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--restart-backoff-min", "4"})) << server.output();
  const ChatAnswer greedy = Ask(server.port(), kStory);
  const ChatAnswer seeded = Ask(server.port(), kSeededStory);
  ASSERT_EQ(greedy.entries.size(), 600u) << greedy.refusal;
  const int coordinator = server.Find("skein-coordinator").pid();
  auto streams = OpenStreams(server.port(), kStory, 2);
  for (auto& stream : OpenStreams(server.port(), kSeededStory, 2)) {
    streams.push_back(std::move(stream));
  }
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(10)) << server.output();
  const ProcessHandle worker = server.Find("skein-worker");
  ASSERT_TRUE(worker.Signal(SIGKILL));
  ASSERT_TRUE(worker.WaitForEnd(kLimit));
  EXPECT_TRUE(server.WaitForHealth(503, "no worker group is ready")) << server.output();
  for (const auto& stream : streams) EXPECT_FALSE(stream->ended()) << "killed in the middle";
  EXPECT_TRUE(server.WaitForHealth(200)) << server.output();
  for (size_t i = 0; i < streams.size(); ++i) {
    const ChatAnswer answer = streams[i]->Join();
    EXPECT_EQ(answer, i < 2 ? greedy : seeded) << "stream " << i;
    EXPECT_TRUE(answer.is_done);
  }
  EXPECT_NE(server.Find("skein-worker").pid(), worker.pid());
  EXPECT_EQ(server.Find("skein-coordinator").pid(), coordinator);
  EXPECT_EQ(server.Metric("skein_epoch_changes_total"), 1) << server.output();
  EXPECT_EQ(server.Metric("skein_replays_total"), 4);
}

TEST(ServingFaultsTest, StreamsOutliveSeveralWorkers) {
  constexpr int kKills = 4;
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const ChatAnswer greedy = Ask(server.port(), kStory);
  const auto streams = OpenStreams(server.port(), kStory, 4);
  for (int kill = 0; kill < kKills; ++kill) {
    const size_t reached = streams[0]->num_tokens() + 30;
    for (const auto& stream : streams) {
      ASSERT_TRUE(stream->WaitTokens(reached))
          << ::testing::PrintToString(stream->Join()) << server.output();
    }
    const ProcessHandle worker = server.Find("skein-worker");
    ASSERT_TRUE(worker.Signal(SIGKILL));
    ASSERT_TRUE(worker.WaitForEnd(kLimit));
  }
  for (const auto& stream : streams) EXPECT_EQ(stream->Join(), greedy) << server.output();
  EXPECT_EQ(server.Metric("skein_epoch_changes_total"), kKills) << server.output();
  EXPECT_EQ(server.Metric("skein_replays_total"), 4 * kKills);
  EXPECT_EQ(server.Metric("skein_generation_tokens_total"), 5 * 600) << server.output();
}

TEST(ServingFaultsTest, AWorkerThatStandsStillIsNotReady) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const ChatAnswer undisturbed = Ask(server.port(), kStory);
  ChatStream stream(server.port(), kStory);
  ASSERT_TRUE(stream.WaitTokens(10));
  const ProcessHandle worker = server.Find("skein-worker");
  ASSERT_TRUE(worker.Signal(SIGSTOP));
  EXPECT_TRUE(server.WaitForHealth(503, "no worker group is ready")) << server.output();
  const ChatAnswer refused = Ask(server.port(), kStory);
  EXPECT_EQ(refused.status, 503) << refused.cut;
  EXPECT_THAT(refused.refusal, HasSubstr("\"code\":\"not_ready\""));
  EXPECT_EQ(server.Metric("skein_admission_rejections_total"), 1);
  EXPECT_FALSE(stream.ended());
  ASSERT_TRUE(worker.Signal(SIGCONT));
  EXPECT_TRUE(server.WaitForHealth(200)) << server.output();
  EXPECT_EQ(stream.Join(), undisturbed);
  EXPECT_EQ(server.Find("skein-worker").pid(), worker.pid());
}

// rule: R3.2
TEST(ServingFaultsTest, TheLossOfTheCoordinatorCutsStreamsVisibly) {
  const std::string port = std::to_string(FreePort());
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--port", port})) << server.output();
  const ChatAnswer whole = Ask(server.port(), kStory);
  const int worker = server.Find("skein-worker").pid();
  const auto streams = OpenStreams(server.port(), kStory, 4);
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(10)) << server.output();
  ASSERT_TRUE(server.Find("skein-coordinator").Signal(SIGKILL));
  for (const auto& stream : streams) {
    const ChatAnswer answer = stream->Join();
    EXPECT_THAT(answer.cut, HasSubstr("was cut")) << "the last chunk is missing";
    EXPECT_FALSE(answer.is_done);
    EXPECT_EQ(answer.finish_reason, "");
    EXPECT_LT(answer.entries.size(), 600u);
  }
  ASSERT_TRUE(server.WaitForOutput("coordinator: ready http://127.0.0.1:" + port, 2))
      << server.output();
  EXPECT_TRUE(server.WaitForHealth(200)) << server.output();
  EXPECT_EQ(Ask(server.port(), kStory), whole);
  EXPECT_EQ(server.Find("skein-worker").pid(), worker) << "only the dead child is replaced";
}

// rule: A6, AB7
TEST(ServingFaultsTest, TermLetsStreamsEndAndRefusesNewRequests) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const ChatAnswer undisturbed = Ask(server.port(), kStory);
  const auto streams = OpenStreams(server.port(), kStory, 4);
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(10)) << server.output();
  server.skein().Signal(SIGTERM);
  EXPECT_TRUE(server.WaitForHealth(503, "draining")) << server.output();
  const ChatAnswer refused = Ask(server.port(), kStory);
  EXPECT_EQ(refused.status, 503) << refused.cut;
  EXPECT_THAT(refused.refusal, HasSubstr("\"code\":\"draining\""));
  EXPECT_THAT(refused.retry_after, ::testing::Ne(""));
  EXPECT_EQ(server.Metric("skein_admission_rejections_total"), 1);
  for (const auto& stream : streams) EXPECT_FALSE(stream->ended()) << "all of this beside them";
  for (const auto& stream : streams) {
    const ChatAnswer answer = stream->Join();
    EXPECT_EQ(answer, undisturbed);
    EXPECT_TRUE(answer.is_done);
  }
  EXPECT_EQ(server.WaitForExit(), 0) << server.output();
  EXPECT_THAT(server.Alive(), IsEmpty());
}

TEST(ServingFaultsTest, ADrainThatTakesTooLongEndsStreamsWithAnError) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--shutdown-timeout", "0.1"})) << server.output();
  ChatStream stream(server.port(), {.content = "Tell me about rivers.", .max_tokens = 3500});
  ASSERT_TRUE(stream.WaitTokens(10));
  server.skein().Signal(SIGTERM);
  const ChatAnswer answer = stream.Join();
  EXPECT_THAT(answer.error, HasSubstr("the server stopped before the answer ended"));
  EXPECT_FALSE(answer.is_done);
  EXPECT_EQ(answer.finish_reason, "");
  EXPECT_EQ(server.WaitForExit(), 0) << server.output();
  EXPECT_THAT(server.Alive(), IsEmpty());
}

// rule: OR2
TEST(ServingFaultsTest, NothingSurvivesTheSupervisorUnderLoad) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const auto streams = OpenStreams(server.port(), kStory, 4);
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(10)) << server.output();
  const ProcessHandle coordinator = server.Find("skein-coordinator");
  const ProcessHandle worker = server.Find("skein-worker");
  ASSERT_TRUE(coordinator.valid() && worker.valid());
  server.skein().Signal(SIGKILL);
  const absl::Time end = protocol::MonotonicNow() + absl::Seconds(1);
  EXPECT_TRUE(coordinator.WaitForEnd(end - protocol::MonotonicNow()));
  EXPECT_TRUE(worker.WaitForEnd(end - protocol::MonotonicNow()));
  EXPECT_EQ(server.WaitForExit(), -SIGKILL);
  EXPECT_THAT(server.Alive(), IsEmpty());
  for (const auto& stream : streams) EXPECT_FALSE(stream->Join().is_done);
}

}  // namespace
}  // namespace skein::tests
