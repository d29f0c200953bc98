// The metrics of a worker: every series exists from the start, a step counts once, in its place.
#include "worker/metrics.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/reference/register.h"
#include "protocol/base/clock.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class WorkerMetricsTest : public ::testing::Test {
 protected:
  static protocol::Config MakeConfig() {
    protocol::Config config;
    config.worker.backend = "reference";
    return config;
  }
  static kernels::KernelRegistry MakeKernels() {
    kernels::KernelRegistry kernels;
    EXPECT_TRUE(kernels::RegisterReferenceKernels(kernels).ok());
    return kernels;
  }

  const kernels::KernelRegistry kernels_ = MakeKernels();
  protocol::MetricsRegistry registry_{{{"node", "n"}, {"worker", "1"}}};
  WorkerMetrics metrics_{registry_, MakeConfig(), kernels_,
                         kernels::KernelManifest::Uniform("reference")};
};

TEST_F(WorkerMetricsTest, EverySeriesIsThereFromTheStart) {
  const std::string text = registry_.Text();
  for (const char* series :
       {"skein_step_phase_seconds_total{node=\"n\",worker=\"1\",phase=\"prepare\"} 0",
        "skein_forward_passes_total{node=\"n\",worker=\"1\",graph=\"full\",phase=\"decode\"} 0",
        "skein_forward_passes_total{node=\"n\",worker=\"1\",graph=\"eager\",phase=\"mixed\"} 0",
        "skein_engram_lookups_total{node=\"n\",worker=\"1\",tier=\"device\"} 0",
        "skein_comm_aborts_total{node=\"n\",worker=\"1\",cause=\"step_failed\"} 0",
        "skein_sampler_nonfinite_logits_total{node=\"n\",worker=\"1\"} 0",
        "skein_startup_phase_seconds{node=\"n\",worker=\"1\",phase=\"graph_capture\"} 0",
        "skein_kernel_variant{node=\"n\",worker=\"1\",backend=\"reference\",operator="
        "\"sample_tokens\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(series));
  }
}

TEST_F(WorkerMetricsTest, AStepCountsOnceAndInItsPlace) {
  StepAccount step;
  step.prepare = absl::Milliseconds(1);
  step.draft = absl::Milliseconds(2);
  step.forward = absl::Milliseconds(4);
  step.sample = absl::Milliseconds(8);
  step.decodes = step.prefills = true;
  step.table_rows = 24;
  step.table_bytes = 6336;
  step.nonfinite_logits = 1;
  metrics_.Count(step);
  metrics_.Count(StepAccount{});  // nothing ran
  step.prefills = false;
  step.recorded = true;
  metrics_.Count(step);
  const std::string text = registry_.Text();
  EXPECT_THAT(text, HasSubstr("worker=\"1\",phase=\"forward\"} 0.008"));
  EXPECT_THAT(text, HasSubstr("skein_gpu_busy_seconds_total{node=\"n\",worker=\"1\"} 0.03"));
  EXPECT_THAT(text, HasSubstr("{node=\"n\",worker=\"1\",graph=\"eager\",phase=\"mixed\"} 1"));
  EXPECT_THAT(text, HasSubstr("{node=\"n\",worker=\"1\",graph=\"full\",phase=\"decode\"} 1"));
  EXPECT_THAT(text, HasSubstr("lookups_total{node=\"n\",worker=\"1\",tier=\"host\"} 48"));
  EXPECT_THAT(text, HasSubstr("row_bytes_total{node=\"n\",worker=\"1\",tier=\"host\"} 12672"));
  EXPECT_THAT(text, HasSubstr("nonfinite_logits_total{node=\"n\",worker=\"1\"} 2"));
}

TEST_F(WorkerMetricsTest, ATransferCountsByItsSideAndEnd) {
  protocol::BlocksMoved moved;
  moved.bytes = 5000;
  moved.took_us = 20'000;
  metrics_.Count(moved);
  moved.status = protocol::MoveStatus::kExpired;
  metrics_.Count(moved);
  moved.side = protocol::MoveSide::kFetch;
  metrics_.Count(moved);
  moved.status = protocol::MoveStatus::kLost;
  metrics_.Count(moved);
  const std::string text = registry_.Text();
  const std::string of = "{node=\"n\",worker=\"1\",direction=";
  EXPECT_THAT(text, HasSubstr("skein_kv_transfers_total" + of + "\"send\",result=\"ok\"} 1"));
  EXPECT_THAT(text, HasSubstr("skein_kv_transfers_total" + of + "\"send\",result=\"expired\"} 1"));
  EXPECT_THAT(text, HasSubstr("kv_transfers_total" + of + "\"receive\",result=\"expired\"} 1"));
  EXPECT_THAT(text, HasSubstr("kv_transfers_total" + of + "\"receive\",result=\"lost\"} 1"));
  EXPECT_THAT(text, HasSubstr("kv_transfers_total" + of + "\"receive\",result=\"refused\"} 0"));
  EXPECT_THAT(text, HasSubstr("skein_kv_leases_expired_total{node=\"n\",worker=\"1\"} 1"));
  EXPECT_THAT(text, HasSubstr("skein_kv_transfer_bytes_sum" + of + "\"send\"} 5000"));
  EXPECT_THAT(text, HasSubstr("skein_kv_transfer_seconds_sum" + of + "\"send\"} 0.02"));
}

TEST_F(WorkerMetricsTest, AReadingReplacesTheOneBeforeAndHangsAreCountedOnce) {
  WorkerMetrics::Reading reading;
  reading.device_age = absl::Seconds(3);
  reading.plans = 2;
  reading.hangs = 1;
  metrics_.Set(reading);
  reading = {};
  reading.actor_age = absl::Seconds(1);
  reading.hangs = 1;
  metrics_.Set(reading);
  const std::string text = registry_.Text();
  EXPECT_THAT(text,
              HasSubstr("skein_hang_detections_total{node=\"n\",worker=\"1\",kind=\"kernel\"} 1"));
  EXPECT_THAT(text, HasSubstr("worker=\"1\",thread=\"device\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("worker=\"1\",thread=\"actor\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("actor=\"worker\",type=\"plan\"} 0\n"));
}

// rule: ST1
TEST_F(WorkerMetricsTest, MemoryAndStartAreSaidByPart) {
  MemoryUse use;
  use.weights = 100;
  use.engram = 50;
  use.compressed = 1;
  use.index = 2;
  use.window = 3;
  use.state = 4;
  use.draft = 5;
  use.activations = 7;
  metrics_.SetMemory(use);
  absl::Time now = absl::UnixEpoch();
  StartProgress progress(nullptr, [&now] { return now; });
  progress.Begin(StartPhase::kWarmup);
  now += absl::Seconds(2);
  progress.End();
  metrics_.SetStart(progress);
  const std::string text = registry_.Text();
  EXPECT_THAT(text, HasSubstr("skein_kv_pool_bytes{node=\"n\",worker=\"1\",pool=\"state\"} 4"));
  EXPECT_THAT(text, HasSubstr("skein_gpu_memory_bytes{node=\"n\",worker=\"1\",kind=\"kv\"} 15"));
  EXPECT_THAT(text, HasSubstr("worker=\"1\",phase=\"warmup\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("worker=\"1\",phase=\"total\"} 2\n"));
}

TEST(WorkerLabelsTest, TheNumberIsTheOneThatTheCoordinatorUses) {
  const protocol::MetricLabels labels = WorkerLabels(0);
  ASSERT_EQ(labels.size(), 2u);
  EXPECT_EQ(labels[0].first, "node");
  EXPECT_THAT(labels[0].second, Not(""));
  EXPECT_EQ(labels[1], (std::pair<std::string, std::string>("worker", "1")));
}

}  // namespace
}  // namespace skein::worker
