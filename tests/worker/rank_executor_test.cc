// Device threads of two ranks: they meet when told, one that leaves wakes the other in the middle
// of a step, and the next epoch starts afresh. And the actor between them and the coordinator.
#include <algorithm>
#include <cstdlib>
#include <semaphore>

#include <gmock/gmock.h>
#include <poll.h>

#include "protocol/base/exit_codes.h"
#include "tests/protocol/virtual_context.h"
#include "tests/worker/draft_stream.h"
#include "tests/worker/rank_group.h"
#include "worker/watchdog.h"
#include "worker/worker_actor.h"

namespace skein::tests {
namespace {

using protocol::Epoch;
using protocol::StepPlan;
using protocol::StepResult;
using protocol::StepStatus;
using ::testing::HasSubstr;

class WaitingWaker final : public protocol::Waker {
 public:
  void Wake() override { semaphore_.release(); }
  void Wait() { semaphore_.acquire(); }

 private:
  std::counting_semaphore<> semaphore_{0};
};

// A rank with its device thread, seen from its actor.
struct Seat {
  Seat(const RankSetup& setup, int rank, worker::StepExecutor::StepHook hook = nullptr,
       std::unique_ptr<worker::StepWatchdog> watchdog = nullptr)
      : executor(LoadPart(setup, {rank, setup.ranks}), waker, std::move(hook), std::move(watchdog)),
        rank_id(static_cast<uint32_t>(rank)) {}

  void Form(const std::string& communicator, uint64_t epoch,
            const protocol::ExpertPlacement& placement = {}) {
    EXPECT_TRUE(executor.Reset().ok());
    protocol::FormGroup form{protocol::GroupId(1), protocol::RankId(rank_id), 2, Epoch(epoch),
                             communicator};
    form.placement = placement;
    EXPECT_TRUE(executor.Form(form).ok());
  }
  worker::FormOutcome AwaitFormed() {
    while (true) {
      if (auto outcome = executor.TakeFormed()) return *outcome;
      waker.Wait();
    }
  }
  StepResult Await() {
    while (true) {
      std::vector<StepResult> results = executor.TakeResults();
      if (!results.empty()) return results[0];
      waker.Wait();
    }
  }

