// The steps in flight of every group: when they were planned, what they cost, and whether one takes
// too long. Owns the learned capacity and deadlines. Control thread. Must never decide what runs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/metrics.h"
#include "protocol/base/step_deadline.h"
#include "protocol/messages/step.h"
#include "scheduler/group_scheduler.h"

namespace skein::coordinator {

class StepWatch {
 public:
  // `metrics` outlives the watch.
  StepWatch(const scheduler::SchedulerLimits& limits, uint32_t num_groups,
            CoordinatorMetrics& metrics);

  void Planned(const protocol::StepPlan& plan, absl::Time now);
  // Its result was committed.
  void Committed(const protocol::StepResult& result, absl::Time now);
  // The epoch of the group ended: nothing of it is in flight.
  void Forget(protocol::GroupId group);

  // Rows of prompt per second of one group; 0 until it was measured.
  double prefill_rate() const { return prefill_rate_; }
  // The age of the oldest step in flight of the group.
  std::optional<absl::Duration> Age(protocol::GroupId group, absl::Time now) const;
  // A step of the group is past its deadline.
  bool Overdue(protocol::GroupId group, absl::Time now) const;

 private:
  struct Step {
    bool in_flight = false;
    absl::Time planned;
    uint32_t tokens = 0;  // rows without drafts
    uint32_t sequences = 0;
    uint32_t prefills = 0;
  };
  struct Group {
    std::vector<Step> steps;  // by lane
    protocol::StepDeadline deadline;
  };

  const uint32_t rows_max_;
  CoordinatorMetrics& metrics_;
  std::vector<Group> groups_;
  double prefill_rate_ = 0;
};

}  // namespace skein::coordinator
