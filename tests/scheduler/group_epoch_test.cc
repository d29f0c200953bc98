// The beginning and the end of an epoch: replay, suspects of failed steps, smaller workers.
#include <algorithm>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/group_scheduler.h"
#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using scheduler::EndReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GroupEpoch, AnEndedEpochReplaysFromTheTokens) {
  GroupHarness harness({});
  harness.Start(1);
  ASSERT_TRUE(harness.AddSimple(1, 3, 6).ok());
  ASSERT_TRUE(harness.AddSimple(2, 3, 6).ok());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(harness.Plan().has_value());
    ASSERT_TRUE(harness.Deliver().ok());
  }
  ASSERT_TRUE(harness.Plan().has_value());
  EXPECT_FALSE(harness.Cancel(2));
  harness.Abort();
  EXPECT_TRUE(harness.outcome(2).cancelled);
  EXPECT_FALSE(harness.engine().has_epoch());
  EXPECT_EQ(harness.engine().counters().replays, 1U);
  EXPECT_FALSE(harness.Plan().has_value()) << "no epoch runs";
  harness.Start(2);
  const auto plan = harness.Plan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(plan->sequences[0].fresh_slot);
  EXPECT_EQ(plan->sequences[0].tokens.size(), 5U) << "prompt and two committed tokens";
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 3, 6));
}

TEST(GroupEpoch, ASmallerWorkerEndsWhatItCannotRun) {
  GroupHarness harness({.block_tokens = 4, .num_blocks = 8, .max_model_len = 32});
  harness.Start(1);
  ASSERT_TRUE(harness.AddSimple(1, 10, 10).ok());
  ASSERT_TRUE(harness.AddSimple(2, 3, 3).ok());
  ASSERT_TRUE(harness.Plan().has_value());
  ASSERT_TRUE(harness.Deliver().ok());
  harness.Abort();
  harness.Resize(3, 32);
  harness.Start(2);
  EXPECT_EQ(harness.outcome(1).error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(harness.outcome(1).error.message(),
            "the new worker group cannot run it: 20 tokens need 5 cache blocks, the worker has 3; "
            "lower max_tokens, shorten the prompt or raise worker.num_blocks");
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(2).tokens, harness.Alone(2, 3, 3));
}

TEST(GroupEpochDeathTest, AnEpochInsideAnotherIsABug) {
  GroupHarness harness({});
  harness.Start(1);
  EXPECT_DEATH(harness.Start(2), "scheduler invariant 6: epoch 2 starts inside another");
}

// Aim: a sequence whose step always fails ends with an error after three tries, alone; the
// sequences that shared its first step run on.
TEST(GroupEpoch, AStepThatAlwaysFailsEndsItsSequenceAlone) {
  scheduler::ClusterScheduler group(
      {.max_num_seqs = 4,
       .max_num_batched_tokens = 64,
       .lanes = 1,
       .admission = {.queued_requests_max = 8, .queued_tokens_max = 64}},
      1);
  const protocol::GroupId only(0);
  const protocol::CacheGeometry geometry{
      .block_tokens = 4, .num_blocks = 32, .num_slots = 4, .max_rows = 64, .max_model_len = 32};
  const protocol::SequenceId poison(7);
  for (uint64_t id : {7, 8, 9}) {
    scheduler::NewSequence sequence;
    sequence.id = protocol::SequenceId(id);
    sequence.prompt = {1, 2, 3};
    sequence.stop.max_tokens = 2;
    ASSERT_TRUE(group.AddSequence(sequence).ok());
  }
  uint64_t epoch = 0;
  std::vector<scheduler::SequenceDelta> ended;
  std::vector<size_t> failed_sizes;
  for (int step = 0; step < 40 && !group.empty(); ++step) {
    if (!group.has_epoch(only)) {
      group.StartEpoch(only, protocol::Epoch(++epoch), std::vector{geometry});
    }
    const std::vector<protocol::StepPlan> plans = group.PlanStep(only, 0);
    ASSERT_EQ(plans.size(), 1U);
    const protocol::StepPlan* plan = &plans.front();
    const bool fails = std::any_of(plan->sequences.begin(), plan->sequences.end(),
                                   [&](const auto& part) { return part.sequence == poison; });
    if (fails) {
      failed_sizes.push_back(plan->sequences.size());
      for (scheduler::SequenceDelta& gone :
           group.AbortInflight(only, scheduler::AbortCause::kStepFailed)) {
        ended.push_back(std::move(gone));
      }
      ASSERT_TRUE(scheduler::CheckInvariants(group).ok());
      continue;
    }
    protocol::StepResult result;
    result.step = plan->step;
    result.epoch = plan->epoch;
    for (const auto& part : plan->sequences) {
      protocol::VerificationSummary summary;
      summary.sequence = part.sequence;
      if (part.sample) summary.rows.emplace_back().plain_token = 5;
      result.sequences.push_back(summary);
    }
    scheduler::StepCommit commit;
    ASSERT_TRUE(group.CommitStep(only, result, commit).ok());
    for (const scheduler::SequenceDelta& delta : commit.deltas) {
      if (delta.ended) ended.push_back(delta);
    }
    ASSERT_TRUE(scheduler::CheckInvariants(group).ok());
  }
  EXPECT_TRUE(group.empty());
  EXPECT_EQ(failed_sizes, (std::vector<size_t>{3, 1, 1}));
  ASSERT_EQ(ended.size(), 3U);
  for (const scheduler::SequenceDelta& delta : ended) {
    if (delta.sequence == poison) {
      EXPECT_EQ(delta.error.message(),
                "the step of this request failed 3 times; it is not tried again");
    } else {
      EXPECT_EQ(delta.ended, scheduler::EndReason::kLength);
    }
  }
}

// Aim: good steps before the one that always fails do not make it be tried without end.
TEST(GroupEpoch, AStepThatFailsBehindGoodOnesEndsItsSequence) {
  HarnessSetup setup;
  setup.budget = 2;
  GroupHarness harness(setup);
  ASSERT_TRUE(harness.AddSimple(1, 6, 2).ok());
  int failed = 0;
  for (uint64_t epoch = 1; epoch <= 9 && !harness.scheduler().empty(); ++epoch) {
    harness.Start(epoch);
    for (auto plan = harness.Plan(); plan && plan->sequences[0].first_position < 4;
         plan = harness.Plan()) {
      ASSERT_TRUE(harness.Deliver().ok());
    }
    ++failed;
    harness.Abort(0, scheduler::AbortCause::kStepFailed);
  }
  EXPECT_EQ(failed, 3);
  EXPECT_EQ(harness.outcome(1).error.message(),
            "the step of this request failed 3 times; it is not tried again");
}

// Aim: what ran in the other lane when a step failed had no part in it.
TEST(GroupEpoch, OnlyTheLaneOfAFailedStepHasSuspects) {
  HarnessSetup setup;
  setup.lanes = 2;
  GroupHarness harness(setup);
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 3, 2).ok());
  ASSERT_TRUE(harness.AddSimple(2, 3, 2).ok());
  ASSERT_EQ(harness.Plan(0)->sequences[0].sequence, protocol::SequenceId(1));
  ASSERT_EQ(harness.Plan(1)->sequences[0].sequence, protocol::SequenceId(2));
  harness.Abort(0, scheduler::AbortCause::kStepFailed, 0, 1);
  const auto& sequences = harness.scheduler().sequences();
  EXPECT_FALSE(sequences.at(protocol::SequenceId(1))->alone());
  EXPECT_TRUE(sequences.at(protocol::SequenceId(2))->alone());
}

}  // namespace
}  // namespace skein::tests
