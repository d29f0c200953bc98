// Tests of draft depth: the cost curve, the choice under measured costs and acceptance, probing,
// and that a choice cannot see the drafts it is about.
#include "scheduler/speculation_policy.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

using ::testing::Each;
using Candidate = SpeculationPolicy::Candidate;

TEST(CostCurve, InterpolatesAndContinuesTheLastSlope) {
  CostCurve curve;
  EXPECT_EQ(curve.At(3), 0);
  curve.Observe(2, 100);
  EXPECT_EQ(curve.At(1), 50);
  EXPECT_EQ(curve.At(9), 100);
  curve.Observe(6, 140);
  EXPECT_DOUBLE_EQ(curve.At(4), 120);
  EXPECT_DOUBLE_EQ(curve.At(8), 160);
  curve.Observe(8, 100);  // noise: costs never fall with size beyond the last point
  EXPECT_DOUBLE_EQ(curve.At(20), 140);
}

TEST(CostCurve, AveragesAndBoundsOutliers) {
  CostCurve curve;
  curve.Observe(4, 100);
  curve.Observe(4, 180);
  EXPECT_DOUBLE_EQ(curve.At(4), 140) << "the first measurements count alike";
  for (int i = 0; i < 100; ++i) curve.Observe(4, 200);
  const double before = curve.At(4);
  EXPECT_NEAR(before, 200, 0.1);
  curve.Observe(4, 1e9);  // counts as three times the estimate
  EXPECT_DOUBLE_EQ(curve.At(4), before + 2 * before / 8);
}

// A machine with a step cost of base + row * rows and a draft cost per drafted sequence, and
// sequences whose drafts are kept at a rate.
struct World {
  double base = 1000, row = 100, draft = 300;
  uint32_t accepted_of_five = 3;
  SpeculationPolicy policy{SpeculationSettings{5, Adaptation::kAdaptive}};
  std::vector<DraftHistory> histories;
  double time_us = 0;  // of all steps
  double tokens = 0;   // that they gave

  // Runs steps of `sequences` sequences and returns the mean depth of the last ones.
  double Run(uint32_t sequences, int steps) {
    histories.resize(sequences);
    double depths = 0;
    constexpr int kCounted = 50;
    for (int step = 0; step < steps; ++step) {
      std::vector<Candidate> candidates;
      for (const DraftHistory& history : histories) candidates.push_back({5, history});
      const auto choice = policy.Choose(candidates, 0);
      const uint32_t drafts = std::accumulate(choice.depths.begin(), choice.depths.end(), 0u);
      const auto drafted = static_cast<uint32_t>(
          std::count_if(choice.depths.begin(), choice.depths.end(), [](auto d) { return d > 0; }));
      const double draft_us = draft * drafted;
      time_us += base + row * (sequences + drafts) + draft_us;
      tokens += sequences;
      policy.ObserveStep({sequences + drafts, drafted,
                          static_cast<uint64_t>(base + row * (sequences + drafts) + draft_us),
                          static_cast<uint64_t>(draft_us)});
      for (uint32_t i = 0; i < sequences; ++i) {
        const std::vector<float> confidences(choice.depths[i], 0.6F);
        const uint32_t accepted = std::min(choice.depths[i], accepted_of_five);
        policy.ObserveDrafts(confidences, accepted, histories[i]);
        tokens += accepted;
      }
      if (step >= steps - kCounted) depths += static_cast<double>(drafts) / sequences;
    }
    return depths / kCounted;
  }
};

TEST(SpeculationPolicy, DraftsAsDeepAsItPays) {
  World cheap;
  // Three of five are kept; a row costs a tenth of a step, so three drafts pay and five do not.
  EXPECT_NEAR(cheap.Run(1, 400), 3, 0.2);
  World refused;
  refused.accepted_of_five = 0;
  EXPECT_LE(refused.Run(1, 400), 0.1);
  World costly;
  costly.draft = 5000;
  EXPECT_LE(costly.Run(1, 400), 0.1);
}

// rule: V3
TEST(SpeculationPolicy, LoadMakesDraftsShorter) {
  World world;
  world.row = 800;  // rows dominate: what a draft costs is what a token costs
  world.accepted_of_five = 1;
  const double alone = world.Run(1, 300);
  EXPECT_GT(alone, 0.5);
  EXPECT_LT(world.Run(32, 300), 0.25 * alone);
}

TEST(SpeculationPolicy, ProbesRarelyAndFindsEasierText) {
  World world;
  world.accepted_of_five = 0;
  EXPECT_LE(world.Run(1, 1000), 0.1);
  world.accepted_of_five = 5;
  EXPECT_GT(world.Run(1, 40000), 3);
}

// Where drafts cannot pay, all that the policy tries costs half a percent at most, after the one
// look that a new policy takes.
TEST(SpeculationPolicy, WhereDraftsCannotPayTryingThemIsBounded) {
  for (const uint32_t sequences : {1u, 4u, 32u}) {
    for (const double draft : {300.0, 5000.0}) {
      World world;
      world.accepted_of_five = 0;
      world.row = 700;  // rows dominate, as on a small machine
      world.draft = draft;
      constexpr int kSteps = 60'000;
      world.Run(sequences, kSteps);
      const double plain = kSteps * (world.base + world.row * sequences);
      EXPECT_LT(world.time_us, 1.0055 * plain) << sequences << " sequences, draft " << draft;
      EXPECT_GT(world.time_us, 1.0001 * plain) << "it does try again";
    }
  }
}

