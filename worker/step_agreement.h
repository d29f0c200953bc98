// The first exchange of a step in a group: whether the plans of all ranks belong together and can
// be run, and how many rows each rank brings. Without it a rank could compute with the step of
// another. Thread: the device thread.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "protocol/messages/step.h"
#include "worker/model/rank_exchange.h"

namespace skein::worker {

// Rows of a plan at most, with all drafts that the head may propose, and sequences to draft for.
struct StepSize {
  int rows = 0;
  int draft_requests = 0;
};
StepSize SizeOf(const protocol::StepPlan& plan);

// The largest size of any rank, equal on all ranks. `checked`: what this rank says of its own plan.
// FailedPrecondition names the rank whose plan is of another step; Aborted the one that refused its
// plan, with its reason, or the errors of the group.
absl::StatusOr<StepSize> AgreeOnStep(RankExchange& ranks, const protocol::StepPlan& plan,
                                     const absl::Status& checked);

}  // namespace skein::worker
