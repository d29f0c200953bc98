// The load of a sequence, and the choice of the group that would have the least to compute with it.
#include "scheduler/group_assignment.h"

#include <vector>

#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

TEST(GroupAssignment, OutstandingIsWhatIsLeftToComputeWithinTheHorizon) {
  Sequence sequence;
  sequence.tokens.assign(100, 1);
  sequence.prompt_length = 100;
  sequence.stop.max_tokens = 10;
  EXPECT_EQ(OutstandingTokens(sequence), 110U);
  sequence.computed = 60;
  EXPECT_EQ(OutstandingTokens(sequence), 50U);
  sequence.computed = 100;
  sequence.tokens.push_back(1);  // one of ten is generated, and not computed yet
  EXPECT_EQ(OutstandingTokens(sequence), 1U + 9U);
  sequence.stop.max_tokens = 100'000;
  EXPECT_EQ(OutstandingTokens(sequence), 1U + kDecodeHorizon);
  sequence.stop.max_tokens = 0;
  EXPECT_EQ(OutstandingTokens(sequence), 1U);
}

TEST(GroupAssignment, TheLeastLoadedRelativeToItsCapacityTakes) {
  std::vector<EngineLoad> groups = {{true, 300, 1000}, {true, 400, 2000}, {true, 200, 500}};
  EXPECT_EQ(ChooseEngine(groups), 1U);
  groups[1].can_take = false;
  EXPECT_EQ(ChooseEngine(groups), 0U);
  groups[0].capacity_tokens = 0;
  EXPECT_EQ(ChooseEngine(groups), 2U);
  groups[2].can_take = false;
  EXPECT_EQ(ChooseEngine(groups), std::nullopt);
  EXPECT_EQ(ChooseEngine({}), std::nullopt);
}

TEST(GroupAssignment, WhatAnEngineHasCachedCountsAsMuchAsOtherWork) {
  // 400 tokens, of which the second engine has 300 cached.
  std::vector<EngineLoad> groups = {{true, 0, 1000, 400}, {true, 299, 1000, 100}};
  EXPECT_EQ(ChooseEngine(groups), 1U);
  groups[1].outstanding_tokens = 300;
  EXPECT_EQ(ChooseEngine(groups), 0U) << "of equals the lowest";
  groups[0].marked = 1;
  EXPECT_EQ(ChooseEngine(groups), 1U) << "suspects spread first of all";
}

TEST(GroupAssignment, OfEqualsTheLowest) {
  const std::vector<EngineLoad> groups = {{false, 0, 9}, {true, 2, 10}, {true, 1, 5}};
  EXPECT_EQ(ChooseEngine(groups), 1U);
}

}  // namespace
}  // namespace skein::scheduler