// The first look is small: one sequence, two drafts; then it grows with what was measured.
TEST(SpeculationPolicy, ApproachesWhatWasNeverMeasured) {
  SpeculationPolicy policy({5, Adaptation::kAdaptive});
  const std::vector<Candidate> candidates(100, {5, {}});
  const auto sum = [&] {
    const auto choice = policy.Choose(candidates, 0);
    return std::accumulate(choice.depths.begin(), choice.depths.end(), 0u);
  };
  policy.ObserveStep({100, 0, 10'000, 0});
  EXPECT_EQ(sum(), 2u);
  EXPECT_EQ(sum(), 2u) << "until it was measured";
  policy.ObserveStep({102, 1, 10'010, 10});
  EXPECT_EQ(sum(), 4 * 5u);
  policy.ObserveStep({120, 4, 10'100, 20});
  EXPECT_EQ(sum(), 16 * 5u);
}

// A device on which rows are nearly free: depth five at once, and what it gains.
TEST(SpeculationPolicy, OnAFlatCostCurveTheDeepestDraftsPay) {
  for (const uint32_t sequences : {1u, 32u}) {
    World world;
    world.base = 20'000;
    world.row = 10;
    world.draft = 40;
    world.accepted_of_five = 5;
    EXPECT_GT(world.Run(sequences, 100), 4.99) << sequences;
    const double plain = world.tokens * (world.base / sequences + world.row);
    EXPECT_GT(plain / world.time_us, 4.5) << "times as fast with " << sequences << " sequences";
  }
}

TEST(SpeculationPolicy, StopsFeedingTheDrafterWhenItRests) {
  World world;
  world.accepted_of_five = 0;
  world.Run(1, 500);
  const std::vector<Candidate> candidates = {{5, world.histories[0]}};
  EXPECT_FALSE(world.policy.Choose(candidates, 0).feed_drafter);
}

TEST(SpeculationPolicy, FixedDepthIsTheMostAllowed) {
  SpeculationPolicy policy({4, Adaptation::kFixed});
  const DraftHistory history;
  const std::vector<Candidate> candidates = {{5, history}, {2, history}, {0, history}};
  const auto choice = policy.Choose(candidates, 100);
  EXPECT_THAT(choice.depths, ::testing::ElementsAre(4, 2, 0));
  EXPECT_EQ(choice.min_survival, 0);
  EXPECT_TRUE(choice.feed_drafter);
}

TEST(SpeculationPolicy, WithoutDepthNothingIsDrafted) {
  SpeculationPolicy policy({0, Adaptation::kAdaptive});
  const DraftHistory history;
  const std::vector<Candidate> candidates = {{5, history}};
  const auto choice = policy.Choose(candidates, 0);
  EXPECT_THAT(choice.depths, Each(0));
  EXPECT_FALSE(choice.feed_drafter);
}

// Equal committed histories give equal choices, whatever the drafts of the step will be: a choice
// has no other input.
TEST(SpeculationPolicy, EqualHistoriesGiveEqualChoices) {
  World first;
  World second;
  first.Run(7, 200);
  second.Run(7, 200);
  std::vector<Candidate> a, b;
  for (size_t i = 0; i < 7; ++i) {
    a.push_back({5, first.histories[i]});
    b.push_back({5, second.histories[i]});
  }
  const auto left = first.policy.Choose(a, 3);
  const auto right = second.policy.Choose(b, 3);
  EXPECT_EQ(left.depths, right.depths);
  EXPECT_EQ(left.min_survival, right.min_survival);
}

// More drafts than numbers that are compared: the promising half is drafted for, the rest is not.
TEST(SpeculationPolicy, RanksManySequencesByTheirChances) {
  constexpr uint32_t kSequences = 3000;
  SpeculationPolicy policy({5, Adaptation::kAdaptive});
  policy.ObserveStep({kSequences, 0, 4000, 0});
  policy.ObserveStep({6 * kSequences, kSequences, 19'300, 300});
  const DraftHistory easy{10, 20};
  const DraftHistory hard{40, 0};
  std::vector<Candidate> candidates;
  for (uint32_t i = 0; i < kSequences; ++i) candidates.push_back({5, i % 2 == 0 ? easy : hard});
  const auto choice = policy.Choose(candidates, 0);
  ASSERT_EQ(choice.depths.size(), kSequences);
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < kSequences; ++i) wrong += choice.depths[i] != (i % 2 == 0 ? 5u : 0u);
  // The numbers that are compared are some drafts apart.
  EXPECT_LE(wrong, 5 * kSequences / 1024 + 1);
  EXPECT_EQ(policy.Choose(candidates, 0).depths, choice.depths);
}

TEST(SpeculationPolicy, SurvivalThresholdFollowsTheRowCost) {
  World world;
  world.Run(1, 300);
  const std::vector<Candidate> candidates = {{5, world.histories[0]}};
  const float cheap = world.policy.Choose(candidates, 0).min_survival;
  EXPECT_GT(cheap, 0.05F);  // about 100 us a row against 400 us a token
  EXPECT_LT(cheap, 0.6F);
}

}  // namespace
}  // namespace skein::scheduler
