// Tests of the measure of waiting: when a delay stands, when it is over, what is predicted.
#include "coordinator/queue_delay.h"

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

QueueDelay::TimePoint At(int64_t ms) {
  return QueueDelay::TimePoint(std::chrono::hours(1)) + milliseconds(ms);
}

TEST(QueueDelayTest, StandsWhenNobodyBeganInTimeForASecond) {
  QueueDelay delay(milliseconds(500));
  delay.Begin(At(0));
  EXPECT_FALSE(delay.Stands(At(1499)));
  EXPECT_TRUE(delay.Stands(At(1500))) << "the first has waited for a second too long";
  delay.Started(milliseconds(1400), At(1600));
  EXPECT_TRUE(delay.Stands(At(1600))) << "it began, but late";
  delay.Started(milliseconds(500), At(1700));
  EXPECT_FALSE(delay.Stands(At(1700)));
  EXPECT_FALSE(delay.Stands(At(3199)));
  EXPECT_TRUE(delay.Stands(At(3200)));
}

TEST(QueueDelayTest, ALineThatWasEmptyBeginsAnew) {
  QueueDelay delay(milliseconds(500));
  delay.Begin(At(0));
  delay.Begin(At(10'000));
  EXPECT_FALSE(delay.Stands(At(11'499)));
}

TEST(QueueDelayTest, WithoutABoundNothingStands) {
  QueueDelay delay(nanoseconds(0));
  delay.Begin(At(0));
  EXPECT_FALSE(delay.Stands(At(100'000)));
}

TEST(QueueDelayTest, PredictsFromHowFastRequestsBegin) {
  QueueDelay delay(milliseconds(500));
  delay.Begin(At(0));
  EXPECT_EQ(delay.PredictedSeconds(0, At(0)), 1) << "nothing was measured";
  EXPECT_EQ(delay.PredictedSeconds(16, At(0)), 2);
  // Four a second.
  for (int i = 0; i <= 40; ++i) delay.Started(milliseconds(900), At(1000 + 250 * i));
  EXPECT_NEAR(delay.PredictedSeconds(0, At(11'000)), 0.25, 0.02);
  EXPECT_NEAR(delay.PredictedSeconds(11, At(11'000)), 3, 0.2);
  // Now one in two seconds.
  for (int i = 1; i <= 10; ++i) delay.Started(milliseconds(900), At(11'000 + 2000 * i));
  EXPECT_NEAR(delay.PredictedSeconds(0, At(31'000)), 2, 0.1);
  // What is served at once says nothing of how fast the line could move.
  for (int i = 1; i <= 10; ++i) delay.Started(milliseconds(1), At(100'000 + 30'000 * i));
  EXPECT_NEAR(delay.PredictedSeconds(0, At(400'000)), 2, 0.1);
}

TEST(QueueDelayTest, ALineThatStandsStillIsPredictedToDoSo) {
  QueueDelay delay(nanoseconds(0));
  for (int i = 0; i <= 40; ++i) delay.Started(milliseconds(900), At(1000 + 250 * i));
  EXPECT_NEAR(delay.PredictedSeconds(3, At(11'500)), 1, 0.1) << "it has only just moved";
  EXPECT_NEAR(delay.PredictedSeconds(3, At(51'000)), 40, 0.1);
  EXPECT_NEAR(delay.PredictedSeconds(0, At(51'000)), 0.25, 0.02) << "nobody waits";
  delay.Begin(At(60'000));
  EXPECT_NEAR(delay.PredictedSeconds(1, At(60'100)), 0.5, 0.05) << "the first who waits again";
  delay.Started(milliseconds(900), At(80'000));
  EXPECT_LT(delay.PredictedSeconds(3, At(80'000)), 40);
}

}  // namespace
}  // namespace skein::coordinator
