// The collectives of a simulated host: where the ranks of an epoch meet under its name, and where
// they wait for each other in every step. None of them runs a step before all have begun it.
// Meetings belong to the ranks that are in them. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/messages/control.h"
#include "protocol/messages/step.h"

namespace skein::tests {

// What a rank is told by the others of its meeting, at once.
class SimRank {
 public:
  virtual ~SimRank() = default;
  virtual void OnMet() = 0;        // all are here
  virtual void OnStepBegun() = 0;  // all have begun the step
  virtual void OnBroken() = 0;     // one has left: no step ends any more
  virtual void Die() = 0;          // a row of another rank ended this process
};

class SimMeeting {
 public:
  using Violation = std::function<void(std::string what)>;
  SimMeeting(uint32_t num_ranks, Violation on_violation)
      : on_violation_(std::move(on_violation)), ranks_(num_ranks), begun_(num_ranks) {}

  // That all have their experts in the same places is what the coordinator owes to them.
  void Join(uint32_t rank, SimRank& who, const protocol::ExpertPlacement& placement);
  // The rank is about to run the plan. That all plans are of the same step is what the coordinator
  // owes to them.
  void Begin(uint32_t rank, const protocol::StepPlan& plan);
  // The rank is gone, or gives up.
  void Leave(uint32_t rank);
  // It stands still in a step, and the others with it.
  void Hang() { hung_ = true; }

  bool broken() const { return broken_; }
  bool hung() const { return hung_; }
  SimRank& rank(uint32_t rank) { return *ranks_[rank]; }
  uint32_t num_ranks() const { return static_cast<uint32_t>(ranks_.size()); }

 private:
  struct StepName {
    protocol::Epoch epoch;
    protocol::StepId step;
    uint32_t lane = 0;
    uint64_t hash = 0;
    friend bool operator==(const StepName&, const StepName&) = default;
  };

  const Violation on_violation_;
  std::vector<SimRank*> ranks_;                 // null: not here
  std::vector<std::optional<StepName>> begun_;  // by rank, since the last step that all began
  std::optional<protocol::ExpertPlacement> placement_;  // of who came first
  bool broken_ = false;
  bool hung_ = false;
};

// The names of a host.
class SimMeetings {
 public:
  explicit SimMeetings(SimMeeting::Violation on_violation)
      : on_violation_(std::move(on_violation)) {}
  std::shared_ptr<SimMeeting> Find(const std::string& name, uint32_t num_ranks);

 private:
  const SimMeeting::Violation on_violation_;
  std::map<std::string, std::weak_ptr<SimMeeting>> meetings_;
};

}  // namespace skein::tests
