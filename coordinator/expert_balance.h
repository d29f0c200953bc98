// How the experts of each group are loaded, and when they change places: counts what the ranks say,
// proposes a placement that is worth an epoch, and knows which placement a group's next epoch has.
// One group at a time is without service for it. Time and what is seen come in. Control thread.
// Must never give a group a placement that failed to form.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/metrics.h"
#include "protocol/messages/control.h"
#include "protocol/messages/step.h"
#include "scheduler/expert_placement.h"

namespace skein::coordinator {

class ExpertBalance {
 public:
  // `interval`: between two looks at whether experts should move; 0: never. `metrics` outlive this.
  ExpertBalance(uint32_t num_groups, uint32_t num_ranks, absl::Duration interval,
                ExpertMetrics& metrics)
      : num_ranks_(num_ranks), interval_(interval), metrics_(metrics), groups_(num_groups) {}

  // What the rows of a step chose. Ignored where it has another shape than the first of the epoch,
  // or than the placement.
  void Count(protocol::GroupId group, const protocol::ExpertLoad& load);

  // True: the experts of this group, which serves, are to change places. It is quiet from then on:
  // no step of it is planned, and when none is in flight, Begin.
  bool Propose(protocol::GroupId group, absl::Time now);
  bool quiet(protocol::GroupId group) const {
    return groups_[group.value()].state == State::kQuiet;
  }
  // It has ended its epoch for this, and the next is not formed yet.
  bool forming(protocol::GroupId group) const {
    return groups_[group.value()].state == State::kForming;
  }
  // The group's next epoch has the new placement.
  void Begin(protocol::GroupId group);
  void Formed(protocol::GroupId group, absl::Time now);
  // Its epoch ended, or was not formed, and not for a new placement, or something else is out of
  // service: nothing is to change, and what was to is as before.
  void Ended(protocol::GroupId group);

  // Ranks that are about to meet cannot be told of a placement.
  void Forget(protocol::GroupId group);

  // Of the group's next epoch; empty: as the workers load at first.
  const protocol::ExpertPlacement& placement(protocol::GroupId group) const {
    return groups_[group.value()].placement;
  }
  // A group is out of service for this, and comes back.
  bool under_way() const;
  // Sets the gauge of imbalance and forgets old counts by and by.
  void Tick(absl::Time now);

 private:
  enum class State { kServing, kQuiet, kForming };
  // Steps fall in two halves: a placement is made of the one and judged by the other, so that no
  // chance of the first looks like a gain.
  using Halves = std::array<scheduler::ExpertCounts, 2>;
  struct Group {
    State state = State::kServing;
    absl::Time since;              // it is quiet
    absl::Time checked;            // whether experts should move
    std::array<Halves, 2> counts;  // of decode steps; of those with prompts; of one shape
    uint32_t counted = 0;          // steps
    protocol::ExpertPlacement placement, proposed, before;
  };

  double WorstImbalance(size_t phase) const;
  protocol::ExpertPlacement Present(const Group& group,
                                    const scheduler::ExpertCounts& counts) const;

  const uint32_t num_ranks_;
  const absl::Duration interval_;
  ExpertMetrics& metrics_;
  std::vector<Group> groups_;
  absl::Time ticked_, halved_;
};

}  // namespace skein::coordinator