  WaitingWaker waker;
  worker::StepExecutor executor;
  uint32_t rank_id;
};

StepPlan EmptyPlan(uint64_t epoch, uint64_t step) {
  StepPlan plan;
  plan.epoch = Epoch(epoch);
  plan.step = protocol::StepId(step);
  return plan;
}

TEST(RankExecutor, RanksMeetAndRunStepsTogether) {
  RankSetup setup;
  Seat zero(setup, 0);
  Seat one(setup, 1);
  const auto whole = LoadPart(setup, {});
  for (const uint64_t epoch : {3u, 4u}) {
    const std::string name = NewCommunicator();
    zero.Form(name, epoch);
    one.Form(name, epoch);
    for (Seat* seat : {&zero, &one}) {
      const worker::FormOutcome formed = seat->AwaitFormed();
      ASSERT_TRUE(formed.status.ok()) << formed.status;
      EXPECT_EQ(formed.epoch, Epoch(epoch));
    }
    whole->input().Reset();
    Stream stream = StartStream(8, 1, 0.0F, {VerificationMode::kGreedy, 3});
    for (uint64_t step = 1; step < 8; ++step) {
      StepPlan plan = EmptyPlan(epoch, step);
      plan.sequences.push_back(PlanStream(stream));
      ASSERT_TRUE(zero.executor.Submit(EmptyPlan(epoch, step)).ok());
      ASSERT_TRUE(one.executor.Submit(plan).ok());
      EXPECT_EQ(zero.Await().status, StepStatus::kOk);
      const StepResult result = one.Await();
      ASSERT_EQ(result.status, StepStatus::kOk) << result.message;
      EXPECT_EQ(result.sequences, worker::RunPlan(*whole, plan).sequences);
      CommitStream(stream, result.sequences[0].rows);
    }
  }
}

TEST(RankExecutor, ARankThatLeavesWakesTheOtherInItsStep) {
  RankSetup setup;
  Seat zero(setup, 0);
  Seat one(setup, 1);
  const std::string name = NewCommunicator();
  zero.Form(name, 1);
  one.Form(name, 1);
  ASSERT_TRUE(zero.AwaitFormed().status.ok());
  ASSERT_TRUE(one.AwaitFormed().status.ok());
  // Rank 1 has no plan: rank 0 waits for it in the first exchange.
  ASSERT_TRUE(zero.executor.Submit(EmptyPlan(1, 1)).ok());
  ::poll(nullptr, 0, 50);
  EXPECT_TRUE(zero.executor.TakeResults().empty());
  ASSERT_TRUE(one.executor.Reset().ok());
  const StepResult aborted = zero.Await();
  EXPECT_EQ(aborted.status, StepStatus::kAborted);
  EXPECT_THAT(aborted.message, HasSubstr("group 1 epoch 1"));
  EXPECT_THAT(aborted.message, HasSubstr("aborted by rank 1: the rank leaves the epoch"));
  // Still of the epoch: answered, not waited for.
  ASSERT_TRUE(zero.executor.Submit(EmptyPlan(1, 2)).ok());
  EXPECT_EQ(zero.Await().status, StepStatus::kAborted);
  // A rank's own leaving ends its own step as well.
  const std::string next = NewCommunicator();
  zero.Form(next, 2);
  one.Form(next, 2);
  ASSERT_TRUE(zero.AwaitFormed().status.ok());
  ASSERT_TRUE(one.AwaitFormed().status.ok());
  ASSERT_TRUE(zero.executor.Submit(EmptyPlan(2, 1)).ok());
  ::poll(nullptr, 0, 20);
  ASSERT_TRUE(zero.executor.Reset().ok());
  EXPECT_EQ(zero.Await().status, StepStatus::kAborted);
}

TEST(RankExecutor, WithoutItsGroupAPartComputesNothing) {
  RankSetup setup;
  Seat zero(setup, 0);
  ASSERT_TRUE(zero.executor.Submit(EmptyPlan(1, 1)).ok());
  const StepResult result = zero.Await();
  EXPECT_EQ(result.status, StepStatus::kAborted);
  EXPECT_EQ(result.message, "the ranks of the epoch have not met");
}

TEST(RankExecutor, AMeetingThatIsOverIsToldAndTheNextBegins) {
  RankSetup setup;
  Seat zero(setup, 0);
  zero.Form(NewCommunicator(), 1);
  ::poll(nullptr, 0, 20);
  // The other never came; a newer epoch does not wait for the deadline of the older.
  Seat one(setup, 1);
  const std::string name = NewCommunicator();
  zero.Form(name, 2);
  one.Form(name, 2);
  worker::FormOutcome outcome = zero.AwaitFormed();
  if (outcome.epoch == Epoch(1)) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kAborted);
    outcome = zero.AwaitFormed();
  }
  EXPECT_EQ(outcome.epoch, Epoch(2));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_TRUE(one.AwaitFormed().status.ok());
}

