// Placements of experts: sizes of ranks are kept, the busiest rank gets no busier, nothing moves
// for nothing, and equal counts give equal placements, whatever the shape.
#include "scheduler/expert_placement.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace skein::tests {
namespace {

using protocol::ExpertPlacement;
using scheduler::ContiguousPlacement;
using scheduler::ExpertCounts;
using scheduler::Imbalance;
using scheduler::Rebalance;

std::vector<size_t> SizesOf(const std::vector<uint16_t>& ranks, uint32_t num_ranks) {
  std::vector<size_t> sizes(num_ranks);
  for (const uint16_t rank : ranks) ++sizes.at(rank);
  return sizes;
}

double BusiestOf(const std::vector<double>& counts, const std::vector<uint16_t>& ranks,
                 uint32_t num_ranks) {
  std::vector<double> load(num_ranks);
  for (size_t e = 0; e < counts.size(); ++e) load.at(ranks[e]) += counts[e];
  return *std::max_element(load.begin(), load.end());
}

// Layers of different sizes, as the draft head's differ from those of the model.
ExpertCounts RandomCounts(uint32_t seed) {
  std::mt19937 random(seed);
  ExpertCounts counts;
  for (size_t layer = 0; layer < 1 + seed % 3; ++layer) {
    std::vector<double>& row = counts.emplace_back(8 + random() % 60);
    const bool skewed = random() % 2 == 0;
    for (double& count : row) {
      count = random() % 4 == 0 ? 0 : static_cast<double>(random() % 1000);
      if (skewed && random() % 8 == 0) count *= 50;
    }
  }
  return counts;
}

TEST(ExpertPlacement, TheContiguousOneIsThatOfTheRangesThatWorkersLoad) {
  const ExpertCounts counts = {std::vector<double>(7), std::vector<double>(4)};
  EXPECT_EQ(ContiguousPlacement(counts, 3), (ExpertPlacement{{0, 0, 1, 1, 2, 2, 2}, {0, 1, 2, 2}}));
  EXPECT_EQ(ContiguousPlacement(counts, 1), (ExpertPlacement{{0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0}}));
}

TEST(ExpertPlacement, ImbalanceIsTheBusiestRankOverTheMeanOfLayersWithRows) {
  const ExpertPlacement two = {{0, 0, 1, 1}, {0, 0, 1, 1}, {0, 0, 1, 1}};
  EXPECT_DOUBLE_EQ(Imbalance({{3, 3, 1, 1}, {1, 1, 1, 1}, {0, 0, 0, 0}}, two, 2), 1.25);
  EXPECT_DOUBLE_EQ(Imbalance({{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, two, 2), 1);
  EXPECT_DOUBLE_EQ(Imbalance({{9, 0}}, {{0, 0}}, 1), 1);
}

TEST(ExpertPlacement, TwoHotExpertsOfOneRankArePartedByOneExchange) {
  const ExpertCounts counts = {{90, 80, 1, 2, 3, 4}};
  const ExpertPlacement after = Rebalance(counts, ContiguousPlacement(counts, 2), 2);
  size_t moved = 0;
  for (size_t e = 0; e < 6; ++e) moved += after[0][e] != ContiguousPlacement(counts, 2)[0][e];
  EXPECT_EQ(moved, 2u);
  EXPECT_NE(after[0][0], after[0][1]);
  EXPECT_LT(Imbalance(counts, after, 2), 1.1);
}

TEST(ExpertPlacement, NothingMovesForNothing) {
  const ExpertCounts even = {std::vector<double>(16, 5.0), std::vector<double>(16, 0.0)};
  const ExpertPlacement present = ContiguousPlacement(even, 4);
  EXPECT_EQ(Rebalance(even, present, 4), present);
  // One expert alone makes a rank busy: exchanging it changes nothing.
  const ExpertCounts one = {{100, 0, 0, 0}};
  EXPECT_EQ(Rebalance(one, ContiguousPlacement(one, 2), 2), ContiguousPlacement(one, 2));
}

TEST(ExpertPlacement, NothingMovesForATrifle) {
  const ExpertPlacement present = {{0, 0, 1, 1}};
  EXPECT_EQ(Rebalance({{1002, 1001, 1000, 1000}}, present, 2), present);
  EXPECT_NE(Rebalance({{1020, 1010, 1000, 1000}}, present, 2), present);
}

TEST(ExpertPlacement, WhateverTheCountsSizesAreKeptAndNoLayerGetsWorse) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const ExpertCounts counts = RandomCounts(seed);
    const uint32_t ranks = 1 + seed % 8;
    ExpertPlacement present = ContiguousPlacement(counts, ranks);
    std::mt19937 random(seed);
    if (seed % 2 == 0) {
      for (auto& layer : present) std::shuffle(layer.begin(), layer.end(), random);
    }
    const ExpertPlacement after = Rebalance(counts, present, ranks);
    EXPECT_EQ(after, Rebalance(counts, present, ranks));
    ASSERT_EQ(after.size(), present.size());
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(SizesOf(after[i], ranks), SizesOf(present[i], ranks)) << seed;
      EXPECT_LE(BusiestOf(counts[i], after[i], ranks), BusiestOf(counts[i], present[i], ranks))
          << seed;
    }
    // What was balanced once is left alone.
    EXPECT_EQ(Rebalance(counts, after, ranks), after) << seed;
  }
}

// 256 experts of a long-tailed load on 8 ranks: far from even as ranges, nearly even afterwards.
TEST(ExpertPlacement, ALongTailIsNearlyEvenAfterwards) {
  ExpertCounts counts(4);
  for (size_t layer = 0; layer < counts.size(); ++layer) {
    for (size_t e = 0; e < 256; ++e) {
      counts[layer].push_back(10'000.0 / static_cast<double>(16 + (e * (layer + 1)) % 256));
    }
  }
  const ExpertPlacement present = ContiguousPlacement(counts, 8);
  EXPECT_GT(Imbalance(counts, present, 8), 1.4);
  EXPECT_LT(Imbalance(counts, Rebalance(counts, present, 8), 8), 1.01);
}

}  // namespace
}  // namespace skein::tests
