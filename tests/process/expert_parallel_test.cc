// Real servers with groups of several ranks that share the experts of the
// model: answers are those of one rank bit for bit, the loss of a rank costs
// its group an epoch and no stream a token, and nothing is left behind.
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Groups of `ranks`, `groups` of them.
std::vector<std::string> Ranks(int ranks, int groups, std::vector<std::string> flags = {}) {
  flags.insert(flags.end(), {Concat("--data-parallel-size=", ranks * groups),
                             Concat("--expert-parallel-size=", ranks), "--restarts-max=100"});
  return flags;
}

// Frames and results of epochs, sessions and incarnations that are over.
double StaleDropped(const LiveServer &server) {
  return server.Metric("skein_stale_frames_dropped_total") +
         server.Metric("skein_stale_results_total");
}

ProcessHandle Worker(const LiveServer &server, int index) {
  return server.Find("skein-worker", Concat("--worker-index=", index));
}

std::set<std::string> SharedMemory() {
  std::set<std::string> names;
  for (const auto &entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename());
  }
  return names;
}

// Short and long ones, greedy and seeded, with drafts and without.
std::vector<ChatCall> Calls() {
  std::vector<ChatCall> calls;
  for (int i = 0; i < 12; ++i) {
    ChatCall &call = calls.emplace_back();
    call.max_tokens = 20 + i;
    const int length = i % 4 == 3 ? 200 + 10 * i : 3 + 7 * i;
    for (int at = 0; at < length; ++at) call.prompt_ids.push_back(300 + (at * 37 + i * i) % 3000);
    call.temperature = i % 3 == 1 ? 0.8 : 0;
    if (i % 3 == 1) call.seed = 100 + i;
    if (i % 5 == 2) call.speculation = R"({"enabled":false})";
  }
  return calls;
}

// All at once, so that the ranks have different batches.
std::vector<ChatAnswer> AskAll(uint16_t port, const std::vector<ChatCall> &calls) {
  std::vector<std::unique_ptr<ChatStream>> streams;
  for (const ChatCall &call : calls) streams.push_back(std::make_unique<ChatStream>(port, call));
  std::vector<ChatAnswer> answers;
  for (const auto &stream : streams) answers.push_back(stream->Join());
  return answers;
}

class OnOneRank {
 public:
  static const std::vector<ChatAnswer> &Answers() {
    static const std::vector<ChatAnswer> answers = [] {
      LiveServer server;
      EXPECT_TRUE(server.StartReady({"--max-num-queued-tokens", "100000"})) << server.output();
      return AskAll(server.port(), Calls());
    }();
    return answers;
  }
};

void ExpectAnswersOfOneRank(int ranks, int groups, std::vector<std::string> flags = {}) {
  const std::set<std::string> before = SharedMemory();
  LiveServer server;
  // A slow machine must not refuse what it would have to wait for.
  flags.insert(flags.end(), {"--max-num-queued-tokens", "100000"});
  ASSERT_TRUE(server.StartReady(Ranks(ranks, groups, std::move(flags)))) << server.output();
  EXPECT_THAT(server.output(), HasSubstr(Concat("  workers      ", ranks * groups, ", in ", groups,
                                                groups == 1 ? " group of " : " groups of ", ranks,
                                                " that share its experts")));
  const std::vector<ChatAnswer> answers = AskAll(server.port(), Calls());
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i], OnOneRank::Answers()[i]) << "call " << i << server.output();
  }
  EXPECT_GT(server.Metric("skein_spec_accepted_tokens_total"), 0);
  EXPECT_EQ(server.Metric("skein_epoch_changes_total"), 0) << server.output();
  EXPECT_EQ(SharedMemory(), before);
}

TEST(ExpertParallelTest, TwoRanksAnswerAsOne) { ExpectAnswersOfOneRank(2, 1); }

TEST(ExpertParallelTest, FourRanksAnswerAsOne) { ExpectAnswersOfOneRank(4, 1, {"--lanes=2"}); }

TEST(ExpertParallelTest, TwoGroupsOfTwoRanksAnswerAsOne) {
  ExpectAnswersOfOneRank(2, 2, {"--max-num-batched-tokens=64", "--max-num-seqs=3"});
}

