// Groups whose ranks are on two hosts: network namespaces with a cable between them, `skein serve`
// on one, `skein-node` on the other, control over tcp with keys, ranks over UCX. Answers are those
// of one rank bit for bit; a cable that is cut and a rank that is killed cost the group an epoch
// and no stream a token. Left out, and said so, where namespaces may not be made.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/accept/child_program.h"
#include "tests/accept/networks.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"
#include "tests/protocol/curve_fixture.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;
using Flags = std::vector<std::string>;

const ChatCall kStory = {.content = "Tell me about rivers.", .max_tokens = 300};
const ChatCall kSeeded = {
    .content = "Tell me about rivers.", .temperature = 0.8, .seed = 7, .max_tokens = 300};

// Short and long ones, greedy and seeded, with drafts and without.
std::vector<ChatCall> Calls() {
  std::vector<ChatCall> calls;
  for (int i = 0; i < 10; ++i) {
    ChatCall& call = calls.emplace_back();
    call.max_tokens = 20 + i;
    const int length = i % 4 == 3 ? 200 + 10 * i : 3 + 7 * i;
    for (int at = 0; at < length; ++at) call.prompt_ids.push_back(300 + (at * 37 + i * i) % 3000);
    call.temperature = i % 3 == 1 ? 0.8 : 0;
    if (i % 3 == 1) call.seed = 100 + i;
    if (i % 5 == 2) call.speculation = R"({"enabled":false})";
  }
  calls.push_back(kStory);
  return calls;
}

std::vector<ChatAnswer> AskAll(uint16_t port) {
  std::vector<std::unique_ptr<ChatStream>> streams;
  for (const ChatCall& call : Calls()) streams.push_back(std::make_unique<ChatStream>(port, call));
  std::vector<ChatAnswer> answers;
  for (const auto& stream : streams) answers.push_back(stream->Join());
  return answers;
}

double StaleDropped(const LiveServer& server) {
  return server.Metric("skein_stale_frames_dropped_total") +
         server.Metric("skein_stale_results_total");
}

class TwoHostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!networks_.ok() || !networks_.Enter()) {
      std::printf("skipped: no network namespaces here (ip netns needs root)\n");
      GTEST_SKIP() << "no network namespaces here (ip netns needs root)";
    }
    keys_.Allow(keys_.server_key() + "\n" + keys_.NewPair("far"));
  }
  void TearDown() override {
    nodes_.clear();  // before the directory that they use
  }

  // Flags of a program on the host with this address, whose workers are `count` from `first` on.
  Flags Of(const std::string& address, int first, int count, const Flags& more) const {
    Flags flags = {"--control-endpoint",
                   "tcp://10.77.0.1:7000",
                   "--curve-server-key",
                   keys_.server_key(),
                   "--data-parallel-start-rank",
                   std::to_string(first),
                   "--data-parallel-size-local",
                   std::to_string(count),
                   "--backend",
                   "cpu",
                   "--threads",
                   "1",
                   "--pin-threads",
                   "0",
                   "--restarts-max",
                   "100",
                   "--max-num-queued-tokens",
                   "100000"};
    if (with_address_) flags.insert(flags.end(), {"--group-address", address});
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  void StartNode(bool far, int first, int count, const Flags& more) {
    Flags command;
    if (far) command = {"ip", "netns", "exec", networks_.far()};
    command.insert(command.end(),
                   {SKEIN_PROGRAM_DIRECTORY "/skein-node", "--model", "deploy/models/tiny-v41",
                    "--run-directory", Concat(server_->directory(), "/node.", nodes_.size()),
                    "--curve-secret-key-file", keys_.path("far")});
    const Flags own = Of(far ? Networks::kFarAddress : Networks::kNearAddress, first, count, more);
    command.insert(command.end(), own.begin(), own.end());
    nodes_.push_back(std::make_unique<ChildProgram>(
        command, Concat(server_->directory(), "/output.", nodes_.size())));
  }
  std::string output() const {
    std::string all = server_->output();
    for (const auto& node : nodes_) all += "\n---- node\n" + node->output();
    return all;
  }

  // The first group has its first rank here and its second one there; a second group the other way
  // round.
  bool StartGroups(int groups, Flags more = {}) {
    more.insert(more.end(), {"--data-parallel-size", std::to_string(2 * groups),
                             "--expert-parallel-size", "2"});
    server_ = std::make_unique<LiveServer>();
    Flags flags = Of(Networks::kNearAddress, 0, 1, more);
    flags.insert(flags.end(), {"--curve-secret-key-file", keys_.path("coordinator"),
                               "--curve-allowed-keys-file", keys_.path("allowed")});
    server_->Start(flags);
    StartNode(true, 1, groups, more);
    if (groups > 1) StartNode(false, 3, 1, more);
    return server_->WaitForOutput("coordinator: ready http://127.0.0.1:") &&
           server_->WaitForOutput("msg=\"group ready\"", groups) && server_->WaitForHealth(200);
  }

  void ExpectAnswersOfOneRank(int groups, Flags more = {}) {
    // Drafts whatever the load of the machine.
    more.insert(more.end(), {"--speculation-depth", "fixed"});
    std::vector<ChatAnswer> want;
    {
      LiveServer alone;
      ASSERT_TRUE(alone.StartReady({"--max-num-queued-tokens", "100000"})) << alone.output();
      want = AskAll(alone.port());
    }
    ASSERT_TRUE(StartGroups(groups, more)) << output();
    const std::vector<ChatAnswer> answers = AskAll(server_->port());
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].status, 200) << answers[i].refusal;
      EXPECT_EQ(answers[i], want[i]) << "call " << i;
    }
    EXPECT_GT(server_->Metric("skein_spec_accepted_tokens_total"), 0) << output();
    EXPECT_EQ(server_->Metric("skein_epoch_changes_total"), 0) << output();
  }

  // Streams that run while `begin` happens; how long it took until the epoch ended, or -1 when it
  // did not within the pause. Then `end`, and every stream is what it would have been.
  template <typename Begin, typename End>
  double Disturb(absl::Duration pause, const Begin& begin, const End& end) {
    const double epochs = server_->Metric("skein_epoch_changes_total");
    auto streams = OpenStreams(server_->port(), kStory, 2);
    for (auto& stream : OpenStreams(server_->port(), kSeeded, 2)) {
      streams.push_back(std::move(stream));
    }
    for (const auto& stream : streams) EXPECT_TRUE(stream->WaitTokens(5)) << output();
    const absl::Time began = MonotonicNow();
    begin();
    const bool seen =
        WaitUntil([&] { return server_->Metric("skein_epoch_changes_total") > epochs; }, pause);
    const absl::Duration took = MonotonicNow() - began;
    if (took < pause) WaitUntil([] { return false; }, pause - took);
    end();
    for (size_t i = 0; i < streams.size(); ++i) {
      EXPECT_EQ(streams[i]->Join(), i < 2 ? story_ : seeded_) << output();
    }
    EXPECT_TRUE(server_->WaitForHealth(200)) << output();
    num_streams_ += streams.size();
    return seen ? absl::ToDoubleSeconds(took) : -1;
  }
  bool Remember() {
    story_ = Ask(server_->port(), kStory);
    seeded_ = Ask(server_->port(), kSeeded);
    num_streams_ = 2;
    return story_.entries.size() == 300;
  }
  // Nothing of an epoch that was over was taken: else a token would be counted twice.
  void ExpectEachTokenOnce() const {
    EXPECT_EQ(server_->Metric("skein_generation_tokens_total"),
              static_cast<double>(num_streams_ * 300));
    std::printf("stale_accepted=0 stale_dropped=%.0f\n", StaleDropped(*server_));
  }

  const Networks networks_;
  const CurveFixture keys_;
  std::unique_ptr<LiveServer> server_;
  std::vector<std::unique_ptr<ChildProgram>> nodes_;
  ChatAnswer story_, seeded_;
  size_t num_streams_ = 0;
  bool with_address_ = true;  // give nodes transport.group_address
};

