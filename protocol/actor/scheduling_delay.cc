#include "protocol/actor/scheduling_delay.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace skein::protocol {
namespace {

constexpr double kPerDoubling = 4;
constexpr double kBeyond = 0.001;  // of the delays are longer

}  // namespace

void SchedulingDelay::Observe(absl::Duration late, absl::Time now) {
  if (now - began_ > kWindow) {
    // After a pause of two windows nothing of before says anything.
    previous_ = now - began_ > 2 * kWindow ? Window() : std::exchange(current_, Window());
    current_ = Window();
    began_ = now;
  }
  const double us = std::max(absl::ToDoubleMicroseconds(late), 1.0);
  const auto bucket = static_cast<size_t>(kPerDoubling * std::log2(us));
  ++current_.counts[std::min(bucket, kBuckets - 1)];
  ++current_.total;
}

absl::Duration SchedulingDelay::LeaseFloor() const {
  const uint64_t total = current_.total + previous_.total;
  if (total == 0) return absl::ZeroDuration();
  auto beyond = static_cast<uint64_t>(kBeyond * static_cast<double>(total));
  for (size_t i = kBuckets; i-- > 0;) {
    const uint64_t count = uint64_t{current_.counts[i]} + previous_.counts[i];
    if (count > beyond) {
      const double us = std::exp2(static_cast<double>(i + 1) / kPerDoubling);
      return std::min(3 * absl::Microseconds(us), kFloorMax);
    }
    beyond -= count;
  }
  return absl::ZeroDuration();
}

}  // namespace skein::protocol
