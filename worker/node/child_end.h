// How a child ended, and what that says about it: the next incarnation tells the coordinator, which
// decides by it whether a request killed its worker.
// Values, any thread. Must never call an end from outside the worker's own doing.
#pragma once

#include <string>

namespace skein::worker {

struct ChildEnd {
  int exit_code = 0;        // when it exited
  int signal = 0;           // when a signal ended it
  bool oom_killed = false;  // the kernel found its own cgroup leaf out of memory
  bool oom_above = false;   // its leaf does not count, and the node's memory limit was reached
  // "exit code 78", "signal 9 (Killed)", "signal 9 (Killed), out of memory in its own leaf".
  std::string Describe() const;
};

// Value of --predecessor-end: how the incarnation before this one ended.
enum class PredecessorEnd {
  kNone = 0,     // there was none under this supervisor
  kOwn = 1,      // its own doing: a fault signal, its own exit code, memory of its own leaf
  kOutside = 2,  // somebody else's: SIGKILL and the like, or an exit after a loss (70, 75)
  kOrdered = 3,  // it was told to: exit code 0
};
PredecessorEnd JudgeEnd(const ChildEnd& end);

}  // namespace skein::worker
