#include "coordinator/queue_delay.h"

#include <algorithm>

namespace skein::coordinator {

namespace {

constexpr double kNewest = 0.5;       // share of the newest measurement
constexpr double kUnmeasured = 16.0;  // requests that are taken to begin a second
// Who waited no longer found a line that could have moved faster: nothing is measured then.
constexpr std::chrono::milliseconds kShort{100};

}  // namespace

void QueueDelay::Started(std::chrono::nanoseconds waited, TimePoint now) {
  moved_at_ = now.time_since_epoch().count();
  if (waited <= most_) short_at_ = moved_at_.load();
  if (waited <= kShort || window_begin_ == TimePoint()) {
    window_begin_ = now;
    window_started_ = 0;
    return;
  }
  ++window_started_;
  const double seconds = std::chrono::duration<double>(now - window_begin_).count();
  if (seconds < 1) return;
  const double rate = window_started_ / seconds;
  per_second_ = per_second_ > 0 ? (1 - kNewest) * per_second_ + kNewest * rate : rate;
  window_begin_ = now;
  window_started_ = 0;
}

bool QueueDelay::Stands(TimePoint now) const {
  if (most_ <= std::chrono::nanoseconds(0)) return false;
  const std::chrono::nanoseconds since(now.time_since_epoch().count() - short_at_);
  return since >= most_ + kStanding;
}

double QueueDelay::PredictedSeconds(uint32_t waiting, TimePoint now) const {
  const double rate = per_second_;
  const double moving = rate > 0 ? (waiting + 1) / rate : 1 + waiting / kUnmeasured;
  if (waiting == 0) return moving;
  const std::chrono::nanoseconds still(now.time_since_epoch().count() - moved_at_);
  return std::max(moving, std::chrono::duration<double>(still).count());
}

}  // namespace skein::coordinator
