// Looking for our own pid as parent in /proc.
// Supervisor's thread. Must never signal a number: only the handle of a process that is still ours.
#include "worker/node/adopted_children.h"

#include <cstdlib>
#include <string>

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/strings.h"
#include "worker/node/descriptor.h"
#include "worker/node/process_entry.h"

namespace skein::worker {
namespace {

constexpr int kRoundsMax = 100;
constexpr int kRoundMs = 10;

// Parent of a process from its stat text, or -1.
int ParentOf(int pid) {
  const std::string text = ReadKernelFile(protocol::Concat("/proc/", pid, "/stat"));
  const size_t end = text.rfind(") ");
  if (end == std::string::npos || end + 4 >= text.size()) return -1;
  return static_cast<int>(std::strtol(text.c_str() + end + 4, nullptr, 10));
}

}  // namespace

void ReapAdopted(const IsOwnChild& is_own) {
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    if (is_own(info.si_pid)) return;  // its own handle reaps it in the next round
    ::waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG);
    info.si_pid = 0;
  }
}

int KillAdopted(const IsOwnChild& is_own) {
  int found = 0;
  for (const int pid : ListProcesses("/proc")) {
    if (ParentOf(pid) != ::getpid() || is_own(pid)) continue;
    const Descriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!handle.valid() || ParentOf(pid) != ::getpid()) continue;  // the number was reused
    ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0);
    siginfo_t info{};
    ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(handle.get()), &info,
             WEXITED | WNOHANG);
    ++found;
  }
  return found;
}

void EndAdopted(const IsOwnChild& is_own) {
  for (int round = 0; round < kRoundsMax && KillAdopted(is_own) > 0; ++round) {
    ::poll(nullptr, 0, kRoundMs);
  }
}

}  // namespace skein::worker
