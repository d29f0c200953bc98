// The worker's side of the protocol against a recorded coordinator and a fake device thread.
#include "worker/worker_actor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/protocol/virtual_context.h"

namespace skein::tests {
namespace {

using protocol::Epoch;
using protocol::StepId;
using protocol::StepPlan;
using protocol::StepResult;
using ::testing::HasSubstr;

constexpr protocol::ActorId kSelf{protocol::NodeId(1), 0};

// Keeps plans until the test lets them finish.
class HeldRunner final : public worker::StepRunner {
 public:
  absl::Status Submit(StepPlan plan) override {
    if (full) return absl::ResourceExhaustedError("the device is busy");
    plans.push_back(std::move(plan));
    return absl::OkStatus();
  }
  absl::Status Reset() override {
    ++resets;
    return absl::OkStatus();
  }
  std::vector<StepResult> TakeResults() override { return std::exchange(results, {}); }

  absl::Status Move(protocol::MoveBlocks move) override {
    if (!moves_blocks) return StepRunner::Move(std::move(move));
    moves.push_back(std::move(move));
    return absl::OkStatus();
  }
  std::vector<protocol::BlocksMoved> TakeMoved() override { return std::exchange(moved, {}); }

  // The oldest plan ends.
  void FinishOne() {
    ASSERT_FALSE(plans.empty());
    StepResult result;
    result.epoch = plans.front().epoch;
    result.step = plans.front().step;
    result.lane = plans.front().lane;
    plans.erase(plans.begin());
    results.push_back(std::move(result));
  }

  std::vector<StepPlan> plans;
  std::vector<StepResult> results;
  bool moves_blocks = true;
  std::vector<protocol::MoveBlocks> moves;
  std::vector<protocol::BlocksMoved> moved;
  int resets = 0;
  bool full = false;
};

class WorkerActorTest : public ::testing::Test {
 protected:
  WorkerActorTest() {
    worker::WorkerActorOptions options;
    options.registration.build = "test";
    options.registration.geometry = {4, 8, 2, 16, 32};
    options.coordinator_wait = absl::Seconds(5);
    options.on_group_formed = [this] { ++formed_; };
    options.stop = &stop_;
    auto runner = std::make_unique<HeldRunner>();
    runner_ = runner.get();
    actor_ = std::make_unique<worker::WorkerActor>(options, std::move(runner));
    actor_->OnStart(context_);
  }

  void Receive(protocol::Message message) {
    protocol::Envelope envelope;
    envelope.from = protocol::kCoordinatorActor;
    envelope.to = kSelf;
    envelope.message = std::move(message);
    actor_->OnMessage(context_, std::move(envelope));
  }
  void Form(uint64_t epoch) {
    Receive(protocol::FormGroup{protocol::GroupId(3), protocol::RankId(0), 1, Epoch(epoch)});
  }
  void Plan(uint64_t epoch, uint64_t step) {
    StepPlan plan;
    plan.epoch = Epoch(epoch);
    plan.step = StepId(step);
    Receive(std::move(plan));
  }
  void Idle() { actor_->OnIdle(context_); }
  void LoseCoordinator() {
    actor_->OnPeerDown(context_, {protocol::kCoordinatorActor, absl::UnavailableError("lease")});
  }

  VirtualContext context_{kSelf};
  std::atomic<bool> stop_ = false;
  HeldRunner* runner_ = nullptr;
  std::unique_ptr<worker::WorkerActor> actor_;
  int formed_ = 0;
};

TEST_F(WorkerActorTest, RegistersAtStart) {
  const auto sent = context_.TakeSent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].to, protocol::kCoordinatorActor);
  EXPECT_EQ(sent[0].epoch, Epoch(0));
  const auto& registration = std::get<protocol::RegisterWorker>(sent[0].message);
  EXPECT_EQ(registration.build, "test");
  EXPECT_EQ(registration.geometry.num_blocks, 8U);
  EXPECT_EQ(registration.protocol_major, protocol::kProtocolMajor);
  EXPECT_EQ(registration.protocol_minor, protocol::kProtocolMinor);
}

TEST_F(WorkerActorTest, JoinsAGroupWithAnEmptyCache) {
  Form(9);
  const auto formed = context_.Sent<protocol::GroupFormed>();
  ASSERT_TRUE(formed.has_value());
  EXPECT_EQ(formed->group, protocol::GroupId(3));
  EXPECT_EQ(formed->epoch, Epoch(9));
  EXPECT_EQ(runner_->resets, 1);
  EXPECT_EQ(formed_, 1);
}

TEST_F(WorkerActorTest, RunsPlansAndSendsTheirResults) {
  Form(9);
  Plan(9, 1);
  Plan(9, 2);
  ASSERT_EQ(runner_->plans.size(), 2U);
  runner_->FinishOne();
  context_.TakeSent();
  Idle();
  const auto sent = context_.TakeSent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].epoch, Epoch(9));
  EXPECT_EQ(std::get<StepResult>(sent[0].message).step, StepId(1));
  context_.Advance(absl::Milliseconds(100), *actor_);
  const auto beat = context_.Sent<protocol::Heartbeat>();
  ASSERT_TRUE(beat.has_value());
  EXPECT_EQ(beat->last_step, StepId(1));
  EXPECT_EQ(beat->queued_plans, 1U);
}

