// How long to wait before the next of a row of tries: twice as long at most each time, with full
// jitter, so that those who lost the same peer do not come back together. Pure; one owner.
// Must never give a pause above its maximum.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace skein::protocol {

class RetryPause {
 public:
  RetryPause(absl::Duration first, absl::Duration max) : first_(first), max_(max), bound_(first) {}

  // Before the next try. `random`: any number, each as likely.
  absl::Duration Next(uint64_t random) {
    const absl::Duration bound = bound_;
    bound_ = std::min(2 * bound_, max_);
    return bound * (static_cast<double>(random >> 11) * 0x1p-53);
  }
  // A try succeeded.
  void Reset() { bound_ = first_; }

 private:
  const absl::Duration first_;
  const absl::Duration max_;
  absl::Duration bound_;
};

}  // namespace skein::protocol