// A placement moves experts before the ranks meet. One that is none of the model fails the
// formation and nothing else: the worker stays and meets the others in the next epoch.
// rule: MM3
TEST(RankExecutor, APlacementIsTakenOrFailsTheFormationAlone) {
  RankSetup setup;
  Seat zero(setup, 0);
  Seat one(setup, 1);
  const auto whole = LoadPart(setup, {});
  protocol::ExpertPlacement placement = worker::FirstPlacement(whole->spec(), 2);
  placement[0].pop_back();
  zero.Form(NewCommunicator(), 1, placement);
  const worker::FormOutcome refused = zero.AwaitFormed();
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("layer 0 has 15 experts"));
  EXPECT_FALSE(refused.ends_worker);
  placement = worker::FirstPlacement(whole->spec(), 2);
  for (auto& layer : placement) std::reverse(layer.begin(), layer.end());
  const std::string name = NewCommunicator();
  zero.Form(name, 2, placement);
  one.Form(name, 2, placement);
  ASSERT_TRUE(zero.AwaitFormed().status.ok());
  ASSERT_TRUE(one.AwaitFormed().status.ok());
  Stream stream = StartStream(9, 1, 0.0F, {VerificationMode::kGreedy, 3});
  StepPlan plan = EmptyPlan(2, 1);
  plan.sequences.push_back(PlanStream(stream));
  ASSERT_TRUE(zero.executor.Submit(EmptyPlan(2, 1)).ok());
  ASSERT_TRUE(one.executor.Submit(plan).ok());
  EXPECT_EQ(zero.Await().status, StepStatus::kOk);
  EXPECT_EQ(one.Await().sequences, worker::RunPlan(*whole, plan).sequences);
}

// A rank that waits for another is not what stands still: its watchdog lets it wait for longer than
// a step may take.
TEST(RankExecutor, WaitingForARankIsNoStandstill) {
  RankSetup setup;
  auto watchdog = worker::StepWatchdog::Create({.grace = absl::Milliseconds(50)});
  ASSERT_TRUE(watchdog.ok());
  Seat zero(setup, 0, nullptr, *std::move(watchdog));
  Seat one(setup, 1);
  const std::string name = NewCommunicator();
  zero.Form(name, 1);
  one.Form(name, 1);
  ASSERT_TRUE(zero.AwaitFormed().status.ok());
  ASSERT_TRUE(one.AwaitFormed().status.ok());
  ASSERT_TRUE(zero.executor.Submit(EmptyPlan(1, 1)).ok());
  ::poll(nullptr, 0, 2'500);  // its deadline is 2 s
  ASSERT_TRUE(one.executor.Submit(EmptyPlan(1, 1)).ok());
  EXPECT_EQ(zero.Await().status, StepStatus::kOk);
  EXPECT_EQ(one.Await().status, StepStatus::kOk);
}

// What a rank waited for another does not make its own deadline longer.
TEST(RankExecutorDeathTest, ARankThatStandsStillAfterAWaitHasTheUsualDeadline) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        RankSetup setup;
        auto watchdog = worker::StepWatchdog::Create({.grace = absl::Milliseconds(100)});
        const auto hang = [](const StepPlan& plan) {
          if (plan.step == protocol::StepId(2)) ::poll(nullptr, 0, 30'000);
        };
        Seat zero(setup, 0, hang, *std::move(watchdog));
        Seat one(setup, 1);
        const std::string name = NewCommunicator();
        zero.Form(name, 1);
        one.Form(name, 1);
        if (!zero.AwaitFormed().status.ok() || !one.AwaitFormed().status.ok()) std::abort();
        if (!zero.executor.Submit(EmptyPlan(1, 1)).ok()) std::abort();
        ::poll(nullptr, 0, 700);
        if (!one.executor.Submit(EmptyPlan(1, 1)).ok()) std::abort();
        if (zero.Await().status != StepStatus::kOk) std::abort();
        if (!zero.executor.Submit(EmptyPlan(1, 2)).ok()) std::abort();
        zero.Await();
      },
      ::testing::ExitedWithCode(protocol::kExitStepDeadline), "its deadline was 2[0-9]{3} ms");
}

// A device whose steps cannot be recorded.
class UnrecordedDevice final : public SplitDevice {
 public:
  explicit UnrecordedDevice(absl::Status why)
      : SplitDevice(size_t{1} << 32), why_(std::move(why)) {}
  absl::StatusOr<std::unique_ptr<kernels::StepGraph>> Capture(
      const std::function<absl::Status()>&) override {
    return why_;
  }

