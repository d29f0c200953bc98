#include "scheduler/cluster_scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"

namespace skein::scheduler {

ClusterScheduler::ClusterScheduler(const SchedulerLimits& limits, uint32_t num_groups)
    : limits_(limits),
      admission_(limits.admission),
      loads_(num_groups),
      rooms_(num_groups),
      assigned_(num_groups) {
  SKEIN_CHECK(num_groups > 0) << "a cluster needs a group";
  for (uint32_t i = 0; i < num_groups; ++i) {
    groups_.push_back(std::make_unique<GroupScheduler>(limits, i, admission_));
  }
}

uint32_t ClusterScheduler::num_running() const {
  uint32_t count = 0;
  for (const auto& group : groups_) count += group->num_running();
  return count;
}

uint32_t ClusterScheduler::num_moving_from(protocol::GroupId group) const {
  uint32_t count = 0;
  for (const auto& [id, sequence] : sequences_) {
    count += sequence->moving_from == group.value() ? 1 : 0;
  }
  return count;
}

// OK if some group with an epoch can run the sequence, or none has one; else why the first cannot.
absl::Status ClusterScheduler::CheckFits(const Sequence& sequence) const {
  absl::Status first;
  for (const auto& group : groups_) {
    if (!group->has_epoch()) continue;
    absl::Status fits = group->CheckFits(sequence);
    if (fits.ok()) return fits;
    if (first.ok()) first = std::move(fits);
  }
  return first;
}

absl::Status ClusterScheduler::AddSequence(NewSequence sequence) {
  if (sequences_.contains(sequence.id)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "sequence ", sequence.id.value(), " is running or queued; give each an id of its own"));
  }
  if (sequence.prompt.empty())
    return absl::InvalidArgumentError("the prompt has no tokens, at least one is needed");
  if (sequence.stop.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", sequence.stop.max_tokens, ", must be at least 1"));
  }
  auto added = std::make_unique<Sequence>();
  added->id = sequence.id;
  added->prompt_length = static_cast<uint32_t>(sequence.prompt.size());
  added->tokens = std::move(sequence.prompt);
  added->sampling = sequence.sampling;
  added->stop = std::move(sequence.stop);
  added->speculation = sequence.speculation;
  if (sequence.constraint != nullptr) added->constraint = sequence.constraint->Clone();
  added->rank = RankOf(sequence.priority, sequence.arrived_ms);
  added->pinned = sequence.pinned;
  added->cache_root = std::move(sequence.cache_root);
  added->salted = sequence.salted;
  SKEIN_RETURN_IF_ERROR(CheckFits(*added));
  SKEIN_RETURN_IF_ERROR(admission_.Check(added->tokens.size()));
  added->arrival = ++last_arrival_;
  admission_.Join(added.get(), sequence.flow, sequence.weight);
  admission_.Push(added.get());
  sequences_.emplace(sequence.id, std::move(added));
  return absl::OkStatus();
}

bool ClusterScheduler::CancelSequence(protocol::SequenceId id) {
  auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  Sequence& sequence = *found->second;
  if (sequence.in_flight) {
    sequence.cancelled = true;
    return false;
  }
  if (sequence.state == SequenceState::kQueued) {
    admission_.Remove(&sequence);
  } else {
    groups_[sequence.group]->End(sequence);
  }
  admission_.Leave(&sequence);
  sequences_.erase(found);
  return true;
}

void ClusterScheduler::Forget(const std::vector<SequenceDelta>& gone) {
  for (const SequenceDelta& delta : gone) {
    if (!delta.over()) continue;
    const auto found = sequences_.find(delta.sequence);
    if (found == sequences_.end()) continue;
    admission_.Leave(found->second.get());
    sequences_.erase(found);
  }
}

std::vector<SequenceDelta> ClusterScheduler::StartEpoch(protocol::GroupId group,
                                                        protocol::RankId rank,
                                                        protocol::Epoch epoch,
                                                        const protocol::CacheGeometry& geometry) {
  groups_[group.value()]->StartEpoch(group, rank, epoch, geometry);
  // A worker with a smaller cache may have taken over.
  std::vector<SequenceDelta> gone;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->state != SequenceState::kQueued) continue;
    const absl::Status fits = CheckFits(*sequence);
    if (fits.ok()) continue;
    SequenceDelta delta;
    delta.sequence = id;
    delta.error = absl::ResourceExhaustedError(
        absl::StrCat("the new worker group cannot run it: ", fits.message()));
    delta.num_steps = sequence->num_steps;
    gone.push_back(std::move(delta));
    admission_.Remove(sequence.get());
  }
  Forget(gone);
  return gone;
}

std::vector<SequenceDelta> ClusterScheduler::AbortInflight(protocol::GroupId group,
                                                           AbortCause cause, uint32_t node,
                                                           uint32_t failed) {
  std::vector<SequenceDelta> gone = groups_[group.value()]->AbortInflight(cause, node, failed);
  Forget(gone);
  return gone;
}

