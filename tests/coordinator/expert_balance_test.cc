// When experts change places: not without rows that say so, not for little, one group at a time;
// and what becomes of the placement when the epoch that has it fails.
#include "coordinator/expert_balance.h"

#include <random>

#include <gtest/gtest.h>

namespace skein::tests {
namespace {

using coordinator::ExpertBalance;
using protocol::ExpertPlacement;
using protocol::GroupId;

constexpr absl::Duration kInterval = absl::Seconds(30);
const GroupId kGroup(0);

class ExpertBalanceTest : public ::testing::Test {
 protected:
  // Four experts, of which the first two, on rank 0, have most of the rows.
  static protocol::ExpertLoad Skewed(uint32_t rows = 1000) {
    return {false, {{rows, rows, rows / 10, rows / 10}}};
  }
  // Two steps, one for each half of the counts.
  void Count(GroupId group, const protocol::ExpertLoad& load) {
    for (int i = 0; i < 2; ++i) balance_.Count(group, load);
  }
  // The first look only begins the time between two.
  bool Propose(GroupId group = kGroup) {
    now_ += kInterval;
    return balance_.Propose(group, now_);
  }
  double Rebalances(std::string_view result) { return metrics_.rebalances.At({result}).value(); }
  double Gauge(std::string_view phase) {
    now_ += absl::Seconds(1);
    balance_.Tick(now_);
    return metrics_.expert_imbalance.At({phase}).value();
  }

