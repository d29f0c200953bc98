// Whether a child still works: a question over its link each now and then, and how many in a row it
// left unanswered. Time counts as the supervisor saw it: while the whole host stands still nobody
// is asked, so nobody is late. Supervisor's thread. Must never judge a child by a clock that ran
// while the supervisor did not.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace skein::worker {

class ChildPulse {
 public:
  // Questions without an answer that make a hang.
  static constexpr int kAsksMax = 10;

  // `limit`: how long a hang takes to be one; zero: nobody is asked.
  explicit ChildPulse(absl::Duration limit);

  // A new process is there.
  void Restart(absl::Time now);
  void OnAnswer();
  // Asks over its link when due. True once, when it hangs. A program that never answered may be
  // older than the question: it hangs only while process `pid` is stopped.
  bool Ask(int link_fd, int pid, absl::Time now);
  // When Ask has something to do.
  absl::Time next() const { return next_; }

 private:
  absl::Duration interval_;
  absl::Time next_ = absl::InfiniteFuture();
  int unanswered_ = 0;
  bool has_answered_ = false;
};

// Why process `pid` does not answer, by the file that the kernel keeps of it.
std::string WhySilent(int pid);
// Whether nothing holds it: its silence is its own doing, not of who stopped it or of a disk.
bool IsOwnHang(int pid);

}  // namespace skein::worker
