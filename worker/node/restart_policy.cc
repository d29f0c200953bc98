// The arithmetic of restarts. No clock, no randomness of its own.
// Supervisor's thread. Must never forget an exit within the window.
#include "worker/node/restart_policy.h"

#include <algorithm>

namespace skein::worker {

RestartPolicy::Decision RestartPolicy::OnExit(absl::Time now, uint64_t random) {
  while (!exits_.empty() && now - exits_.front() > limits_.restart_window) exits_.pop_front();
  if (exits_.size() >= static_cast<size_t>(limits_.restarts_max)) {
    exits_.clear();
    if (retries_ >= kRetriesMax) return {true, absl::InfiniteDuration()};
    ++retries_;
    return {true, kRetryAfter};
  }
  absl::Duration pause = limits_.backoff_min;
  for (size_t i = 0; i < exits_.size() && pause < limits_.backoff_max; ++i) pause *= 2;
  pause = std::min(pause, limits_.backoff_max);
  exits_.push_back(now);
  // Between half the pause and all of it, so that children do not start in step.
  const double share = 0.5 + 0.5 * static_cast<double>(random >> 11) * 0x1.0p-53;
  return {false, std::max(pause * share, limits_.backoff_min / 2)};
}

}  // namespace skein::worker
