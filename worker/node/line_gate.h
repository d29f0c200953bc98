// The rate of one child's lines: a burst passes whole, then so many a second; the rest is counted.
// The first and the last line of a burst pass, and an error line at least once a second.
// A value with time as argument; the supervisor's thread. Must never copy what does not pass, but
// for the one line that may turn out to be the last.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace skein::worker {

class LineGate {
 public:
  static constexpr double kBurstLines = 2000;
  static constexpr double kLinesPerSecond = 500;
  // Without a line held back for so long a burst has ended.
  static constexpr absl::Duration kQuiet = absl::Milliseconds(100);
  static constexpr absl::Duration kNoticeEvery = absl::Seconds(1);

  // Appends to `out` those of `lines`, each ended by a newline, that pass at `now`.
  void Pass(std::string_view lines, absl::Time now, std::string& out);

  // The number held back since the last notice, when one is due: the burst ended, or a second is
  // over; else 0. Taking it ends the notice.
  uint64_t TakeNotice(absl::Time now);
  // The last line of a burst that ended; empty when there is none.
  std::string TakeLast(absl::Time now);
  // When the burst that goes on will have ended; InfiniteFuture without one.
  absl::Time quiet_at() const { return quiet_at_; }

  uint64_t suppressed() const { return suppressed_; }

 private:
  void Suppress(uint64_t lines, absl::Time now);
  bool TakeToken(std::string_view line, absl::Time now);

  double tokens_ = kBurstLines;
  absl::Time refilled_at_ = absl::InfinitePast();
  absl::Time error_at_ = absl::InfinitePast();  // when an error line may pass again
  absl::Time quiet_at_ = absl::InfiniteFuture();
  absl::Time notice_at_ = absl::InfinitePast();
  uint64_t suppressed_ = 0;
  uint64_t unnoticed_ = 0;
  std::string last_;
};

}  // namespace skein::worker
