// The monotonic clock of real programs. Simulation never calls it: time is an argument there.
// Any thread. Must never be compared with wall time.
#pragma once

#include <chrono>

#include <time.h>

#include "absl/time/time.h"

namespace skein::protocol {

// Monotonic time since some start; only differences mean something.
inline absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// The same, and it goes on while the host sleeps: leases are judged by it. Never mixed with the one
// above.
inline absl::Time BootNow() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::TimeFromTimespec(now);
}

}  // namespace skein::protocol
