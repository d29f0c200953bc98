// How long a step may take before its worker counts as standing still: far above what steps of its
// size took so far. Pure; one per device or worker group, one thread. Must never shrink below its
// floor: a slow step is no hang.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace skein::protocol {

class StepDeadline {
 public:
  static constexpr absl::Duration kFloor = absl::Seconds(2);
  // Before any step of a group ended: pages of the weights may be read for the first time.
  static constexpr absl::Duration kUnknown = absl::Seconds(60);

  // A step of `rows` rows took so long.
  void Observe(uint32_t rows, absl::Duration took);
  // For a step of `rows` rows: 20 times the slowest of the last steps of its size; of a size that
  // was not seen, in proportion to the nearest smaller or larger one.
  absl::Duration For(uint32_t rows) const;

 private:
  static constexpr size_t kKept = 100;  // of which the slowest is about the 99th percentile
  struct Size {
    std::array<float, kKept> seconds{};
    size_t seen = 0;
    float Slowest() const;
  };
  std::array<Size, 33> sizes_;  // by the number of bits of the rows
};

}  // namespace skein::protocol
