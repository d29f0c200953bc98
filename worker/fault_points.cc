#include "worker/fault_points.h"

#include <algorithm>
#include <cstdlib>

#include <unistd.h>

#include "protocol/base/log.h"

namespace skein::worker {

bool Computes(const protocol::StepPlan& plan, int32_t token) {
  return std::any_of(
      plan.sequences.begin(), plan.sequences.end(), [token](const protocol::SequenceStep& step) {
        return std::find(step.tokens.begin(), step.tokens.end(), token) != step.tokens.end();
      });
}

void FaultPoints::BeforeStep(const protocol::StepPlan& plan) const {
  if (faults_.abort_on_token && Computes(plan, *faults_.abort_on_token)) {
    SKEIN_LOG(kError, "planted fault: abort").Field("step", plan.step);
    std::abort();
  }
  if (faults_.hang_on_token && Computes(plan, *faults_.hang_on_token)) {
    SKEIN_LOG(kError, "planted fault: the device thread stands still").Field("step", plan.step);
    while (true) ::pause();
  }
}

}  // namespace skein::worker
