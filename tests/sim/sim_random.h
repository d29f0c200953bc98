// Random numbers of a simulated run: one sequence from one seed, the same on every machine.
// A value; the simulation's only thread.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace skein::tests {

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}

  // SplitMix64.
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // 0 to `count` - 1.
  uint32_t Below(uint32_t count) { return static_cast<uint32_t>((Next() >> 32) * count >> 32); }
  // `low` to `high`, both included.
  uint32_t Pick(uint32_t low, uint32_t high) { return low + Below(high - low + 1); }
  // True once in `count` times; never for 0.
  bool OneIn(uint32_t count) { return count > 0 && Below(count) == 0; }
  // Between the two, to a microsecond.
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const auto span = static_cast<uint64_t>(absl::ToInt64Microseconds(high - low)) + 1;
    return low + absl::Microseconds(static_cast<int64_t>(Next() % span));
  }
  // A generator of its own, so that what one part draws moves no other.
  SimRandom Fork() { return SimRandom(Next()); }

 private:
  uint64_t state_;
};

}  // namespace skein::tests