// Aim: what a hit gives on two ranks is what one rank gives cold.
TEST(ExpertParallelTest, HitsAnswerAsTheColdModel) {
  LiveServer cold;
  ASSERT_TRUE(cold.StartReady({"--no-enable-prefix-caching"})) << cold.output();
  LiveServer server;
  ASSERT_TRUE(server.StartReady(Ranks(2, 1))) << server.output();
  int64_t found = 0;
  for (const int length : {150, 150, 151, 300, 300, 64, 65}) {
    ChatCall call;
    call.max_tokens = 24;
    for (int at = 0; at < length; ++at) call.prompt_ids.push_back(300 + at * 37 % 3000);
    const ChatAnswer got = Ask(server.port(), call);
    EXPECT_EQ(got, Ask(cold.port(), call)) << length;
    found += got.cached_tokens;
  }
  EXPECT_GT(found, 0);
}

// Aim: kill -9 of either rank in the middle of steps. The other one keeps its
// process and its weights, the group begins anew, and every stream goes on with
// its next token.
TEST(ExpertParallelTest, StreamsOutliveEitherRank) {
  const std::set<std::string> before = SharedMemory();
  LiveServer server;
  ASSERT_TRUE(server.StartReady(Ranks(2, 1, {"--lanes=2"}))) << server.output();
  const ChatCall story = {.content = "Tell me about rivers.", .max_tokens = 300};
  const ChatCall seeded = {
      .content = "Tell me about rivers.", .temperature = 0.8, .seed = 7, .max_tokens = 300};
  const ChatAnswer greedy_answer = Ask(server.port(), story);
  const ChatAnswer seeded_answer = Ask(server.port(), seeded);
  ASSERT_EQ(greedy_answer.entries.size(), 300u) << greedy_answer.refusal << server.output();
  int ended = 0;
  for (const int victim : {1, 0}) {
    const auto streams = OpenStreams(server.port(), story, 3);
    const auto seeded_streams = OpenStreams(server.port(), seeded, 3);
    for (const auto &stream : streams) ASSERT_TRUE(stream->WaitTokens(20)) << server.output();
    const int survivor = Worker(server, 1 - victim).pid();
    const ProcessHandle killed = Worker(server, victim);
    const absl::Time at = protocol::MonotonicNow();
    ASSERT_TRUE(killed.Signal(SIGKILL));
    ASSERT_TRUE(server.WaitForOutput("msg=\"epoch ended\"", ++ended)) << server.output();
    std::printf("rank %d killed: seen after %.0f ms\n", victim,
                absl::ToDoubleMilliseconds(protocol::MonotonicNow() - at));
    for (const auto &stream : streams) EXPECT_EQ(stream->Join(), greedy_answer) << server.output();
    for (const auto &stream : seeded_streams) EXPECT_EQ(stream->Join(), seeded_answer);
    EXPECT_EQ(Worker(server, 1 - victim).pid(), survivor);
    ASSERT_TRUE(server.WaitForHealth(200)) << server.output();
  }
  EXPECT_EQ(server.Metric("skein_epoch_changes_total"), 2) << server.output();
  EXPECT_EQ(server.Metric("skein_generation_tokens_total"), 14 * 300) << "each token once";
  server.skein().Signal(SIGTERM);
  EXPECT_EQ(server.WaitForExit(), 0) << server.output();
  EXPECT_THAT(server.Alive(), IsEmpty());
  EXPECT_EQ(SharedMemory(), before);
}

// Aim: a rank that stands still stops the group until its lease ends, and is
// replaced or comes back. What it then says of the epoch that is over is dropped:
// anything that was accepted would change a token or count one twice.
TEST(ExpertParallelTest, StreamsOutliveARankThatStandsStill) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady(Ranks(2, 1))) << server.output();
  const ChatCall story = {.content = "Tell me about rivers.", .max_tokens = 300};
  const ChatAnswer alone = Ask(server.port(), story);
  const auto streams = OpenStreams(server.port(), story, 4);
  for (const auto &stream : streams) ASSERT_TRUE(stream->WaitTokens(20)) << server.output();
  const ProcessHandle worker = Worker(server, 1);
  ASSERT_TRUE(worker.Signal(SIGSTOP));
  ASSERT_TRUE(server.WaitForOutput("msg=\"epoch ended\"")) << server.output();
  EXPECT_TRUE(server.WaitForHealth(503, "no worker group is ready")) << server.output();
  ASSERT_TRUE(worker.Signal(SIGCONT));
  for (const auto &stream : streams) EXPECT_EQ(stream->Join(), alone) << server.output();
  EXPECT_EQ(Worker(server, 1).pid(), worker.pid());
  EXPECT_EQ(server.Metric("skein_generation_tokens_total"), 5 * 300) << "each token once";
  EXPECT_TRUE(WaitUntil([&] { return StaleDropped(server) > 0; })) << server.output();
  std::printf("stale_accepted=0 stale_dropped=%.0f\n", StaleDropped(server));
}

}  // namespace
}  // namespace skein::tests
