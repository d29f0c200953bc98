// Constraints in the scheduler: masks and provided drafts of a plan, where a burst of drafts ends,
// and that neither drafts nor replays change a token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/fake_constraint.h"
#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

HarnessSetup Drafting(uint32_t depth) {
  HarnessSetup setup;
  setup.max_draft_tokens = 5;
  setup.speculation = {depth, scheduler::Adaptation::kFixed};
  return setup;
}

std::vector<int32_t> PromptOf(uint64_t id) { return {static_cast<int32_t>(id), 7}; }

absl::Status AddBound(GroupHarness& harness, uint64_t id, int32_t tokens = 40,
                      protocol::SpeculationParams speculation = {}, bool dead_end = false) {
  return harness.Add(id, PromptOf(id), StopAt(tokens), 0, speculation, {},
                     std::make_shared<const FakeConstraint>(dead_end));
}

std::vector<int32_t> Expected(const GroupHarness& harness, uint64_t id, int32_t tokens = 40) {
  return DecodeBound(PromptOf(id), tokens, harness.max_model_len(), FakeConstraint());
}

// rule: S5, G3, G5
TEST(ConstrainedSchedule, G5DraftsChangeNoTokenUnderAConstraint) {
  uint64_t provided = 0, thrown_away = 0;
  for (const uint32_t depth : {0u, 1u, 2u, 5u}) {
    for (const auto mode :
         {protocol::VerificationMode::kGreedy, protocol::VerificationMode::kCoupled,
          protocol::VerificationMode::kRejection}) {
      for (uint64_t id = 1; id <= 20; ++id) {
        GroupHarness harness(Drafting(depth));
        harness.Start();
        ASSERT_TRUE(AddBound(harness, id, 40, {.mode = mode}).ok());
        ASSERT_TRUE(harness.AddSimple(id + 50, 3, 20).ok());
        ASSERT_TRUE(harness.Finish());
        EXPECT_EQ(harness.outcome(id).tokens, Expected(harness, id)) << id << " depth " << depth;
        EXPECT_EQ(harness.outcome(id + 50).tokens, harness.Alone(id + 50, 3, 20));
        EXPECT_EQ(harness.outcome(id).num_accepted_tokens, harness.outcome(id).num_drafted);
        provided += harness.engine().counters().provided_accepted_tokens;
        thrown_away += harness.engine().counters().unbound_drafts;
      }
    }
  }
  EXPECT_GT(provided, 100u);
  EXPECT_GT(thrown_away, 10u) << "no constraint began to bind inside a burst";
}

// rule: G5
TEST(ConstrainedSchedule, G5ABoundSequenceGetsItsForcedTokensAndNoDraftsOfTheHead) {
  GroupHarness harness(Drafting(5));
  harness.Start();
  ASSERT_TRUE(AddBound(harness, 2).ok());
  for (int steps = 0; steps < 60; ++steps) {
    const auto plan = harness.Plan();
    ASSERT_TRUE(plan.has_value()) << "it never was bound";
    const protocol::SequenceStep& step = plan->sequences[0];
    if (step.provided_drafts.empty()) {
      ASSERT_TRUE(step.masks.empty());
      ASSERT_TRUE(harness.Deliver().ok());
      continue;
    }
    EXPECT_EQ(step.draft_depth, 0u);
    EXPECT_THAT(step.provided_drafts, ElementsAre(17, 16, 15));
    ASSERT_THAT(step.masks, SizeIs(4));
    EXPECT_THAT(step.masks[1], ElementsAre(1u << 16, 0u));
    ASSERT_TRUE(harness.Deliver().ok());
    const auto next = harness.Plan();
    EXPECT_THAT(next->sequences[0].masks, SizeIs(1)) << "there is a choice, so no draft";
    EXPECT_EQ(next->sequences[0].draft_depth, 0u);
    const auto reason = static_cast<size_t>(scheduler::Undrafted::kByGrammar);
    EXPECT_EQ(harness.engine().counters().undrafted[reason], 1u);
    return;
  }
}

// rule: V1
TEST(ConstrainedSchedule, V1ForcedTokensAreNoDraftsForARequestWithoutDrafts) {
  GroupHarness harness(Drafting(5));
  harness.Start();
  ASSERT_TRUE(AddBound(harness, 2, 40, {.enabled = false}).ok());
  ASSERT_TRUE(AddBound(harness, 3, 40, {.max_draft_tokens = 0}).ok());
  ASSERT_TRUE(harness.Finish());
  for (const uint64_t id : {2, 3}) {
    EXPECT_EQ(harness.outcome(id).num_draft_tokens, 0u);
    EXPECT_EQ(harness.outcome(id).tokens, Expected(harness, id));
  }
}

// rule: G6
TEST(ConstrainedSchedule, G6ADeadEndFailsItsRequestAlone) {
  GroupHarness harness(Drafting(5));
  harness.Start();
  ASSERT_TRUE(AddBound(harness, 2, 40, {}, true).ok());
  ASSERT_TRUE(AddBound(harness, 3).ok());
  ASSERT_TRUE(harness.Finish());
  EXPECT_THAT(std::string(harness.outcome(2).error.message()), HasSubstr("no token is allowed"));
  EXPECT_EQ(harness.outcome(2).tokens,
            DecodeBound(PromptOf(2), 40, harness.max_model_len(), FakeConstraint(true)));
  EXPECT_EQ(harness.outcome(3).tokens, Expected(harness, 3));
}

// rule: G7
TEST(ConstrainedSchedule, G7AReplayGoesOnInTheSamePlace) {
  for (int steps = 1; steps < 25; ++steps) {
    HarnessSetup setup = Drafting(3);
    setup.num_blocks = 24;
    GroupHarness harness(setup);
    harness.Start();
    for (const uint64_t id : {2, 3, 4}) ASSERT_TRUE(AddBound(harness, id).ok());
    for (int i = 0; i < steps && harness.Plan().has_value(); ++i) {
      if (i + 1 < steps) {
        ASSERT_TRUE(harness.Deliver().ok());
      }
    }
    harness.Abort();
    harness.Start(2);
    ASSERT_TRUE(harness.Finish());
    for (const uint64_t id : {2, 3, 4}) {
      EXPECT_EQ(harness.outcome(id).tokens, Expected(harness, id)) << steps << " " << id;
    }
  }
}

TEST(ConstrainedSchedule, AWorkerWithoutMasksTakesNoConstraint) {
  HarnessSetup setup;
  setup.edits_logits = false;
  GroupHarness harness(setup);
  harness.Start();
  EXPECT_THAT(std::string(AddBound(harness, 1).message()), HasSubstr("and tools; try again"));
}

}  // namespace
}  // namespace skein::tests
