// What the control transport refused and repaired, and how late the loop of this process is
// woken, as metrics. Owns the last reading. Update from any thread; Observe from the loop's thread.
// Must never count a frame twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "protocol/metrics/metrics.h"
#include "protocol/transport/session.h"

namespace skein::protocol {

class FrameMetrics {
 public:
  explicit FrameMetrics(MetricsRegistry& registry);

  // Adds what the counters have more than at the last call, and of `stale_epochs`, messages between
  // ranks of ended epochs, the same.
  void Update(const FrameCounters& counters, uint64_t stale_epochs = 0);
  // The loop was woken so late.
  void Observe(absl::Duration late) { scheduling_delay_.Observe(absl::ToDoubleSeconds(late)); }

 private:
  struct Followed {
    Counter series;
    const std::atomic<uint64_t> FrameCounters::*counter;
    uint64_t seen = 0;
  };

  std::mutex mutex_;
  std::vector<Followed> followed_;
  std::optional<Counter> stale_epochs_;
  uint64_t stale_epochs_seen_ = 0;
  Histogram scheduling_delay_;
};

}  // namespace skein::protocol
