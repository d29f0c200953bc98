// When experts change places: not without rows that say so, not for little, one group at a time;
// and what becomes of the placement when the epoch that has it fails.
#include "coordinator/expert_balance.h"

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
  // The first look only begins the time between two.
  bool Propose(GroupId group = kGroup) {
    now_ += kInterval;
    return balance_.Propose(group, now_);
  }
  double Count(std::string_view result) { return metrics_.rebalances.At({result}).value(); }
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
  balance_.Count(kGroup, Skewed());
  EXPECT_FALSE(balance_.Propose(kGroup, now_ + kInterval / 2));
  EXPECT_NEAR(Gauge("decode"), 2000 / 1100.0, 1e-9);
  EXPECT_EQ(Gauge("prefill"), 1);
  EXPECT_TRUE(balance_.placement(kGroup).empty());
  ASSERT_TRUE(Propose());
  EXPECT_TRUE(balance_.quiet(kGroup));
  EXPECT_TRUE(balance_.under_way());
  EXPECT_TRUE(balance_.placement(kGroup).empty());
  balance_.Begin(kGroup, now_);
  EXPECT_FALSE(balance_.quiet(kGroup));
  EXPECT_EQ(balance_.placement(kGroup), (ExpertPlacement{{1, 0, 0, 1}}));
  now_ += absl::Seconds(2);
  balance_.Formed(kGroup, now_);
  EXPECT_FALSE(balance_.under_way());
  EXPECT_EQ(Count("ok"), 1);
  EXPECT_EQ(Gauge("decode"), 1);
  // It is even now.
  EXPECT_FALSE(Propose());
  balance_.Formed(kGroup, now_);
  EXPECT_EQ(Count("ok"), 1) << "an epoch that follows a loss";
  EXPECT_EQ(Count("failed"), 0);
}

TEST_F(ExpertBalanceTest, NothingMovesWithoutRowsThatSaySoOrForLittle) {
  EXPECT_FALSE(Propose());
  balance_.Count(kGroup, Skewed(20));
  EXPECT_FALSE(Propose()) << "too few rows";
  balance_.Count(GroupId(1), {true, {{1000, 1000, 950, 950}}});
  EXPECT_FALSE(Propose(GroupId(1))) << "nearly even";
  balance_.Count(GroupId(1), {false, {{1, 2, 3}}});
  EXPECT_EQ(Gauge("decode"), 2000 / 1100.0 * 0 + (20 + 20) * 2 / 44.0)
      << "another shape is dropped";
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
    balance_.Count(group, Skewed());
  }
  ASSERT_TRUE(Propose());
  EXPECT_FALSE(Propose(GroupId(1)));
  balance_.Begin(kGroup, now_);
  EXPECT_FALSE(Propose(GroupId(1)));
  balance_.Formed(kGroup, now_);
  EXPECT_TRUE(Propose(GroupId(1)));
}

// A loss while the group is quiet, and one while its ranks load, leave the experts where they were;
// the next look tries again.
TEST_F(ExpertBalanceTest, AnEpochThatEndsLeavesTheExpertsWhereTheyWere) {
  EXPECT_FALSE(balance_.Propose(kGroup, now_));
  balance_.Count(kGroup, Skewed());
  ASSERT_TRUE(Propose());
  balance_.Ended(kGroup);
  EXPECT_FALSE(balance_.under_way());
  ASSERT_TRUE(Propose());
  balance_.Begin(kGroup, now_);
  balance_.Ended(kGroup);
  EXPECT_TRUE(balance_.placement(kGroup).empty());
  EXPECT_EQ(Count("failed"), 2);
  ASSERT_TRUE(Propose());
  balance_.Begin(kGroup, now_);
  balance_.Formed(kGroup, now_);
  const ExpertPlacement placed = balance_.placement(kGroup);
  EXPECT_FALSE(placed.empty());
  // From then on an epoch ends as any other, and the next has the same experts.
  balance_.Ended(kGroup);
  EXPECT_EQ(balance_.placement(kGroup), placed);
  EXPECT_EQ(Count("failed"), 2);
}

TEST_F(ExpertBalanceTest, OldCountsAreForgotten) {
  EXPECT_FALSE(balance_.Propose(kGroup, now_));
  balance_.Count(kGroup, Skewed());
  EXPECT_GT(Gauge("decode"), 1.8);
  for (int i = 0; i < 12; ++i) {
    now_ += absl::Seconds(60);
    balance_.Tick(now_);
  }
  // The same load, elsewhere: by now it is all that counts.
  balance_.Count(kGroup, {false, {{100, 100, 1000, 1000}}});
  ASSERT_TRUE(Propose());
  balance_.Begin(kGroup, now_);
  EXPECT_EQ(balance_.placement(kGroup)[0][2] + balance_.placement(kGroup)[0][3], 1);
}

}  // namespace
}  // namespace skein::tests
