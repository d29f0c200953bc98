// Which rare states a simulated run reached, seen from outside.
#include <algorithm>

#include "tests/sim/sim_cluster.h"

namespace skein::tests {

using coordinator::FinishReason;
using coordinator::RolloutState;

void SimCluster::ObserveSequence(const scheduler::Sequence& sequence) {
  const scheduler::GroupScheduler& group = coordinator_.loop->scheduler().engine(sequence.engine);
  const bool runs = sequence.state == scheduler::SequenceState::kRunning;
  const bool drafted = sequence.num_draft_tokens > 0;
  marks_.Reach(Mark::kPreemptedWhileDrafting, !runs && drafted && group.has_epoch());
  marks_.Reach(Mark::kCancelledInFlight, sequence.cancelled && sequence.in_flight);
  marks_.Reach(Mark::kSuspectAlone, runs && sequence.step_failures > 0);
  marks_.Reach(Mark::kOnProbation, runs && sequence.suspicion.on_probation());
  const bool worn = sequence.suspicion.counted_replays() > scheduler::kCountedReplaysMax;
  marks_.Reach(Mark::kHeldForVerdict, sequence.suspicion.held() && !worn);
  marks_.Reach(Mark::kHeldAfterDeaths, sequence.suspicion.held() && worn);
  if (worn) worn_.insert(sequence.id);
  marks_.Reach(Mark::kSparedAfterDeaths, runs && worn_.contains(sequence.id));
  marks_.Reach(Mark::kRecomputesShared,
               sequence.computed < sequence.cache.shared_length && sequence.in_flight);
  // Where it runs more of it was cached than elsewhere.
  const auto& cached = sequence.cached_on;
  marks_.Reach(Mark::kPlacedByPrefix,
               runs && sequence.engine < cached.size() &&
                   std::any_of(cached.begin(), cached.end(), [&](uint32_t other) {
                     return cached[sequence.engine] != scheduler::Sequence::kNotLookedUp &&
                            other < cached[sequence.engine];
                   }));
  marks_.Reach(Mark::kSameComputedTwice, sequence.cache.chain.closed);
  marks_.Reach(Mark::kChunkedPrefill,
               sequence.computed > 0 && sequence.computed < sequence.prompt_length);
}

void SimCluster::ObserveGroup(const scheduler::GroupScheduler& group) {
  if (!group.has_epoch()) return;
  const scheduler::SchedulerCounters& counters = group.counters();
  const auto miss = [&](scheduler::CacheMiss reason) {
    return counters.cache_misses[static_cast<size_t>(reason)] > 0;
  };
  const auto undrafted = [&](scheduler::Undrafted reason) {
    return counters.undrafted[static_cast<size_t>(reason)] > 0;
  };
  marks_.Reach(Mark::kPreempted, counters.preemptions[0] > 0);
  marks_.Reach(Mark::kPreemptedForProbation, counters.preemptions[1] > 0);
  marks_.Reach(Mark::kReplayed, counters.replays > 0);
  marks_.Reach(Mark::kMoved, counters.moves > 0);
  marks_.Reach(Mark::kLentAndWanted, !group.loans().empty() && group.num_free_blocks() == 0);
  marks_.Reach(Mark::kDeepDraftKept, counters.accepted.size() > 3 && counters.accepted[3] > 0);
  marks_.Reach(Mark::kProvidedDraftKept, counters.provided_accepted_tokens > 0);
  marks_.Reach(Mark::kDraftUnbound, counters.unbound_drafts > 0);
  marks_.Reach(Mark::kUndraftedByRequest, undrafted(scheduler::Undrafted::kByRequest));
  marks_.Reach(Mark::kUndraftedByLoad, undrafted(scheduler::Undrafted::kByLoad));
  marks_.Reach(Mark::kUndraftedNearTheEnd, undrafted(scheduler::Undrafted::kNearTheEnd));
  marks_.Reach(Mark::kUndraftedByGrammar, undrafted(scheduler::Undrafted::kByGrammar));
  marks_.Reach(Mark::kCacheHit, counters.cache_hits > 0);
  marks_.Reach(Mark::kMissedEvicted, miss(scheduler::CacheMiss::kEvicted));
  marks_.Reach(Mark::kMissedStateMissing, miss(scheduler::CacheMiss::kStateMissing));
  marks_.Reach(Mark::kMissedSalt, miss(scheduler::CacheMiss::kSalt));
  marks_.Reach(Mark::kEvicted, counters.cache_evictions > 0);
  const scheduler::PrefixCache* cache = group.prefix_cache();
  marks_.Reach(Mark::kCheckpoint, cache != nullptr && cache->num_checkpoints() > 0);
  marks_.Reach(Mark::kNoBlockFree, group.num_free_blocks() == 0);
  marks_.Reach(Mark::kStarved, group.starved());
  marks_.Reach(Mark::kCordonedAndRunning, group.cordoned() && group.num_running() > 0);
  marks_.Reach(Mark::kBothLanesInFlight, group.num_lanes() == 2 &&
                                             !group.in_flight(0).parts.empty() &&
                                             !group.in_flight(1).parts.empty());
}

void SimCluster::ObserveFrames(const protocol::FrameCounters& counters) {
  marks_.Reach(Mark::kFrameResent, counters.resent > 0);
  marks_.Reach(Mark::kFrameRepeated, counters.duplicates > 0);
  marks_.Reach(Mark::kFrameMissed, counters.gaps > 0);
  marks_.Reach(Mark::kFrameDamaged, counters.bad_checksum > 0);
  marks_.Reach(Mark::kStaleTerm, counters.stale_term > 0);
  marks_.Reach(Mark::kStaleIncarnation, counters.stale_incarnation > 0);
  marks_.Reach(Mark::kStaleSession, counters.stale_session > 0);
}

// A process ends, or the run.
void SimCluster::ObserveLast(const SimProcess& process) {
  const protocol::FrameCounters& counters = process.counters();
  ObserveFrames(counters);
  stale_dropped_ += counters.stale_term + counters.stale_incarnation + counters.stale_session;
}

void SimCluster::ObserveRound() {
  const scheduler::ClusterScheduler& scheduler = coordinator_.loop->scheduler();
  for (const auto& [id, sequence] : scheduler.sequences()) ObserveSequence(*sequence);
  const auto moved = [&](scheduler::MoveCause cause, scheduler::MoveResult result) {
    return scheduler.move_counters()[static_cast<size_t>(cause)][static_cast<size_t>(result)] > 0;
  };
  marks_.Reach(Mark::kMovedWithCache,
               moved(scheduler::MoveCause::kDrain, scheduler::MoveResult::kMoved));
  marks_.Reach(Mark::kHandedOver,
               moved(scheduler::MoveCause::kHandOver, scheduler::MoveResult::kMoved));
  marks_.Reach(Mark::kTransferLost,
               moved(scheduler::MoveCause::kHandOver, scheduler::MoveResult::kReplayed));
  bool all = scheduler.num_groups() > 1;
  for (uint32_t i = 0; i < scheduler.num_engines(); ++i) {
    const scheduler::GroupScheduler& group = scheduler.engine(i);
    ObserveGroup(group);
    marks_.Reach(Mark::kIdleRank, group.in_flight(0).open && group.in_flight(0).parts.empty());
    all = all && !group.in_flight(0).parts.empty();
  }
  marks_.Reach(Mark::kAllGroupsInFlight, all);
  ObserveFrames(coordinator_.process->counters());
}

void SimCluster::ObserveRefusal(const absl::Status& status) {
  marks_.Reach(Mark::kRefusedFull, absl::IsResourceExhausted(status));
  marks_.Reach(Mark::kRefusedNotReady, absl::IsUnavailable(status));
  marks_.Reach(Mark::kRefusedDraining, absl::IsFailedPrecondition(status));
  marks_.Reach(Mark::kRefusedQuarantined, absl::IsAborted(status));
}

void SimCluster::ObserveStatus(const coordinator::ClusterStatus& status) {
  const coordinator::RolloutStatus& rollout = status.rollout;
  marks_.Reach(Mark::kRolloutDone, rollout.state == RolloutState::kDone);
  marks_.Reach(Mark::kRolloutHalted, rollout.state == RolloutState::kHalted);
  marks_.Reach(Mark::kRolloutAborted, rollout.state == RolloutState::kAborted);
  marks_.Reach(Mark::kRolloutPaused, rollout.state == RolloutState::kPaused);
  rolling_ = rollout.state == RolloutState::kRunning;
  marks_.Reach(Mark::kRolloutReturning,
               rolling_ && rollout.phase == coordinator::RolloutPhase::kReturning);
  for (const auto& group : status.groups) {
    marks_.Reach(Mark::kGroupSuspect, group.state == "suspect");
    marks_.Reach(Mark::kGroupHung, group.state == "hung");
    for (const uint32_t node : group.workers) {
      marks_.Reach(Mark::kSpareServes, node > config_.num_engines());
    }
    marks_.Reach(Mark::kRolloutLeftOut,
                 group.cordoned && undrained_ && rollout.state == RolloutState::kHalted);
  }
}

void SimCluster::ObserveClient(const SimClient& client) {
  const ClientRequest& request = client.request();
  if (!client.finish()) return marks_.Reach(Mark::kLostWithCoordinator);
  const FinishReason finish = *client.finish();
  if (finish == FinishReason::kStop || finish == FinishReason::kLength) {
    marks_.Reach(Mark::kAnswered);
    marks_.Reach(Mark::kStopped, finish == FinishReason::kStop);
    marks_.Reach(Mark::kAnsweredFromCache, client.cached_tokens() > 0);
    marks_.Reach(Mark::kAnsweredWithDrafts, client.num_drafted() > 0);
    marks_.Reach(Mark::kAnsweredByRejection,
                 client.num_drafted() > 0 &&
                     request.submit.speculation.mode == protocol::VerificationMode::kRejection);
    marks_.Reach(Mark::kAnsweredUnderConstraint, request.submit.constraint != nullptr);
    marks_.Reach(Mark::kAnsweredBesidePoison, marks_.reached(Mark::kCondemned));
    marks_.Reach(Mark::kAnsweredAfterReplay, marks_.reached(Mark::kReplayed));
    return;
  }
  const absl::Status& error = client.error();
  marks_.Reach(Mark::kCancelled, finish == FinishReason::kCancelled);
  marks_.Reach(Mark::kDeadline, absl::IsDeadlineExceeded(error));
  marks_.Reach(Mark::kCondemned, absl::IsAborted(error) && request.poison);
  marks_.Reach(Mark::kGivenUp, absl::IsInternal(error) && request.failing);
  marks_.Reach(Mark::kDoesNotFit, absl::IsInvalidArgument(error));
  const bool died = absl::IsUnavailable(error) && error.message().find("died") != std::string::npos;
  marks_.Reach(Mark::kTooManyDeaths, died);
  marks_.Reach(Mark::kDrainDeadline, absl::IsUnavailable(error) && !died);
}

void SimCluster::ObserveEnd() {
  // Those that were condemned first: the others were answered beside them.
  for (const auto& client : clients_) {
    if (!client->error().ok()) ObserveClient(*client);
  }
  for (const auto& client : clients_) ObserveClient(*client);
  const coordinator::CoordinatorMetrics& metrics = Metrics();
  marks_.Reach(Mark::kStepFailed, metrics.epoch_changes.At({"step_failed"}).value() > 0);
  marks_.Reach(Mark::kStepAborted, metrics.epoch_changes.At({"step_aborted"}).value() > 0);
  marks_.Reach(Mark::kPeerDown, metrics.epoch_changes.At({"peer_down"}).value() > 0);
  marks_.Reach(Mark::kRegisteredAgain, metrics.epoch_changes.At({"registered_again"}).value() > 0);
  marks_.Reach(Mark::kExpertsMoved, metrics.rebalances.At({"ok"}).value() > 0);
  marks_.Reach(Mark::kExpertsStayed, metrics.rebalances.At({"failed"}).value() > 0);
  const double stale_results = metrics.stale_results.value() - stale_results_before_;
  marks_.Reach(Mark::kStaleResult, stale_results > 0);
  if (coordinator_.loop != nullptr) ObserveLast(*coordinator_.process);
  for (const Node& node : nodes_) {
    if (node.process != nullptr && node.process->alive()) ObserveLast(*node.process);
  }
  stale_dropped_ += static_cast<uint64_t>(stale_results);
  marks_.Reach(Mark::kStaleAmongRanks, config_.num_ranks > 1 && stale_dropped_ > 0);
  marks_.Reach(Mark::kFrameLost, network_.num_lost() > 0);
}

}  // namespace skein::tests
