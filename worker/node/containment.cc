// Probing, leaves and the sweep. Every wait here is bounded by kSweepMax.
// Supervisor's thread. Must never kill in a directory whose lock is held.
#include "worker/node/containment.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr std::string_view kLeafParentPrefix = "skein.";
constexpr int kAttemptsMax = 3;
constexpr absl::Duration kSweepMax = absl::Seconds(1);

// Of a child that may not enter its cgroup.
constexpr int kExitNoLeaf = 127;

// Starts a child that ends at once, with `flags`; 0, or the errno of the clone.
int TryClone(uint64_t flags, int cgroup_fd) {
  clone_args arguments{};
  arguments.flags = flags;
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = cgroup_fd < 0 ? 0 : static_cast<uint64_t>(cgroup_fd);
  const long pid = CloneProcess(arguments);
  if (pid < 0) return errno;
  if (pid == 0) ::_exit(0);
  int end = 0;
  ::waitpid(static_cast<pid_t>(pid), &end, 0);
  return WIFEXITED(end) && WEXITSTATUS(end) == 0 ? 0 : EPERM;
}

std::vector<std::string> Subdirectories(const std::string& path) {
  std::vector<std::string> names;
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return names;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != "..") names.emplace_back(name);
  }
  ::closedir(directory);
  return names;
}

void WriteKill(const std::string& cgroup) {
  const Descriptor file(::open((cgroup + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  if (file.valid()) {
    [[maybe_unused]] const ssize_t written = ::write(file.get(), "1", 1);
  }
}

bool IsPopulated(const std::string& cgroup) {
  return ReadKernelFile(cgroup + "/cgroup.events").find("populated 1") != std::string::npos;
}

// Waits until `cgroup` has no member; false after kSweepMax.
bool AwaitEmpty(const std::string& cgroup) {
  const Descriptor events(::open((cgroup + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  const absl::Time end = protocol::MonotonicNow() + kSweepMax;
  while (IsPopulated(cgroup)) {
    const absl::Duration left = end - protocol::MonotonicNow();
    if (left <= absl::ZeroDuration() || !events.valid()) return false;
    char text[64];
    [[maybe_unused]] const ssize_t seen = ::pread(events.get(), text, sizeof text, 0);
    pollfd wait{events.get(), POLLPRI, 0};
    ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 20)));
  }
  return true;
}

int CountMembers(const std::string& cgroup) {
  const std::string text = ReadKernelFile(cgroup + "/cgroup.procs");
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

long CloneProcess(const clone_args& arguments) {
  const long pid = ::syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid >= 0 || errno != ENOSYS) return pid;
  const uint64_t flags = (arguments.flags & ~uint64_t{CLONE_INTO_CGROUP}) | arguments.exit_signal;
  // Stack 0: the child goes on with a copy of this one. CLONE_PIDFD takes the third argument.
  const long child = ::syscall(SYS_clone, flags, 0L, arguments.pidfd, 0L, 0L);
  if (child != 0 || (arguments.flags & CLONE_INTO_CGROUP) == 0) return child;
  const int members =
      ::openat(static_cast<int>(arguments.cgroup), "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (members < 0 || ::write(members, "0", 1) != 1) ::_exit(kExitNoLeaf);
  ::close(members);
  return 0;
}

absl::StatusOr<Leaf> Leaf::Create(std::string_view parent, std::string_view name) {
  std::string path = Concat(parent, "/", name);
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    return absl::InternalError(Concat("cannot make cgroup ", path, ": ", std::strerror(errno)));
  }
  Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) {
    return absl::InternalError(Concat("cannot open cgroup ", path, ": ", std::strerror(errno)));
  }
  return Leaf(std::move(path), std::move(directory));
}

void Leaf::Kill() const { WriteKill(path_); }
bool Leaf::empty() const { return !IsPopulated(path_); }
bool Leaf::OomKilled() const {
  const std::string text = ReadKernelFile(path_ + "/memory.events");
  const size_t at = text.find("oom_kill ");
  return at != std::string::npos && std::strtoull(text.c_str() + at + 9, nullptr, 10) > 0;
}
bool Leaf::CountsOoms() const { return ::access((path_ + "/memory.events").c_str(), R_OK) == 0; }
bool Leaf::Remove() const { return ::rmdir(path_.c_str()) == 0 || errno == ENOENT; }

std::string CgroupDirectory(std::string_view mountinfo, std::string_view cgroup) {
  std::string own;
  std::istringstream lines{std::string(cgroup)};
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("0::/", 0) == 0) own = line.substr(3);
  }
  if (own.empty() || own.find("..") != std::string::npos) return "";
  std::istringstream mounts{std::string(mountinfo)};
  for (std::string line; std::getline(mounts, line);) {
    const size_t separator = line.find(" - cgroup2 ");
    if (separator == std::string::npos) continue;
    std::istringstream fields(line);
    std::string id, parent, device, root, point;
    fields >> id >> parent >> device >> root >> point;
    if (root == "/") return own == "/" ? point : point + own;
    if (own == root) return point;
    if (own.rfind(root + "/", 0) == 0) return point + own.substr(root.size());
  }
  return "";
}

