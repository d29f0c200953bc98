// The steps in flight of every group: when they were planned, what they cost, and whether one takes
// too long. Owns the learned capacity and deadlines. Control thread. Must never decide what runs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
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

  // The plans of one step, by rank.
  void Planned(std::span<const protocol::StepPlan> plans, absl::Time now);
  // The result of one rank was committed. The step has ended with the last of them.
  void Committed(const protocol::StepResult& result, absl::Time now);
  // The epoch of the group ended: nothing of it is in flight.
  void Forget(protocol::GroupId group);

  // Rows of prompt per second of one engine; 0 until it was measured.
  double prefill_rate() const { return prefill_rate_; }
  // The age of the oldest step in flight of the group.
  std::optional<absl::Duration> Age(protocol::GroupId group, absl::Time now) const;
  // A step of the group is past its deadline.
  bool Overdue(protocol::GroupId group, absl::Time now) const;

 private:
  // What a rank has of a step.
  struct Part {
    uint32_t tokens = 0;  // rows without drafts
    uint32_t sequences = 0;
    uint32_t prefills = 0;
  };
  struct Step {
    size_t in_flight = 0;  // ranks whose results are awaited
    absl::Time planned;
    uint32_t tokens = 0;  // of the rank with the most: the others wait for it
    std::vector<Part> parts;
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
