// The rolling restart under a clock that the test moves: the order of its steps, what halts it, and
// that never two groups are out.
#include "coordinator/rollout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const CheckResult kAnswer = {{4, 5, 6}, {1, 2, 3}};

class RolloutTest : public ::testing::Test {
 protected:
  explicit RolloutTest(uint32_t groups = 2) {
    for (uint32_t i = 0; i < groups; ++i) view_.groups.push_back({true, 10 + i, "old", 3});
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
    view_.groups[group] = {true, ++incarnation_, build, 0};
  }
  void Replace(uint32_t group) {
    Empty(group);
    Return(group);
    EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, group}));
    rollout_.OnCheck(kAnswer);
    EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kUncordon, group}));
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

TEST_F(RolloutTest, ADifferentAnswerHalts) {
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  Empty(0);
  Return(0);
  Step();
  rollout_.OnCheck({{4, 5, 6}, {1, 2, 4}});
  EXPECT_THAT(Step(), IsEmpty()) << "it is not let in";
  EXPECT_EQ(status().state, RolloutState::kHalted);
  EXPECT_EQ(status().reason.substr(0, 56),
            "the check of group 0 differs: token 2 is 6 with logprob ");
  EXPECT_THAT(Step(absl::Hours(1)), IsEmpty());
}

TEST_F(RolloutTest, TwoFailedStartsHalt) {
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Empty(0);
  EXPECT_THAT(Step(absl::Seconds(20)), IsEmpty());
  EXPECT_EQ(status().failed_starts, 1U);
  EXPECT_EQ(status().state, RolloutState::kRunning);
  Return(0);
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCheck, 0}));
  view_.groups[0] = {};
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(status().state, RolloutState::kHalted);
  EXPECT_EQ(status().reason,
            "the new worker of group 0 died before its check ended; 2 starts failed");
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

TEST_F(RolloutTest, AnotherBuildThanExpectedHalts) {
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  Empty(0);
  Return(0, "older");
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(status().reason, "the new worker of group 0 is build older, expected new");
}

TEST_F(RolloutTest, GroupsThatHaveTheBuildArePassedOver) {
  view_.groups[0].build = "new";
  ASSERT_TRUE(rollout_.Start(view_, "new").ok());
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_THAT(Step(), ElementsAre(RolloutAction{RolloutStep::kCordon, 1}));
}

TEST_F(RolloutTest, FailuresOfRequestsHalt) {
  view_.ended = 500;
  view_.failed = 7;
  ASSERT_TRUE(rollout_.Start(view_, "").ok());
  Replace(0);
  view_.ended = 2500;
  view_.failed = 9;
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(status().state, RolloutState::kRunning) << "2 of 2000 are one in a thousand";
  view_.failed = 10;
  Step();
  EXPECT_EQ(status().state, RolloutState::kHalted);
  EXPECT_EQ(status().reason, "3 of 2000 requests failed since the start");
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