std::unique_ptr<Containment> Containment::Probe(const ContainmentOptions& options) {
  std::unique_ptr<Containment> containment(new Containment);
  if (options.pid_namespaces) {
    containment->ProbeNamespaces();
  } else {
    containment->namespace_reason_ = Concat("no PID namespace: ", options.no_namespace_reason);
  }
  containment->ProbeLeaves(options);
  return containment;
}

Containment::~Containment() {
  if (leaf_parent_.empty()) return;
  for (const std::string& name : Subdirectories(leaf_parent_)) {
    ::rmdir(Concat(leaf_parent_, "/", name).c_str());
  }
  ::rmdir(leaf_parent_.c_str());
}

void Containment::ProbeNamespaces() {
  int error = TryClone(CLONE_NEWPID, -1);
  if (error == EPERM) {
    error = TryClone(CLONE_NEWUSER | CLONE_NEWPID, -1);
    needs_user_namespace_ = error == 0;
  }
  pid_namespaces_ = error == 0;
  if (error != 0) namespace_reason_ = Concat("no PID namespace: ", std::strerror(error));
}

void Containment::ProbeLeaves(const ContainmentOptions& options) {
  std::string base = options.cgroup_directory;
  if (base.empty()) {
    base = CgroupDirectory(ReadKernelFile("/proc/self/mountinfo"),
                           ReadKernelFile("/proc/self/cgroup"));
  }
  if (base.empty()) {
    leaf_reason_ = "no cgroup leaf: no cgroup v2 hierarchy is mounted";
    return;
  }
  Sweep(base);
  if (!options.leaves) {
    leaf_reason_ = "no cgroup leaf: off by features.cgroup_leaf";
    return;
  }
  // Another supervisor's sweep may take a directory of ours before it is locked: then try again.
  for (int attempt = 0; attempt < kAttemptsMax && !leaves(); ++attempt) {
    TryLeafParent(Concat(base, "/", kLeafParentPrefix, ::getpid(), ".",
                         absl::ToUnixMillis(protocol::MonotonicNow()), ".", attempt));
  }
}

void Containment::TryLeafParent(const std::string& parent) {
  const auto refuse = [&](int error) {
    leaf_reason_ = Concat("no cgroup leaf: ", parent, ": ", std::strerror(error));
    ::rmdir(parent.c_str());
  };
  if (::mkdir(parent.c_str(), 0755) != 0) return refuse(errno);
  Descriptor lock(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return refuse(errno);
  // cgroup.kill is missing in kernels before 5.14.
  if (::access((parent + "/cgroup.kill").c_str(), W_OK) != 0) return refuse(errno);
  if (const int error = TryClone(CLONE_INTO_CGROUP, lock.get()); error != 0) return refuse(error);
  // Leaves then count what runs out of memory; where it is not to be had, the node's own limit
  // tells.
  const Descriptor control(
      ::open((parent + "/cgroup.subtree_control").c_str(), O_WRONLY | O_CLOEXEC));
  if (control.valid()) {
    [[maybe_unused]] const ssize_t written = ::write(control.get(), "+memory", 7);
  }
  leaf_parent_ = parent;
  leaf_lock_ = std::move(lock);
  leaf_reason_.clear();
}

void Containment::Sweep(const std::string& cgroup_directory) {
  for (const std::string& name : Subdirectories(cgroup_directory)) {
    if (name.rfind(kLeafParentPrefix, 0) != 0) continue;
    const std::string parent = Concat(cgroup_directory, "/", name);
    const Descriptor lock(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct stat status {};
    // Whoever made it and lives holds the lock.
    if (!lock.valid() || ::fstat(lock.get(), &status) != 0 || status.st_uid != ::geteuid() ||
        ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
      continue;
    const std::vector<std::string> leaves = Subdirectories(parent);
    int members = 0;
    for (const std::string& leaf : leaves) members += CountMembers(Concat(parent, "/", leaf));
    WriteKill(parent);
    const bool empty = AwaitEmpty(parent);
    for (const std::string& leaf : leaves) ::rmdir(Concat(parent, "/", leaf).c_str());
    ::rmdir(parent.c_str());
    orphans_swept_ += members;
    if (members == 0) continue;
    SKEIN_LOG(kWarn, "swept the leaves of a dead supervisor")
        .Field("cgroup", parent)
        .Field("processes", members)
        .Field("empty", empty);
  }
}

int Containment::rung() const {
  if (pid_namespaces_ && leaves()) return 1;
  return pid_namespaces_ || leaves() ? 2 : 3;
}

std::string Containment::description() const {
  const std::string_view space =
      needs_user_namespace_ ? "PID namespace (in a user namespace)" : "PID namespace";
  switch (rung()) {
    case 1:
      return Concat("rung 1: ", space, " and cgroup leaf");
    case 2:
      return pid_namespaces_ ? Concat("rung 2: ", space, "; ", leaf_reason_)
                             : Concat("rung 2: cgroup leaf; ", namespace_reason_);
    default:
      return Concat("rung 3: subreaper; ", namespace_reason_, "; ", leaf_reason_);
  }
}

absl::StatusOr<Leaf> Containment::MakeLeaf(std::string_view name) const {
  if (!leaves()) return absl::FailedPreconditionError(leaf_reason_);
  return Leaf::Create(leaf_parent_, name);
}

}  // namespace skein::worker
