// The rolling restart under a clock that the test moves: the order of its steps, what halts it, and
// that never two groups are out.
#include "coordinator/rollout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const CheckResult kAnswer = {{4, 5, 6}, {1, 2, 3}};

class RolloutTest : public ::testing::Test {
 protected:
  explicit RolloutTest(uint32_t groups = 2) {
    for (uint32_t i = 0; i < groups; ++i)
      view_.groups.push_back({true, {10 + i}, "old", false, 3, 0});
  }

  std::vector<RolloutAction> Step(absl::Duration later = absl::ZeroDuration()) {
    now_ += later;
    return rollout_.Advance(now_, view_);
  }
  // From the cordon to the end of the old worker.
  void Empty(uint32_t group) {
    EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCordon, group}));
    view_.groups[group].running = 0;
    EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, group}));
    rollout_.OnCheck(kAnswer);
    EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kShutdown, group}));
    EXPECT_THAT(Step(), IsEmpty()) << "the old worker is still there";
    view_.groups[group] = {};
    EXPECT_THAT(Step(), IsEmpty());
  }
  void Return(uint32_t group, const std::string& build = "new") {
    view_.groups[group] = {true, {++incarnation_}, build, false, 0, 0};
  }
  void Replace(uint32_t group) {
    Empty(group);
    Return(group);
    EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, group}));
    rollout_.OnCheck(kAnswer);
    EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, group}));
  }
  // The new worker of group 0 answers something else.
  void Differ() {
    Empty(0);
    Return(0);
    EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
    rollout_.OnCheck({{4, 5, 6}, {1, 2, 4}});
    EXPECT_THAT(Step(), IsEmpty()) << "it is not let in";
    EXPECT_EQ(status().phase, RolloutPhase::kReturning);
  }
  const RolloutStatus& status() const { return rollout_.status(); }

  Rollout rollout_{{absl::Seconds(10), absl::Seconds(20), absl::Seconds(30)}};
  RolloutView view_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  uint64_t incarnation_ = 100;
};

TEST_F(RolloutTest, ReplacesOneGroupAfterTheOther) {
  EXPECT_THAT(Step(), IsEmpty());
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  Replace(0);
  EXPECT_EQ(status().phase, RolloutPhase::kSoaking);
  EXPECT_THAT(Step(absl::Seconds(29)), IsEmpty());
  EXPECT_EQ(status().group, 0U);
  EXPECT_THAT(Step(absl::Seconds(1)), IsEmpty());
  EXPECT_EQ(status().group, 1U);
  Replace(1);
  EXPECT_THAT(Step(absl::Seconds(30)), IsEmpty());
  EXPECT_EQ(status().state, RolloutState::kDone);
  EXPECT_EQ(status().replaced, 2U);
  EXPECT_TRUE(rollout_.Start(view_, "new").ok()) << "it may begin again";
}

// Aim: a group is replaced when the workers of all its ranks are.
TEST_F(RolloutTest, EveryRankOfAGroupIsReplaced) {
  view_.groups[0].incarnations = {20, 7};
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  Empty(0);
  const auto form = [this](uint64_t first, uint64_t second, const std::string& build) {
    view_.groups[0] = {true, {first, second}, build, false, 0, 0};
    return Step();
  };
  EXPECT_THAT(form(21, 7, "new, old"), IsEmpty()) << "rank 1 is the old one";
  EXPECT_THAT(form(21, 8, "new"), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
  // One of the new ones dies before the check has ended, and comes back.
  EXPECT_THAT(form(21, 9, "new"), IsEmpty());
  EXPECT_EQ(status().failed_starts, 1U);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
  rollout_.OnCheck(kAnswer);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, 0}));
}

TEST_F(RolloutTest, WaitsUntilEveryGroupIsThere) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  view_.groups[1].ready = false;
  EXPECT_THAT(Step(absl::Hours(1)), IsEmpty()) << "two groups would be out";
  EXPECT_EQ(status().reason, "group 1 is not ready");
  view_.groups[1].ready = true;
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCordon, 0}));
}

