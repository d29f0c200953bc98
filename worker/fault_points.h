// Planted faults of a worker, for tests of recovery: compiled in, dead unless worker.enable_faults
// names them. Owns nothing. BeforeStep runs on the device thread, AtStart on the main one.
// Must never act on a step that holds no named token.
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/config/fault_list.h"
#include "protocol/messages/step.h"

namespace skein::worker {

class FaultPoints {
 public:
  explicit FaultPoints(const protocol::FaultList& faults) : faults_(faults) {}

  // The exit code with which the worker must end at once, if one is planted.
  std::optional<int> AtStart() const { return faults_.exit_at_start; }
  // Nobody is to find the blocks that the worker of this number lends.
  bool LosesBlocks(uint32_t worker) const {
    return faults_.lose_blocks && static_cast<uint32_t>(*faults_.lose_blocks) == worker;
  }
  // Aborts the process, or never returns, when the step computes a named token.
  void BeforeStep(const protocol::StepPlan& plan) const;

 private:
  const protocol::FaultList faults_;
};

// True when the plan computes the token.
bool Computes(const protocol::StepPlan& plan, int32_t token);

}  // namespace skein::worker
