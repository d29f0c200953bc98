// The first exchange of a step in a group: whether the plans of all ranks belong together and can
// be run, and how many rows each rank brings. Without it a rank could compute with the step of
// another. Thread: the device thread.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "protocol/messages/step.h"
#include "worker/graph_cache.h"
#include "worker/model/rank_exchange.h"

namespace skein::worker {

// Rows of a plan at most, with all drafts that the head may propose, and sequences to draft for.
struct StepSize {
  int rows = 0;
  int draft_requests = 0;
  std::optional<DecodeShape> shape;  // none: some of it is no decode step
};
// `records`: whether decode steps may run as recorded ones.
StepSize SizeOf(const protocol::StepPlan& plan, bool records);

// The largest size of any rank, equal on all ranks; its shape holds the steps of all. `checked`:
// what this rank says of its own plan.
// FailedPrecondition names the rank whose plan is of another step; Aborted the one that refused its
// plan, with its reason, or the errors of the group.
absl::StatusOr<StepSize> AgreeOnStep(RankExchange& ranks, const protocol::StepPlan& plan,
                                     bool records, const absl::Status& checked);

}  // namespace skein::worker
