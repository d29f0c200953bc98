// Which file a child's program is, and the one that it was before: a program that is replaced by
// rename can be started again as long as somebody has it open. Owns the descriptors.
// Supervisor's thread. Must never give back a program that was never ready.
#pragma once

#include <optional>
#include <string>

#include <sys/types.h>
#include <time.h>

#include "worker/node/descriptor.h"

namespace skein::worker {

class ProgramHistory final {
 public:
  // Before each start: looks at `path`, unless the child went back. A file that cannot be opened
  // changes nothing: the start itself says why.
  void Look(const std::string& path);
  // The program that was started last is ready.
  void OnReady();
  // It ended as it was told to: the next start takes what is at the path.
  void OnOrderedEnd() { went_back_ = false; }
  // It ended before it was ready, of its own doing. True when it did so twice and the one before is
  // started from now on.
  bool OnFailedStart();
  // The one before is started from now on; false when there is none that was ready.
  bool GoBack();

  // The program that was started last stands in the place of one that worked and was not ready yet.
  bool on_trial() const { return before_.has_value() && !went_back_ && !current_.was_ready; }
  // Another file than the one that was started last is at `path`; never after going back, since
  // what is there did not work.
  bool IsReplaced(const std::string& path) const;

  // What to execute; -1: the file at the path.
  int fd() const { return went_back_ ? current_.file.get() : -1; }

 private:
  struct Program {
    Descriptor file;
    dev_t device = 0;
    ino_t inode = 0;
    timespec changed = {};
    bool was_ready = false;
    int failed_starts = 0;
  };

  static Program Find(const std::string& path);
  static bool Same(const Program& a, const Program& b);

  Program current_;
  std::optional<Program> before_;
  bool went_back_ = false;
};

}  // namespace skein::worker
