// Planted faults act on their token alone.
#include "worker/fault_points.h"

#include <gtest/gtest.h>

namespace skein::worker {
namespace {

protocol::StepPlan PlanOf(protocol::StepTokens tokens) {
  protocol::StepPlan plan;
  plan.sequences.emplace_back();
  plan.sequences.emplace_back().tokens = std::move(tokens);
  return plan;
}

TEST(FaultPointsTest, ATokenOfAnySequenceCounts) {
  EXPECT_TRUE(Computes(PlanOf({4, 5}), 5));
  EXPECT_FALSE(Computes(PlanOf({4, 6}), 5));
  EXPECT_FALSE(Computes(PlanOf({}), 5));
}

TEST(FaultPointsTest, NothingIsPlantedByDefault) {
  const FaultPoints points{protocol::FaultList{}};
  points.BeforeStep(PlanOf({0, 1, 2}));
  EXPECT_FALSE(points.AtStart().has_value());
}

TEST(FaultPointsTest, BlocksAreLostOfTheNamedWorkerAlone) {
  protocol::FaultList faults;
  EXPECT_FALSE(FaultPoints(faults).LosesBlocks(1));
  faults.lose_blocks = 2;
  EXPECT_TRUE(FaultPoints(faults).LosesBlocks(2));
  EXPECT_FALSE(FaultPoints(faults).LosesBlocks(1));
}

TEST(FaultPointsDeathTest, AbortsOnItsToken) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  protocol::FaultList faults;
  faults.abort_on_token = 7;
  faults.exit_at_start = 3;
  const FaultPoints points{faults};
  EXPECT_EQ(points.AtStart(), 3);
  points.BeforeStep(PlanOf({6, 8}));
  EXPECT_EXIT(points.BeforeStep(PlanOf({6, 7})), ::testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace skein::worker
