#include "protocol/base/step_deadline.h"

#include <algorithm>
#include <bit>

namespace skein::protocol {
namespace {

constexpr double kTimesSlowest = 20;

size_t SizeOf(uint32_t rows) { return static_cast<size_t>(std::bit_width(rows)); }

}  // namespace

float StepDeadline::Size::Slowest() const {
  return *std::max_element(seconds.begin(),
                           seconds.begin() + static_cast<ptrdiff_t>(std::min(seen, kKept)));
}

void StepDeadline::Observe(uint32_t rows, absl::Duration took) {
  Size& size = sizes_[SizeOf(rows)];
  size.seconds[size.seen++ % kKept] = static_cast<float>(absl::ToDoubleSeconds(took));
}

absl::Duration StepDeadline::For(uint32_t rows) const {
  const size_t wanted = SizeOf(rows);
  for (size_t away = 0; away < sizes_.size(); ++away) {
    // The next larger size bounds it; a smaller one is scaled up by the rows.
    if (wanted + away < sizes_.size() && sizes_[wanted + away].seen > 0) {
      return std::max(kFloor, absl::Seconds(kTimesSlowest * sizes_[wanted + away].Slowest()));
    }
    if (away <= wanted && sizes_[wanted - away].seen > 0) {
      const double scale = static_cast<double>(uint64_t{1} << away);
      return std::max(kFloor,
                      absl::Seconds(kTimesSlowest * scale * sizes_[wanted - away].Slowest()));
    }
  }
  return kUnknown;
}

}  // namespace skein::protocol
