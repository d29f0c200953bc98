// The control loop with several worker groups: readiness, assignment, what moves when a worker is
// lost, and the series of each group. Each group has a complete fake worker; the clock is virtual.
#include <map>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/control_loop.h"
#include "tests/protocol/virtual_context.h"
#include "tests/scheduler/fake_worker.h"

namespace skein::tests {
namespace {

using coordinator::FinishReason;
using coordinator::TokenDelta;
using protocol::ActorId;
using protocol::Epoch;
using protocol::GroupId;

constexpr protocol::CacheGeometry kGeometry = {4, 32, 4, 64, 32};

class TokenRecord final : public coordinator::TokenSink {
 public:
  void Deliver(TokenDelta delta) override {
    EXPECT_FALSE(finish.has_value()) << "a delta follows the last one";
    for (const coordinator::DeltaToken& token : delta.tokens) tokens.push_back(token.id);
    finish = delta.finish;
  }
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;
};

ActorId Worker(uint32_t node) { return {protocol::NodeId(node), 0}; }

class ControlGroupsTest : public ::testing::Test {
 protected:
  ControlGroupsTest() { loop_.OnStart(context_); }

  static coordinator::ControlOptions Options() {
    coordinator::ControlOptions options;
    options.limits.max_num_seqs = 4;
    options.limits.max_num_batched_tokens = 64;
    options.limits.lanes = 1;
    options.limits.admission = {100, 10'000};
    options.num_groups = 2;
    options.term = protocol::Term(4);
    options.shutdown_timeout = absl::Seconds(10);
    return options;
  }

  void Receive(ActorId from, Epoch epoch, protocol::Message message) {
    protocol::Envelope envelope;
    envelope.from = from;
    envelope.to = protocol::kCoordinatorActor;
    envelope.epoch = epoch;
    envelope.message = std::move(message);
    loop_.OnMessage(context_, std::move(envelope));
  }

  // A worker that registers and answers the FormGroup it gets.
  void StartWorker(uint32_t node) {
    protocol::RegisterWorker registration;
    registration.geometry = kGeometry;
    Receive(Worker(node), Epoch(0), registration);
    const auto form = context_.Sent<protocol::FormGroup>();
    ASSERT_TRUE(form.has_value());
    EXPECT_EQ(context_.TakeSent().back().to, Worker(node));
    EXPECT_EQ(form->group, GroupId(node - 1));
    workers_[node].Restart(kGeometry);
    Receive(Worker(node), form->epoch, protocol::GroupFormed{form->group, form->rank, form->epoch});
  }
  void LoseWorker(uint32_t node) {
    loop_.OnPeerDown(context_, {Worker(node), absl::UnavailableError("gone")});
  }

  std::shared_ptr<TokenRecord> Submit(uint64_t id, std::vector<int32_t> prompt, int32_t count) {
    auto client = std::make_shared<TokenRecord>();
    coordinator::SubmitRequest request;
    request.id = protocol::RequestId(id);
    request.prompt_ids = std::move(prompt);
    request.stop = StopAt(count);
    request.sink = client;
    const absl::Status status = door_.TrySubmit(std::move(request));
    EXPECT_TRUE(status.ok()) << status;
    return client;
  }

  // Plans sent by one round of the loop, by node.
  std::map<uint32_t, protocol::StepPlan> Plans() {
    loop_.OnIdle(context_);
    std::map<uint32_t, protocol::StepPlan> plans;
    for (SentMessage& sent : context_.TakeSent()) {
      if (auto* plan = std::get_if<protocol::StepPlan>(&sent.message)) {
        plans[sent.to.node.value()] = std::move(*plan);
      }
    }
    return plans;
  }
  void Answer(uint32_t node, const protocol::StepPlan& plan) {
    Receive(Worker(node), plan.epoch, workers_[node].Run(plan));
  }
  void RunAll() {
    for (int i = 0; i < 200; ++i) {
      const auto plans = Plans();
      if (plans.empty()) return;
      for (const auto& [node, plan] : plans) Answer(node, plan);
    }
    FAIL() << "the loop plans without end";
  }

  CountingWaker waker_;
  protocol::MetricsRegistry registry_{{}};
  coordinator::CoordinatorMetrics metrics_{registry_, 2, 0};
  coordinator::FrontDoorQueue door_{{.queued_requests_max = 16, .queued_tokens_max = 1000}, waker_};
  std::atomic<bool> drained_ = false;
  coordinator::ControlLoop loop_{Options(), door_, metrics_, drained_};
  VirtualContext context_{protocol::kCoordinatorActor};
  std::map<uint32_t, FakeWorker> workers_;
};

TEST_F(ControlGroupsTest, ServingStartsWhenAllGroupsAreReady) {
  StartWorker(2);
  EXPECT_FALSE(door_.ready()) << "one of two";
  loop_.OnIdle(context_);
  EXPECT_EQ(metrics_.groups.At({"ready"}).value(), 1);
  EXPECT_EQ(metrics_.groups.At({"starting"}).value(), 1);
  StartWorker(1);
  EXPECT_TRUE(door_.ready());
  // From then on those that live serve.
  LoseWorker(1);
  EXPECT_TRUE(door_.ready());
  LoseWorker(2);
  EXPECT_FALSE(door_.ready());
  StartWorker(2);
  EXPECT_TRUE(door_.ready());
}

TEST_F(ControlGroupsTest, AWorkerThatNeverComesKeepsTheOtherNotIdleForLong) {
  StartWorker(2);
  context_.Advance(absl::Milliseconds(9800), loop_);
  EXPECT_FALSE(door_.ready());
  Receive(Worker(2), Epoch(0), protocol::Heartbeat{});
  context_.Advance(absl::Milliseconds(200), loop_);
  Receive(Worker(2), Epoch(0), protocol::Heartbeat{});
  context_.Advance(absl::Milliseconds(200), loop_);
  EXPECT_TRUE(door_.ready());
  const auto client = Submit(1, {5, 6}, 3);
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({5, 6}, StopAt(3), 32));
}

TEST_F(ControlGroupsTest, RequestsAreSpreadAndCountedByGroup) {
  StartWorker(1);
  StartWorker(2);
  std::vector<std::shared_ptr<TokenRecord>> clients;
  for (uint64_t id = 1; id <= 4; ++id) {
    clients.push_back(Submit(id, {static_cast<int32_t>(id), 7}, 5));
  }
  const auto plans = Plans();
  ASSERT_EQ(plans.size(), 2U);
  for (const auto& [node, plan] : plans) {
    EXPECT_EQ(plan.sequences.size(), 2U) << node;
    EXPECT_EQ(plan.group, GroupId(node - 1));
    EXPECT_EQ(metrics_.engines[node - 1].requests_running.value(), 2);
    EXPECT_EQ(metrics_.engines[node - 1].prompt_tokens.value(), 4);
    Answer(node, plan);
  }
  RunAll();
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(clients[id - 1]->tokens, DecodeAlone({static_cast<int32_t>(id), 7}, StopAt(5), 32));
  }
  for (const coordinator::GroupMetrics& engine : metrics_.engines) {
    EXPECT_EQ(engine.generation_tokens.value(), 10);
    EXPECT_EQ(engine.kv_blocks_free.value(), 32);
  }
  EXPECT_EQ(metrics_.workers.At({"ready"}).value(), 2);
}

// What waits for its first step waits for room, or for a group that takes any.
TEST_F(ControlGroupsTest, WaitingRequestsAreCountedByReason) {
  const auto reasons = [&] {
    loop_.OnIdle(context_);
    EXPECT_EQ(metrics_.waiting_for_capacity.value() + metrics_.waiting_deferred.value(),
              metrics_.requests_waiting.value());
    EXPECT_EQ(metrics_.requests_waiting.value(), door_.waiting_requests());
    return std::pair(metrics_.waiting_for_capacity.value(), metrics_.waiting_deferred.value());
  };
  StartWorker(1);
  StartWorker(2);
  EXPECT_EQ(reasons(), std::pair(0.0, 0.0));
  std::vector<std::shared_ptr<TokenRecord>> clients;
  for (uint64_t id = 1; id <= 11; ++id) {
    clients.push_back(Submit(id, {static_cast<int32_t>(id), 7}, 3));
  }
  const auto [capacity, deferred] = reasons();
  EXPECT_GT(capacity, 0) << "more than both groups can run";
  EXPECT_EQ(deferred, 0);
  LoseWorker(1);
  EXPECT_EQ(reasons(), std::pair(capacity, 0.0)) << "the other group takes some";
  LoseWorker(2);
  EXPECT_EQ(reasons(), std::pair(0.0, capacity)) << "no group takes any";
  context_.TakeSent();
  StartWorker(2);
  RunAll();
  EXPECT_EQ(reasons(), std::pair(0.0, 0.0));
  for (const auto& client : clients) EXPECT_EQ(client->tokens.size(), 3U);
}

// rule: AB4
TEST_F(ControlGroupsTest, StreamsOfALostWorkerGoOnAtOnceOnTheOther) {
  StartWorker(1);
  StartWorker(2);
  const auto first = Submit(1, {5, 6, 7}, 9);
  const auto second = Submit(2, {8, 8}, 9);
  for (int i = 0; i < 3; ++i) {
    for (const auto& [node, plan] : Plans()) Answer(node, plan);
  }
  const auto plans = Plans();
  ASSERT_EQ(plans.size(), 2U);
  const protocol::StepResult late = workers_[1].Run(plans.at(1));
  LoseWorker(1);
  EXPECT_TRUE(door_.ready());
  Answer(2, plans.at(2));
  const auto next = Plans();
  ASSERT_EQ(next.size(), 1U);
  ASSERT_EQ(next.at(2).sequences.size(), 2U) << "both run there now";
  EXPECT_EQ(next.at(2).sequences[1].tokens.size(), 3U + first->tokens.size());
  Receive(Worker(1), plans.at(1).epoch, late);
  EXPECT_EQ(metrics_.stale_results.value(), 1);
  Answer(2, next.at(2));
  RunAll();
  EXPECT_EQ(first->tokens, DecodeAlone({5, 6, 7}, StopAt(9), 32));
  EXPECT_EQ(second->tokens, DecodeAlone({8, 8}, StopAt(9), 32));
  EXPECT_EQ(metrics_.replays.At({"replayed"}).value(), 1);
  EXPECT_EQ(metrics_.epoch_changes.At({"peer_down"}).value(), 1);
}

TEST_F(ControlGroupsTest, APlanThatCannotBeSentGoesToTheOtherGroupInTheSameRound) {
  StartWorker(1);
  StartWorker(2);
  const auto client = Submit(1, {5, 6, 7}, 4);
  context_.SetDown(Worker(1), true);
  const auto plans = Plans();
  ASSERT_EQ(plans.size(), 1U);
  Answer(2, plans.at(2));
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({5, 6, 7}, StopAt(4), 32));
}