TEST_F(WorkerActorTest, DropsAndCountsWhatIsOfAnotherEpoch) {
  Plan(9, 1);
  EXPECT_EQ(actor_->num_stale(), 1U) << "no epoch yet";
  Form(9);
  Plan(8, 1);
  EXPECT_EQ(actor_->num_stale(), 2U);
  EXPECT_TRUE(runner_->plans.empty());
  Plan(9, 2);
  Form(10);
  runner_->FinishOne();
  context_.TakeSent();
  Idle();
  EXPECT_EQ(actor_->num_stale(), 3U) << "the result of the ended epoch";
  EXPECT_TRUE(context_.TakeSent().empty());
}

TEST_F(WorkerActorTest, BlocksMoveWithinTheirEpochAlone) {
  Form(9);
  protocol::MoveBlocks move;
  move.transfer = protocol::TransferId(77);
  move.epoch = Epoch(8);
  Receive(move);
  EXPECT_TRUE(runner_->moves.empty());
  EXPECT_EQ(actor_->num_stale(), 1U);
  move.epoch = Epoch(9);
  Receive(move);
  ASSERT_EQ(runner_->moves.size(), 1U);
  EXPECT_EQ(runner_->moves[0], move);
  protocol::BlocksMoved moved;
  moved.transfer = move.transfer;
  moved.epoch = Epoch(9);
  runner_->moved = {moved};
  context_.TakeSent();
  Idle();
  const auto sent = context_.TakeSent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].epoch, Epoch(9));
  EXPECT_EQ(std::get<protocol::BlocksMoved>(sent[0].message), moved);
  runner_->moved = {moved};
  Form(10);
  context_.TakeSent();
  Idle();
  EXPECT_TRUE(context_.TakeSent().empty()) << "the end of a transfer of the ended epoch";
}

TEST_F(WorkerActorTest, AnOrderThatTheRunnerCannotTakeIsAnswered) {
  Form(9);
  runner_->moves_blocks = false;
  protocol::MoveBlocks move;
  move.transfer = protocol::TransferId(77);
  move.epoch = Epoch(9);
  move.side = protocol::MoveSide::kFetch;
  context_.TakeSent();
  Receive(move);
  const auto moved = context_.Sent<protocol::BlocksMoved>();
  ASSERT_TRUE(moved.has_value());
  EXPECT_EQ(moved->transfer, move.transfer);
  EXPECT_EQ(moved->side, protocol::MoveSide::kFetch);
  EXPECT_EQ(moved->status, protocol::MoveStatus::kRefused);
  EXPECT_THAT(moved->message, HasSubstr("moves no cache blocks"));
}

TEST_F(WorkerActorTest, AbortLeavesTheEpochAndKeepsTheRegistration) {
  Form(9);
  Receive(protocol::AbortEpoch{{}, Epoch(8), "an older one"});
  EXPECT_EQ(runner_->resets, 1);
  Receive(protocol::AbortEpoch{{}, Epoch(9), "a step failed"});
  EXPECT_EQ(runner_->resets, 2);
  Plan(9, 1);
  EXPECT_TRUE(runner_->plans.empty());
  context_.TakeSent();
  context_.Advance(absl::Milliseconds(100), *actor_);
  EXPECT_EQ(context_.CountSent<protocol::RegisterWorker>(), 0U);
  Form(10);
  Plan(10, 2);
  EXPECT_EQ(runner_->plans.size(), 1U);
}

TEST_F(WorkerActorTest, TheLeaseEndsAtFourFifths) {
  Form(9);
  Receive(protocol::LeaseGrant{1000});
  context_.Advance(absl::Milliseconds(800), *actor_);
  Plan(9, 1);
  EXPECT_EQ(runner_->plans.size(), 1U) << "the lease still holds";
  context_.TakeSent();
  context_.Advance(absl::Milliseconds(100), *actor_);
  EXPECT_EQ(runner_->resets, 2);
  EXPECT_EQ(context_.CountSent<protocol::RegisterWorker>(), 1U) << "it registers again";
  Plan(9, 2);
  EXPECT_EQ(runner_->plans.size(), 1U);
}

TEST_F(WorkerActorTest, ItsOwnDelayEndsNoLease) {
  Form(9);
  Receive(protocol::LeaseGrant{1000});
  context_.Advance(absl::Milliseconds(100), *actor_);
  context_.Starve(absl::Seconds(3));
  context_.Advance(absl::Milliseconds(100), *actor_);
  Plan(9, 1);
  EXPECT_EQ(runner_->plans.size(), 1U) << "grants may wait unread: the lease still holds";
  context_.Advance(absl::Milliseconds(900), *actor_);
  Plan(9, 2);
  EXPECT_EQ(runner_->plans.size(), 1U) << "silence while it runs ends the lease";
}

