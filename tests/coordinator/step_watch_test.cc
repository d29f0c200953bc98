// Steps in flight by group: age, deadline, and what the end of an epoch forgets.
#include "coordinator/step_watch.h"

#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using protocol::GroupId;

class StepWatchTest : public ::testing::Test {
 protected:
  static scheduler::SchedulerLimits Limits() {
    scheduler::SchedulerLimits limits;
    limits.max_num_seqs = 4;
    limits.max_num_batched_tokens = 64;
    return limits;
  }
  void Plan(uint32_t group, size_t tokens) {
    protocol::StepPlan plan;
    plan.group = GroupId(group);
    plan.sequences.emplace_back().tokens.assign(tokens, 5);
    watch_.Planned(std::span(&plan, 1), now_);
  }
  void Commit(uint32_t group, uint64_t device_us) {
    protocol::StepResult result;
    result.group = GroupId(group);
    result.sequences.emplace_back();
    result.device_time_us = device_us;
    watch_.Committed(result, now_);
  }

  protocol::MetricsRegistry registry_{{}};
  CoordinatorMetrics metrics_{registry_, 2, 0};
  StepWatch watch_{Limits(), 2, metrics_};
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(StepWatchTest, AStepIsOverdueByWhatEarlierOnesTook) {
  EXPECT_FALSE(watch_.Age(GroupId(0), now_).has_value());
  Plan(0, 1);
  now_ += absl::Seconds(59);
  EXPECT_FALSE(watch_.Overdue(GroupId(0), now_)) << "nothing is known of this group";
  Commit(0, 100);
  for (int step = 0; step < 100; ++step) {
    Plan(0, 1);
    now_ += absl::Milliseconds(5);
    Commit(0, 100);
  }
  Plan(0, 1);
  now_ += absl::Milliseconds(2100);
  EXPECT_EQ(watch_.Age(GroupId(0), now_), absl::Milliseconds(2100));
  EXPECT_TRUE(watch_.Overdue(GroupId(0), now_));
  EXPECT_FALSE(watch_.Overdue(GroupId(1), now_));
  watch_.Forget(GroupId(0));
  EXPECT_FALSE(watch_.Overdue(GroupId(0), now_));
}

TEST_F(StepWatchTest, LearnsCapacityFromStepsOfPrompt) {
  Plan(0, 1);
  Commit(0, 1000);
  EXPECT_EQ(watch_.prefill_rate(), 0) << "decoding says nothing";
  Plan(0, 64);
  Commit(0, 32'000);
  EXPECT_DOUBLE_EQ(watch_.prefill_rate(), 2000);
}

// Aim: a step of several ranks ends with its last one and is measured by the rank with the most.
TEST_F(StepWatchTest, AStepEndsWithTheLastOfItsRanks) {
  std::vector<protocol::StepPlan> plans(2);
  plans[0].sequences.emplace_back().tokens.assign(5, 5);
  plans[1].rank = protocol::RankId(1);
  watch_.Planned(plans, now_);
  now_ += absl::Seconds(1);
  protocol::StepResult empty;
  empty.rank = protocol::RankId(1);
  watch_.Committed(empty, now_);
  EXPECT_EQ(watch_.Age(GroupId(0), now_), absl::Seconds(1)) << "rank 0 still runs";
  EXPECT_EQ(metrics_.step_batch_size.At({"decode"}).count(), 0U) << "nothing ran on rank 1";
  Commit(0, 100);
  EXPECT_FALSE(watch_.Age(GroupId(0), now_).has_value());
  EXPECT_EQ(metrics_.step_batch_size.At({"prefill"}).count(), 1U);
}

}  // namespace
}  // namespace skein::coordinator
