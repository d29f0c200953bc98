// A token bucket over whole lines.
// Supervisor's thread. Must never do more than count what cannot pass.
#include "worker/node/line_gate.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace skein::worker {
namespace {

// The level stands near the start of a line of ours.
constexpr size_t kLevelBytes = 128;

// Whether any line may be one; cheap for megabytes without.
bool MayHoldError(std::string_view lines) {
  return ::memmem(lines.data(), lines.size(), "error", 5) != nullptr ||
         ::memmem(lines.data(), lines.size(), "critical", 8) != nullptr;
}

bool IsError(std::string_view line) {
  const std::string_view head = line.substr(0, kLevelBytes);
  return head.find("level=error") != std::string_view::npos ||
         head.find("level=critical") != std::string_view::npos ||
         head.find("\"level\":\"error\"") != std::string_view::npos;
}

}  // namespace

bool LineGate::TakeToken(std::string_view line, absl::Time now) {
  if (tokens_ >= 1) {
    tokens_ -= 1;
    return true;
  }
  if (now < error_at_ || !IsError(line)) return false;
  error_at_ = now + absl::Seconds(1);
  return true;
}

void LineGate::Suppress(uint64_t lines, absl::Time now) {
  suppressed_ += lines;
  unnoticed_ += lines;
  quiet_at_ = now + kQuiet;
}

void LineGate::Pass(std::string_view lines, absl::Time now, std::string& out) {
  if (refilled_at_ != absl::InfinitePast()) {
    tokens_ += kLinesPerSecond * absl::ToDoubleSeconds(now - refilled_at_);
  }
  tokens_ = std::min(tokens_, kBurstLines);
  refilled_at_ = now;
  std::string_view last;
  const bool looks = now >= error_at_ && MayHoldError(lines);
  while (!lines.empty()) {
    if (tokens_ < 1 && !looks) {  // all the rest, without cutting it into lines
      Suppress(static_cast<uint64_t>(std::count(lines.begin(), lines.end(), '\n')), now);
      last = lines.substr(lines.rfind('\n', lines.size() - 2) + 1);
      break;
    }
    const std::string_view line = lines.substr(0, lines.find('\n') + 1);
    lines.remove_prefix(line.size());
    if (TakeToken(line, now)) {
      out += line;
      last = {};
      last_.clear();  // what was held back is no longer the newest
    } else {
      Suppress(1, now);
      last = line;
    }
  }
  if (!last.empty()) last_ = last;
}

uint64_t LineGate::TakeNotice(absl::Time now) {
  if (unnoticed_ == 0 || (now < quiet_at_ && now < notice_at_)) return 0;
  notice_at_ = now + kNoticeEvery;
  return std::exchange(unnoticed_, 0);
}

std::string LineGate::TakeLast(absl::Time now) {
  if (now < quiet_at_) return "";
  quiet_at_ = absl::InfiniteFuture();
  return std::exchange(last_, "");
}

}  // namespace skein::worker
