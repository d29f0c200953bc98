// Tests of protocol/base/retry_pause: bounds that double, full jitter, a reset.
#include "protocol/base/retry_pause.h"

#include <limits>

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

constexpr uint64_t kLongest = std::numeric_limits<uint64_t>::max();

TEST(RetryPauseTest, TheBoundDoublesUpToTheMaximum) {
  RetryPause pause(absl::Milliseconds(50), absl::Milliseconds(300));
  for (const int64_t bound_ms : {50, 100, 200, 300, 300}) {
    const absl::Duration longest = pause.Next(kLongest);
    EXPECT_LE(longest, absl::Milliseconds(bound_ms));
    EXPECT_GT(longest, absl::Milliseconds(bound_ms - 1));
  }
}

TEST(RetryPauseTest, JitterReachesDownToZero) {
  RetryPause pause(absl::Milliseconds(50), absl::Seconds(5));
  EXPECT_EQ(pause.Next(0), absl::ZeroDuration());
  EXPECT_EQ(pause.Next(uint64_t{1} << 63), absl::Milliseconds(50));
}

TEST(RetryPauseTest, ASuccessBeginsAnew) {
  RetryPause pause(absl::Milliseconds(50), absl::Seconds(5));
  for (int i = 0; i < 10; ++i) pause.Next(kLongest);
  pause.Reset();
  EXPECT_LE(pause.Next(kLongest), absl::Milliseconds(50));
}

}  // namespace
}  // namespace skein::protocol
