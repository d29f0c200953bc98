// All worker groups of a coordinator: one waiting line, from which each sequence goes to the engine
// that can start it and has the least to compute with it, and the transactions of each group. An
// engine is a rank of a group; those of a group take every step together. A pure function with
// state, as GroupScheduler is. One caller, the control loop. Owns every Sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "protocol/messages/step.h"
#include "scheduler/admission.h"
#include "scheduler/block_move.h"
#include "scheduler/group_assignment.h"
#include "scheduler/group_scheduler.h"
#include "scheduler/sequence.h"

namespace skein::scheduler {

// Whether blocks may go from an engine to another: both can, and mean the same by them. kLater: so
// it is, but not at the moment.
enum class MoveAnswer : uint8_t { kNo, kLater, kYes };
using MayMove = std::function<MoveAnswer(uint32_t from, uint32_t to)>;

// What PlanMoves is given from outside.
struct MoveInputs {
  MayMove may_move;
  std::function<protocol::TransferId()> draw;  // a name that nobody guesses
};

class ClusterScheduler {
 public:
  // Groups are 0 to `num_groups` - 1; a method that takes a GroupId takes one of these. Rank r of
  // group g is engine g * `num_ranks` + r.
  ClusterScheduler(const SchedulerLimits& limits, uint32_t num_groups, uint32_t num_ranks = 1);

  // Queues a generation. ResourceExhausted: a bound of the queue. InvalidArgument: no group whose
  // epoch runs could ever run it. AlreadyExists: the id is in use.
  absl::Status AddSequence(NewSequence sequence);
  // True if the sequence is gone at once; false if its step in flight must end first (the commit
  // reports it) or the id is unknown.
  bool CancelSequence(protocol::SequenceId id);

  // A group is ready: steps of it may be planned. `geometry`: of each rank. Queued sequences that
  // no group with an epoch can ever run are gone and reported with ResourceExhausted.
  std::vector<SequenceDelta> StartEpoch(protocol::GroupId group, protocol::Epoch epoch,
                                        std::span<const protocol::CacheGeometry> geometry);
  // The epoch of a group is over: its running sequences return to the queue with their tokens and
  // go to whichever group has room next; cancelled ones and those whose steps failed too often are
  // gone and reported. `node`: the worker whose loss ended it; `failed`: the lane whose step did.
  std::vector<SequenceDelta> AbortInflight(protocol::GroupId group, AbortCause cause,
                                           uint32_t node = 0, uint32_t failed = kAnyLane);
  // It is known whether the last death of worker `node` was its own doing. Sequences that it
  // condemns are gone and reported with Aborted; those whose workers died too often beside others
  // with Unavailable.
  std::vector<SequenceDelta> SettleDeath(uint32_t node, bool own);

  // No sequence starts in the group from now on, but pinned ones; see GroupScheduler.
  void Cordon(protocol::GroupId group);
  // What runs there returns to the queue, where others take it.
  void Evict(protocol::GroupId group);
  void Uncordon(protocol::GroupId group);

  // Takes sequences out of groups that are emptied, and those whose prompts are computed out of the
  // groups that do that: they wait in the queue for their transfer, which the workers are to be
  // told of, and start behind it. Called before steps are planned.
  std::vector<MoveOrder> PlanMoves(const MoveInputs& inputs);
  // The worker of the engine says that its side of a transfer is over.
  void EndLoan(uint32_t engine, protocol::TransferId transfer);
  void EndArrival(uint32_t engine, protocol::TransferId transfer, bool arrived);
  // It takes too long: the sequence waits for it no more. Its blocks stay where they are.
  void GiveUpMove(protocol::TransferId transfer);
  const MoveCounters& move_counters() const { return move_counters_; }

  // The next step of a lane of a group, a plan for each rank in turn, of which at least one has
  // sequences; or nothing when a rank has the lane's last step in flight, the group has no epoch,
  // or nothing can run there.
  std::vector<protocol::StepPlan> PlanStep(protocol::GroupId group, uint32_t lane);
  // Applies one rank's result of the lane's step. What it says is true whatever becomes of the
  // other ranks, so it does not wait for them; the lane does. InvalidArgument if it does not answer
  // the plan in flight; nothing has changed then. Overwrites `commit`, whose memory the caller
  // keeps from step to step.
  absl::Status CommitStep(protocol::GroupId group, const protocol::StepResult& result,
                          StepCommit& commit);