TEST_F(ControlGroupsTest, AFailedStepEndsTheEpochOfItsGroupAlone) {
  StartWorker(1);
  StartWorker(2);
  const auto first = Submit(1, {5, 6, 7}, 3);
  const auto second = Submit(2, {8, 8}, 3);
  const auto plans = Plans();
  protocol::StepResult failed = workers_[2].Run(plans.at(2));
  failed.status = protocol::StepStatus::kFailed;
  failed.message = "out of paper";
  Receive(Worker(2), plans.at(2).epoch, failed);
  Answer(1, plans.at(1));
  loop_.OnIdle(context_);
  EXPECT_TRUE(loop_.scheduler().has_epoch(GroupId(0)));
  EXPECT_FALSE(loop_.scheduler().has_epoch(GroupId(1)));
  EXPECT_EQ(first->tokens.size(), 1U);
  bool told = false;
  std::optional<protocol::FormGroup> form;
  std::optional<protocol::StepPlan> next;
  for (SentMessage& sent : context_.TakeSent()) {
    if (std::holds_alternative<protocol::AbortEpoch>(sent.message)) told = sent.to == Worker(2);
    if (auto* message = std::get_if<protocol::FormGroup>(&sent.message)) form = *message;
    if (auto* plan = std::get_if<protocol::StepPlan>(&sent.message)) next = std::move(*plan);
  }
  EXPECT_TRUE(told);
  ASSERT_TRUE(form.has_value());
  EXPECT_EQ(form->group, GroupId(1));
  ASSERT_TRUE(next.has_value());
  workers_[2].Restart(kGeometry);
  Receive(Worker(2), form->epoch, protocol::GroupFormed{form->group, form->rank, form->epoch});
  Answer(1, *next);
  RunAll();
  EXPECT_EQ(first->tokens, DecodeAlone({5, 6, 7}, StopAt(3), 32));
  EXPECT_EQ(second->tokens, DecodeAlone({8, 8}, StopAt(3), 32));
}

