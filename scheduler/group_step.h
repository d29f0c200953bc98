// What the ranks of a group have alike in one step. Pure functions.
#pragma once

#include <span>

#include "protocol/messages/step.h"

namespace skein::scheduler {

// Gives the plans of one step, by rank, a hash over the step and what each rank was given: ranks
// that do not have the same one do not run the same step. A plan alone has nobody to agree with and
// is left as it is.
void SealStep(std::span<protocol::StepPlan> plans);

}  // namespace skein::scheduler