 private:
  const absl::Status why_;
};

protocol::Envelope FromCoordinator(protocol::Message message) {
  protocol::Envelope envelope;
  envelope.from = protocol::kCoordinatorActor;
  envelope.message = std::move(message);
  return envelope;
}

// Formed anew, the group would fail again, for ever. The other rank, which can record, stays.
TEST(RankExecutor, AStepThatCannotBeRecordedEndsItsWorkerAndNotTheOthers) {
  RankSetup setup;
  setup.split = setup.record = true;
  Seat one(setup, 1);
  setup.device = std::make_shared<UnrecordedDevice>(
      absl::InternalError("moe.grouped_gemm waits for the device"));
  WaitingWaker waker;
  worker::WorkerActorOptions options;
  options.registration.num_ranks = 2;
  worker::WorkerActor zero(
      options, std::make_unique<worker::StepExecutor>(LoadPart(setup, {0, setup.ranks}), waker));
  VirtualContext context(protocol::ActorId{protocol::NodeId(1), 0});
  zero.OnStart(context);
  const std::string name = NewCommunicator();
  one.Form(name, 5);
  zero.OnMessage(context, FromCoordinator(protocol::FormGroup{
                              protocol::GroupId(1), protocol::RankId(0), 2, Epoch(5), name}));
  while (!context.stopped() && !context.Sent<protocol::AbortEpoch>()) {
    waker.Wait();
    zero.OnIdle(context);
  }
  const std::string error =
      "recording the step of 1 sequences, 0 drafts each: moe.grouped_gemm waits for the device; "
      "--enforce-eager goes without graphs";
  ASSERT_TRUE(context.stopped().has_value());
  EXPECT_EQ(*context.stopped(), absl::InternalError(error));
  const auto aborted = context.Sent<protocol::AbortEpoch>();
  ASSERT_TRUE(aborted.has_value());
  EXPECT_EQ(aborted->epoch, Epoch(5));
  EXPECT_EQ(aborted->reason, error);
  const worker::FormOutcome other = one.AwaitFormed();
  EXPECT_EQ(other.status.code(), absl::StatusCode::kAborted) << other.status;
  EXPECT_THAT(std::string(other.status.message()),
              HasSubstr("moe.grouped_gemm waits for the device"));
  EXPECT_FALSE(other.ends_worker);
}

// The lateness of a rank is not the error of who waits for it: both stay, and meet again.
TEST(RankExecutor, ARankThatIsLateWhileStepsAreRecordedEndsNobodysWorker) {
  RankSetup setup;
  setup.split = setup.record = true;
  Seat one(setup, 1);
  setup.device = std::make_shared<UnrecordedDevice>(
      absl::DeadlineExceededError("an exchange of the step did not end: a rank is late"));
  Seat zero(setup, 0);
  const std::string name = NewCommunicator();
  zero.Form(name, 5);
  one.Form(name, 5);
  const worker::FormOutcome waited = zero.AwaitFormed();
  EXPECT_EQ(waited.status.code(), absl::StatusCode::kDeadlineExceeded) << waited.status;
  EXPECT_FALSE(waited.ends_worker);
  const worker::FormOutcome other = one.AwaitFormed();
  EXPECT_EQ(other.status.code(), absl::StatusCode::kAborted) << other.status;
  EXPECT_FALSE(other.ends_worker);
}

// ---- the actor of a rank

// Says what the test wants of a meeting.
class MeetingRunner final : public worker::StepRunner {
 public:
  absl::Status Submit(StepPlan) override { return absl::OkStatus(); }
  absl::Status Reset() override {
    ++resets;
    return absl::OkStatus();
  }
  absl::Status Form(const protocol::FormGroup& group) override {
    forming = group;
    return absl::OkStatus();
  }
  std::optional<worker::FormOutcome> TakeFormed() override {
    return std::exchange(outcome, std::nullopt);
  }
  std::vector<StepResult> TakeResults() override { return {}; }