// A leak that is planted in one of the groups.
TEST_F(ControlGroupsTest, AnAuditFollowsEveryStep) {
  StartWorker(1);
  StartWorker(2);
  const auto client = Submit(7, {5, 6, 7}, 9);
  const auto plans = Plans();
  ASSERT_EQ(plans.size(), 1U);
  const auto& [node, plan] = *plans.begin();
  // What a defect would leave; the interface gives no such way.
  const scheduler::GroupScheduler& engine = loop_.scheduler().engine(node - 1);
  const_cast<scheduler::BlockPool&>(*engine.block_pool())
      .AddReference(engine.running(0).front()->blocks.front());
  const auto leaks = [&](uint32_t of) { return metrics_.engines[of].cache.leaks.value(); };
  EXPECT_EQ(leaks(node - 1), 0);
  Answer(node, plan);
  loop_.OnIdle(context_);
  EXPECT_EQ(leaks(node - 1), 1);
  for (const SentMessage& sent : context_.TakeSent()) {
    if (const auto* next = std::get_if<protocol::StepPlan>(&sent.message)) Answer(node, *next);
  }
  RunAll();
  EXPECT_EQ(leaks(node - 1), 1) << "counted once";
  EXPECT_EQ(leaks(2 - node), 0);
  EXPECT_EQ(client->tokens.size(), 9U);
}

}  // namespace
}  // namespace skein::tests