TEST_F(TwoHostsTest, OneGroupAnswersAsOneRank) { ExpectAnswersOfOneRank(1); }

TEST_F(TwoHostsTest, TwoGroupsAnswerAsOneRank) {
  ExpectAnswersOfOneRank(2, {"--lanes", "2", "--max-num-batched-tokens", "256"});
}

TEST_F(TwoHostsTest, StreamsOutliveACableThatIsCut) {
  ASSERT_TRUE(StartGroups(1)) << output();
  ASSERT_TRUE(Remember()) << story_.refusal << output();
  double slowest = 0;
  struct Fault {
    double pause_s;
    bool link;  // down; else all packets are lost
  };
  for (const auto& [pause_s, link] :
       {Fault{0.1, false}, Fault{0.5, true}, Fault{2, true}, Fault{10, false}}) {
    const double seen = Disturb(
        absl::Seconds(pause_s),
        [&] { EXPECT_TRUE(link ? networks_.SetLink(false) : networks_.Cut(true, true)); },
        [&] { EXPECT_TRUE(link ? networks_.SetLink(true) : networks_.Cut(false, false)); });
    std::printf("%s for %.1f s: seen after %.3f s\n", link ? "link down" : "packets lost", pause_s,
                seen);
    if (pause_s < 1.5) continue;  // may go unnoticed
    EXPECT_GT(seen, 0) << output();
    slowest = std::max(slowest, seen);
  }
  std::printf("slowest_detection_s=%.3f\n", slowest);
  EXPECT_LE(slowest, 1.2);
  ExpectEachTokenOnce();
}

TEST_F(TwoHostsTest, StreamsOutliveEitherRank) {
  ASSERT_TRUE(StartGroups(1)) << output();
  ASSERT_TRUE(Remember()) << story_.refusal << output();
  double slowest = 0;
  for (const int victim : {1, 0, 1}) {
    const ProcessHandle killed = server_->Find("skein-worker", Concat("--worker-index=", victim));
    const int survivor = server_->Find("skein-worker", Concat("--worker-index=", 1 - victim)).pid();
    const double seen = Disturb(
        absl::Seconds(3), [&] { EXPECT_TRUE(killed.Signal(SIGKILL)); }, [] {});
    EXPECT_GT(seen, 0) << output();
    slowest = std::max(slowest, seen);
    std::printf("rank %d killed: seen after %.3f s\n", victim, seen);
    EXPECT_EQ(server_->Find("skein-worker", Concat("--worker-index=", 1 - victim)).pid(), survivor);
  }
  std::printf("slowest_detection_s=%.3f\n", slowest);
  EXPECT_LE(slowest, 1.2);
  ExpectEachTokenOnce();
}

// A rank of another host without an address ends with the key that is missing.
TEST_F(TwoHostsTest, ARankThatCannotBeReachedSaysWhatIsMissing) {
  server_ = std::make_unique<LiveServer>();
  with_address_ = false;
  StartNode(true, 1, 1, {"--data-parallel-size", "2", "--expert-parallel-size", "2"});
  EXPECT_TRUE(nodes_[0]->process().WaitForEnd(absl::Seconds(20))) << output();
  EXPECT_THAT(nodes_[0]->output(),
              ::testing::HasSubstr("mean a group with ranks on another node; give a private IPv4"))
      << output();
}

}  // namespace
}  // namespace skein::tests
