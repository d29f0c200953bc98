// A directory with copies of skein and stand-in children, one running `skein serve` in it, and who
// of them is alive. The directory is the label: a process is ours when its program lies in it.
// For tests; one thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace skein::tests {

// What runs below the supervisor.
enum class Children { kStandIns, kReal };

class ProcessTree {
 public:
  // Copies the programs of `program_directory`: skein, skein-node and fake_child, or the real
  // coordinator and worker.
  explicit ProcessTree(const std::string& program_directory,
                       Children children = Children::kStandIns);
  ~ProcessTree();
  ProcessTree(const ProcessTree&) = delete;
  ProcessTree& operator=(const ProcessTree&) = delete;

  // What the stand-in does from its next start on; see fake_child_main.cc.
  void SetBehavior(std::string_view program, std::string_view words);

  // Starts skein with `arguments`, or skein-node when the first is "node"; with directories for
  // runs and state in ours.
  void Start(std::vector<std::string> arguments);

  // Reads output of the tree until it contains `text` or the time is over; false then.
  bool WaitForOutput(std::string_view text, absl::Duration limit);
  const std::string& output() const { return output_; }

  void Signal(int number) const;
  // SIGKILL to the oldest process of ours whose program has this name: not to what it started.
  // False when there is none.
  bool KillOldest(std::string_view program) const;

  // Exit code of skein, or minus its signal; -1000 when it did not end in time.
  int WaitForExit(absl::Duration limit);

  // Processes of ours that are alive (no zombies): their program names.
  std::vector<std::string> Alive() const;
  // The same: the pids of those with this program name; empty: of all.
  std::vector<int> Pids(std::string_view program) const;
  // Waits until `done`; false when the time is over.
  bool WaitUntil(const std::function<bool()>& done, absl::Duration limit) const;

  const std::string& directory() const { return directory_; }

 private:
  void ReadOutput(int timeout_ms);
  void KillAll() const;

  std::string directory_;
  int pid_ = 0;
  int output_fd_ = -1;
  std::string output_;
};

}  // namespace skein::tests
