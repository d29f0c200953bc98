// What operators ask of the control loop, and how it answers. Any thread pushes; the control thread
// takes, acts and replies. Bounded. Must never wait.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/cluster_status.h"
#include "protocol/actor/mailbox.h"

namespace skein::coordinator {

// FailedPrecondition: not in this state; InvalidArgument: no such group or action.
struct OperatorAnswer {
  absl::Status status;
  ClusterStatus cluster;  // after the command
};

struct OperatorCommand {
  enum class Verb { kStatus, kDrain, kUndrain, kRollout };
  Verb verb = Verb::kStatus;
  std::optional<uint32_t> group;  // kDrain, kUndrain: empty for the whole cluster
  std::string action;             // kRollout: start, pause, resume, abort
  std::string build;              // kRollout start: that new workers must have; empty: any
  std::string actor;              // who asks, for the log
  std::function<void(OperatorAnswer)> reply;  // called once, on the control thread; must not block
};

class OperatorQueue {
 public:
  // `control` outlives the queue.
  explicit OperatorQueue(protocol::Waker& control) : commands_(kCommandsMax, control) {}
  // ResourceExhausted when the control loop does not take them.
  absl::Status TryPush(OperatorCommand command) { return commands_.TryPush(std::move(command)); }
  std::vector<OperatorCommand> TakeAll() { return commands_.TakeAll(); }
  // Commands that wait for the control loop. Any thread.
  size_t mailbox_depth() const { return commands_.depth(); }

 private:
  static constexpr size_t kCommandsMax = 64;
  protocol::Mailbox<OperatorCommand> commands_;
};

}  // namespace skein::coordinator
