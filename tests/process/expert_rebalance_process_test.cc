// Real servers whose experts change ranks while they stream: every answer is that of one rank, with
// drafts and without, also when a rank is killed on the way or afterwards, and nothing else ends.
#include <memory>
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

constexpr int kTokens = 60;

// Greedy and seeded, the drafts of all verified. Their prompts, no two of which have the cache of
// another, are of text so poor that the same experts are chosen again and again.
std::vector<ChatCall> Calls() {
  static int salts = 0;
  std::vector<ChatCall> calls;
  for (int i = 0; i < 6; ++i) {
    ChatCall& call = calls.emplace_back();
    call.max_tokens = kTokens;
    call.prompt_ids.assign(1000 + 30 * static_cast<size_t>(i), 300);
    call.cache_salt = std::to_string(++salts);
    call.temperature = i % 2 == 0 ? 0 : 0.8;
    if (i % 2 == 1) call.seed = 100 + i;
  }
  return calls;
}

std::vector<std::unique_ptr<ChatStream>> Open(const LiveServer& server) {
  std::vector<std::unique_ptr<ChatStream>> streams;
  for (const ChatCall& call : Calls()) {
    streams.push_back(std::make_unique<ChatStream>(server.port(), call));
  }
  return streams;
}

const std::vector<ChatAnswer>& AnswersOfOneRank() {
  static const std::vector<ChatAnswer> answers = [] {
    LiveServer server;
    EXPECT_TRUE(server.StartReady()) << server.output();
    std::vector<ChatAnswer> made;
    for (const auto& stream : Open(server)) made.push_back(stream->Join());
    return made;
  }();
  return answers;
}

class ExpertRebalanceProcessTest : public ::testing::Test {
 protected:
  void Start(int ranks, int lanes) {
    ASSERT_EQ(AnswersOfOneRank().size(), Calls().size());
    ASSERT_TRUE(server_.StartReady(
        {Concat("--data-parallel-size=", ranks), Concat("--expert-parallel-size=", ranks),
         Concat("--lanes=", lanes), "--expert-rebalance-interval=1", "--restarts-max=100"}))
        << server_.output();
  }
  void Expect(const std::vector<std::unique_ptr<ChatStream>>& streams) {
    for (size_t i = 0; i < streams.size(); ++i) {
      EXPECT_EQ(streams[i]->Join(), AnswersOfOneRank()[i]) << i << server_.output();
    }
  }
  // Streams until experts have changed places while some were under way.
  void StreamUntilRebalanced() {
    for (int round = 0; round < 40 && Done() == 0; ++round) Expect(Open(server_));
    ASSERT_GE(Done(), 1) << server_.output();
  }
  double Done() { return server_.Metric("skein_eplb_rebalances_total{result=\"ok\"}"); }
  ProcessHandle Worker(int index) {
    return server_.Find("skein-worker", Concat("--worker-index=", index));
  }

  LiveServer server_;
};

// rule: AC4, MM3
TEST_F(ExpertRebalanceProcessTest, StreamsWithDraftsGoOnWithTheSameTokens) {
  Start(2, 2);
  StreamUntilRebalanced();
  EXPECT_GT(server_.Metric("skein_spec_accepted_tokens_total"), 0);
  // Those that ran then were put back and went on.
  EXPECT_GT(server_.Metric("skein_replays_total"), 0) << server_.output();
  EXPECT_EQ(server_.Metric("skein_epoch_changes_total{cause=\"rebalanced\"}"),
            server_.Metric("skein_epoch_changes_total"));
  EXPECT_EQ(server_.Metric("skein_eplb_rebalance_seconds_count"), Done());
  EXPECT_GE(server_.Metric("skein_expert_load_imbalance_ratio{phase=\"decode\"}"), 1);
  EXPECT_EQ(server_.Metric("skein_worker_restarts_total"), 0);
  Expect(Open(server_));
}

// rule: MM3 — a rank that is killed when the experts move, and one that is killed afterwards and
// comes back with those that it loads at first.
TEST_F(ExpertRebalanceProcessTest, ARankThatIsKilledChangesNoAnswer) {
  Start(2, 1);
  for (int round = 0; round < 100; ++round) {
    const auto streams = Open(server_);
    const bool seen = WaitUntil(
        [this] { return server_.output().find("experts change places") != std::string::npos; },
        absl::Seconds(1));
    if (seen) {
      ASSERT_TRUE(Worker(1).Signal(SIGKILL));
    }
    Expect(streams);
    if (seen) break;
  }
  ASSERT_TRUE(server_.WaitForHealth(200)) << server_.output();
  StreamUntilRebalanced();
  for (const int victim : {0, 1}) {
    const auto streams = Open(server_);
    for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(20)) << server_.output();
    ASSERT_TRUE(Worker(victim).Signal(SIGKILL));
    Expect(streams);
    ASSERT_TRUE(server_.WaitForHealth(200)) << server_.output();
  }
}

}  // namespace
}  // namespace skein::tests
