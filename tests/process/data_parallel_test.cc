// Real servers with two workers: one copy of the weights, streams that go on when any worker is
// killed, a worker that is given up, the loss of the coordinator, drain.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/base/strings.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const ChatCall kStory = {.content = "Tell me about rivers.", .max_tokens = 500};
const ChatCall kSeededStory = {
    .content = "Tell me about rivers.", .temperature = 0.8, .seed = 7, .max_tokens = 500};

std::vector<std::string> TwoWorkers(std::vector<std::string> flags = {}) {
  flags.insert(flags.end(), {"--data-parallel-size", "2"});
  return flags;
}

ProcessHandle Worker(const LiveServer& server, int index) {
  return server.Find("skein-worker", Concat("--worker-index=", index));
}

// KiB of the mapped weight files of a process, by the name of the count in smaps.
struct MappedWeights {
  int64_t resident = 0;
  int64_t proportional = 0;
  int64_t dirty = 0;
};

MappedWeights WeightsOf(const ProcessHandle& process) {
  MappedWeights sum;
  std::ifstream smaps(Concat("/proc/", process.pid(), "/smaps"));
  bool weights = false;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    words >> name;
    if (!name.ends_with(':')) weights = line.ends_with(".safetensors");
    if (!weights || !(words >> kib)) continue;
    if (name == "Rss:") sum.resident += kib;
    if (name == "Pss:") sum.proportional += kib;
    if (name == "Private_Dirty:" || name == "Shared_Dirty:") sum.dirty += kib;
  }
  return sum;
}

TEST(DataParallelTest, TheWeightsAreInMemoryOnce) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady(TwoWorkers())) << server.output();
  EXPECT_THAT(server.output(), HasSubstr("  workers      2, a group each; threads "));
  EXPECT_THAT(server.output(), HasSubstr("one read-only mapping of the weights in memory\n"));
  for (const auto& stream : OpenStreams(server.port(), kStory, 4)) {
    ASSERT_EQ(stream->Join().entries.size(), 500u) << server.output();
  }
  const MappedWeights first = WeightsOf(Worker(server, 0));
  const MappedWeights second = WeightsOf(Worker(server, 1));
  std::printf("weights resident %ld and %ld KiB, together %ld KiB of memory\n",
              static_cast<long>(first.resident), static_cast<long>(second.resident),
              static_cast<long>(first.proportional + second.proportional));
  EXPECT_GT(first.resident, 5000) << "the demo model has 13 MB";
  EXPECT_GT(second.resident, 5000) << "both worked";
  EXPECT_EQ(first.dirty, 0);
  EXPECT_EQ(second.dirty, 0);
  EXPECT_LT(10 * (first.proportional + second.proportional),
            11 * std::max(first.resident, second.resident));
}

TEST(DataParallelTest, StreamsGoOnAtOnceOnTheOtherWorker) {
  LiveServer server;
  ASSERT_TRUE(
      server.StartReady(TwoWorkers({"--restart-backoff-min", "30", "--restart-backoff-max", "60"})))
      << server.output();
  const ChatAnswer greedy = Ask(server.port(), kStory);
  const ChatAnswer seeded = Ask(server.port(), kSeededStory);
  ASSERT_EQ(greedy.entries.size(), 500u) << greedy.refusal;
  const auto streams = OpenStreams(server.port(), kStory, 4);
  const auto seeded_streams = OpenStreams(server.port(), kSeededStory, 4);
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(10)) << server.output();
  const ProcessHandle worker = Worker(server, 0);
  ASSERT_TRUE(worker.Signal(SIGKILL));
  ASSERT_TRUE(worker.WaitForEnd(kLimit));
  // The worker returns in half a minute: everything below happens without it.
  for (const auto& stream : streams) EXPECT_EQ(stream->Join(), greedy);
  for (const auto& stream : seeded_streams) EXPECT_EQ(stream->Join(), seeded);
  EXPECT_TRUE(server.WaitForHealth(200));
  EXPECT_FALSE(Worker(server, 0).valid());
  EXPECT_EQ(Ask(server.port(), kStory), greedy);
  EXPECT_EQ(server.Metric("skein_epoch_changes_total"), 1) << server.output();
  EXPECT_EQ(server.Metric("skein_replays_total"), 4) << "half of the streams";
  EXPECT_EQ(server.Metric("skein_generation_tokens_total"), 11 * 500);
}

