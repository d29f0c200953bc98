// All worker groups of a coordinator: one waiting line, from which each sequence goes to the least
// loaded group that can start it, and the transactions of each group. A pure function with state,
// as GroupScheduler is. One caller, the control loop. Owns every Sequence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "protocol/messages/step.h"
#include "scheduler/admission.h"
#include "scheduler/group_assignment.h"
#include "scheduler/group_scheduler.h"
#include "scheduler/sequence.h"

namespace skein::scheduler {

class ClusterScheduler {
 public:
  // Groups are 0 to `num_groups` - 1; a method that takes a GroupId takes one of these.
  ClusterScheduler(const SchedulerLimits& limits, uint32_t num_groups);

  // Queues a generation. ResourceExhausted: a bound of the queue. InvalidArgument: no group whose
  // epoch runs could ever run it. AlreadyExists: the id is in use.
  absl::Status AddSequence(NewSequence sequence);
  // True if the sequence is gone at once; false if its step in flight must end first (the commit
  // reports it) or the id is unknown.
  bool CancelSequence(protocol::SequenceId id);

  // A group is ready: steps of it may be planned. Queued sequences that no group with an epoch can
  // ever run are gone and reported with ResourceExhausted.
  std::vector<SequenceDelta> StartEpoch(protocol::GroupId group, protocol::RankId rank,
                                        protocol::Epoch epoch,
                                        const protocol::CacheGeometry& geometry);
  // The epoch of a group is over: its running sequences return to the queue with their tokens and
  // go to whichever group has room next; cancelled ones and those whose steps failed too often are
  // gone and reported. `node`: the worker whose loss ended it; `failed`: the lane whose step did.
  std::vector<SequenceDelta> AbortInflight(protocol::GroupId group, AbortCause cause,
                                           uint32_t node = 0, uint32_t failed = kAnyLane);
  // It is known whether the last death of worker `node` was its own doing. Sequences that it
  // condemns are gone and reported with Aborted.
  std::vector<SequenceDelta> SettleDeath(uint32_t node, bool own);

  // No sequence starts in the group from now on, but pinned ones; see GroupScheduler.
  void Cordon(protocol::GroupId group) { groups_[group.value()]->Cordon(); }
  // What runs there returns to the queue, where others take it.
  void Evict(protocol::GroupId group) { groups_[group.value()]->Evict(); }
  void Uncordon(protocol::GroupId group) { groups_[group.value()]->Uncordon(); }

  // The next step of a lane of a group, or nothing when the lane has one in flight, the group has
  // no epoch, or nothing can run there.
  std::optional<protocol::StepPlan> PlanStep(protocol::GroupId group, uint32_t lane);
  // Applies the result of the lane's step. InvalidArgument if it does not answer the plan in
  // flight; nothing has changed then. Overwrites `commit`, whose memory the caller keeps from step
  // to step.
  absl::Status CommitStep(protocol::GroupId group, const protocol::StepResult& result,
                          StepCommit& commit);

  bool has_epoch(protocol::GroupId group) const { return groups_[group.value()]->has_epoch(); }
  uint32_t num_groups() const { return static_cast<uint32_t>(groups_.size()); }
  uint32_t num_running() const;
  // Sequences that the group was emptied of and that no other one has computed again so far.
  uint32_t num_moving_from(protocol::GroupId group) const;
  uint32_t num_queued() const { return admission_.num_queued(); }
  bool empty() const { return sequences_.empty(); }
  const SchedulerLimits& limits() const { return limits_; }
  const GroupScheduler& group(protocol::GroupId group) const { return *groups_[group.value()]; }

  // State for CheckInvariants and metrics.
  const std::map<protocol::SequenceId, std::unique_ptr<Sequence>>& sequences() const {
    return sequences_;
  }
  const Admission& admission() const { return admission_; }

 private:
  void Assign();
  void MeasureGroups();
  std::optional<uint32_t> PlaceOf(const Sequence& sequence);
  bool MayRun(const Sequence& sequence, const GroupScheduler& group) const;
  const GroupScheduler* ProbationGroup(const Sequence& sequence) const;
  absl::Status CheckFits(const Sequence& sequence) const;
  void Forget(const std::vector<SequenceDelta>& gone);

  const SchedulerLimits limits_;
  Admission admission_;
  std::vector<std::unique_ptr<GroupScheduler>> groups_;
  std::map<protocol::SequenceId, std::unique_ptr<Sequence>> sequences_;
  uint64_t last_arrival_ = 0;
  // Of the plan being made; kept for their memory.
  std::vector<GroupLoad> loads_;                  // by group
  std::vector<GroupScheduler::Room> rooms_;       // by group
  std::vector<std::vector<Sequence*>> assigned_;  // by group, in order of service
  bool probation_free_ = false;                   // a sequence on probation may start
};

}  // namespace skein::scheduler