TEST_F(RolloutTest, MovesWhatOutlastsTheDrain) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Step();
  EXPECT_THAT(Step(absl::Seconds(9)), IsEmpty());
  EXPECT_THAT(Step(absl::Seconds(1)), ElementsAre(RolloutAction{RolloutStep::kEvict, 0}));
  EXPECT_THAT(Step(absl::Seconds(1)), IsEmpty()) << "once is enough";
  view_.groups[0].running = 0;
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
}

TEST_F(RolloutTest, WhatMovesIsComputedElsewhereBeforeTheOldWorkerEnds) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Step();
  Step(absl::Seconds(10));
  view_.groups[0].running = 0;
  view_.groups[0].moving = 2;
  EXPECT_THAT(Step(absl::Seconds(9)), IsEmpty());
  EXPECT_EQ(status().phase, RolloutPhase::kDraining);
  view_.groups[0].moving = 0;
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
}

TEST_F(RolloutTest, WhatFindsNoOtherGroupHoldsItUpForAWhileOnly) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Step();
  Step(absl::Seconds(10));
  view_.groups[0].running = 0;
  view_.groups[0].moving = 2;
  EXPECT_THAT(Step(absl::Seconds(10)), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
}

TEST_F(RolloutTest, ADifferentAnswerGoesBackToTheProgramBefore) {
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  Differ();
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kRefuse, 0}));
  view_.groups[0] = {};
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(status().state, RolloutState::kRunning);
  Return(0, "old");
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
  EXPECT_EQ(rollout_.awaits_check(), 0U);
  rollout_.OnCheck(kAnswer);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, 0}));
  EXPECT_EQ(status().state, RolloutState::kHalted);
  EXPECT_THAT(status().reason,
              AllOf(HasSubstr("the check of group 0 differs: token 2 is 6 with logprob "),
                    HasSubstr("; the group went back and serves with build old")));
  EXPECT_FALSE(rollout_.left_out().has_value());
  EXPECT_THAT(Step(absl::Hours(1)), IsEmpty());
}

TEST_F(RolloutTest, IfThatOneDiffersTooTheGroupStaysOutUntilTheNextRollout) {
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  Differ();
  Step();
  Return(0, "new");
  Step();
  rollout_.OnCheck({{4, 5, 6}, {1, 2, 4}});
  EXPECT_THAT(Step(), IsEmpty()) << "it is not let in";
  EXPECT_EQ(status().state, RolloutState::kHalted);
  EXPECT_EQ(rollout_.left_out(), 0U);
  EXPECT_THAT(status().reason, HasSubstr("; group 0 stays out: install a program that works"));
  // The worker that is there has the build that is asked for, and is no measure of anything.
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCordon, 0}));
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kShutdown, 0}));
  Return(0);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
  rollout_.OnCheck(kAnswer);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, 0}));
  EXPECT_FALSE(rollout_.left_out().has_value());
}

TEST_F(RolloutTest, AGroupThatWasLeftOutWithoutAWorkerIsAwaited) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Differ();
  Step();
  view_.groups[0] = {};
  EXPECT_THAT(Step(absl::Seconds(20)), IsEmpty());
  EXPECT_THAT(status().reason, HasSubstr("the worker of before did not come back within 20s"));
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(status().phase, RolloutPhase::kStarting);
  Return(0);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
}

TEST_F(RolloutTest, AnOldWorkerThatAnswersNoCheckStays) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Step();
  view_.groups[0].running = 0;
  Step();
  rollout_.OnCheckFailed("the check of group 0 failed: it is gone");
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, 0}));
  EXPECT_EQ(status().state, RolloutState::kHalted);
  EXPECT_EQ(status().reason, "the check of group 0 failed: it is gone");
}

TEST_F(RolloutTest, TwoFailedStartsGoBack) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Empty(0);
  EXPECT_THAT(Step(absl::Seconds(20)), IsEmpty());
  EXPECT_EQ(status().failed_starts, 1U);
  EXPECT_EQ(status().state, RolloutState::kRunning);
  Return(0);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
  view_.groups[0] = {};
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(status().phase, RolloutPhase::kReturning);
  EXPECT_EQ(status().reason,
            "the new worker of group 0 died before its check ended; 2 starts failed");
  Return(0);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kRefuse, 0}));
}

