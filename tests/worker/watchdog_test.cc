// The watchdog ends a process whose step stands still, and no other.
#include "worker/watchdog.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "protocol/base/clock.h"

namespace skein::worker {
namespace {

std::unique_ptr<StepWatchdog> MakeWatchdog() {
  auto watchdog = StepWatchdog::Create({.grace = absl::Milliseconds(100)});
  EXPECT_TRUE(watchdog.ok()) << watchdog.status();
  return *std::move(watchdog);
}

// Lets the watchdog look a few times.
void LetItLook() { ::poll(nullptr, 0, 400); }

TEST(StepWatchdogDeathTest, AStepPastItsDeadlineEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const auto watchdog = MakeWatchdog();
        watchdog->Begin(7, absl::Milliseconds(20));
        ::poll(nullptr, 0, 60'000);
      },
      ::testing::ExitedWithCode(kExitStepDeadline),
      "step 7 runs for [0-9]+ ms, its deadline was 20 ms: the device thread stands still; exit 76 "
      "in 100 ms");
}

TEST(StepWatchdogTest, AStepThatEndedIsLeftAlone) {
  const auto watchdog = MakeWatchdog();
  watchdog->Begin(7, absl::Milliseconds(20));
  watchdog->End();
  LetItLook();
  EXPECT_EQ(watchdog->running_since(), std::nullopt);
}

TEST(StepWatchdogTest, APhaseWithoutDeadlineIsNeverOver) {
  const auto watchdog = MakeWatchdog();
  const absl::Time before = protocol::MonotonicNow();
  watchdog->Begin(0, absl::InfiniteDuration());
  LetItLook();
  ASSERT_NE(watchdog->running_since(), std::nullopt);
  EXPECT_GE(*watchdog->running_since(), before);
  watchdog->End();
}

}  // namespace
}  // namespace skein::worker
