// flock on a file per GPU; whoever has the file open is looked up in /proc.
// Supervisor's thread. Must never remove a lock file: a holder would go on with a file of no name.
#include "worker/node/gpu_locks.h"

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"
#include "worker/node/cgroup_owner.h"
#include "worker/node/process_entry.h"

namespace skein::worker {
namespace {

using protocol::Concat;

std::string LockName(const Gpu& gpu) {
  return gpu.uuid.empty() ? Concat("gpu-", gpu.minor, ".lock") : Concat("gpu-", gpu.uuid, ".lock");
}

bool HasOpen(const std::string& proc_root, int pid, const std::string& path) {
  const std::string directory = Concat(proc_root, "/", pid, "/fd");
  DIR* links = ::opendir(directory.c_str());
  if (links == nullptr) return false;
  bool found = false;
  while (const dirent* entry = ::readdir(links)) {
    char target[PATH_MAX];
    const ssize_t size =
        ::readlink(Concat(directory, "/", entry->d_name).c_str(), target, sizeof target);
    found |= size > 0 && std::string_view(target, static_cast<size_t>(size)) == path;
  }
  ::closedir(links);
  return found;
}

// "pid 42 (skein-worker --config ...), unit skein.service; pid ...".
std::string HoldersOf(const std::string& proc_root, const std::string& path) {
  std::string text;
  for (const int pid : ListProcesses(proc_root)) {
    if (pid == ::getpid() || !HasOpen(proc_root, pid, path)) continue;
    const auto process = ReadProcess(proc_root, pid);
    if (!process) continue;
    text += Concat(text.empty() ? "" : "; ", "pid ", pid, " (", process->command, "), ",
                   CgroupOwner(process->cgroup), ", state ", std::string(1, process->state));
  }
  return text.empty() ? "a process of another user or PID namespace" : text;
}

std::string ChooseDirectory(const GpuLockOptions& options) {
  ::mkdir(options.directory.c_str(), 0755);
  if (::access(options.directory.c_str(), W_OK) == 0) return options.directory;
  SKEIN_LOG(kWarn, "GPU locks are in the fallback directory: others may lock elsewhere")
      .Field("directory", options.fallback)
      .Field("reason", Concat(options.directory, " cannot be written"));
  return options.fallback;
}

absl::StatusOr<Descriptor> LockGpu(const Gpu& gpu, const std::string& directory,
                                   const std::string& proc_root) {
  const std::string path = Concat(directory, "/", LockName(gpu));
  // Another user's file can be locked though not written.
  Descriptor lock(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!lock.valid() && errno == ENOENT) {
    lock = Descriptor(::open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  }
  if (!lock.valid()) {
    return absl::FailedPreconditionError(
        Concat("GPU ", gpu.minor, ": cannot open ", path, ": ", std::strerror(errno)));
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  return absl::FailedPreconditionError(Concat(
      "GPU ", gpu.minor, " (", gpu.node, ") is held: ", path, " is locked by ",
      HoldersOf(proc_root, path), "; end it (skein whoholds tells more), or choose another host"));
}

}  // namespace

absl::StatusOr<std::vector<Descriptor>> LockGpus(const std::vector<Gpu>& gpus, size_t count,
                                                 const GpuLockOptions& options) {
  if (gpus.size() < count) {
    return absl::FailedPreconditionError(
        Concat(count, " workers need a GPU each, but ", gpus.size(),
               " are visible; lower --data-parallel-size or give the node more"));
  }
  const std::string directory = ChooseDirectory(options);
  std::vector<Descriptor> locks;
  for (size_t i = 0; i < count; ++i) {
    absl::StatusOr<Descriptor> lock = LockGpu(gpus[i], directory, options.proc_root);
    if (!lock.ok()) return lock.status();
    locks.push_back(*std::move(lock));
  }
  return locks;
}

}  // namespace skein::worker
