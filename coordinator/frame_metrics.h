// What the control transport refused and repaired, and how late the control loop is woken, as
// metrics. Owns the last reading. Update from any thread; Observe from the control thread.
// Must never count a frame twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "protocol/metrics/metrics.h"
#include "protocol/transport/session.h"

namespace skein::coordinator {

class FrameMetrics {
 public:
  explicit FrameMetrics(protocol::MetricsRegistry& registry);

  // Adds what the counters have more than at the last call.
  void Update(const protocol::FrameCounters& counters);
  // The control loop was woken so late.
  void Observe(absl::Duration late) { scheduling_delay_.Observe(absl::ToDoubleSeconds(late)); }

 private:
  struct Followed {
    protocol::Counter series;
    const std::atomic<uint64_t> protocol::FrameCounters::*counter;
    uint64_t seen = 0;
  };

  std::mutex mutex_;
  std::vector<Followed> followed_;
  protocol::Histogram scheduling_delay_;
};

}  // namespace skein::coordinator
