#include "scheduler/group_scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"

namespace skein::scheduler {

using protocol::SequenceStep;
using protocol::SlotId;
using protocol::StepPlan;
using protocol::StepResult;

GroupScheduler::GroupScheduler(const SchedulerLimits& limits)
    : limits_(limits), admission_(limits.admission), in_flight_(limits.lanes) {
  SKEIN_CHECK(limits.lanes >= 1 && limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0);
}

absl::Status GroupScheduler::CheckFits(const Extent& extent) const {
  if (!epoch_) return absl::OkStatus();
  if (extent.length >= geometry_.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the prompt has ", extent.length, " tokens, max_model_len is ", geometry_.max_model_len));
  }
  const uint64_t longest =
      std::min<uint64_t>(extent.prompt + extent.max_tokens, geometry_.max_model_len);
  const uint32_t blocks = BlocksFor(static_cast<uint32_t>(longest), geometry_.block_tokens);
  if (blocks > geometry_.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        longest, " tokens need ", blocks, " cache blocks, the worker has ", geometry_.num_blocks));
  }
  return absl::OkStatus();
}

absl::Status GroupScheduler::AddSequence(NewSequence sequence) {
  if (sequences_.contains(sequence.id)) {
    return absl::AlreadyExistsError(absl::StrCat("sequence ", sequence.id.value()));
  }
  if (sequence.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  if (sequence.stop.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", sequence.stop.max_tokens, ", must be at least 1"));
  }
  const uint64_t prompt = sequence.prompt.size();
  SKEIN_RETURN_IF_ERROR(
      CheckFits({prompt, prompt, static_cast<uint64_t>(sequence.stop.max_tokens)}));
  SKEIN_RETURN_IF_ERROR(admission_.Check(sequence.prompt.size()));
  auto added = std::make_unique<Sequence>();
  added->id = sequence.id;
  added->prompt_length = static_cast<uint32_t>(sequence.prompt.size());
  added->tokens = std::move(sequence.prompt);
  added->sampling = sequence.sampling;
  added->stop = std::move(sequence.stop);
  added->priority = sequence.priority;
  added->arrival = ++last_arrival_;
  admission_.Push(added.get());
  sequences_.emplace(sequence.id, std::move(added));
  return absl::OkStatus();
}

bool GroupScheduler::CancelSequence(protocol::SequenceId id) {
  auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  Sequence& sequence = *found->second;
  if (sequence.in_flight) {
    sequence.cancelled = true;
    return false;
  }
  Erase(sequence);
  return true;
}

// Frees what a worker holds of the sequence.
void GroupScheduler::TakeBack(Sequence& sequence) {
  blocks_->Release(sequence.blocks);
  sequence.blocks.clear();
  free_slots_.insert(sequence.slot->value());
  sequence.slot.reset();
  sequence.announced_blocks = 0;
  sequence.computed = 0;
  sequence.planned = 0;
  sequence.in_flight = false;
  sequence.state = SequenceState::kQueued;
  std::erase(running_, &sequence);
}

void GroupScheduler::Erase(Sequence& sequence) {
  if (sequence.state == SequenceState::kQueued) {
    admission_.Remove(&sequence);
  } else {
    TakeBack(sequence);
  }
  sequences_.erase(sequence.id);
}

void GroupScheduler::Preempt(Sequence& sequence) {
  ++counters_.preemptions;
  counters_.preempted_tokens += sequence.computed;
  TakeBack(sequence);
  admission_.Push(&sequence);
}

std::vector<SequenceDelta> GroupScheduler::StartEpoch(protocol::GroupId group,
                                                      protocol::RankId rank, protocol::Epoch epoch,
                                                      const protocol::CacheGeometry& geometry) {
  SKEIN_CHECK(!epoch_) << "scheduler invariant 6: epoch " << epoch << " starts inside another";
  SKEIN_CHECK(geometry.block_tokens > 0 && geometry.max_rows > 0 && geometry.num_slots > 0);
  epoch_ = EpochState{group, rank, epoch};
  geometry_ = geometry;
  blocks_ = std::make_unique<BlockPool>(geometry.num_blocks);
  free_slots_.clear();
  for (uint32_t i = 0; i < geometry.num_slots; ++i) free_slots_.insert(free_slots_.end(), i);
  // A worker with a smaller cache may have taken over.
  std::vector<SequenceDelta> gone;
  for (const auto& [id, sequence] : sequences_) {
    const absl::Status fits = CheckFits({sequence->prompt_length, sequence->length(),
                                         static_cast<uint64_t>(sequence->stop.max_tokens)});
    if (fits.ok()) continue;
    SequenceDelta delta;
    delta.sequence = id;
    delta.error = absl::ResourceExhaustedError(
        absl::StrCat("the new worker group cannot run it: ", fits.message()));
    delta.num_steps = sequence->num_steps;
    gone.push_back(std::move(delta));
  }
  for (const SequenceDelta& delta : gone) Erase(*sequences_.at(delta.sequence));
  return gone;
}

// The last delta of a sequence that does not survive the end of its epoch.
std::optional<SequenceDelta> GroupScheduler::EndAborted(const Sequence& sequence) const {
  if (!sequence.cancelled && sequence.step_failures < kStepFailuresMax) return std::nullopt;
  SequenceDelta delta;
  delta.sequence = sequence.id;
  delta.cancelled = sequence.cancelled;
  delta.num_steps = sequence.num_steps;
  if (!sequence.cancelled) {
    delta.error =
        absl::InternalError(absl::StrCat("the step of this request failed ", sequence.step_failures,
                                         " times; it is not tried again"));
  }
  return delta;
}

std::vector<SequenceDelta> GroupScheduler::AbortInflight(AbortCause cause) {
  std::vector<SequenceDelta> gone;
  const std::vector<Sequence*> running = running_;
  for (Sequence* sequence : running) {
    if (cause == AbortCause::kStepFailed && sequence->in_flight) ++sequence->step_failures;
    if (std::optional<SequenceDelta> last = EndAborted(*sequence)) {
      gone.push_back(*std::move(last));
      Erase(*sequence);
      continue;
    }
    ++counters_.replays;
    TakeBack(*sequence);
    admission_.Push(sequence);
  }
  for (auto& plan : in_flight_) plan.reset();
  epoch_.reset();
  return gone;
}

// A lane takes its share of all that run or wait, so that both lanes fill at the same pace.
bool GroupScheduler::LaneHasRoom(uint32_t lane) const {
  const auto mine = static_cast<size_t>(
      std::count_if(running_.begin(), running_.end(),
                    [lane](const Sequence* sequence) { return sequence->lane == lane; }));
  return mine * limits_.lanes < running_.size() + admission_.num_queued();
}

// Blocks for the first `tokens` tokens, preempting sequences that are served later.
bool GroupScheduler::EnsureBlocks(Sequence& sequence, uint32_t tokens) {
  const uint32_t wanted = BlocksFor(tokens, geometry_.block_tokens);
  if (wanted <= sequence.blocks.size()) return true;
  const uint32_t missing = wanted - static_cast<uint32_t>(sequence.blocks.size());
  while (blocks_->num_free() < missing) {
    Sequence* victim = ChooseVictim(running_, sequence);
    if (victim == nullptr) return false;
    Preempt(*victim);
  }
  const BlockTable added = *blocks_->Allocate(missing);
  sequence.blocks.insert(sequence.blocks.end(), added.begin(), added.end());
  return true;
}

bool GroupScheduler::AddToPlan(Sequence& sequence, StepBudget& budget, StepPlan& plan) {
  // A suspect of a failed step runs alone.
  const bool alone = sequence.step_failures > 0;
  if (alone && !plan.sequences.empty()) return false;
  const uint32_t chunk = ChunkLength(sequence, budget);
  if (chunk == 0 || !EnsureBlocks(sequence, sequence.planned + chunk)) return false;
  SequenceStep step;
  step.sequence = sequence.id;
  step.slot = *sequence.slot;
  step.fresh_slot = sequence.fresh_slot;
  step.first_position = sequence.planned;
  const auto begin = sequence.tokens.begin() + sequence.planned;
  step.tokens.assign(begin, begin + chunk);
  step.table_size_before = sequence.announced_blocks;
  step.new_blocks.assign(sequence.blocks.begin() + sequence.announced_blocks,
                         sequence.blocks.end());
  step.sample = sequence.planned + chunk == sequence.length();
  step.sampling = {.temperature = sequence.sampling.temperature,
                   .top_p = sequence.sampling.top_p,
                   .min_p = sequence.sampling.min_p,
                   .top_k = sequence.sampling.top_k,
                   .seed = sequence.sampling.seed,
                   .num_top_logprobs = sequence.sampling.num_top_logprobs};
  sequence.planned += chunk;
  sequence.announced_blocks = static_cast<uint32_t>(sequence.blocks.size());
  sequence.fresh_slot = false;
  sequence.in_flight = true;
  ++sequence.num_steps;
  budget.tokens -= chunk;
  budget.sequences = alone ? 0 : budget.sequences - 1;
  plan.sequences.push_back(std::move(step));
  return true;
}

// Takes the front of the queue into this lane's step. False when nothing more can enter.
bool GroupScheduler::Admit(uint32_t lane, StepBudget& budget, StepPlan& plan) {
  Sequence* front = admission_.Front();
  if (front == nullptr || free_slots_.empty() || running_.size() >= limits_.max_num_seqs ||
      budget.tokens == 0 || budget.sequences == 0 || !LaneHasRoom(lane)) {
    return false;
  }
  if (front->step_failures > 0 && !plan.sequences.empty()) return false;
  // A newcomer takes free blocks only: it must not push out what already runs.
  const uint32_t chunk = ChunkLength(*front, budget);
  if (BlocksFor(chunk, geometry_.block_tokens) > blocks_->num_free()) return false;
  admission_.Remove(front);
  front->state = SequenceState::kRunning;
  front->lane = lane;
  front->slot = SlotId(*free_slots_.begin());
  free_slots_.erase(free_slots_.begin());
  front->fresh_slot = true;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), front, ServiceOrder()), front);
  return AddToPlan(*front, budget, plan);
}

