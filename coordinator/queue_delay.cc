#include "coordinator/queue_delay.h"

namespace skein::coordinator {

namespace {

constexpr double kNewest = 0.5;  // share of the newest measurement
// Who waited no longer found a line that could have moved faster: nothing is measured then.
constexpr std::chrono::milliseconds kShort{100};

}  // namespace

void QueueDelay::Started(std::chrono::nanoseconds waited, TimePoint now) {
  if (waited <= most_) Begin(now);
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

double QueueDelay::PredictedSeconds(uint32_t waiting) const {
  const double rate = per_second_;
  return rate > 0 ? (waiting + 1) / rate : 0;
}

}  // namespace skein::coordinator
