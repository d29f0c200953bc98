// The timers of the signs.
// Supervisor's thread. Must never show life from anywhere but the loop.
#include "worker/node/life_signs.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>

#include "absl/status/status.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::worker {

absl::StatusOr<LifeSigns> LifeSigns::Create(const std::string& alive_path,
                                            std::string_view notify_socket) {
  LifeSigns signs;
  SKEIN_ASSIGN_OR_RETURN(signs.notify_, NotifySocket::Open(notify_socket));
  if (!signs.notify_.is_open()) signs.watchdog_at_ = absl::InfiniteFuture();
  if (alive_path.empty()) {
    signs.touch_at_ = absl::InfiniteFuture();
    return signs;
  }
  signs.alive_ =
      Descriptor(::open(alive_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!signs.alive_.valid()) {
    return absl::InternalError(
        protocol::Concat("cannot write ", alive_path, ": ", std::strerror(errno)));
  }
  signs.notify_.Send("STATUS=starting");
  return signs;
}

void LifeSigns::Tick(absl::Time now) {
  if (now >= touch_at_) {
    ::futimens(alive_.get(), nullptr);
    touch_at_ = now + kTouchEvery;
  }
  if (now >= watchdog_at_) {
    notify_.Send("WATCHDOG=1");
    watchdog_at_ = now + kWatchdogEvery;
  }
  if (probe_.Step(now) && !is_stopping_) SayReady();
}

absl::Time LifeSigns::next() const {
  return std::min(std::min(touch_at_, watchdog_at_), probe_.next());
}

void LifeSigns::ChildrenReady(int listening, absl::Time now) {
  if (is_begun_ || !notify_.is_open()) return;
  is_begun_ = true;
  if (listening < 0) return SayReady();
  notify_.Send("STATUS=testing the API");
  probe_.Begin(listening, now);
}

void LifeSigns::SayReady() {
  SKEIN_LOG(kInfo, "ready: the self-test passed");
  notify_.Send("READY=1\nSTATUS=serving");
}

void LifeSigns::Stopping() {
  if (is_stopping_) return;
  is_stopping_ = true;
  notify_.Send("STOPPING=1\nSTATUS=draining");
}

}  // namespace skein::worker
