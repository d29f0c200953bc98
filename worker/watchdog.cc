#include "worker/watchdog.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "protocol/base/clock.h"

namespace skein::worker {
namespace {

constexpr int kLookMs = 50;
constexpr int64_t kNsPerMs = 1'000'000;

int64_t NowNs() { return absl::ToUnixNanos(protocol::MonotonicNow()); }

// One line to standard error without a lock or an allocation.
class RawLine {
 public:
  RawLine& operator<<(std::string_view text) {
    const size_t count = std::min(text.size(), bytes_.size() - size_);
    std::memcpy(bytes_.data() + size_, text.data(), count);
    size_ += count;
    return *this;
  }
  RawLine& operator<<(int64_t number) {
    std::array<char, 24> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number);
    return *this << std::string_view(digits.data(), static_cast<size_t>(end.ptr - digits.data()));
  }
  void Write() const { [[maybe_unused]] const auto out = ::write(2, bytes_.data(), size_); }

 private:
  std::array<char, 256> bytes_{};
  size_t size_ = 0;
};

}  // namespace

StepWatchdog::StepWatchdog(const Options& options, int stop_fd)
    : grace_ns_(absl::ToInt64Nanoseconds(options.grace)), stop_fd_(stop_fd) {
  thread_ = std::thread([this] { Loop(); });
}

absl::StatusOr<std::unique_ptr<StepWatchdog>> StepWatchdog::Create(const Options& options) {
  const int stop_fd = ::eventfd(0, EFD_CLOEXEC);
  if (stop_fd < 0) return absl::InternalError("the watchdog has no descriptor: eventfd failed");
  return std::unique_ptr<StepWatchdog>(new StepWatchdog(options, stop_fd));
}

StepWatchdog::~StepWatchdog() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_fd_, &one, sizeof one);
  thread_.join();
  ::close(stop_fd_);
}

void StepWatchdog::Begin(uint64_t step, absl::Duration allowed) {
  const int64_t now = NowNs();
  step_ = step;
  began_ns_ = now;
  excused_ns_ = 0;
  deadline_ns_ = allowed == absl::InfiniteDuration() ? std::numeric_limits<int64_t>::max()
                                                     : now + absl::ToInt64Nanoseconds(allowed);
  ++turn_;
}

void StepWatchdog::End() { ++turn_; }

void StepWatchdog::Pause() { paused_ns_ = NowNs(); }

void StepWatchdog::Resume() {
  excused_ns_ += NowNs() - paused_ns_;
  paused_ns_ = 0;
}

std::optional<absl::Time> StepWatchdog::running_since() const {
  const uint64_t turn = turn_;
  const int64_t began = began_ns_;
  if (turn % 2 == 0 || turn != turn_) return std::nullopt;
  return absl::FromUnixNanos(began);
}

void StepWatchdog::Loop() {
  int64_t last = NowNs();
  pollfd stop{stop_fd_, POLLIN, 0};
  while (::poll(&stop, 1, kLookMs) <= 0) {
    const int64_t now = NowNs();
    // A process that did not run, this thread included, has not been hanging.
    const int64_t late = now - last - 2 * kLookMs * kNsPerMs;
    last = now;
    const uint64_t turn = turn_;
    if (turn % 2 == 0) continue;
    if (late > 0) excused_ns_ += late;
    const int64_t deadline = deadline_ns_;
    if (deadline == std::numeric_limits<int64_t>::max() || now - excused_ns_ <= deadline) continue;
    if (paused_ns_ != 0) continue;  // the rank that it waits for has a watchdog of its own
    if (turn == turn_) Judge(turn);
    last = NowNs();
  }
}

void StepWatchdog::Judge(uint64_t turn) {
  ++num_hangs_;
  const auto step = static_cast<int64_t>(step_.load());
  RawLine line;
  line << "skein-worker: step " << step << " runs for " << (NowNs() - began_ns_) / kNsPerMs
       << " ms, its deadline was " << (deadline_ns_ - began_ns_) / kNsPerMs
       << " ms: the device thread stands still; exit " << int64_t{kExitStepDeadline} << " in "
       << grace_ns_ / kNsPerMs << " ms\n";
  line.Write();
  pollfd stop{stop_fd_, POLLIN, 0};
  const int64_t end = NowNs() + grace_ns_;
  while (turn_ == turn) {
    const int64_t left_ms = (end - NowNs()) / kNsPerMs;
    if (left_ms <= 0) ::_exit(kExitStepDeadline);
    if (::poll(&stop, 1, static_cast<int>(std::min<int64_t>(left_ms, kLookMs))) > 0) return;
  }
  RawLine ended;
  ended << "skein-worker: step " << step << " ended after all\n";
  ended.Write();
}

}  // namespace skein::worker
