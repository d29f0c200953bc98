// Operators' verbs through a control loop with two groups of complete fake workers and a virtual
// clock: status, drain, a whole rolling restart, and what readiness follows.
#include "coordinator/operations.h"

#include <map>
#include <memory>
#include <optional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/control_loop.h"
#include "tests/protocol/virtual_context.h"
#include "tests/scheduler/fake_worker.h"

namespace skein::tests {
namespace {

using coordinator::ClusterStatus;
using coordinator::FinishReason;
using coordinator::OperatorAnswer;
using coordinator::OperatorCommand;
using coordinator::RolloutState;
using coordinator::TokenDelta;
using protocol::ActorId;
using protocol::Epoch;
using Verb = OperatorCommand::Verb;

constexpr protocol::CacheGeometry kGeometry = {4, 32, 4, 64, 64};

class TokenRecord final : public coordinator::TokenSink {
 public:
  void Deliver(TokenDelta delta) override {
    for (const coordinator::DeltaToken& token : delta.tokens) tokens.push_back(token.id);
    finish = delta.finish;
  }
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;
};

ActorId Worker(uint32_t node) { return {protocol::NodeId(node), 0}; }

class OperationsTest : public ::testing::Test {
 protected:
  explicit OperationsTest(uint32_t groups = 2)
      : loop_(Options(groups), door_, metrics_, drained_, &queue_) {
    loop_.OnStart(context_);
    for (uint32_t node = 1; node <= groups; ++node) StartWorker(node, "old");
  }

  static coordinator::ControlOptions Options(uint32_t groups) {
    coordinator::ControlOptions options;
    options.limits.max_num_seqs = 4;
    options.limits.max_num_batched_tokens = 64;
    options.limits.admission = {100, 10'000};
    options.num_groups = groups;
    options.term = protocol::Term(4);
    options.rollout = {absl::Seconds(1), absl::Seconds(5), absl::Seconds(1)};
    return options;
  }

  void Receive(uint32_t node, Epoch epoch, protocol::Message message) {
    protocol::Envelope envelope;
    envelope.from = Worker(node);
    envelope.to = protocol::kCoordinatorActor;
    envelope.epoch = epoch;
    envelope.message = std::move(message);
    loop_.OnMessage(context_, std::move(envelope));
  }
  void StartWorker(uint32_t node, const std::string& build,
                   protocol::PredecessorEnd end = protocol::PredecessorEnd::kOrdered) {
    protocol::RegisterWorker registration;
    registration.geometry = kGeometry;
    registration.build = build;
    registration.incarnation = protocol::Incarnation(++incarnation_);
    registration.predecessor_end = end;
    Receive(node, Epoch(0), registration);
    silent_.erase(node);
    Exchange();
  }
  void LoseWorker(uint32_t node) {
    loop_.OnPeerDown(context_, {Worker(node), absl::UnavailableError("gone")});
    silent_.insert(node);
  }

  // Workers answer all that was sent to them; returns who was told to end.
  void Exchange() {
    for (SentMessage& sent : context_.TakeSent()) {
      const uint32_t node = sent.to.node.value();
      if (const auto* form = std::get_if<protocol::FormGroup>(&sent.message)) {
        workers_[node].Restart(kGeometry);
        Receive(node, form->epoch, protocol::GroupFormed{form->group, form->rank, form->epoch});
      } else if (const auto* plan = std::get_if<protocol::StepPlan>(&sent.message)) {
        if (silent_.contains(node)) continue;
        protocol::StepResult result = workers_[node].Run(*plan);
        if (corrupt_ == node) {
          for (auto& summary : result.sequences) {
            for (auto& row : summary.rows) row.argmax_logprob = row.plain_logprob = -1.5F;
          }
        }
        Receive(node, plan->epoch, std::move(result));
      } else if (std::holds_alternative<protocol::Shutdown>(sent.message)) {
        ended_.push_back(node);
        refused_ = std::get<protocol::Shutdown>(sent.message).refused;
      }
    }
  }
  // Rounds of the loop with beating workers, `rounds` tenths of a second.
  void Run(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      for (const auto& [node, worker] : workers_) {
        if (!silent_.contains(node)) Receive(node, Epoch(0), protocol::Heartbeat{});
      }
      context_.Advance(absl::Milliseconds(100), loop_);
      Exchange();
      loop_.OnIdle(context_);
      Exchange();
    }
  }
  OperatorAnswer Ask(Verb verb, std::optional<uint32_t> group = std::nullopt,
                     const std::string& action = "", const std::string& build = "") {
    std::optional<OperatorAnswer> answer;
    EXPECT_TRUE(queue_
                    .TryPush({verb, group, action, build, "uid:0",
                              [&](OperatorAnswer got) { answer = std::move(got); }})
                    .ok());
    loop_.OnIdle(context_);
    Exchange();
    return answer.value();
  }
  ClusterStatus Status() { return Ask(Verb::kStatus).cluster; }
  std::shared_ptr<TokenRecord> Submit(uint64_t id, int32_t count) {
    auto client = std::make_shared<TokenRecord>();
    coordinator::SubmitRequest request;
    request.id = protocol::RequestId(id);
    request.prompt_ids = {static_cast<int32_t>(id), 6};
    request.stop = StopAt(count);
    request.arrival = std::chrono::steady_clock::now();
    request.sink = client;
    const absl::Status status = door_.TrySubmit(std::move(request));
    EXPECT_TRUE(status.ok()) << status;
    return client;
  }
  // Until the loop tells some worker to end; that worker ends and its successor starts.
  void ReplaceNext(uint32_t node, const std::string& build) {
    for (int i = 0; i < 50 && ended_.empty(); ++i) Run(1);
    ASSERT_THAT(ended_, ::testing::ElementsAre(node));
    ended_.clear();
    LoseWorker(node);
    Run(3);
    StartWorker(node, build);
  }

