// What the kernel here gives to hold a child and everything it starts: PID namespaces and leaves of
// the cgroup v2 tree. Probed once at start by doing it, never by version.
// Supervisor's thread. Must never touch a process that a dead supervisor of ours did not start.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/node/descriptor.h"

struct clone_args;  // of linux/sched.h

namespace skein::worker {

// One cgroup that holds one child and its descendants.
class Leaf {
 public:
  // Makes `name` below the directory `parent`.
  static absl::StatusOr<Leaf> Create(std::string_view parent, std::string_view name);

  int fd() const { return directory_.get(); }
  const std::string& path() const { return path_; }

  // SIGKILL to every member, stopped and detached ones included.
  void Kill() const;
  // Members left; zero once all are gone.
  bool empty() const;
  // The leaf counts what runs out of memory in it.
  bool CountsOoms() const;
  // The kernel killed a member because the leaf was out of memory. Needs the memory controller.
  bool OomKilled() const;
  // Removes the empty cgroup; false while it still has members.
  bool Remove() const;

 private:
  Leaf(std::string path, Descriptor directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}

  std::string path_;
  Descriptor directory_;
};

struct ContainmentOptions {
  std::string cgroup_directory = {};  // where leaves may be made; empty: the cgroup of this process
  bool pid_namespaces = true;         // false: do without, although they are to be had
  std::string no_namespace_reason = "off by features.pid_namespace";
  bool leaves = true;
};

class Containment final {
 public:
  // Tries each mechanism with a child that ends at once. Also sweeps what dead supervisors left.
  static std::unique_ptr<Containment> Probe(const ContainmentOptions& options = {});
  ~Containment();

  bool pid_namespaces() const { return pid_namespaces_; }
  // A PID namespace is to be had only inside a user namespace.
  bool needs_user_namespace() const { return needs_user_namespace_; }
  bool leaves() const { return !leaf_parent_.empty(); }

  // 1: both; 2: one of the two; 3: neither, orphans are found as adopted children.
  int rung() const;
  // "rung 1: PID namespace and cgroup leaf", with the reason for what is missing.
  std::string description() const;
  // Processes of dead supervisors that were killed at the start.
  int orphans_swept() const { return orphans_swept_; }

  absl::StatusOr<Leaf> MakeLeaf(std::string_view name) const;

 private:
  Containment() = default;
  void ProbeNamespaces();
  void ProbeLeaves(const ContainmentOptions& options);
  void TryLeafParent(const std::string& parent);
  void Sweep(const std::string& cgroup_directory);

  bool pid_namespaces_ = false;
  bool needs_user_namespace_ = false;
  std::string namespace_reason_;
  std::string leaf_parent_;  // our directory of leaves; empty: none
  Descriptor leaf_lock_;     // held while we live: a free lock marks a dead supervisor
  std::string leaf_reason_;
  int orphans_swept_ = 0;
};

// clone3, or where a seccomp filter answers it with ENOSYS (container runtimes by default, and
// RestrictNamespaces= of systemd) clone with the same flags; the child then enters its cgroup by
// itself, and ends with 127 if it may not. Result and errno are those of the call. Between it and
// exec the child may make async-signal-safe calls only.
long CloneProcess(const clone_args& arguments);

// The cgroup v2 directory of this process, from the texts of /proc/self/mountinfo and
// /proc/self/cgroup; empty when there is none.
std::string CgroupDirectory(std::string_view mountinfo, std::string_view cgroup);

}  // namespace skein::worker
