// Marks, living supervisors, handles. All waits together are bounded by kSweepMax.
// Supervisor's thread. Must never act on a number alone.
#include "worker/node/orphan_sweep.h"

#include <algorithm>

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"
#include "worker/node/cgroup_owner.h"
#include "worker/node/descriptor.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr absl::Duration kSweepMax = absl::Seconds(1);
constexpr int kRoundsMax = 5;  // an orphan may start others before it ends
constexpr char kProc[] = "/proc";

bool IsOfThisUser(const std::string& proc_root, int pid) {
  struct stat status {};
  return ::stat(Concat(proc_root, "/", pid).c_str(), &status) == 0 && status.st_uid == ::geteuid();
}

bool StillTheSame(const ProcessEntry& process) {
  const std::optional<ProcessEntry> now = ReadProcess(kProc, process.pid);
  return now && now->start_ticks == process.start_ticks && now->mark == process.mark;
}

}  // namespace

std::vector<ProcessEntry> FindOrphans(const std::string& proc_root) {
  std::vector<ProcessEntry> all;
  for (const int pid : ListProcesses(proc_root)) {
    if (auto process = ReadProcess(proc_root, pid)) all.push_back(*std::move(process));
  }
  std::vector<ProcessEntry> orphans;
  for (const ProcessEntry& process : all) {
    if (!process.mark || process.state == 'Z' || process.state == 'X') continue;
    const bool supervised = std::any_of(all.begin(), all.end(), [&](const ProcessEntry& other) {
      return other.state != 'Z' && IsMarked(*process.mark, other);
    });
    if (!supervised && IsOfThisUser(proc_root, process.pid)) orphans.push_back(process);
  }
  return orphans;
}

int EndOrphans(const std::vector<ProcessEntry>& orphans) {
  const absl::Time end = protocol::MonotonicNow() + kSweepMax;
  std::vector<Descriptor> handles;
  for (const ProcessEntry& orphan : orphans) {
    Descriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, orphan.pid, 0)));
    if (!handle.valid() || !StillTheSame(orphan)) continue;  // it ended; the number was reused
    ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0);
    handles.push_back(std::move(handle));
  }
  int ended = 0;
  for (const Descriptor& handle : handles) {
    const int64_t left_ms = absl::ToInt64Milliseconds(end - protocol::MonotonicNow());
    pollfd wait{handle.get(), POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(std::max<int64_t>(left_ms, 0))) == 1) ++ended;
  }
  return ended;
}

int SweepOrphans(bool ends_them) {
  int ended = 0;
  for (int round = 0; round < kRoundsMax; ++round) {
    const std::vector<ProcessEntry> orphans = FindOrphans(kProc);
    if (orphans.empty()) break;
    for (const ProcessEntry& orphan : orphans) {
      SKEIN_LOG(kWarn, ends_them ? "a process of a dead supervisor is ended"
                                 : "a process of a dead supervisor is left; --reap-own 1 ends it")
          .Field("pid", orphan.pid)
          .Field("command", orphan.command)
          .Field("owner", CgroupOwner(orphan.cgroup))
          .Field("supervisor", orphan.mark->pid);
    }
    if (!ends_them) break;
    ended += EndOrphans(orphans);
  }
  return ended;
}

}  // namespace skein::worker