std::optional<StepPlan> GroupScheduler::PlanStep(uint32_t lane) {
  if (!epoch_ || in_flight_[lane]) return std::nullopt;
  StepPlan plan;
  StepBudget budget{std::min(limits_.max_num_batched_tokens, geometry_.max_rows),
                    limits_.max_num_seqs};
  // Decoding sequences first: their step is one token, their clients wait for each.
  for (const bool prefill : {false, true}) {
    const std::vector<Sequence*> running = running_;
    for (Sequence* sequence : running) {
      // An earlier one may have preempted it.
      const bool mine = sequence->state == SequenceState::kRunning && sequence->lane == lane;
      if (mine && !sequence->in_flight && sequence->prefilling() == prefill) {
        AddToPlan(*sequence, budget, plan);
      }
    }
  }
  while (Admit(lane, budget, plan)) {
  }
  if (plan.sequences.empty()) return std::nullopt;
  last_step_ = last_step_.Next();
  plan.group = epoch_->group;
  plan.rank = epoch_->rank;
  plan.epoch = epoch_->epoch;
  plan.step = last_step_;
  plan.lane = lane;
  in_flight_[lane] = plan;
  return plan;
}

absl::Status GroupScheduler::CheckResult(const StepPlan& plan, const StepResult& result) const {
  if (plan.step != result.step || plan.epoch != result.epoch) {
    return absl::InvalidArgumentError(
        absl::StrCat("result of step ", result.step.value(), " epoch ", result.epoch.value(),
                     ", in flight is step ", plan.step.value(), " epoch ", plan.epoch.value()));
  }
  if (result.sequences.size() != plan.sequences.size()) {
    return absl::InvalidArgumentError(absl::StrCat("result has ", result.sequences.size(),
                                                   " sequences, the plan ", plan.sequences.size()));
  }
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const size_t rows = plan.sequences[i].sample ? 1 : 0;
    if (result.sequences[i].sequence != plan.sequences[i].sequence ||
        result.sequences[i].rows.size() != rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("result ", i, " is of sequence ", result.sequences[i].sequence.value(),
                       " with ", result.sequences[i].rows.size(), " rows, the plan has sequence ",
                       plan.sequences[i].sequence.value(), " with ", rows));
    }
  }
  return absl::OkStatus();
}

