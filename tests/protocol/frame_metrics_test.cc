// Counters of the transport as metrics: each difference once.
#include "protocol/transport/frame_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

TEST(FrameMetricsTest, EachFrameIsCountedOnceByItsKind) {
  MetricsRegistry registry({});
  FrameMetrics metrics(registry);
  FrameCounters counters;
  EXPECT_THAT(registry.Text(), HasSubstr("skein_control_auth_denied_total 0"));
  counters.bad_checksum = 2;
  counters.stale_term = 3;
  counters.duplicates = 1;
  counters.gaps = 4;
  counters.auth_denied = 5;
  metrics.Update(counters);
  counters.bad_checksum = 6;
  metrics.Update(counters, 7);
  metrics.Update(counters, 9);
  const std::string text = registry.Text();
  EXPECT_THAT(text, HasSubstr("skein_stale_frames_dropped_total{kind=\"epoch\"} 9"));
  EXPECT_THAT(text, HasSubstr("skein_bad_frames_total{reason=\"checksum\"} 6"));
  EXPECT_THAT(text, HasSubstr("skein_bad_frames_total{reason=\"length\"} 0"));
  EXPECT_THAT(text, HasSubstr("skein_stale_frames_dropped_total{kind=\"term\"} 3"));
  EXPECT_THAT(text, HasSubstr("skein_stale_frames_dropped_total{kind=\"repeated\"} 1"));
  EXPECT_THAT(text, HasSubstr("skein_seq_gaps_total 4"));
  EXPECT_THAT(text, HasSubstr("skein_control_auth_denied_total 5"));
}

TEST(FrameMetricsTest, DelaysAreADistribution) {
  MetricsRegistry registry({});
  FrameMetrics metrics(registry);
  metrics.Observe(absl::Milliseconds(4));
  const std::string text = registry.Text();
  EXPECT_THAT(text, HasSubstr("skein_scheduling_delay_seconds_bucket{le=\"0.003\"} 0"));
  EXPECT_THAT(text, HasSubstr("skein_scheduling_delay_seconds_bucket{le=\"0.01\"} 1"));
}

}  // namespace
}  // namespace skein::protocol