TEST(DataParallelTest, StreamsOutliveEveryCombinationOfKills) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady(TwoWorkers({"--restarts-max", "100", "--lanes", "2"})))
      << server.output();
  const ChatAnswer greedy = Ask(server.port(), kStory);
  const ChatAnswer seeded = Ask(server.port(), kSeededStory);
  int ready = 1;
  for (const std::vector<int>& victims : std::vector<std::vector<int>>{{0}, {1}, {0, 1}, {1, 0}}) {
    const auto streams = OpenStreams(server.port(), kStory, 3);
    const auto seeded_streams = OpenStreams(server.port(), kSeededStory, 3);
    for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(20)) << server.output();
    for (const int victim : victims) {
      const ProcessHandle worker = Worker(server, victim);
      ASSERT_TRUE(worker.Signal(SIGKILL)) << victim;
      ASSERT_TRUE(worker.WaitForEnd(kLimit));
    }
    for (const auto& stream : streams) EXPECT_EQ(stream->Join(), greedy) << server.output();
    for (const auto& stream : seeded_streams) EXPECT_EQ(stream->Join(), seeded);
    // Both are there again before the next round.
    ready += static_cast<int>(victims.size());
    ASSERT_TRUE(server.WaitForOutput("msg=\"group ready\"", ready + 1)) << server.output();
    ASSERT_TRUE(server.WaitForHealth(200)) << server.output();
  }
  EXPECT_EQ(server.Metric("skein_generation_tokens_total"), 26 * 500) << "each token once";
}

TEST(DataParallelTest, AWorkerThatIsGivenUpLeavesTheOtherServing) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady(TwoWorkers({"--restarts-max", "0"}))) << server.output();
  const ChatAnswer alone = Ask(server.port(), kStory);
  ASSERT_TRUE(Worker(server, 1).Signal(SIGKILL));
  ASSERT_TRUE(server.WaitForOutput("msg=\"child failed too often\" child=worker.1"))
      << server.output();
  const auto streams = OpenStreams(server.port(), kStory, 4);
  for (const auto& stream : streams) EXPECT_EQ(stream->Join(), alone);
  EXPECT_TRUE(server.WaitForHealth(200));
  EXPECT_FALSE(Worker(server, 1).valid());
  EXPECT_TRUE(Worker(server, 0).valid());
  server.skein().Signal(SIGTERM);
  EXPECT_EQ(server.WaitForExit(), 0) << server.output();
  EXPECT_THAT(server.Alive(), IsEmpty());
}

TEST(DataParallelTest, BothWorkersOutliveTheCoordinator) {
  const std::string port = std::to_string(FreePort());
  LiveServer server;
  ASSERT_TRUE(server.StartReady(TwoWorkers({"--port", port}))) << server.output();
  const ChatAnswer whole = Ask(server.port(), kStory);
  const int pids[] = {Worker(server, 0).pid(), Worker(server, 1).pid()};
  const auto streams = OpenStreams(server.port(), kStory, 4);
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(10)) << server.output();
  ASSERT_TRUE(server.Find("skein-coordinator").Signal(SIGKILL));
  for (const auto& stream : streams) EXPECT_THAT(stream->Join().cut, HasSubstr("was cut"));
  ASSERT_TRUE(server.WaitForOutput("coordinator: ready http://127.0.0.1:" + port, 2));
  EXPECT_TRUE(server.WaitForHealth(200)) << server.output();
  EXPECT_EQ(Ask(server.port(), kStory), whole);
  EXPECT_EQ(Worker(server, 0).pid(), pids[0]);
  EXPECT_EQ(Worker(server, 1).pid(), pids[1]);
}

TEST(DataParallelTest, TermLetsStreamsOfBothWorkersEnd) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady(TwoWorkers())) << server.output();
  const ChatAnswer alone = Ask(server.port(), kStory);
  const auto streams = OpenStreams(server.port(), kStory, 4);
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(10)) << server.output();
  server.skein().Signal(SIGTERM);
  for (const auto& stream : streams) {
    const ChatAnswer answer = stream->Join();
    EXPECT_EQ(answer, alone);
    EXPECT_TRUE(answer.is_done);
  }
  EXPECT_EQ(server.WaitForExit(), 0) << server.output();
  EXPECT_THAT(server.Alive(), IsEmpty());
}

}  // namespace
}  // namespace skein::tests
