// Tests of worker/node/restart_policy: growing pauses, the intensity limit, late retries.
#include "worker/node/restart_policy.h"

#include <gtest/gtest.h>

namespace skein::worker {
namespace {

constexpr uint64_t kMost = ~uint64_t{0};  // the largest share of the pause

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(RestartPolicyTest, PausesDoubleUpToTheLimitOfTheWindow) {
  RestartPolicy policy{protocol::NodeConfig{}};
  const double expected[] = {0.2, 0.4, 0.8, 1.6, 3.2};
  for (const double seconds : expected) {
    const RestartPolicy::Decision decision = policy.OnExit(At(1), kMost);
    EXPECT_FALSE(decision.failed);
    EXPECT_NEAR(absl::ToDoubleSeconds(decision.pause), seconds, 1e-6);
  }
  const RestartPolicy::Decision sixth = policy.OnExit(At(2), kMost);
  EXPECT_TRUE(sixth.failed);
  EXPECT_EQ(sixth.pause, absl::Minutes(10));
}

TEST(RestartPolicyTest, JitterIsBetweenHalfAndAll) {
  for (uint64_t random = 0; random < 64; ++random) {
    RestartPolicy policy{protocol::NodeConfig{}};
    const absl::Duration pause = policy.OnExit(At(0), random << 58).pause;
    EXPECT_GE(pause, absl::Milliseconds(100));
    EXPECT_LE(pause, absl::Milliseconds(200));
  }
}

TEST(RestartPolicyTest, PausesHaveAMaximum) {
  protocol::NodeConfig limits;
  limits.restarts_max = 20;
  RestartPolicy policy{limits};
  absl::Duration last;
  for (int i = 0; i < 20; ++i) last = policy.OnExit(At(0), kMost).pause;
  EXPECT_NEAR(absl::ToDoubleSeconds(last), 10, 1e-6);
}

TEST(RestartPolicyTest, ExitsFarApartNeverFail) {
  RestartPolicy policy{protocol::NodeConfig{}};
  for (int i = 0; i < 100; ++i) {
    const RestartPolicy::Decision decision = policy.OnExit(At(61.0 * i), kMost);
    EXPECT_FALSE(decision.failed);
    EXPECT_NEAR(absl::ToDoubleSeconds(decision.pause), 0.2, 1e-6);
  }
}

TEST(RestartPolicyTest, AFailedChildIsRetriedTwiceThenNever) {
  protocol::NodeConfig limits;
  limits.restarts_max = 0;
  RestartPolicy policy{limits};
  EXPECT_EQ(policy.OnExit(At(0), 0).pause, RestartPolicy::kRetryAfter);
  EXPECT_EQ(policy.OnExit(At(601), 0).pause, RestartPolicy::kRetryAfter);
  const RestartPolicy::Decision last = policy.OnExit(At(1202), 0);
  EXPECT_TRUE(last.failed);
  EXPECT_EQ(last.pause, absl::InfiniteDuration());
}

}  // namespace
}  // namespace skein::worker
