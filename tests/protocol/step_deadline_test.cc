// Deadlines of steps: floor, growth with the rows, and what is not known yet.
#include "protocol/base/step_deadline.h"

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

TEST(StepDeadlineTest, NothingIsLateBeforeAStepEnded) {
  EXPECT_EQ(StepDeadline().For(1), StepDeadline::kUnknown);
}

TEST(StepDeadlineTest, QuickStepsHaveTheFloor) {
  StepDeadline deadline;
  deadline.Observe(4, absl::Milliseconds(3));
  EXPECT_EQ(deadline.For(4), absl::Seconds(2));
}

TEST(StepDeadlineTest, SlowStepsHaveTwentyTimesTheSlowest) {
  StepDeadline deadline;
  deadline.Observe(512, absl::Milliseconds(250));
  deadline.Observe(512, absl::Milliseconds(500));
  deadline.Observe(1, absl::Milliseconds(1));
  EXPECT_EQ(deadline.For(512), absl::Seconds(10));
  EXPECT_EQ(deadline.For(1), absl::Seconds(2));
  for (int step = 0; step < 100; ++step) deadline.Observe(512, absl::Milliseconds(125));
  EXPECT_EQ(deadline.For(512), absl::Milliseconds(2500)) << "the last hundred count";
}

TEST(StepDeadlineTest, UnseenSizesFollowTheNearest) {
  StepDeadline deadline;
  deadline.Observe(64, absl::Milliseconds(250));
  EXPECT_EQ(deadline.For(256), absl::Seconds(20)) << "four times the rows";
  EXPECT_EQ(deadline.For(16), absl::Seconds(5)) << "no more than the larger";
}

}  // namespace
}  // namespace skein::protocol