TEST_F(WorkerActorTest, GrantsRenewTheLease) {
  Form(9);
  for (int i = 0; i < 30; ++i) {
    Receive(protocol::LeaseGrant{1000});
    context_.Advance(absl::Milliseconds(500), *actor_);
  }
  Plan(9, 1);
  EXPECT_EQ(runner_->plans.size(), 1U);
}

TEST_F(WorkerActorTest, RegistersAgainWhenTheCoordinatorWasLost) {
  Form(9);
  Plan(9, 1);
  LoseCoordinator();
  EXPECT_EQ(runner_->resets, 2);
  context_.TakeSent();
  context_.SetDown(protocol::kCoordinatorActor, true);
  context_.Advance(absl::Milliseconds(300), *actor_);
  EXPECT_TRUE(context_.TakeSent().empty());
  context_.SetDown(protocol::kCoordinatorActor, false);
  context_.Advance(absl::Milliseconds(100), *actor_);
  EXPECT_EQ(context_.CountSent<protocol::RegisterWorker>(), 1U);
  context_.Advance(absl::Milliseconds(500), *actor_);
  EXPECT_EQ(context_.CountSent<protocol::RegisterWorker>(), 1U) << "once is enough";
}

TEST_F(WorkerActorTest, NoCoordinatorForLongEndsTheProcess) {
  LoseCoordinator();
  context_.SetDown(protocol::kCoordinatorActor, true);
  context_.Advance(absl::Milliseconds(4900), *actor_);
  EXPECT_FALSE(context_.stopped().has_value());
  context_.Advance(absl::Milliseconds(300), *actor_);
  ASSERT_TRUE(context_.stopped().has_value());
  EXPECT_EQ(context_.stopped()->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(context_.stopped()->message(), "no coordinator for 5s");
}

TEST_F(WorkerActorTest, ASpareBeatsAndStaysWhileItIsAnswered) {
  for (int i = 0; i < 100; ++i) {
    context_.TakeSent();
    context_.Advance(absl::Milliseconds(100), *actor_);
    const auto sent = context_.TakeSent();
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(sent[0].epoch, Epoch(0));
    ASSERT_TRUE(std::holds_alternative<protocol::Heartbeat>(sent[0].message));
    Receive(protocol::LeaseGrant{1000});
  }
  EXPECT_FALSE(context_.stopped().has_value());
}

TEST_F(WorkerActorTest, ShutdownAndSignalsStopInGoodOrder) {
  Receive(protocol::Shutdown{"rollout"});
  ASSERT_TRUE(context_.stopped().has_value());
  EXPECT_TRUE(context_.stopped()->ok());
}

TEST_F(WorkerActorTest, ARefusalEndsWithItsReason) {
  Receive(protocol::Shutdown{"worker 1 speaks protocol 2.0", true});
  ASSERT_TRUE(context_.stopped().has_value());
  EXPECT_EQ(*context_.stopped(),
            absl::FailedPreconditionError(
                "the coordinator refused this worker: worker 1 speaks protocol 2.0"));
}

TEST_F(WorkerActorTest, ASignalStopsAtTheNextWakeUp) {
  Idle();
  EXPECT_FALSE(context_.stopped().has_value());
  stop_ = true;
  Idle();
  ASSERT_TRUE(context_.stopped().has_value());
  EXPECT_TRUE(context_.stopped()->ok());
}

TEST_F(WorkerActorTest, APlanThatCannotBeQueuedEndsTheProcess) {
  Form(9);
  runner_->full = true;
  Plan(9, 5);
  ASSERT_TRUE(context_.stopped().has_value());
  EXPECT_EQ(context_.stopped()->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(context_.stopped()->message(), "step 5 cannot be queued: the device is busy");
}

TEST_F(WorkerActorTest, AResultThatCannotBeSentLeavesTheEpoch) {
  Form(9);
  Plan(9, 1);
  runner_->FinishOne();
  context_.SetDown(protocol::kCoordinatorActor, true);
  Idle();
  EXPECT_EQ(runner_->resets, 2);
  context_.SetDown(protocol::kCoordinatorActor, false);
  context_.TakeSent();
  context_.Advance(absl::Milliseconds(100), *actor_);
  EXPECT_EQ(context_.CountSent<protocol::RegisterWorker>(), 1U);
}

TEST_F(WorkerActorTest, MessagesForCoordinatorsAreDropped) {
  Form(9);
  context_.TakeSent();
  Receive(StepResult{});
  Receive(protocol::Heartbeat{});
  Receive(protocol::RegisterWorker{});
  EXPECT_TRUE(context_.TakeSent().empty());
  EXPECT_FALSE(context_.stopped().has_value());
}

}  // namespace
}  // namespace skein::tests