  int resets = 0;
  std::optional<protocol::FormGroup> forming;
  std::optional<worker::FormOutcome> outcome;
};

class RankActorTest : public ::testing::Test {
 protected:
  RankActorTest() {
    worker::WorkerActorOptions options;
    options.registration.rank = protocol::RankId(1);
    options.registration.num_ranks = 2;
    options.on_group_formed = [this] { ++formed_; };
    auto runner = std::make_unique<MeetingRunner>();
    runner_ = runner.get();
    actor_ = std::make_unique<worker::WorkerActor>(options, std::move(runner));
    actor_->OnStart(context_);
    context_.TakeSent();
  }
  void Receive(protocol::Message message) {
    actor_->OnMessage(context_, FromCoordinator(std::move(message)));
  }
  void Form(uint64_t epoch, uint32_t rank = 1) {
    Receive(
        protocol::FormGroup{protocol::GroupId(3), protocol::RankId(rank), 2, Epoch(epoch), "name"});
  }

  VirtualContext context_{protocol::ActorId{protocol::NodeId(2), 0}};
  MeetingRunner* runner_ = nullptr;
  std::unique_ptr<worker::WorkerActor> actor_;
  int formed_ = 0;
};

TEST_F(RankActorTest, SaysThatItIsReadyOnceTheRanksHaveMet) {
  Form(9);
  ASSERT_TRUE(runner_->forming.has_value());
  EXPECT_EQ(runner_->forming->communicator, "name");
  actor_->OnIdle(context_);
  EXPECT_FALSE(context_.Sent<protocol::GroupFormed>().has_value());
  runner_->outcome = worker::FormOutcome{Epoch(8), absl::OkStatus()};  // of an epoch before
  actor_->OnIdle(context_);
  EXPECT_EQ(formed_, 0);
  runner_->outcome = worker::FormOutcome{Epoch(9), absl::OkStatus()};
  actor_->OnIdle(context_);
  const auto formed = context_.Sent<protocol::GroupFormed>();
  ASSERT_TRUE(formed.has_value());
  EXPECT_EQ(formed->rank, protocol::RankId(1));
  EXPECT_EQ(formed->epoch, Epoch(9));
  EXPECT_EQ(formed_, 1);
}

TEST_F(RankActorTest, AMeetingThatFailsEndsTheEpoch) {
  Form(9);
  const int resets = runner_->resets;
  runner_->outcome =
      worker::FormOutcome{Epoch(9), absl::DeadlineExceededError("rank 0 is not there")};
  actor_->OnIdle(context_);
  const auto aborted = context_.Sent<protocol::AbortEpoch>();
  ASSERT_TRUE(aborted.has_value());
  EXPECT_EQ(aborted->epoch, Epoch(9));
  EXPECT_EQ(aborted->reason, "rank 0 is not there");
  EXPECT_EQ(runner_->resets, resets + 1);
  EXPECT_EQ(formed_, 0);
  EXPECT_FALSE(context_.stopped().has_value());
}

TEST_F(RankActorTest, AnErrorThatComesAgainInEveryEpochEndsTheWorker) {
  Form(9);
  const absl::Status error = absl::InternalError("recording the step of 1 sequences: no");
  runner_->outcome = worker::FormOutcome{Epoch(9), error, true};
  actor_->OnIdle(context_);
  EXPECT_EQ(context_.Sent<protocol::AbortEpoch>()->reason, error.message());
  EXPECT_EQ(context_.stopped(), error);
}

TEST_F(RankActorTest, APlaceThatIsNotItsPartEndsTheWorker) {
  Form(9, 0);
  ASSERT_TRUE(context_.stopped().has_value());
  EXPECT_EQ(context_.stopped()->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(context_.stopped()->message()),
              HasSubstr("makes this worker rank 0 of 2, it loaded the part of rank 1 of 2"));
}

}  // namespace
}  // namespace skein::tests