TEST_F(RolloutTest, OneFailedStartIsForgiven) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Empty(0);
  Step(absl::Seconds(20));
  Return(0);
  Step();
  rollout_.OnCheck(kAnswer);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, 0}));
}

TEST_F(RolloutTest, AnotherBuildThanExpectedGoesBack) {
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  Empty(0);
  Return(0, "older");
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(status().reason, "the new worker of group 0 is build older, expected new");
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kRefuse, 0}));
}

TEST_F(RolloutTest, AWorkerThatItsSupervisorBroughtBackIsComparedAndLetIn) {
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  Empty(0);
  Return(0, "old");
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
  rollout_.OnCheck(kAnswer);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, 0}));
  EXPECT_EQ(status().state, RolloutState::kHalted);
  EXPECT_EQ(status().reason,
            "the new worker of group 0 is build old, expected new; the group went back and serves "
            "with build old");
}

TEST_F(RolloutTest, WithoutANamedBuildAFailedStartTellsThatItWentBack) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Empty(0);
  Return(0, "old");
  view_.groups[0].failed_before = true;
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
  rollout_.OnCheck(kAnswer);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, 0}));
  EXPECT_EQ(status().state, RolloutState::kHalted);
  EXPECT_EQ(status().reason,
            "a new worker of group 0 ended by itself when it was started; the group went back and "
            "serves with build old");
}

TEST_F(RolloutTest, GroupsThatHaveTheBuildArePassedOver) {
  view_.groups[0].build = "new";
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCordon, 1}));
}

TEST_F(RolloutTest, FailuresOfRequestsGoBack) {
  view_.ended = 500;
  view_.failed = 7;
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Replace(0);
  view_.ended = 2500;
  view_.failed = 9;
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(status().state, RolloutState::kRunning) << "2 of 2000 are one in a thousand";
  view_.failed = 10;
  view_.groups[0].running = 4;
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCordon, 0},
                                  RolloutAction{RolloutStep::kEvict, 0}));
  EXPECT_EQ(status().phase, RolloutPhase::kReturning);
  EXPECT_EQ(status().reason, "3 of 2000 requests failed since the start");
  EXPECT_THAT(Step(), IsEmpty()) << "what runs there moves first";
  view_.groups[0].running = 0;
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kRefuse, 0}));
}

TEST_F(RolloutTest, APauseHoldsTheNextGroup) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Step();
  ASSERT_TRUE(rollout_.Pause().ok());
  EXPECT_EQ(rollout_.Pause(),
            absl::FailedPreconditionError("no rollout is under way; its state is paused"));
  view_.groups[0].running = 0;
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0})) << "not this one";
  rollout_.OnCheck(kAnswer);
  Step();
  Return(0);
  Step();
  rollout_.OnCheck(kAnswer);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, 0}));
  Step(absl::Seconds(30));
  EXPECT_THAT(Step(absl::Hours(1)), IsEmpty());
  ASSERT_TRUE(rollout_.Resume().ok());
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCordon, 1}));
}

TEST_F(RolloutTest, AnAbortLetsTheGroupInAgain) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Step();
  EXPECT_EQ(rollout_.Start(view_, "").message(), "a rollout is running at group 0; abort it first");
  ASSERT_TRUE(rollout_.Abort().ok());
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, 0}));
  EXPECT_EQ(status().state, RolloutState::kAborted);
}

TEST_F(RolloutTest, AnAbortAfterTheStopFinishesTheGroup) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Empty(0);
  ASSERT_TRUE(rollout_.Abort().ok());
  EXPECT_THAT(Step(), IsEmpty());
  Return(0);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
  rollout_.OnCheck(kAnswer);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, 0}));
  Step();
  EXPECT_EQ(status().state, RolloutState::kAborted);
}

}  // namespace
}  // namespace skein::coordinator
