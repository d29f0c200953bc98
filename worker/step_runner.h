// Takes plans and later leaves results: the line between the worker actor and whatever computes.
// Implemented by the device thread, and by a simulation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "protocol/messages/control.h"
#include "protocol/messages/move.h"
#include "protocol/messages/step.h"

namespace skein::worker {

// What became of the meeting of an epoch's ranks.
struct FormOutcome {
  protocol::Epoch epoch;
  absl::Status status;
  // The error is this worker's and would be that of every later epoch: it ends the worker.
  bool ends_worker = false;
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Queues a plan; runs in order of submission. ResourceExhausted when too many
  // plans have no result taken yet.
  virtual absl::Status Submit(protocol::StepPlan plan) = 0;
  // Forgets every sequence once the plans submitted so far have run. In a group they end at once,
  // and the group with them.
  virtual absl::Status Reset() = 0;
  // Meets the other ranks of a group of several, after a Reset; TakeFormed gives what became of it.
  // A runner of whole models is asked for neither.
  virtual absl::Status Form(const protocol::FormGroup& group) {
    return absl::UnimplementedError("the worker runs whole models; group of " +
                                    std::to_string(group.num_ranks) + " ranks");
  }
  // The outcome of the newest meeting that ended since the last call. Actor thread only.
  virtual std::optional<FormOutcome> TakeFormed() { return std::nullopt; }
  // Begins one side of a block transfer of this epoch; TakeMoved gives its end. A runner that
  // cannot registers no address, and is not asked.
  virtual absl::Status Move(protocol::MoveBlocks move) {
    return absl::UnimplementedError("the worker moves no cache blocks; transfer " +
                                    std::to_string(move.transfer.value()));
  }
  // Sides of transfers that ended since the last call. Actor thread only.
  virtual std::vector<protocol::BlocksMoved> TakeMoved() { return {}; }
  // How long the step that runs has been running; zero when none does. Actor thread.
  virtual absl::Duration RunningFor() const { return absl::ZeroDuration(); }
  // Results left since the last call. Actor thread only.
  virtual std::vector<protocol::StepResult> TakeResults() = 0;
};

}  // namespace skein::worker
