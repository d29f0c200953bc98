// Rare states that a batch of runs must have reached: a simulation that never gets there proves
// nothing about them.
// Values; one thread.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace skein::tests {

enum class Mark : uint8_t {
  // How requests end.
  kAnswered,
  kStopped,
  kAnsweredFromCache,
  kAnsweredWithDrafts,
  kAnsweredByRejection,
  kAnsweredUnderConstraint,
  kAnsweredBesidePoison,
  kAnsweredAfterReplay,
  kCancelled,
  kCancelledTooLate,
  kDeadline,
  kCondemned,
  kGivenUp,
  kDoesNotFit,
  kTooManyDeaths,
  kDrainDeadline,
  kLostWithCoordinator,
  // How they are refused.
  kRefusedFull,
  kRefusedNotReady,
  kRefusedDraining,
  kRefusedQuarantined,
  // What schedulers do.
  kPreempted,
  kPreemptedForProbation,
  kPreemptedWhileDrafting,
  kReplayed,
  kMoved,
  kMovedWithCache,
  kHandedOver,
  kTransferLost,
  kLentAndWanted,
  kDeepDraftKept,
  kProvidedDraftKept,
  kDraftUnbound,
  kUndraftedByRequest,
  kUndraftedByLoad,
  kUndraftedNearTheEnd,
  kUndraftedByGrammar,
  kCacheHit,
  kPlacedByPrefix,
  kMissedEvicted,
  kMissedStateMissing,
  kMissedSalt,
  kEvicted,
  kCheckpoint,
  kRecomputesShared,
  kSameComputedTwice,
  kCancelledInFlight,
  kSuspectAlone,
  kOnProbation,
  kHeldForVerdict,
  kHeldAfterDeaths,
  kSparedAfterDeaths,
  kBothLanesInFlight,
  kAllGroupsInFlight,
  kIdleRank,
  kNoBlockFree,
  kStarved,
  kCordonedAndRunning,
  kChunkedPrefill,
  // What happens on the way.
  kFrameResent,
  kFrameRepeated,
  kFrameMissed,
  kFrameDamaged,
  kFrameLost,
  kStaleTerm,
  kStaleIncarnation,
  kStaleSession,
  kStaleResult,
  kStaleAmongRanks,
  kExpertsMoved,
  kExpertsStayed,
  // What happens to processes.
  kStepFailed,
  kStepAborted,
  kPeerDown,
  kRegisteredAgain,
  kWorkerGaveUp,
  kWorkerRefused,
  kWorkerOrdered,
  kWorkerOwnDeath,
  kSpareServes,
  kCoordinatorCrashed,
  kCoordinatorDrained,
  kGroupSuspect,
  kGroupHung,
  // Rollouts.
  kRolloutDone,
  kRolloutHalted,
  kRolloutAborted,
  kRolloutPaused,
  kRolloutReturning,
  kRolloutLeftOut,
  kKilledDuringRollout,
  kCount
};

inline constexpr size_t kNumMarks = static_cast<size_t>(Mark::kCount);

std::string_view NameOf(Mark mark);

class Marks {
 public:
  void Reach(Mark mark, bool reached = true) {
    if (reached) reached_.set(static_cast<size_t>(mark));
  }
  bool reached(Mark mark) const { return reached_[static_cast<size_t>(mark)]; }

 private:
  std::bitset<kNumMarks> reached_;
};

}  // namespace skein::tests
