// Marks of one sequence by example.
#include "scheduler/suspicion.h"

#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

TEST(SuspicionTest, TwoMarksAreProbationAndAThirdTheVerdict) {
  Suspicion suspicion;
  suspicion.Mark(1, 10);
  EXPECT_TRUE(suspicion.marked());
  EXPECT_FALSE(suspicion.on_probation());
  suspicion.Settle(1, true);
  suspicion.Mark(2, 10);
  EXPECT_TRUE(suspicion.on_probation()) << "unsettled marks count";
  suspicion.Settle(2, true);
  EXPECT_FALSE(suspicion.held());
  suspicion.Mark(1, 10);
  EXPECT_TRUE(suspicion.held());
  EXPECT_FALSE(suspicion.condemned());
  suspicion.Settle(1, true);
  EXPECT_TRUE(suspicion.condemned());
  EXPECT_EQ(suspicion.counted_replays(), 2U) << "probation is not counted";
}

TEST(SuspicionTest, DeathsFromOutsideLeaveNothing) {
  Suspicion suspicion;
  for (uint32_t node = 1; node <= 5; ++node) {
    suspicion.Mark(node, 10);
    suspicion.Settle(node, false);
  }
  EXPECT_FALSE(suspicion.marked());
  EXPECT_EQ(suspicion.counted_replays(), 0U);
  suspicion.Settle(3, true);
  EXPECT_FALSE(suspicion.marked()) << "it was settled before";
}

TEST(SuspicionTest, AThirdMarkFromOutsideGoesBackToProbation) {
  Suspicion suspicion;
  suspicion.Mark(1, 10);
  suspicion.Settle(1, true);
  suspicion.Mark(2, 10);
  suspicion.Settle(2, true);
  suspicion.Mark(1, 10);
  suspicion.Settle(1, false);
  EXPECT_TRUE(suspicion.on_probation());
  EXPECT_FALSE(suspicion.held());
  EXPECT_FALSE(suspicion.condemned());
}

TEST(SuspicionTest, EightStepsPastTheDeathsClear) {
  Suspicion suspicion;
  suspicion.Mark(1, 20);
  suspicion.Mark(2, 12);
  for (uint32_t step = 0; step < 50; ++step) suspicion.Survive(19);
  EXPECT_TRUE(suspicion.on_probation()) << "replay up to the position proves nothing";
  for (uint32_t step = 0; step < kStepsToClear - 1; ++step) suspicion.Survive(20 + step);
  EXPECT_TRUE(suspicion.on_probation());
  suspicion.Survive(40);
  EXPECT_FALSE(suspicion.marked());
  suspicion.Settle(1, true);
  EXPECT_FALSE(suspicion.marked()) << "what it survived it did not cause";
}

// A worker that comes back late is judged when the sequence has long gone on elsewhere.
TEST(SuspicionTest, ADeathFromOutsideDoesNotCountHoweverLateThatIsKnown) {
  Suspicion suspicion;
  for (uint32_t node = 1; node <= 5; ++node) {
    suspicion.Mark(node, 10);
    for (uint32_t step = 0; step < kStepsToClear; ++step) suspicion.Survive(10 + step);
    EXPECT_FALSE(suspicion.marked());
    EXPECT_EQ(suspicion.counted_replays(), 1U);
    suspicion.Settle(node, false);
    EXPECT_EQ(suspicion.counted_replays(), 0U);
  }
  suspicion.Mark(1, 30);
  suspicion.Settle(1, true);
  EXPECT_TRUE(suspicion.marked()) << "survived deaths take no mark of a later one away";
  EXPECT_EQ(suspicion.counted_replays(), 1U);
}

TEST(SuspicionTest, AFourthDeathBesideOthersWaitsUntilAllAreSettled) {
  for (const bool last_is_own : {false, true}) {
    Suspicion suspicion;
    for (uint32_t node = 1; node <= 4; ++node) {
      EXPECT_FALSE(suspicion.held());
      suspicion.Mark(node, 10);
      for (uint32_t step = 0; step < kStepsToClear; ++step) suspicion.Survive(10 + step);
    }
    EXPECT_FALSE(suspicion.marked());
    EXPECT_TRUE(suspicion.held());
    EXPECT_FALSE(suspicion.worn_out()) << "nothing is known of any";
    for (const uint32_t node : {2, 4, 1}) {
      suspicion.Settle(node, true);
      EXPECT_TRUE(suspicion.held());
    }
    EXPECT_TRUE(suspicion.Settle(3, last_is_own));
    EXPECT_FALSE(suspicion.held());
    EXPECT_EQ(suspicion.worn_out(), last_is_own);
    EXPECT_FALSE(suspicion.condemned());
    EXPECT_FALSE(suspicion.Settle(3, true)) << "it was settled before";
    EXPECT_EQ(suspicion.worn_out(), last_is_own);
  }
}

}  // namespace
}  // namespace skein::scheduler
