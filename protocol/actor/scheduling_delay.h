// How late the loop of this process is woken: its own delay, which looks like everybody else being
// silent. The floor of every judgement about silence follows from it. Owns two half-windows of
// counts. One thread. Must never let one pause that is long past decide.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace skein::protocol {

class SchedulingDelay {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(30);
  // However late this process is, a peer that is silent for so long is gone.
  static constexpr absl::Duration kFloorMax = absl::Seconds(3);

  // A wake-up came so late.
  void Observe(absl::Duration late, absl::Time now);
  // Silence that proves nothing: three times the 99.9th percentile of the last one to two windows.
  absl::Duration LeaseFloor() const;

 private:
  static constexpr size_t kBuckets = 128;  // four for each doubling, from a microsecond
  struct Window {
    std::array<uint32_t, kBuckets> counts{};
    uint64_t total = 0;
  };

  Window current_, previous_;
  absl::Time began_ = absl::InfinitePast();
};

}  // namespace skein::protocol