// A condemned sequence died alone, so it is held in the queue.
std::vector<SequenceDelta> ClusterScheduler::SettleDeath(uint32_t node, bool own) {
  std::vector<SequenceDelta> gone;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->suspicion.marked()) continue;
    sequence->suspicion.Settle(node, own);
    if (!sequence->suspicion.on_probation() && sequence->state == SequenceState::kRunning) {
      groups_[sequence->group]->Pardon(*sequence);
    }
    if (!sequence->suspicion.condemned() || sequence->state != SequenceState::kQueued) continue;
    SequenceDelta delta;
    delta.sequence = id;
    delta.error = absl::AbortedError(
        absl::StrCat("this request ended its worker ", sequence->suspicion.marks(),
                     " times, the last time alone; it is not tried again"));
    delta.num_steps = sequence->num_steps;
    delta.num_draft_tokens = sequence->num_draft_tokens;
    delta.num_accepted_tokens = sequence->num_accepted_tokens;
    gone.push_back(std::move(delta));
    admission_.Remove(sequence.get());
  }
  Forget(gone);
  return gone;
}

void ClusterScheduler::MeasureGroups() {
  probation_free_ = true;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const GroupScheduler& group = *groups_[i];
    assigned_[i].clear();
    rooms_[i] = group.FindRoom();
    const protocol::CacheGeometry& geometry = group.geometry();
    loads_[i].outstanding_tokens = group.outstanding_tokens();
    loads_[i].capacity_tokens = uint64_t{geometry.num_blocks} * geometry.block_tokens;
    probation_free_ = probation_free_ && group.probation() == nullptr;
  }
}

// The group where the sequence is on probation: the lowest that takes newcomers and can ever run
// it.
const GroupScheduler* ClusterScheduler::ProbationGroup(const Sequence& sequence) const {
  for (const auto& group : groups_) {
    if (group->has_epoch() && !group->cordoned() && group->CheckFits(sequence).ok()) {
      return group.get();
    }
  }
  return nullptr;
}

bool ClusterScheduler::MayRun(const Sequence& sequence, const GroupScheduler& group) const {
  const bool probation = sequence.suspicion.on_probation();
  if (probation && !probation_free_) return false;
  if (sequence.pinned) return *sequence.pinned == group.index();
  if (probation) return ProbationGroup(sequence) == &group;
  return !group.cordoned();
}

// The group that could start the sequence now and has the least to do.
std::optional<uint32_t> ClusterScheduler::PlaceOf(const Sequence& sequence) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    GroupScheduler& group = *groups_[i];
    const uint32_t blocks = rooms_[i].blocks;
    loads_[i].can_take =
        MayRun(sequence, group) && rooms_[i].sequences > 0 && group.CheckFits(sequence).ok() &&
        (group.FirstBlocks(sequence) <= blocks || group.FirstBlocksFound(sequence) <= blocks);
    loads_[i].marked = 0;
    if (!sequence.suspicion.marked()) continue;
    loads_[i].marked = group.num_marked();
    for (const Sequence* other : assigned_[i])
      loads_[i].marked += other->suspicion.marked() ? 1 : 0;
  }
  return ChooseGroup(loads_);
}

// Gives queued sequences, in order of service, to the groups that could start them now. The first
// that none can start ends it: nothing overtakes it, but for one that waits for its own group, for
// its turn on probation or for a verdict. Assignments hold for one plan only; who does not start in
// it is as free as before.
void ClusterScheduler::Assign() {
  MeasureGroups();
  admission_.BeginWalk();
  while (Sequence* sequence = admission_.Next()) {
    if (sequence->suspicion.held()) continue;
    const std::optional<uint32_t> chosen = PlaceOf(*sequence);
    const bool probation = sequence->suspicion.on_probation();
    if (!chosen) {
      if (probation || sequence->pinned) continue;
      return;
    }
    // It starts before the others of this plan, which are kept out then.
    auto& assigned = assigned_[*chosen];
    assigned.insert(probation ? assigned.begin() : assigned.end(), sequence);
    if (probation) probation_free_ = false;
    --rooms_[*chosen].sequences;
    rooms_[*chosen].blocks -=
        std::min(rooms_[*chosen].blocks, groups_[*chosen]->FirstBlocks(*sequence));
    loads_[*chosen].outstanding_tokens += OutstandingTokens(*sequence);
  }
}

std::optional<protocol::StepPlan> ClusterScheduler::PlanStep(protocol::GroupId group,
                                                             uint32_t lane) {
  Assign();
  return groups_[group.value()]->PlanStep(lane, assigned_[group.value()]);
}

absl::Status ClusterScheduler::CommitStep(protocol::GroupId group,
                                          const protocol::StepResult& result, StepCommit& commit) {
  SKEIN_RETURN_IF_ERROR(groups_[group.value()]->CommitStep(result, commit));
  Forget(commit.deltas);
  return absl::OkStatus();
}

}  // namespace skein::scheduler
