// Operators' verbs as the control loop carries them out: cordons, drains, the rolling restart and
// its checks, and the status that tells of them. Owns the rollout and the drains; acts on parts of
// the control loop. Control thread. Must never start work that clients did not ask for but checks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/cluster_status.h"
#include "coordinator/expert_balance.h"
#include "coordinator/front_door_queue.h"
#include "coordinator/group_check.h"
#include "coordinator/operator_queue.h"
#include "coordinator/request_table.h"
#include "coordinator/rollout.h"
#include "coordinator/step_watch.h"
#include "coordinator/worker_table.h"
#include "protocol/actor/actor.h"
#include "scheduler/cluster_scheduler.h"

namespace skein::coordinator {

// Parts of the control loop, which outlive the operations.
struct ControlParts {
  scheduler::ClusterScheduler& scheduler;
  WorkerTable& workers;
  RequestTable& requests;
  FrontDoorQueue& door;
  const StepWatch& steps;
  const ExpertBalance& balance;
};

class ClusterOperations {
 public:
  // `silence`: after which a worker is suspect. `queue` may be null: nobody asks.
  ClusterOperations(const RolloutLimits& limits, absl::Duration silence, protocol::Term term,
                    OperatorQueue* queue, const ControlParts& parts);

  // The silence follows this side's own delay.
  void SetSilence(absl::Duration silence) { silence_ = silence; }

  // Carries out what was asked since the last call.
  void TakeCommands(protocol::Context& context);
  // Goes on with drains and the rollout.
  void Advance(protocol::Context& context);

  // A group is out of service on purpose and comes back: requests may wait for it.
  bool PlannedOutage() const { return rollout_.active(); }
  // "starting", "ready", "draining", "suspect", "hung" or "dead".
  std::string_view StateOf(protocol::GroupId group, absl::Time now) const;
  // "ready", "spare" or "suspect".
  std::string_view StateOf(protocol::ActorId worker, absl::Time now) const;
  // The group takes new sequences and its steps end.
  bool Serves(protocol::GroupId group, absl::Time now) const {
    return StateOf(group, now) == "ready";
  }
  ClusterStatus Status(absl::Time now) const;

 private:
  struct GroupDrain {
    bool asked = false;
    bool evicted = false;
    absl::Time deadline;
  };

  // The part of a check that one rank answers.
  struct RankCheck {
    protocol::RequestId id;
    std::shared_ptr<CheckSink> sink;
  };

  absl::Status Carry(protocol::Context& context, const OperatorCommand& command);
  absl::Status Drain(absl::Time now, std::optional<uint32_t> group);
  absl::Status Undrain(std::optional<uint32_t> group);
  absl::Status Roll(const OperatorCommand& command);
  void AdvanceRollout(protocol::Context& context);
  void Act(protocol::Context& context, const RolloutAction& action);
  void StartCheck(uint32_t group);
  RankCheck StartRankCheck(uint32_t engine);
  void TakeCheck();
  void DropCheck();
  RolloutView View() const;
  std::string BuildOf(const WorkerGroup& group) const;
  GroupStatus GroupStatusOf(protocol::GroupId group, absl::Time now) const;
  WorkerStatus WorkerStatusOf(protocol::ActorId worker, const KnownWorker& known,
                              absl::Time now) const;

  const RolloutLimits limits_;
  absl::Duration silence_;
  const protocol::Term term_;
  OperatorQueue* const queue_;
  const ControlParts parts_;
  Rollout rollout_;
  std::vector<GroupDrain> drains_;  // by group
  std::vector<RankCheck> check_;    // that runs, by rank
  uint64_t num_checks_ = 0;
};

}  // namespace skein::coordinator
