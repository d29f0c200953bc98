// Plans run in order on the device thread with the real demo model; refusals and bounds.
#include "worker/step_executor.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <semaphore>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "protocol/base/exit_codes.h"
#include "tests/worker/split_device.h"
#include "tests/worker/tiny_model.h"

namespace skein::tests {
namespace {

using protocol::StepId;
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

// `tokens` of one sequence from position `first` on.
StepPlan Plan(uint64_t step, std::vector<int32_t> tokens, uint32_t first = 0) {
  StepPlan plan;
  plan.group = protocol::GroupId(2);
  plan.epoch = protocol::Epoch(5);
  plan.step = StepId(step);
  plan.lane = 1;
  protocol::SequenceStep sequence;
  sequence.sequence = protocol::SequenceId(7);
  sequence.fresh_slot = first == 0;
  sequence.first_position = first;
  sequence.tokens.assign(tokens.begin(), tokens.end());
  sequence.table_size_before = first == 0 ? 0 : 1;
  if (first == 0) sequence.new_blocks = {protocol::BlockId(3)};
  sequence.sample = true;
  sequence.sampling.temperature = 0;
  sequence.sampling.num_top_logprobs = 3;
  plan.sequences.push_back(std::move(sequence));
  return plan;
}

TEST(RunPlan, SummarisesTheSampledRow) {
  TinyModel tiny({});
  ASSERT_TRUE(tiny.ok());
  const StepResult result = worker::RunPlan(tiny.model(), Plan(1, {0, 1415, 2824, 487}));
  EXPECT_EQ(result.status, StepStatus::kOk) << result.message;
  EXPECT_EQ(result.group, protocol::GroupId(2));
  EXPECT_EQ(result.epoch, protocol::Epoch(5));
  EXPECT_EQ(result.step, StepId(1));
  EXPECT_EQ(result.lane, 1U);
  ASSERT_EQ(result.sequences.size(), 1U);
  ASSERT_EQ(result.sequences[0].rows.size(), 1U);
  const protocol::RowSummary& row = result.sequences[0].rows[0];
  EXPECT_EQ(row.position, 4U);
  EXPECT_EQ(row.flags, 0U);
  EXPECT_EQ(row.plain_token, row.argmax_token) << "temperature 0";
  ASSERT_EQ(row.top.size(), 3U);
  EXPECT_EQ(row.top[0].token, row.argmax_token);
  EXPECT_EQ(row.top[0].logprob, row.argmax_logprob);
  EXPECT_GE(row.top[0].logprob, row.top[1].logprob);
  EXPECT_GE(row.top[1].logprob, row.top[2].logprob);
  EXPECT_LT(row.plain_logprob, 0);
}

TEST(RunPlan, AChunkWithoutSamplingHasNoRows) {
  TinyModel tiny({});
  ASSERT_TRUE(tiny.ok());
  StepPlan plan = Plan(1, {0, 1415});
  plan.sequences[0].sample = false;
  const StepResult result = worker::RunPlan(tiny.model(), plan);
  EXPECT_EQ(result.status, StepStatus::kOk);
  ASSERT_EQ(result.sequences.size(), 1U);
  EXPECT_TRUE(result.sequences[0].rows.empty());
}

TEST(RunPlan, AnEmptyPlanIsDoneAtOnce) {
  TinyModel tiny({});
  ASSERT_TRUE(tiny.ok());
  const StepResult result = worker::RunPlan(tiny.model(), StepPlan{});
  EXPECT_EQ(result.status, StepStatus::kOk);
  EXPECT_TRUE(result.sequences.empty());
}

TEST(RunPlan, AContradictionIsRefusedByName) {
  TinyModel tiny({});
  ASSERT_TRUE(tiny.ok());
  const StepResult result = worker::RunPlan(tiny.model(), Plan(4, {5}, 9));
  EXPECT_EQ(result.status, StepStatus::kRefused);
  EXPECT_EQ(result.message, "sequence 7: slot 0 does not hold it");
  EXPECT_EQ(result.step, StepId(4));
  EXPECT_TRUE(result.sequences.empty());
}

class StepExecutorTest : public ::testing::Test {
 protected:
  // Results until `count` are there.
  std::vector<StepResult> Await(worker::StepExecutor& executor, size_t count) {
    std::vector<StepResult> all;
    while (all.size() < count) {
      waker_.Wait();
      for (StepResult& result : executor.TakeResults()) all.push_back(std::move(result));
    }
    return all;
  }

