// Speculation in the scheduler: what a plan asks for, what a commit keeps, and what bounds both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using ::testing::HasSubstr;

HarnessSetup Drafting(uint32_t depth = 5) {
  HarnessSetup setup;
  setup.max_draft_tokens = 5;
  setup.speculation = {depth, scheduler::Adaptation::kFixed};
  return setup;
}

TEST(SpeculativeSchedule, ADecodingSequenceDraftsAndAPrefillDoesNot) {
  GroupHarness harness(Drafting());
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 9, 30).ok());
  auto plan = harness.Plan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->sequences[0].draft_depth, 0u);
  EXPECT_TRUE(plan->sequences[0].feed_drafter);
  ASSERT_TRUE(harness.Deliver().ok());
  plan = harness.Plan();
  EXPECT_EQ(plan->sequences[0].tokens.size(), 1u);
  EXPECT_EQ(plan->sequences[0].draft_depth, 5u);
  ASSERT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 9, 30));
  EXPECT_LT(harness.outcome(1).num_steps, 25u);
  EXPECT_GT(harness.outcome(1).num_accepted_tokens, 5u);
  EXPECT_GE(harness.outcome(1).num_draft_tokens, harness.outcome(1).num_accepted_tokens);
}

TEST(SpeculativeSchedule, NothingIsDraftedThatCannotBeUsed) {
  GroupHarness harness(Drafting());
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 4, 3).ok());
  harness.Plan();
  ASSERT_TRUE(harness.Deliver().ok());
  // Two tokens are left: one draft and the token after it.
  EXPECT_EQ(harness.Plan()->sequences[0].draft_depth, 1u);
  ASSERT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 4, 3));
}

// rule: V3
TEST(SpeculativeSchedule, NothingIsDraftedBeyondTheModelsLength) {
  HarnessSetup setup = Drafting();
  setup.max_model_len = 12;
  GroupHarness harness(setup);
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 9, 30).ok());
  harness.Plan();
  ASSERT_TRUE(harness.Deliver().ok());
  EXPECT_EQ(harness.Plan()->sequences[0].draft_depth, 1u);
  ASSERT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 9, 30));
}

// rule: V1
TEST(SpeculativeSchedule, ARequestBoundsAndDisablesItsDrafts) {
  GroupHarness harness(Drafting());
  harness.Start();
  ASSERT_TRUE(harness.Add(1, {1, 2}, StopAt(20), 0, {.max_draft_tokens = 2}).ok());
  ASSERT_TRUE(harness.Add(2, {3, 4}, StopAt(20), 0, {.enabled = false}).ok());
  ASSERT_TRUE(harness.Add(3, {5, 6}, StopAt(20), 0, {.max_draft_tokens = 0}).ok());
  harness.Plan();
  ASSERT_TRUE(harness.Deliver().ok());
  const auto plan = harness.Plan();
  ASSERT_EQ(plan->sequences.size(), 3u);
  EXPECT_EQ(plan->sequences[0].draft_depth, 2u);
  EXPECT_EQ(plan->sequences[1].draft_depth, 0u);
  EXPECT_FALSE(plan->sequences[1].feed_drafter);
  EXPECT_EQ(plan->sequences[2].draft_depth, 0u);
  ASSERT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(2).num_draft_tokens, 0u);
}

TEST(SpeculativeSchedule, DraftsShareTheRowsAndPushNobodyOut) {
  HarnessSetup setup = Drafting();
  setup.budget = 10;
  setup.num_blocks = 4;
  setup.block_tokens = 4;
  GroupHarness harness(setup);
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 4, 8).ok());
  ASSERT_TRUE(harness.AddSimple(2, 4, 8).ok());
  harness.Plan();
  ASSERT_TRUE(harness.Deliver().ok());
  const auto plan = harness.Plan();
  ASSERT_EQ(plan->sequences.size(), 2u);
  EXPECT_LE(plan->sequences[0].draft_depth + plan->sequences[1].draft_depth, 8u);
  EXPECT_EQ(harness.engine().counters().preemptions[0], 0u);
  ASSERT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 4, 8));
  EXPECT_EQ(harness.outcome(2).tokens, harness.Alone(2, 4, 8));
}

TEST(SpeculativeSchedule, AStopTokenAmongTheDraftsEndsTheSequenceThere) {
  uint64_t behind = 0;  // drafts that the rule kept and the end cut off
  for (uint64_t id = 1; id <= 40; ++id) {
    GroupHarness harness(Drafting());
    harness.Start();
    const std::vector<int32_t> prompt = {static_cast<int32_t>(id), 7};
    const auto stop = StopAt(40, 2, {3, 11, 19, 27, 35});
    ASSERT_TRUE(harness.Add(1, prompt, stop).ok());
    ASSERT_TRUE(harness.Finish());
    EXPECT_EQ(harness.outcome(1).tokens, DecodeAlone(prompt, stop, harness.max_model_len())) << id;
    EXPECT_EQ(harness.outcome(1).num_accepted_tokens, harness.outcome(1).num_drafted) << id;
    for (const uint64_t count : harness.engine().counters().accepted) behind += count;
    behind -= harness.outcome(1).num_accepted_tokens;
  }
  EXPECT_GT(behind, 0u) << "they count in the totals, not for the sequence";
}

TEST(SpeculativeSchedule, MoreRowsThanThePlanAllowsAreRefused) {
  GroupHarness harness(Drafting(1));
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 4, 20).ok());
  harness.Plan();
  ASSERT_TRUE(harness.Deliver().ok());
  harness.Plan();
  protocol::StepResult wrong = harness.result();
  wrong.sequences[0].rows.resize(3);
  EXPECT_THAT(std::string(harness.Commit(wrong).message()),
              HasSubstr("with 3 rows, the plan has sequence 1 with 1 to 2"));
  wrong.sequences[0].rows.clear();
  EXPECT_FALSE(harness.Commit(wrong).ok());
  EXPECT_TRUE(harness.Finish());
}

TEST(SpeculativeSchedule, CountsWhatWasDraftedAndKept) {
  GroupHarness harness(Drafting());
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 4, 30).ok());
  ASSERT_TRUE(harness.Finish());
  const scheduler::SchedulerCounters& counters = harness.engine().counters();
  EXPECT_EQ(counters.draft_tokens, harness.outcome(1).num_draft_tokens);
  uint64_t accepted = 0;
  for (const uint64_t count : counters.accepted) accepted += count;
  EXPECT_EQ(accepted, harness.outcome(1).num_accepted_tokens);
  EXPECT_GT(counters.drafts, 3u);
  EXPECT_GE(counters.accepted[0], counters.accepted[1]);
}

}  // namespace
}  // namespace skein::tests
