// One child: started from the supervisor's only thread, in its own process group, PID namespace and
// cgroup leaf as far as they are to be had, with the parent-death signal armed before exec and a
// socket whose end of file tells it that the supervisor is gone.
// Signals go to the process handle, never to a number or a name.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/node/child_end.h"
#include "worker/node/containment.h"

namespace skein::worker {

// Descriptors under which the child finds what it inherits.
inline constexpr int kSupervisorFd = 3;  // its end of the supervisor's socket
inline constexpr int kListenFd = 4;      // a listening socket: the API's, or a worker's for metrics
inline constexpr int kLockFd = 5;  // the lock of its GPU: workers, held by everything they start

struct ChildStart {
  std::string leaf_name;  // "worker.0.<incarnation>"
  std::string program;    // path
  int program_fd = -1;    // executed in its stead; -1: none
  std::vector<std::string> arguments;
  bool own_pid_namespace = false;  // if the rung has it
  std::vector<int> processors;     // it may run on; empty: where the supervisor may
  int listen_fd = -1;              // becomes kListenFd; -1: none
  int lock_fd = -1;                // becomes kLockFd; -1: none
};

class ChildProcess final {
 public:
  // FailedPrecondition when the program is missing or set-id, Internal when the kernel refuses.
  static absl::StatusOr<ChildProcess> Start(const ChildStart& start,
                                            const Containment& containment);
  ChildProcess(ChildProcess&&) = default;
  ChildProcess& operator=(ChildProcess&&) = default;

  int pid() const { return pid_; }
  int process_fd() const { return process_fd_.get(); }  // readable when the child ended
  int output_fd() const { return output_.get(); }       // standard output and error, not blocking
  int link_fd() const { return link_.get(); }           // our end of the socket, not blocking

  void Signal(int number) const;
  // SIGKILL to the child and, where there is a leaf, to everything in it.
  void Kill() const;
  // It has a leaf that counts what runs out of memory.
  bool CountsOoms() const { return leaf_.has_value() && leaf_->CountsOoms(); }
  // The end of the child once it is there; reaps it. Kills what it left in its leaf.
  std::optional<ChildEnd> Reap();
  // What is left of a child that was reaped: remove it once it is empty.
  std::optional<Leaf> TakeLeaf() { return std::move(leaf_); }

 private:
  ChildProcess() = default;

  int pid_ = 0;
  Descriptor process_fd_;
  Descriptor output_;
  Descriptor link_;
  std::optional<Leaf> leaf_;
};

}  // namespace skein::worker