  TinyModel tiny_{TinySetup{}};
  WaitingWaker waker_;
};

TEST_F(StepExecutorTest, RunsPlansInOrderAndWakesTheActor) {
  ASSERT_TRUE(tiny_.ok());
  const StepResult alone = worker::RunPlan(tiny_.model(), Plan(1, {0, 1415, 2824}));
  tiny_.model().input().Reset();
  worker::StepExecutor executor(tiny_.Take(), waker_);
  ASSERT_TRUE(executor.Submit(Plan(1, {0, 1415})).ok());
  ASSERT_TRUE(executor.Submit(Plan(2, {2824}, 2)).ok());
  const std::vector<StepResult> results = Await(executor, 2);
  EXPECT_EQ(results[0].step, StepId(1));
  EXPECT_EQ(results[1].step, StepId(2));
  EXPECT_EQ(results[1].sequences, alone.sequences) << "chunks change no bit";
}

TEST_F(StepExecutorTest, ResetForgetsEverySequenceInOrder) {
  ASSERT_TRUE(tiny_.ok());
  worker::StepExecutor executor(tiny_.Take(), waker_);
  ASSERT_TRUE(executor.Submit(Plan(1, {0, 1415})).ok());
  ASSERT_TRUE(executor.Reset().ok());
  ASSERT_TRUE(executor.Submit(Plan(2, {2824}, 2)).ok());
  ASSERT_TRUE(executor.Submit(Plan(3, {0, 5})).ok());
  const std::vector<StepResult> results = Await(executor, 3);
  EXPECT_EQ(results[0].status, StepStatus::kOk);
  EXPECT_EQ(results[1].status, StepStatus::kRefused);
  EXPECT_THAT(results[1].message, HasSubstr("slot 0 does not hold it"));
  EXPECT_EQ(results[2].status, StepStatus::kOk);
}

TEST_F(StepExecutorTest, PlansWithoutAnswerAreBounded) {
  ASSERT_TRUE(tiny_.ok());
  worker::StepExecutor executor(tiny_.Take(), waker_);
  for (uint64_t step = 1; step <= 16; ++step) {
    ASSERT_TRUE(executor.Submit(Plan(step, {0, 5})).ok()) << step;
  }
  const absl::Status full = executor.Submit(Plan(17, {0, 5}));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "16 plans wait for their results, at most 16");
  EXPECT_EQ(Await(executor, 16).back().step, StepId(16));
  EXPECT_TRUE(executor.Submit(Plan(18, {0, 5})).ok());
  EXPECT_EQ(Await(executor, 1)[0].step, StepId(18));
}

TEST(StepExecutorDeathTest, TheFirstPlanHasADeadline) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        TinyModel tiny({});
        WaitingWaker waker;
        auto watchdog = worker::StepWatchdog::Create({.grace = absl::Milliseconds(100)});
        worker::StepExecutor executor(
            tiny.Take(), waker, [](const StepPlan&) { ::poll(nullptr, 0, 30'000); },
            *std::move(watchdog));
        if (!executor.Submit(Plan(1, {0})).ok()) std::abort();
        waker.Wait();
      },
      ::testing::ExitedWithCode(protocol::kExitStepDeadline), "its deadline was 2[0-9]{3} ms");
}

