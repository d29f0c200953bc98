// What goes wrong in a simulated cluster, and what its operators do meanwhile.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_cluster.h"

namespace skein::tests {

// Spread over the time, some together.
void SimCluster::SubmitNext() {
  const absl::Duration at = random_.Between(absl::Milliseconds(200), config_.horizon);
  system_.After(at, [this] {
    Submit(workload_.Draw());
    if (random_.OneIn(config_.burst_one_in)) Submit(workload_.Draw());
  });
}

void SimCluster::ScheduleFaults() {}

}  // namespace skein::tests
