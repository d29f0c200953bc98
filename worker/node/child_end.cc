// The judgement of ends. Pure; any thread.
// Must never depend on anything but the end itself.
#include "worker/node/child_end.h"

#include <cstring>

#include <signal.h>

#include "protocol/base/exit_codes.h"
#include "protocol/base/strings.h"

namespace skein::worker {

std::string ChildEnd::Describe() const {
  if (signal == 0) return protocol::Concat("exit code ", exit_code);
  return protocol::Concat("signal ", signal, " (", ::strsignal(signal), ")",
                          oom_killed  ? ", out of memory in its own leaf"
                          : oom_above ? ", out of memory at the node's limit"
                                      : "");
}

PredecessorEnd JudgeEnd(const ChildEnd& end) {
  if (end.oom_killed || end.oom_above) return PredecessorEnd::kOwn;
  switch (end.signal) {
    case 0:
      break;
    case SIGSEGV:
    case SIGABRT:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
      return PredecessorEnd::kOwn;
    default:
      return PredecessorEnd::kOutside;
  }
  if (end.exit_code == protocol::kExitOk) return PredecessorEnd::kOrdered;
  const bool after_loss =
      end.exit_code == protocol::kExitInternal || end.exit_code == protocol::kExitRestart;
  return after_loss ? PredecessorEnd::kOutside : PredecessorEnd::kOwn;
}

}  // namespace skein::worker