// A device whose copies out of it wait while they are held.
class HeldDevice final : public SplitDevice {
 public:
  using SplitDevice::SplitDevice;
  absl::Status CopyOut(void* to_host, const void* from, size_t bytes) override {
    while (held) {
      waiting = true;
      ::poll(nullptr, 0, 1);
    }
    return SplitDevice::CopyOut(to_host, from, bytes);
  }
  std::atomic<bool> held = false;
  std::atomic<bool> waiting = false;
};

// A channel to nobody.
class DeadChannel final : public protocol::BlockChannel {
 public:
  const std::string& address() const override { return address_; }
  absl::Status Lend(protocol::TransferId, std::vector<std::span<const std::byte>>,
                    absl::Time) override {
    return absl::UnavailableError("nobody is there");
  }
  absl::Status Fetch(protocol::TransferId, const std::string&, std::vector<std::span<std::byte>>,
                     absl::Time) override {
    return absl::UnavailableError("nobody is there");
  }
  void Cancel(protocol::TransferId) override {}
  absl::StatusOr<std::vector<protocol::ChannelEvent>> Poll(absl::Time until) override {
    while (!woken_.exchange(false) && protocol::MonotonicNow() < until) ::poll(nullptr, 0, 1);
    return std::vector<protocol::ChannelEvent>{};
  }
  void Wake() override { woken_ = true; }

 private:
  std::atomic<bool> woken_ = false;
  const std::string address_ = "nowhere";
};

// A device that stands still in a copy of blocks is seen like one that does so in a step.
TEST_F(StepExecutorTest, CopiesOfBlocksAreWatched) {
  auto device = std::make_shared<HeldDevice>(size_t{1} << 30);
  TinyModel tiny({.num_checkpoints = 1, .device = device});
  ASSERT_TRUE(tiny.ok());
  worker::StepExecutor executor(tiny.Take(), waker_, nullptr, *worker::StepWatchdog::Create({}),
                                nullptr,
                                worker::ExecutorChannel{std::make_unique<DeadChannel>(), {}});
  // 32 tokens, and their state in the checkpoint behind the eight slots.
  ASSERT_TRUE(executor.Submit(Plan(1, std::vector<int32_t>(32, 5))).ok());
  StepPlan save = Plan(2, {6}, 32);
  save.sequences[0].save_to = protocol::SlotId(8);
  save.sequences[0].new_blocks = {protocol::BlockId(4)};
  ASSERT_TRUE(executor.Submit(save).ok());
  const std::vector<StepResult> results = Await(executor, 2);
  ASSERT_EQ(results[1].status, StepStatus::kOk) << results[1].message;
  EXPECT_EQ(executor.RunningFor(), absl::ZeroDuration());
  device->held = true;
  protocol::MoveBlocks lend;
  lend.transfer = protocol::TransferId(1);
  lend.side = protocol::MoveSide::kLend;
  lend.blocks = {protocol::BlockId(3)};
  lend.checkpoint = protocol::SlotId(8);
  lend.position = 32;
  lend.timeout_ms = 1000;
  ASSERT_TRUE(executor.Move(lend).ok());
  while (!device->waiting && executor.TakeMoved().empty()) ::poll(nullptr, 0, 1);
  ASSERT_TRUE(device->waiting);
  EXPECT_GT(executor.RunningFor(), absl::ZeroDuration());
  device->held = false;
  std::vector<protocol::BlocksMoved> moved;
  while (moved.empty()) {
    ::poll(nullptr, 0, 1);
    moved = executor.TakeMoved();
  }
  EXPECT_EQ(moved[0].message, "nobody is there") << "the copy was made";
  EXPECT_EQ(executor.RunningFor(), absl::ZeroDuration());
}

TEST_F(StepExecutorTest, EndsWithPlansThatNobodyWaitsFor) {
  ASSERT_TRUE(tiny_.ok());
  worker::StepExecutor executor(tiny_.Take(), waker_);
  for (uint64_t step = 1; step <= 10; ++step) {
    ASSERT_TRUE(executor.Submit(Plan(step, {0, 5})).ok());
  }
}

}  // namespace
}  // namespace skein::tests
