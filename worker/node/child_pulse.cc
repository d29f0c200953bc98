// Asking, counting, and the state of a process that is silent.
// Supervisor's thread. Must never wait for an answer.
#include "worker/node/child_pulse.h"

#include <optional>

#include <sys/socket.h>

#include "worker/node/process_entry.h"

namespace skein::worker {
namespace {

// As in /proc/PID/stat; '?' when it has ended.
char StateOf(int pid) {
  const std::optional<ProcessEntry> process = ReadProcess("/proc", pid);
  return process ? process->state : '?';
}

bool IsStopped(int pid) {
  const char state = StateOf(pid);
  return state == 'T' || state == 't';
}

}  // namespace

ChildPulse::ChildPulse(absl::Duration limit) : interval_(limit / kAsksMax) {}

void ChildPulse::Restart(absl::Time now) {
  unanswered_ = 0;
  has_answered_ = false;
  next_ = interval_ > absl::ZeroDuration() ? now + interval_ : absl::InfiniteFuture();
}

void ChildPulse::OnAnswer() {
  unanswered_ = 0;
  has_answered_ = true;
}

bool ChildPulse::Ask(int link_fd, int pid, absl::Time now) {
  if (now < next_) return false;
  next_ = now + interval_;
  if (!has_answered_ && !IsStopped(pid)) unanswered_ = 0;
  if (unanswered_ == kAsksMax) {
    next_ = absl::InfiniteFuture();
    return true;
  }
  ++unanswered_;
  const char question = '?';
  // A link that is full holds questions enough.
  [[maybe_unused]] const ssize_t sent = ::send(link_fd, &question, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  return false;
}

std::string WhySilent(int pid) {
  switch (StateOf(pid)) {
    case 'T':
      return "stopped by a signal";
    case 't':
      return "stopped by a debugger";
    case 'D':
      return "waits for a device or a disk";
    default:
      return "its loop stands still";
  }
}

bool IsOwnHang(int pid) {
  const char state = StateOf(pid);
  return state != 'T' && state != 't' && state != 'D';
}

}  // namespace skein::worker