  protocol::MetricsRegistry registry_{{}};
  coordinator::CoordinatorMetrics metrics_{registry_, 4, 0};
  ExpertBalance balance_{2, 2, kInterval, metrics_};
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

TEST_F(ExpertBalanceTest, ABusyRankGivesAnExpertAway) {
  EXPECT_FALSE(balance_.Propose(kGroup, now_));
  Count(kGroup, Skewed());
  EXPECT_FALSE(balance_.Propose(kGroup, now_ + kInterval / 2));
  EXPECT_NEAR(Gauge("decode"), 2000 / 1100.0, 1e-9);
  EXPECT_EQ(Gauge("prefill"), 1);
  EXPECT_TRUE(balance_.placement(kGroup).empty());
  ASSERT_TRUE(Propose());
  EXPECT_TRUE(balance_.quiet(kGroup));
  EXPECT_TRUE(balance_.under_way());
  EXPECT_TRUE(balance_.placement(kGroup).empty());
  balance_.Begin(kGroup);
  EXPECT_FALSE(balance_.quiet(kGroup));
  EXPECT_EQ(balance_.placement(kGroup), (ExpertPlacement{{1, 0, 0, 1}}));
  now_ += absl::Seconds(2);
  balance_.Formed(kGroup, now_);
  EXPECT_FALSE(balance_.under_way());
  EXPECT_EQ(Rebalances("ok"), 1);
  // It is even now.
  Count(kGroup, Skewed());
  EXPECT_EQ(Gauge("decode"), 1);
  EXPECT_FALSE(Propose());
  balance_.Formed(kGroup, now_);
  EXPECT_EQ(Rebalances("ok"), 1) << "an epoch that follows a loss";
  EXPECT_EQ(Rebalances("failed"), 0);
}

TEST_F(ExpertBalanceTest, NothingMovesWithoutRowsThatSaySoOrForLittle) {
  EXPECT_FALSE(Propose());
  Count(kGroup, Skewed(12));
  EXPECT_EQ(Gauge("decode"), 1);
  EXPECT_FALSE(Propose()) << "too few rows";
  Count(GroupId(1), {true, {{1000, 1000, 950, 950}}});
  EXPECT_FALSE(Propose(GroupId(1))) << "nearly even";
}

// Rows that choose their experts evenly differ by chance, and by the more the fewer they are.
TEST_F(ExpertBalanceTest, ChanceMovesNothing) {
  struct Shape {
    size_t layers, experts;
    uint32_t ranks;
  };
  for (const Shape& shape :
       {Shape{1, 256, 32}, Shape{4, 256, 32}, Shape{1, 32, 8}, Shape{3, 8, 2}}) {
    for (uint32_t seed = 0; seed < 100; ++seed) {
      std::mt19937 random(seed);
      ExpertBalance balance(1, shape.ranks, kInterval, metrics_);
      EXPECT_FALSE(balance.Propose(kGroup, now_));
      for (int step = 0; step < 64; ++step) {
        protocol::ExpertLoad load{step % 3 == 0, {}};
        for (size_t layer = 0; layer < shape.layers; ++layer) {
          load.counts.emplace_back(shape.experts);
          for (size_t i = 0; i < shape.experts; ++i) {
            ++load.counts.back()[random() % shape.experts];
          }
        }
        balance.Count(kGroup, load);
      }
      EXPECT_FALSE(balance.Propose(kGroup, now_ + kInterval)) << shape.experts << " " << seed;
    }
  }
}

// What is made of some steps has to be better for others: here the hot experts are never the same.
TEST_F(ExpertBalanceTest, AGainThatOtherStepsDoNotHaveIsNone) {
  EXPECT_FALSE(balance_.Propose(kGroup, now_));
  balance_.Count(kGroup, {false, {{1000, 1000, 100, 100}}});
  balance_.Count(kGroup, {false, {{1000, 100, 100, 1000}}});
  EXPECT_FALSE(Propose());
}

TEST_F(ExpertBalanceTest, ALayerOfFewRowsSaysNothing) {
  EXPECT_FALSE(balance_.Propose(kGroup, now_));
  Count(kGroup, {false, {{1000, 1000, 1000, 1000}, {15, 15, 0, 0}, {15, 15, 0, 0}}});
  EXPECT_EQ(Gauge("decode"), 1);
  EXPECT_FALSE(Propose());
  // Nor one that had many long ago.
  Count(kGroup, {true, {{1000, 1000, 1000, 1000}, {2000, 2000, 0, 0}, {15, 15, 0, 0}}});
  EXPECT_EQ(Gauge("prefill"), 1.5);
  for (int i = 0; i < 12; ++i) {
    now_ += absl::Seconds(60);
    balance_.Tick(now_);
  }
  Count(kGroup, {true, {{1000, 1000, 1000, 1000}, {0, 0, 0, 0}, {0, 0, 0, 0}}});
  EXPECT_NEAR(Gauge("prefill"), 1, 1e-9);
  EXPECT_FALSE(Propose());
}

// One shape for both kinds of steps and the placement, until the epoch is over.
TEST_F(ExpertBalanceTest, CountsOfAnotherShapeAreDropped) {
  const protocol::ExpertLoad one{true, {{9000, 1, 1, 1}, {1, 1}}};
  const std::vector<protocol::ExpertLoad> others = {
      {false, {{9000, 1, 1, 1}}}, {false, {{9000, 1, 1, 1}, {1, 1, 1}}}, {false, {{1, 1}, {1, 1}}}};
  EXPECT_FALSE(balance_.Propose(kGroup, now_));
  Count(kGroup, one);
  for (const protocol::ExpertLoad& other : others) Count(kGroup, other);
  EXPECT_EQ(Gauge("decode"), 1);
  EXPECT_FALSE(Propose()) << "one expert alone makes its rank busy";
  balance_.Formed(kGroup, now_);
  Count(kGroup, Skewed());
  ASSERT_TRUE(Propose()) << "the next epoch may have another shape";
  balance_.Begin(kGroup);
  balance_.Formed(kGroup, now_);
  Count(kGroup, one);
  Count(kGroup, {false, {{9000, 1, 1}}});
  EXPECT_EQ(Gauge("decode"), 1) << "but only that of the placement";
  EXPECT_EQ(Gauge("prefill"), 1);
  EXPECT_FALSE(Propose());
}

TEST_F(ExpertBalanceTest, ZeroIsNeverAndOneRankHasNothingToPlace) {
  ExpertBalance never(1, 2, absl::ZeroDuration(), metrics_);
  ExpertBalance alone(1, 1, kInterval, metrics_);
  for (ExpertBalance* balance : {&never, &alone}) {
    balance->Count(kGroup, Skewed());
    for (int i = 1; i < 4; ++i) EXPECT_FALSE(balance->Propose(kGroup, now_ + i * kInterval));
  }
}

TEST_F(ExpertBalanceTest, OneGroupAtATime) {
  for (const GroupId group : {kGroup, GroupId(1)}) {
    EXPECT_FALSE(balance_.Propose(group, now_));
    Count(group, Skewed());
  }
  ASSERT_TRUE(Propose());
  EXPECT_FALSE(Propose(GroupId(1)));
  balance_.Begin(kGroup);
  EXPECT_FALSE(Propose(GroupId(1)));
  balance_.Formed(kGroup, now_);
  EXPECT_TRUE(Propose(GroupId(1)));
}

// A loss while the group is quiet, and one while its ranks load, leave the experts where they were;
// the next look tries again.
TEST_F(ExpertBalanceTest, AnEpochThatEndsLeavesTheExpertsWhereTheyWere) {
  EXPECT_FALSE(balance_.Propose(kGroup, now_));
  Count(kGroup, Skewed());
  ASSERT_TRUE(Propose());
  balance_.Ended(kGroup);
  EXPECT_FALSE(balance_.under_way());
  ASSERT_TRUE(Propose());
  balance_.Begin(kGroup);
  balance_.Ended(kGroup);
  EXPECT_TRUE(balance_.placement(kGroup).empty());
  EXPECT_EQ(Rebalances("failed"), 2);
  ASSERT_TRUE(Propose());
  balance_.Begin(kGroup);
  balance_.Formed(kGroup, now_);
  const ExpertPlacement placed = balance_.placement(kGroup);
  EXPECT_FALSE(placed.empty());
  // From then on an epoch ends as any other, and the next has the same experts.
  balance_.Ended(kGroup);
  EXPECT_EQ(balance_.placement(kGroup), placed);
  EXPECT_EQ(Rebalances("failed"), 2);
}

// As when a worker of an older version has joined.
TEST_F(ExpertBalanceTest, RanksThatCannotBeToldHaveTheirFirstExperts) {
  EXPECT_FALSE(balance_.Propose(kGroup, now_));
  Count(kGroup, Skewed());
  ASSERT_TRUE(Propose());
  balance_.Begin(kGroup);
  balance_.Formed(kGroup, now_);
  Count(kGroup, Skewed());
  EXPECT_EQ(Gauge("decode"), 1);
  balance_.Forget(kGroup);
  EXPECT_TRUE(balance_.placement(kGroup).empty());
  EXPECT_GT(Gauge("decode"), 1.8);
  ASSERT_TRUE(Propose());
  balance_.Begin(kGroup);
  balance_.Forget(kGroup);
  EXPECT_TRUE(balance_.placement(kGroup).empty());
  EXPECT_FALSE(balance_.under_way());
}

TEST_F(ExpertBalanceTest, OldCountsAreForgotten) {
  EXPECT_FALSE(balance_.Propose(kGroup, now_));
  Count(kGroup, Skewed());
  EXPECT_GT(Gauge("decode"), 1.8);
  for (int i = 0; i < 12; ++i) {
    now_ += absl::Seconds(60);
    balance_.Tick(now_);
  }
  // The same load, elsewhere: by now it is all that counts.
  Count(kGroup, {false, {{100, 100, 1000, 1000}}});
  ASSERT_TRUE(Propose());
  balance_.Begin(kGroup);
  EXPECT_EQ(balance_.placement(kGroup)[0][2] + balance_.placement(kGroup)[0][3], 1);
}

}  // namespace
}  // namespace skein::tests
