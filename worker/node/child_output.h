// The pipe of one child's standard output and error: cut into lines, made safe to print, held to a
// rate, passed on.
// Supervisor's thread. Must never let a child that prints without end slow the supervisor's loop.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "worker/node/line_gate.h"
#include "worker/node/line_output.h"

namespace skein::worker {

class ChildOutput {
 public:
  // `child` names it in notices. The output outlives this.
  ChildOutput(std::string child, LineOutput& to) : child_(std::move(child)), to_(&to) {}

  // Takes what the pipe holds, at most a bounded amount. False: it has ended.
  bool Read(int fd, absl::Time now);
  // Passes on what the end of a burst or of the child lets through.
  void Settle(absl::Time now);
  // The child ended: its unfinished line is one, and a burst is over.
  void End(absl::Time now);

  // When Settle has something to do.
  absl::Time settle_at() const { return gate_.quiet_at(); }
  uint64_t lines_suppressed() const { return gate_.suppressed(); }

 private:
  void PassOn(std::string_view lines, absl::Time now);
  void Notice(absl::Time now);

  std::string child_;
  LineOutput* to_;
  LineGate gate_;
  std::string line_;  // not yet ended by a newline
};

}  // namespace skein::worker
