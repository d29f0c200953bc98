// The floor that one's own delay puts under every lease.
#include "protocol/actor/scheduling_delay.h"

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(SchedulingDelayTest, WithoutDelaysThereIsNoFloor) {
  EXPECT_EQ(SchedulingDelay().LeaseFloor(), absl::ZeroDuration());
}

TEST(SchedulingDelayTest, TheFloorIsThreeTimesTheDelayThatOneInAThousandExceeds) {
  SchedulingDelay delay;
  for (int i = 0; i < 2000; ++i) delay.Observe(absl::Milliseconds(10), kStart);
  for (int i = 0; i < 3; ++i) delay.Observe(absl::Milliseconds(200), kStart);
  // The third longest of 2003, at the upper end of its bucket.
  EXPECT_GE(delay.LeaseFloor(), absl::Milliseconds(600));
  EXPECT_LE(delay.LeaseFloor(), absl::Milliseconds(720));
}

TEST(SchedulingDelayTest, OnePauseAmongThousandsDoesNotCount) {
  SchedulingDelay delay;
  for (int i = 0; i < 2000; ++i) delay.Observe(absl::Milliseconds(1), kStart);
  delay.Observe(absl::Seconds(10), kStart);
  EXPECT_LE(delay.LeaseFloor(), absl::Milliseconds(4));
}

TEST(SchedulingDelayTest, OldDelaysAreForgotten) {
  SchedulingDelay delay;
  delay.Observe(absl::Milliseconds(500), kStart);
  delay.Observe(absl::Milliseconds(1), kStart + absl::Seconds(31));
  EXPECT_GE(delay.LeaseFloor(), absl::Milliseconds(1500));
  delay.Observe(absl::Milliseconds(1), kStart + absl::Seconds(62));
  EXPECT_LE(delay.LeaseFloor(), absl::Milliseconds(4));
}

TEST(SchedulingDelayTest, TheFloorHasAnEnd) {
  SchedulingDelay delay;
  delay.Observe(absl::Seconds(100), kStart);
  EXPECT_EQ(delay.LeaseFloor(), SchedulingDelay::kFloorMax);
}

}  // namespace
}  // namespace skein::protocol