  CountingWaker waker_;
  protocol::MetricsRegistry registry_{{}};
  coordinator::CoordinatorMetrics metrics_{registry_, 2, 0};
  coordinator::FrontDoorQueue door_{{.queued_requests_max = 16, .queued_tokens_max = 1000}, waker_};
  coordinator::OperatorQueue queue_{waker_};
  std::atomic<bool> drained_ = false;
  VirtualContext context_{protocol::kCoordinatorActor};
  std::map<uint32_t, FakeWorker> workers_;
  std::set<uint32_t> silent_;
  uint32_t corrupt_ = 0;  // the worker whose log-probabilities are off
  uint64_t incarnation_ = 10;
  std::vector<uint32_t> ended_;  // workers that were told to
  bool refused_ = false;         // the last of them was refused
  coordinator::ControlLoop loop_;
};

class OneGroupTest : public OperationsTest {
 protected:
  OneGroupTest() : OperationsTest(1) {}
};

TEST_F(OperationsTest, StatusTellsOfGroupsAndWorkers) {
  Submit(1, 20);
  Run(2);
  const ClusterStatus status = Status();
  EXPECT_EQ(status.term, 4u);
  EXPECT_TRUE(status.ready);
  ASSERT_EQ(status.groups.size(), 2u);
  EXPECT_EQ(status.groups[0].state, "ready");
  EXPECT_EQ(status.groups[0].workers, std::vector{1u});
  EXPECT_EQ(status.groups[0].running, 1u);
  ASSERT_EQ(status.workers.size(), 2u);
  EXPECT_EQ(status.workers[1].build, "old");
  EXPECT_EQ(status.workers[1].incarnation, 12u);
  EXPECT_EQ(status.workers[1].state, "ready");
}

TEST_F(OperationsTest, ADrainedGroupFinishesAndStaysOutUntilItIsUndrained) {
  const auto first = Submit(1, 8);
  const auto second = Submit(2, 8);
  loop_.OnIdle(context_);
  ASSERT_TRUE(Ask(Verb::kDrain, 0).status.ok());
  EXPECT_EQ(Status().groups[0].state, "draining");
  const auto third = Submit(3, 8);
  Run(10);
  EXPECT_EQ(Status().groups[0].running, 0u);
  EXPECT_EQ(metrics_.groups.At({"draining"}).value(), 1);
  for (const auto& client : {first, second, third}) {
    EXPECT_EQ(client->finish, FinishReason::kLength);
  }
  EXPECT_EQ(Ask(Verb::kRollout, std::nullopt, "start").status.message(),
            "group 0 is drained by an operator; undrain it first");
  ASSERT_TRUE(Ask(Verb::kUndrain, 0).status.ok());
  EXPECT_EQ(Status().groups[0].state, "ready");
  EXPECT_EQ(Ask(Verb::kDrain, 2).status.message(), "there is no group 2; the groups are 0 to 1");
}

TEST_F(OperationsTest, AClosedServerLetsNobodyInAndKeepsRunning) {
  const auto running = Submit(1, 10);
  ASSERT_TRUE(Ask(Verb::kDrain).status.ok());
  coordinator::SubmitRequest request;
  request.id = protocol::RequestId(2);
  request.prompt_ids = {1};
  EXPECT_EQ(door_.TrySubmit(request).code(), absl::StatusCode::kFailedPrecondition);
  Run(12);
  EXPECT_EQ(running->finish, FinishReason::kLength);
  EXPECT_FALSE(context_.stopped().has_value());
  ASSERT_TRUE(Ask(Verb::kUndrain).status.ok());
  EXPECT_TRUE(door_.TrySubmit(request).ok());
}

TEST_F(OperationsTest, ARolloutReplacesEveryWorkerAndLosesNothing) {
  std::vector<std::shared_ptr<TokenRecord>> clients;
  for (uint64_t id = 1; id <= 4; ++id) clients.push_back(Submit(id, 60));
  Run(1);
  ASSERT_TRUE(Ask(Verb::kRollout, std::nullopt, "start", "new").status.ok());
  EXPECT_EQ(Ask(Verb::kRollout, std::nullopt, "start").status.message(),
            "a rollout is running at group 0; abort it first");
  ReplaceNext(1, "new");
  EXPECT_EQ(Status().groups[1].state, "ready") << "one at a time";
  ReplaceNext(2, "new");
  Run(30);
  const ClusterStatus status = Status();
  EXPECT_EQ(status.rollout.state, RolloutState::kDone) << status.rollout.reason;
  EXPECT_EQ(status.rollout.replaced, 2u);
  for (const auto& worker : status.workers) EXPECT_EQ(worker.build, "new");
  EXPECT_EQ(status.requests_failed, 0u);
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(clients[id - 1]->tokens, DecodeAlone({static_cast<int32_t>(id), 6}, StopAt(60), 64));
  }
}

TEST_F(OneGroupTest, RequestsWaitForTheOneGroupAndGoOn) {
  const auto before = Submit(1, 60);
  Run(2);
  ASSERT_TRUE(Ask(Verb::kRollout, std::nullopt, "start").status.ok());
  for (int i = 0; i < 50 && ended_.empty(); ++i) Run(1);
  EXPECT_FALSE(door_.ready()) << "nothing would be served now";
  const auto during = Submit(2, 10);
  ReplaceNext(1, "new");
  Run(80);
  EXPECT_EQ(before->tokens, DecodeAlone({1, 6}, StopAt(60), 64));
  EXPECT_EQ(during->tokens, DecodeAlone({2, 6}, StopAt(10), 64));
  EXPECT_EQ(Status().rollout.state, RolloutState::kDone) << Status().rollout.reason;
  EXPECT_EQ(Status().requests_failed, 0u);
}

// A spare in the replaced worker's place would leave the new program unchecked, and free to serve.
TEST_F(OperationsTest, ASpareDoesNotServeTheGroupThatIsReplaced) {
  StartWorker(3, "old");
  ASSERT_TRUE(Ask(Verb::kRollout, std::nullopt, "start", "new").status.ok());
  ReplaceNext(1, "new");
  EXPECT_EQ(Status().groups[0].workers, std::vector{1u});
  ReplaceNext(2, "new");
  Run(30);
  EXPECT_EQ(Status().rollout.state, RolloutState::kDone) << Status().rollout.reason;
}

TEST_F(OperationsTest, ANewWorkerWithOtherBitsGivesWayToTheOneBefore) {
  ASSERT_TRUE(Ask(Verb::kRollout, std::nullopt, "start").status.ok());
  for (int i = 0; i < 50 && ended_.empty(); ++i) Run(1);
  corrupt_ = 1;
  ReplaceNext(1, "new");
  for (int i = 0; i < 50 && ended_.empty(); ++i) Run(1);
  EXPECT_TRUE(refused_) << "another start of it would change nothing";
  EXPECT_EQ(Status().groups[0].state, "draining");
  corrupt_ = 0;
  ReplaceNext(1, "old");
  Run(10);
  const ClusterStatus status = Status();
  EXPECT_EQ(status.rollout.state, RolloutState::kHalted);
  EXPECT_THAT(status.rollout.reason, ::testing::HasSubstr("with logprob -1.5, expected"));
  EXPECT_THAT(status.rollout.reason, ::testing::HasSubstr("serves with build old"));
  EXPECT_EQ(status.groups[0].state, "ready");
}

TEST_F(OperationsTest, TheEndOfADrainLetsNobodyIntoAGroupThatARolloutLeftOut) {
  ASSERT_TRUE(Ask(Verb::kRollout, std::nullopt, "start").status.ok());
  for (int i = 0; i < 50 && ended_.empty(); ++i) Run(1);
  corrupt_ = 1;
  ReplaceNext(1, "new");
  ReplaceNext(1, "new");
  Run(10);
  ASSERT_EQ(Status().rollout.state, RolloutState::kHalted) << Status().rollout.reason;
  ASSERT_TRUE(Ask(Verb::kDrain, 1).status.ok());
  ASSERT_TRUE(Ask(Verb::kUndrain).status.ok());
  const ClusterStatus status = Status();
  EXPECT_EQ(status.groups[0].state, "draining");
  EXPECT_EQ(status.groups[1].state, "ready");
  EXPECT_THAT(std::string(Ask(Verb::kUndrain, 0).status.message()),
              ::testing::StartsWith("group 0 was left out by a rollout: "));
  EXPECT_TRUE(Status().ready) << "the other group serves";
  // A drain of it ends like any other, and stands in no rollout's way.
  ASSERT_TRUE(Ask(Verb::kDrain, 0).status.ok());
  ASSERT_TRUE(Ask(Verb::kUndrain, 0).status.ok());
  EXPECT_EQ(Status().groups[0].state, "draining");
  EXPECT_TRUE(Ask(Verb::kRollout, std::nullopt, "start").status.ok());
}

TEST_F(OperationsTest, AGroupThatIsDrainedDuringARolloutStaysDrained) {
  ASSERT_TRUE(Ask(Verb::kRollout, std::nullopt, "start").status.ok());
  ReplaceNext(1, "new");
  ASSERT_TRUE(Ask(Verb::kDrain, 1).status.ok());
  ReplaceNext(2, "new");
  Run(30);
  ASSERT_EQ(Status().rollout.state, RolloutState::kDone) << Status().rollout.reason;
  EXPECT_EQ(Status().groups[0].state, "ready");
  EXPECT_EQ(Status().groups[1].state, "draining") << "the operator did not let it in again";
  ASSERT_TRUE(Ask(Verb::kUndrain, 1).status.ok());
  EXPECT_EQ(Status().groups[1].state, "ready");
}

TEST_F(OperationsTest, WhatADrainMovesIsCountedUntilItIsComputedElsewhere) {
  const auto client = Submit(1, 60);
  Run(1);
  ASSERT_EQ(Status().groups[0].running, 1u);
  ASSERT_TRUE(Ask(Verb::kDrain, 0).status.ok());
  silent_.insert(2);  // the other one answers nothing
  Run(12);
  EXPECT_EQ(Status().groups[0].running, 0u);
  EXPECT_EQ(Status().groups[0].moving, 1u);
  LoseWorker(2);
  StartWorker(2, "old");
  Run(80);
  EXPECT_EQ(Status().groups[0].moving, 0u);
  EXPECT_EQ(client->tokens, DecodeAlone({1, 6}, StopAt(60), 64));
}

TEST_F(OneGroupTest, ReadinessFollowsTheWorkersSigns) {
  Run(3);
  EXPECT_TRUE(door_.ready());
  silent_.insert(1);
  Run(8);
  EXPECT_FALSE(door_.ready()) << "stopped, within a second";
  EXPECT_EQ(Status().groups[0].state, "suspect");
  silent_.clear();
  Run(1);
  EXPECT_TRUE(door_.ready());
}

TEST_F(OperationsTest, ASuspectWorkerGetsNoPlans) {
  Run(3);
  silent_.insert(1);
  Run(4);
  ASSERT_EQ(Status().groups[0].state, "suspect");
  context_.TakeSent();
  for (uint64_t id = 1; id <= 4; ++id) Submit(id, 40);
  loop_.OnIdle(context_);
  std::set<uint32_t> planned;
  for (const SentMessage& sent : context_.TakeSent()) {
    if (std::holds_alternative<protocol::StepPlan>(sent.message)) {
      planned.insert(sent.to.node.value());
    }
  }
  EXPECT_THAT(planned, ::testing::ElementsAre(2));
}

TEST_F(OneGroupTest, OurOwnDelayMakesNobodySuspect) {
  Run(3);
  context_.Starve(absl::Seconds(5));
  context_.Advance(absl::Milliseconds(100), loop_);
  EXPECT_TRUE(door_.ready());
}

TEST_F(OneGroupTest, ReadinessFollowsTheProgressOfSteps) {
  for (uint64_t id = 1; id <= 4; ++id) Submit(id, 40);
  Run(30);
  Submit(9, 40);
  // Plans are taken and nothing comes back, while the actor still beats.
  loop_.OnIdle(context_);
  context_.TakeSent();
  for (int i = 0; i < 20; ++i) {
    Receive(1, Epoch(0), protocol::Heartbeat{});
    context_.Advance(absl::Milliseconds(100), loop_);
    context_.TakeSent();
  }
  EXPECT_TRUE(door_.ready()) << "slow is not hung";
  for (int i = 0; i < 25; ++i) {
    Receive(1, Epoch(0), protocol::Heartbeat{});
    context_.Advance(absl::Milliseconds(100), loop_);
    context_.TakeSent();
  }
  EXPECT_FALSE(door_.ready());
  EXPECT_EQ(Status().groups[0].state, "hung");
}

TEST_F(OneGroupTest, ARequestThatKillsItsWorkersIsCondemned) {
  const auto innocent = Submit(1, 50);
  const auto poison = Submit(2, 50);
  int deaths = 0;
  for (int round = 0; round < 100 && !poison->finish; ++round) {
    loop_.OnIdle(context_);
    bool dies = false;
    for (SentMessage& sent : context_.TakeSent()) {
      const auto* plan = std::get_if<protocol::StepPlan>(&sent.message);
      if (plan == nullptr) continue;
      for (const auto& step : plan->sequences) dies = dies || step.sequence.value() == 2;
      if (!dies) Receive(1, plan->epoch, workers_[1].Run(*plan));
    }
    if (!dies) continue;
    ++deaths;
    LoseWorker(1);
    StartWorker(1, "old", protocol::PredecessorEnd::kOwn);
  }
  EXPECT_EQ(deaths, 3);
  EXPECT_EQ(poison->finish, FinishReason::kError);
  EXPECT_EQ(metrics_.quarantined_requests.value(), 1);
  Run(60);
  EXPECT_EQ(innocent->tokens, DecodeAlone({1, 6}, StopAt(50), 64));
  EXPECT_EQ(Status().quarantined_prompts, 1u);
}

}  // namespace
}  // namespace skein::tests
