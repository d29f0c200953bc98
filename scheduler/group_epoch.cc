// The part of GroupScheduler that begins and ends an epoch: what becomes of the sequences that ran.
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "scheduler/group_scheduler.h"

namespace skein::scheduler {

void GroupScheduler::StartEpoch(protocol::GroupId group, protocol::RankId rank,
                                protocol::Epoch epoch, const protocol::CacheGeometry& geometry) {
  SKEIN_CHECK(!epoch_) << "scheduler invariant 6: epoch " << epoch << " starts inside another";
  SKEIN_CHECK(geometry.block_tokens > 0 && geometry.max_rows > 0 && geometry.num_slots > 0);
  epoch_ = EpochState{group, rank, epoch};
  geometry_ = geometry;
  blocks_ = std::make_unique<BlockPool>(geometry.num_blocks);
  cache_.reset();
  // A worker of a version without the cache offers neither.
  const bool resumes = geometry.num_checkpoints > 0 || geometry.recompute_tokens > 0;
  if (limits_.prefix_caching && resumes) {
    cache_ = std::make_unique<PrefixCache>(*blocks_, geometry.block_tokens, geometry.num_slots,
                                           geometry.num_checkpoints, limits_.cache_hash);
  }
  free_slots_ = FreeIds(geometry.num_slots);
}

// The last delta of a sequence that does not survive the end of its epoch.
std::optional<SequenceDelta> GroupScheduler::EndAborted(const Sequence& sequence) const {
  const bool failed = sequence.step_failures >= kStepFailuresMax;
  if (!sequence.cancelled && !failed) return std::nullopt;
  SequenceDelta delta;
  delta.sequence = sequence.id;
  delta.cancelled = sequence.cancelled;
  delta.num_steps = sequence.num_steps;
  delta.num_draft_tokens = sequence.num_draft_tokens;
  delta.num_accepted_tokens = sequence.num_accepted_tokens;
  if (!sequence.cancelled) {
    delta.error =
        absl::InternalError(absl::StrCat("the step of this request failed ", sequence.step_failures,
                                         " times; it is not tried again"));
  }
  return delta;
}

std::vector<SequenceDelta> GroupScheduler::AbortInflight(AbortCause cause, uint32_t node,
                                                         uint32_t failed) {
  std::vector<SequenceDelta> gone;
  for (const StepInFlight& step : in_flight_) {
    if (cause != AbortCause::kWorkerLost) break;
    for (const StepInFlight::Part& part : step.parts) {
      part.sequence->suspicion.Mark(node, part.sequence->planned + part.depth);
    }
  }
  for (std::vector<Sequence*>& lane : running_) {
    for (Sequence* sequence : std::exchange(lane, {})) {
      const bool suspect = cause == AbortCause::kStepFailed && sequence->in_flight &&
                           (sequence->lane == failed || failed >= limits_.lanes);
      if (suspect) sequence->Fail();
      if (std::optional<SequenceDelta> last = EndAborted(*sequence)) {
        gone.push_back(*std::move(last));
        TakeBack(*sequence);
        continue;
      }
      ++counters_.replays;
      Requeue(*sequence);
    }
  }
  for (StepInFlight& step : in_flight_) {
    step.parts.clear();
    step.open = false;
  }
  loans_.clear();
  arrivals_.clear();
  // What the cache lists went with the worker.
  if (cache_ != nullptr) blocks_ = std::make_unique<BlockPool>(geometry_.num_blocks);
  cache_.reset();
  epoch_.reset();
  return gone;
}

}  // namespace skein::scheduler
