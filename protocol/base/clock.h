// The monotonic clock of real programs. Simulation never calls it: time is an argument there.
// Any thread. Must never be compared with wall time.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace skein::protocol {

// Monotonic time since some start; only differences mean something.
inline absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace skein::protocol
