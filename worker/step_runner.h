// Takes plans and later leaves results: the line between the worker actor and whatever computes.
// Implemented by the device thread, and by a simulation.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "protocol/messages/step.h"

namespace skein::worker {

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Queues a plan; runs in order of submission. ResourceExhausted when too many
  // plans have no result taken yet.
  virtual absl::Status Submit(protocol::StepPlan plan) = 0;
  // Forgets every sequence once the plans submitted so far have run.
  virtual absl::Status Reset() = 0;
  // How long the step that runs has been running; zero when none does. Actor thread.
  virtual absl::Duration RunningFor() const { return absl::ZeroDuration(); }
  // Results left since the last call. Actor thread only.
  virtual std::vector<protocol::StepResult> TakeResults() = 0;
};

}  // namespace skein::worker
