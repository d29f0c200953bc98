// The numbered invariants of scheduler/README.md as one check, for tests and simulation after every
// call. Pure.
#pragma once

#include "absl/status/status.h"
#include "scheduler/cluster_scheduler.h"

namespace skein::scheduler {

// OK, or Internal naming the invariant that is broken and the values.
absl::Status CheckInvariants(const ClusterScheduler& scheduler);

}  // namespace skein::scheduler