void GroupScheduler::CommitSequence(const SequenceStep& step,
                                    const protocol::VerificationSummary& summary,
                                    StepCommit& commit) {
  Sequence& sequence = *sequences_.at(step.sequence);
  sequence.in_flight = false;
  sequence.step_failures = 0;
  sequence.computed = sequence.planned;
  SequenceDelta delta;
  delta.sequence = sequence.id;
  delta.num_steps = sequence.num_steps;
  if (sequence.cancelled) {
    delta.cancelled = true;
  } else if (!summary.rows.empty()) {
    const protocol::RowSummary& row = summary.rows.back();
    if (row.plain_token < 0) {
      delta.error = absl::InternalError(absl::StrCat("no token at position ", row.position,
                                                     (row.flags & protocol::kRowNonFinite) != 0
                                                         ? ": the logits are not finite"
                                                         : ": no token is allowed"));
    } else {
      sequence.tokens.push_back(row.plain_token);
      delta.tokens.push_back({row.plain_token, row.plain_logprob, row.top});
      delta.ended = EndOf(sequence, geometry_.max_model_len);
    }
  }
  if (delta.cancelled || delta.ended || !delta.error.ok()) Erase(sequence);
  commit.deltas.push_back(std::move(delta));
}

absl::StatusOr<StepCommit> GroupScheduler::CommitStep(const StepResult& result) {
  if (result.lane >= in_flight_.size() || !in_flight_[result.lane]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "result of step ", result.step.value(), ": lane ", result.lane, " has no step in flight"));
  }
  const StepPlan plan = *in_flight_[result.lane];
  SKEIN_RETURN_IF_ERROR(CheckResult(plan, result));
  in_flight_[result.lane].reset();
  StepCommit commit;
  commit.lane = result.lane;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    CommitSequence(plan.sequences[i], result.sequences[i], commit);
  }
  return commit;
}

}  // namespace skein::scheduler
