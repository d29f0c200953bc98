// How long requests wait until they run, and whether that has been too long for too long: then more
// would only make all of them late.
// Owns: when a wait was last short, and how fast the line moves.
// Thread: Started is the control thread's; the others are anybody's.
// Must never: read a clock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace skein::coordinator {

class QueueDelay {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // How long waits must have been too long.
  static constexpr std::chrono::seconds kStanding{1};

  // `most`: how long a request may wait; 0: as long as it takes.
  explicit QueueDelay(std::chrono::nanoseconds most) : most_(most) {}

  // Until now nobody waited, or what waited could not be served.
  void Begin(TimePoint now) { short_at_ = moved_at_ = now.time_since_epoch().count(); }
  // A request runs that waited so long.
  void Started(std::chrono::nanoseconds waited, TimePoint now);

  // Nobody who waits was served in time for a second: the delay stands.
  bool Stands(TimePoint now) const;
  // Seconds that a request behind so many others will wait: by how fast the line moved, and at
  // least as long as it has stood still. Before anything was measured: as if sixteen began a
  // second.
  double PredictedSeconds(uint32_t waiting, TimePoint now) const;
  std::chrono::nanoseconds most() const { return most_; }

 private:
  const std::chrono::nanoseconds most_;
  std::atomic<int64_t> short_at_ = 0;   // steady clock, ns
  std::atomic<int64_t> moved_at_ = 0;   // the same: one began, or nobody waited
  std::atomic<double> per_second_ = 0;  // requests that begin while others wait
  // The control thread's: of the second being measured.
  TimePoint window_begin_;
  uint32_t window_started_ = 0;
};

}  // namespace skein::coordinator