  bool has_epoch(protocol::GroupId group) const { return RanksOf(group).front()->has_epoch(); }
  bool cordoned(protocol::GroupId group) const { return RanksOf(group).front()->cordoned(); }
  // Some group starts what waits once it has room: its epoch runs and it is not cordoned.
  bool takes_newcomers() const;
  // A sequence on probation runs in the group.
  bool probation(protocol::GroupId group) const;
  uint32_t num_groups() const { return num_engines() / num_ranks_; }
  uint32_t num_ranks() const { return num_ranks_; }  // of each group
  uint32_t num_engines() const { return static_cast<uint32_t>(engines_.size()); }
  uint32_t EngineOf(protocol::GroupId group, protocol::RankId rank) const {
    return group.value() * num_ranks_ + rank.value();
  }
  uint32_t num_running() const;
  uint32_t num_running(protocol::GroupId group) const;
  // Sequences that the group was emptied of and that no other one has computed again so far.
  uint32_t num_moving_from(protocol::GroupId group) const;
  uint32_t num_queued() const { return admission_.num_queued(); }
  bool empty() const { return sequences_.empty(); }
  const SchedulerLimits& limits() const { return limits_; }
  const GroupScheduler& engine(uint32_t engine) const { return *engines_[engine]; }

  // State for CheckInvariants and metrics.
  const std::map<protocol::SequenceId, std::unique_ptr<Sequence>>& sequences() const {
    return sequences_;
  }
  const Admission& admission() const { return admission_; }

 private:
  using Ranks = std::span<const std::unique_ptr<GroupScheduler>>;

  Ranks RanksOf(protocol::GroupId group) const {
    return Ranks(engines_).subspan(size_t{group.value()} * num_ranks_, num_ranks_);
  }
  std::span<Sequence* const> NewcomersOf(const GroupScheduler& engine) const {
    return assigned_[engine.index()];
  }
  // A transfer, and who waits for it unless it was cancelled.
  struct Move {
    protocol::SequenceId sequence;
    MoveCause cause = MoveCause::kDrain;
  };

  bool Prefills(uint32_t engine) const;
  bool WantsPrefill(const Sequence& sequence) const;
  // Which groups compute what comes next of a sequence.
  enum class Part : uint8_t { kAnybody, kPrefill, kDecode };
  Part PartOf(const Sequence& sequence) const;
  Part StandIn(Part part, const Sequence& sequence) const;
  bool IsOf(Part part, uint32_t engine) const;
  void NoteParts();
  std::vector<uint32_t> CountPromised();
  struct Target {
    std::optional<uint32_t> engine;
    bool later = false;  // one is to be waited for
  };
  bool AnyAwaited(const GroupScheduler& from) const;
  Target TargetOf(const Sequence& sequence, Part part, const std::vector<uint32_t>& promised,
                  const MayMove& may_move);
  void StartMove(Sequence& sequence, MoveCause cause, const MoveInputs& inputs,
                 std::vector<uint32_t>& promised, std::vector<MoveOrder>& orders);
  MoveOrder OrderOf(protocol::TransferId transfer, const Sequence& sequence, uint32_t to,
                    uint32_t position);
  void CountMove(MoveCause cause, MoveResult result);
  void EndMove(protocol::TransferId transfer, MoveResult result);
  void ForgetPromises(protocol::GroupId group);
  void ForgetLoans(protocol::GroupId group);
  void Assign();
  void CloseRooms(const Sequence& sequence);
  void MeasureEngines();
  uint32_t NumMarked(uint32_t engine) const;
  bool PlanRanks(Ranks ranks, uint32_t lane, uint32_t turn,
                 std::vector<protocol::StepPlan>& plans) const;
  std::optional<uint32_t> PlaceOf(Sequence& sequence);
  void Appraise(Sequence& sequence);
  bool MayRun(const Sequence& sequence, Part part, const GroupScheduler& engine) const;
  const GroupScheduler* ProbationEngine(const Sequence& sequence) const;
  absl::Status CheckFits(const Sequence& sequence) const;
  void Forget(const std::vector<SequenceDelta>& gone);

  const SchedulerLimits limits_;
  const uint32_t num_ranks_;  // of a group
  Admission admission_;
  std::vector<std::unique_ptr<GroupScheduler>> engines_;  // those of a group beside each other
  std::vector<uint32_t> turns_;  // by group and lane: steps so far, which say who is planned first
  std::map<protocol::SequenceId, std::unique_ptr<Sequence>> sequences_;
  uint64_t last_arrival_ = 0;
  std::map<protocol::TransferId, Move> moves_;  // whose ends are awaited
  std::set<protocol::SequenceId> promised_;     // that may have an engine to start on
  MoveCounters move_counters_{};
  bool decode_ready_ = false;  // a group that decodes takes newcomers
  uint32_t block_tokens_ = 0;
  // Of the plan being made; kept for their memory.
  std::vector<EngineLoad> loads_;                 // by engine
  std::vector<GroupScheduler::Room> rooms_;       // by engine
  std::vector<std::vector<Sequence*>> assigned_;  // by engine, in order of service
  bool probation_free_ = false;                   // a sequence on probation may start
};

}  // namespace skein::scheduler
