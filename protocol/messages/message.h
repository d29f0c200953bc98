// Everything that crosses the wire between processes. Closed on purpose: adding an alternative
// makes every actor that visits the variant fail to compile until it says what it does.
#pragma once

#include <variant>

#include "protocol/messages/control.h"
#include "protocol/messages/move.h"
#include "protocol/messages/step.h"

namespace skein::protocol {

using Message = std::variant<StepPlan, StepResult,                                // data plane
                             RegisterWorker, FormGroup, GroupFormed, AbortEpoch,  // membership
                             Heartbeat, LeaseGrant, Shutdown,                     // liveness, end
                             MoveBlocks, BlocksMoved>;                            // block transfers

}  // namespace skein::protocol
