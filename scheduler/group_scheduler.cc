#include "scheduler/group_scheduler.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "scheduler/group_assignment.h"
#include "scheduler/prefetch.h"
#include "scheduler/prompt_scores.h"
#include "scheduler/rejection_sampler.h"

namespace skein::scheduler {

using protocol::RowSummary;
using protocol::SequenceStep;
using protocol::SlotId;
using protocol::StepPlan;
using protocol::StepResult;

GroupScheduler::GroupScheduler(const SchedulerLimits& limits, uint32_t index, Admission& queue)
    : limits_(limits),
      index_(index),
      queue_(queue),
      starved_(limits.lanes),
      running_(limits.lanes),
      in_flight_(limits.lanes),
      speculation_(limits.speculation) {
  SKEIN_CHECK(limits.lanes >= 1 && limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0);
}

uint32_t GroupScheduler::num_running() const {
  size_t count = 0;
  for (const std::vector<Sequence*>& lane : running_) count += lane.size();
  return static_cast<uint32_t>(count);
}

absl::Status GroupScheduler::CheckFits(const Sequence& sequence) const {
  if (!epoch_) return absl::OkStatus();
  SKEIN_RETURN_IF_ERROR(CheckKnown(sequence, geometry_));
  if (sequence.length() >= geometry_.max_model_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", sequence.length(), " tokens, max_model_len is ",
                     geometry_.max_model_len, "; shorten it or raise model.max_model_len"));
  }
  const uint64_t longest = std::min<uint64_t>(
      uint64_t{sequence.prompt_length} + static_cast<uint64_t>(sequence.stop.max_tokens),
      geometry_.max_model_len);
  const uint32_t blocks = BlocksFor(static_cast<uint32_t>(longest), geometry_.block_tokens);
  if (blocks > geometry_.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        longest, " tokens need ", blocks, " cache blocks, the worker has ", geometry_.num_blocks,
        "; lower max_tokens, shorten the prompt or raise worker.num_blocks"));
  }
  return absl::OkStatus();
}

GroupScheduler::Room GroupScheduler::FindRoom() const {
  if (!epoch_) return {};
  const uint32_t running = num_running();
  const uint32_t left = limits_.max_num_seqs > running ? limits_.max_num_seqs - running : 0;
  return {std::min(left, free_slots_.size()), num_free_blocks()};
}

uint32_t GroupScheduler::FirstBlocks(const Sequence& sequence) const {
  const uint32_t rows = std::min(limits_.max_num_batched_tokens, geometry_.max_rows);
  return BlocksFor(std::min(sequence.length(), rows), geometry_.block_tokens);
}

// Its part of the outstanding tokens changed.
void GroupScheduler::Recount(Sequence& sequence) {
  const uint64_t tokens =
      sequence.state == SequenceState::kRunning ? OutstandingTokens(sequence) : 0;
  outstanding_tokens_ += tokens - sequence.counted_tokens;
  sequence.counted_tokens = tokens;
}

// Frees what a worker holds of the sequence; the lane still lists it.
void GroupScheduler::TakeBack(Sequence& sequence) {
  if (cache_ != nullptr) cache_->Release(sequence.cache.chain);
  sequence.cache = {};
  blocks_->Release(sequence.blocks);
  sequence.blocks.clear();
  free_slots_.Insert(sequence.slot->value());
  sequence.slot.reset();
  sequence.announced_blocks = 0;
  sequence.computed = 0;
  sequence.planned = 0;
  sequence.in_flight = false;
  sequence.state = SequenceState::kEnded;
  Pardon(sequence);
  if (starved_[sequence.lane] == &sequence) starved_[sequence.lane] = nullptr;
  Recount(sequence);
}

void GroupScheduler::Requeue(Sequence& sequence) {
  TakeBack(sequence);
  sequence.handed_over = false;
  sequence.placings = 0;
  sequence.state = SequenceState::kQueued;
  queue_.Push(&sequence);
}

void GroupScheduler::MoveOut(Sequence& sequence) {
  ++counters_.moves;
  sequence.moving_from = index_;
  Requeue(sequence);
}

void GroupScheduler::Unlist(Sequence& sequence) {
  std::vector<Sequence*>& lane = running_[sequence.lane];
  const auto found = std::lower_bound(lane.begin(), lane.end(), &sequence, ServiceOrder());
  SKEIN_CHECK(found != lane.end() && *found == &sequence)
      << "scheduler invariant 4: sequence " << sequence.id << " does not run in its lane";
  lane.erase(found);
}

void GroupScheduler::End(Sequence& sequence) {
  Unlist(sequence);
  TakeBack(sequence);
}

uint32_t GroupScheduler::num_marked() const {
  uint32_t count = 0;
  for (const std::vector<Sequence*>& lane : running_) {
    count += static_cast<uint32_t>(std::count_if(
        lane.begin(), lane.end(), [](const Sequence* s) { return s->suspicion.marked(); }));
  }
  return count;
}

void GroupScheduler::Evict() {
  evicting_ = true;
  if (limits_.moves_blocks) return;
  for (std::vector<Sequence*>& lane : running_) {
    for (Sequence* sequence : std::vector<Sequence*>(lane)) {
      if (sequence->in_flight || sequence->pinned) continue;
      Unlist(*sequence);
      MoveOut(*sequence);
    }
  }
}

void GroupScheduler::Preempt(Sequence& sequence, PreemptReason reason) {
  ++counters_.preemptions[static_cast<size_t>(reason)];
  counters_.preempted_tokens[static_cast<size_t>(reason)] += sequence.computed;
  Unlist(sequence);
  Requeue(sequence);
}

// A lane takes its share of all that run or wait here, so that both lanes fill at the same pace.
bool GroupScheduler::LaneHasRoom(uint32_t lane, size_t waiting) const {
  return running_[lane].size() * limits_.lanes < num_running() + waiting;
}

Sequence* GroupScheduler::FindVictim(const Sequence& wanting) const {
  Sequence* last = nullptr;
  for (const std::vector<Sequence*>& lane : running_) {
    Sequence* victim = ChooseVictim(lane, wanting);
    if (victim != nullptr && (last == nullptr || ServiceOrder()(last, victim))) last = victim;
  }
  return last;
}

void GroupScheduler::AddStep(Sequence& sequence, uint32_t chunk, const DraftWish& drafts,
                             StepPlan& plan) {
  SequenceStep& step = plan.sequences.emplace_back();
  step.sequence = sequence.id;
  step.slot = *sequence.slot;
  step.fresh_slot = sequence.fresh_slot;
  step.first_position = sequence.planned;
  if (sequence.fresh_slot) step.shared_length = sequence.cache.shared_length;
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
                   .num_top_logprobs = sequence.sampling.num_top_logprobs,
                   .processed_logprobs = sequence.sampling.processed_logprobs};
  step.mode = sequence.speculation.mode;
  step.draft_depth = drafts.depth;
  step.provided_drafts.assign(drafts.provided.begin(), drafts.provided.end());
  step.min_survival = drafts.depth > 0 ? drafting_.min_survival : 0;
  step.feed_drafter = drafting_.feed_drafter && sequence.speculation.enabled;
  if (sequence.fresh_slot && sequence.sampling.edits != nullptr) {
    step.edits.value = EditsOf(sequence);
  }
  if (step.sample && sequence.bound()) AddMasks(sequence, step);
  step.scoring = ScoringOf(sequence, chunk);
  StepInFlight::Part& part = in_flight_[plan.lane].parts.emplace_back();
  part.sequence = &sequence;
  part.id = sequence.id;
  part.sample = step.sample;
  part.chunk = chunk;
  part.scores = step.scoring.count;
  part.depth = drafts.size();
  part.provided = !drafts.provided.empty();
  if (cache_ != nullptr) SaveState(sequence, step, part);
}

// What runs in the lane: decodes and prefills, and what the plan being made must know of decodes.
void GroupScheduler::SortOut(uint32_t lane) {
  order_ = running_[lane];  // preemption changes the lane while it is walked
  decodes_.clear();
  prefills_.clear();
  growing_.clear();
  candidates_.clear();
  any_bound_ = false;
  for (size_t i = 0; i < order_.size(); ++i) {
    if (i + kAhead < order_.size()) PrefetchBytes(order_[i + kAhead], kSortedBytes);
    Sequence* sequence = order_[i];
    if (sequence->prefilling()) {
      prefills_.push_back(sequence);
      continue;
    }
    decodes_.push_back(sequence);
    any_bound_ = any_bound_ || sequence->bound();
    candidates_.push_back({DraftsMax(*sequence, geometry_.max_model_len), sequence->drafts});
    if (BlocksFor(sequence->planned + 1, geometry_.block_tokens) > sequence->blocks.size()) {
      growing_.push_back(sequence);
    }
  }
}

// Depths of the decoding sequences of the plan being made, within the rows that are left when each
// has its own and prefills have at least half of the rest.
void GroupScheduler::ChooseDepths(const StepBudget& budget, size_t num_newcomers) {
  drafting_ = {};
  provided_.clear();
  if (limits_.speculation.max_depth == 0 || geometry_.max_draft_tokens == 0) return;
  if (any_bound_) provided_.resize(decodes_.size());
  const auto decodes = static_cast<uint32_t>(decodes_.size());
  uint32_t waiting = 0;
  for (const Sequence* sequence : prefills_) waiting += sequence->length() - sequence->planned;
  const uint32_t left = budget.tokens > decodes ? budget.tokens - decodes : 0;
  const bool shares = !prefills_.empty() || num_newcomers > 0;
  uint32_t rows = shares ? left / 2 : left;
  uint32_t drafted = geometry_.max_rows / geometry_.max_draft_tokens;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    uint32_t depth = std::min({candidates_[i].depth_max, rows, geometry_.max_draft_tokens,
                               limits_.speculation.max_depth});
    if (any_bound_ && decodes_[i]->bound()) {
      provided_[i] = decodes_[i]->constraint->Forced(depth);
      rows -= static_cast<uint32_t>(provided_[i].size());
      candidates_[i].depth_max = 0;
      continue;
    }
    if (drafted == 0) depth = 0;
    if (depth > 0) --drafted;
    rows -= depth;
    candidates_[i].depth_max = depth;
  }
  drafting_ = speculation_.Choose(candidates_, std::min(waiting, left));
}

// Counts why a decoding sequence has no draft in the plan being made.
void GroupScheduler::NoteUndrafted(Sequence& sequence) {
  const std::optional<Undrafted> reason = WhyUndrafted(sequence, geometry_.max_model_len);
  if (!reason) return;
  const auto index = static_cast<size_t>(*reason);
  const auto bit = static_cast<uint8_t>(1u << index);
  if ((sequence.undrafted & bit) != 0) return;
  sequence.undrafted = static_cast<uint8_t>(sequence.undrafted | bit);
  ++counters_.undrafted[index];
}

bool GroupScheduler::AddToPlan(Sequence& sequence, StepBudget& budget, StepPlan& plan,
                               DraftWish drafts) {
  // A suspect of a failed step or of a death runs alone.
  const bool alone = sequence.alone();
  if (alone && (company_ || !plan.sequences.empty())) return false;
  const uint32_t chunk = NextChunk(sequence, budget);
  if (chunk == 0) return false;
  if (!EnsureBlocks(sequence, sequence.planned + chunk)) {
    starved_[plan.lane] = &sequence;
    return false;
  }
  drafts.Limit(FitDrafts(sequence, std::min(drafts.size(), budget.tokens - chunk)));
  SKEIN_CHECK(EnsureBlocks(sequence, sequence.planned + chunk + drafts.size()));
  AddStep(sequence, chunk, drafts, plan);
  sequence.planned += chunk;
  sequence.announced_blocks = static_cast<uint32_t>(sequence.blocks.size());
  sequence.fresh_slot = false;
  sequence.in_flight = true;
  ++sequence.num_steps;
  budget.tokens -= chunk + drafts.size();
  budget.scores -= plan.sequences.back().scoring.count;
  budget.sequences = alone ? 0 : budget.sequences - 1;
  return true;
}

// Takes a sequence of the queue into this lane's step. False when nothing more can enter.
bool GroupScheduler::Admit(Sequence& sequence, uint32_t lane, StepBudget& budget, StepPlan& plan) {
  if (free_slots_.empty() || num_running() >= limits_.max_num_seqs || budget.tokens == 0 ||
      budget.sequences == 0) {
    return false;
  }
  if (sequence.alone() && (company_ || !plan.sequences.empty())) return false;
  // A newcomer takes free blocks only: it must not push out what already runs.
  if (!UseCache(sequence, budget)) return false;
  Enlist(sequence, lane);
  return AddToPlan(sequence, budget, plan);
}

// A queued sequence runs in the lane from now on.
void GroupScheduler::Enlist(Sequence& sequence, uint32_t lane) {
  queue_.Start(&sequence, sequence.length() - sequence.planned);
  sequence.state = SequenceState::kRunning;
  sequence.moved_to.reset();
  sequence.engine = index_;
  sequence.lane = lane;
  sequence.slot = SlotId(free_slots_.TakeLowest());
  sequence.fresh_slot = true;
  if (sequence.suspicion.on_probation()) probation_ = &sequence;
  std::vector<Sequence*>& running = running_[lane];
  running.insert(std::upper_bound(running.begin(), running.end(), &sequence, ServiceOrder()),
                 &sequence);
  Recount(sequence);
}

bool GroupScheduler::WantsProbation(std::span<Sequence* const> newcomers) const {
  return probation_ != nullptr ||
         (!newcomers.empty() && newcomers.front()->suspicion.on_probation());
}

// The step of the sequence on probation, when nothing else of the group is in flight. The others
// keep their place and wait; those that are in the way of its blocks start over.
std::optional<StepPlan> GroupScheduler::PlanProbation(uint32_t lane,
                                                      std::span<Sequence* const> newcomers) {
  if (in_flight()) return std::nullopt;
  // What it died of may have been its cached blocks: it starts without any.
  if (probation_ == nullptr) Enlist(*newcomers.front(), lane);
  Sequence& sequence = *probation_;
  if (sequence.lane != lane) return std::nullopt;
  StepPlan plan;
  plan.lane = lane;
  drafting_ = {};
  StepBudget budget{std::min(limits_.max_num_batched_tokens, geometry_.max_rows), 1};
  const uint32_t chunk = ChunkLength(sequence, budget);
  const uint32_t wanted = BlocksFor(sequence.planned + chunk, geometry_.block_tokens);
  const uint32_t missing = wanted - std::min(wanted, static_cast<uint32_t>(sequence.blocks.size()));
  for (std::vector<Sequence*>& others : running_) {
    for (size_t i = others.size(); i-- > 0 && num_free_blocks() < missing;) {
      if (others[i] != &sequence) Preempt(*others[i], PreemptReason::kProbation);
    }
  }
  // Transfers of others end by themselves, and it waits for their blocks until then.
  if (num_free_blocks() < missing && !(loans_.empty() && arrivals_.empty())) return std::nullopt;
  SKEIN_CHECK(AddToPlan(sequence, budget, plan)) << "a sequence alone in its group finds no room";
  return Number(std::move(plan));
}

bool GroupScheduler::in_flight() const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [](const StepInFlight& step) { return step.open; });
}

std::optional<StepPlan> GroupScheduler::PlanStep(uint32_t lane,
                                                 std::span<Sequence* const> newcomers,
                                                 bool company) {
  if (!epoch_ || in_flight_[lane].open) return std::nullopt;
  company_ = company;
  if (WantsProbation(newcomers)) return PlanProbation(lane, newcomers);
  StepPlan plan;
  plan.lane = lane;
  FillPlan(lane, newcomers, plan);
  if (plan.sequences.empty()) return std::nullopt;
  return Number(std::move(plan));
}

StepPlan GroupScheduler::PlanIdle(uint32_t lane) {
  SKEIN_CHECK(epoch_ && !in_flight_[lane].open) << "the lane has a step in flight";
  StepPlan plan;
  plan.lane = lane;
  return Number(std::move(plan));
}

// Names the plan, which is in flight from now on.
StepPlan GroupScheduler::Number(StepPlan plan) {
  last_step_ = last_step_.Next();
  plan.group = epoch_->group;
  plan.rank = epoch_->rank;
  plan.epoch = epoch_->epoch;
  plan.step = last_step_;
  in_flight_[plan.lane].step = last_step_;
  in_flight_[plan.lane].open = true;
  return plan;
}

void GroupScheduler::FillPlan(uint32_t lane, std::span<Sequence* const> newcomers, StepPlan& plan) {
  StepInFlight& in_flight = in_flight_[lane];
  StepBudget budget{std::min(limits_.max_num_batched_tokens, geometry_.max_rows),
                    limits_.max_num_seqs};
  SortOut(lane);
  starved_[lane] = nullptr;
  plan.sequences.reserve(std::min<size_t>(order_.size() + newcomers.size(), budget.tokens));
  ChooseDepths(budget, newcomers.size());
  // Decoding sequences first: their clients wait for each token. All get the blocks of their own
  // rows before any gets blocks for drafts; an earlier one may preempt a later one.
  for (Sequence* sequence : growing_) {
    if (sequence->state == SequenceState::kRunning) EnsureBlocks(*sequence, sequence->planned + 1);
  }
  for (size_t i = 0; i < decodes_.size(); ++i) {
    PrefetchNext(decodes_, i);
    if (decodes_[i]->state != SequenceState::kRunning) continue;
    const bool drafts = !drafting_.depths.empty();
    DraftWish wish;
    if (drafts) wish.depth = drafting_.depths[i];
    if (!provided_.empty()) wish.provided = provided_[i];
    if (AddToPlan(*decodes_[i], budget, plan, wish) && drafts &&
        in_flight.parts.back().depth == 0) {
      NoteUndrafted(*decodes_[i]);
    }
  }
  for (Sequence* sequence : prefills_) {
    if (sequence->state == SequenceState::kRunning) AddToPlan(*sequence, budget, plan);
  }
  for (size_t i = 0; i < newcomers.size() && !starved(); ++i) {
    // Who scores its prompt enters where rows may be scored: its first chunk is never empty.
    if (budget.scores == 0 && ScoresMore(*newcomers[i])) continue;
    if (!LaneHasRoom(lane, newcomers.size() - i) || !Admit(*newcomers[i], lane, budget, plan))
      break;
  }
}

void GroupScheduler::ObserveDrafts(const StepInFlight::Part& part, std::span<const RowSummary> rows,
                                   uint32_t num_accepted) {
  if (rows.size() < 2) return;
  Sequence& sequence = *part.sequence;
  if (part.provided) {
    sequence.num_draft_tokens += rows.size() - 1;
    ++counters_.provided_drafts;
    counters_.provided_draft_tokens += rows.size() - 1;
    counters_.provided_accepted_tokens += num_accepted;
    return;
  }
  std::array<float, kDepthMax> confidences;
  const size_t drafts = std::min<size_t>(rows.size() - 1, confidences.size());
  for (size_t i = 0; i < drafts; ++i) confidences[i] = rows[i].confidence;
  speculation_.ObserveDrafts(std::span(confidences).first(drafts), num_accepted, sequence.drafts);
  sequence.num_draft_tokens += drafts;
  ++counters_.drafts;
  counters_.draft_tokens += drafts;
  counters_.accepted.resize(std::max<size_t>(counters_.accepted.size(), drafts));
  for (uint32_t i = 0; i < num_accepted; ++i) ++counters_.accepted[i];
}

// Accepted drafts and the token after them, until one ends the sequence or its constraint begins to
// bind: the rows after that had no masks.
void GroupScheduler::AppendTokens(const StepInFlight::Part& part,
                                  const protocol::VerificationSummary& summary,
                                  StepCommit& commit) {
  Sequence& sequence = *part.sequence;
  SequenceDelta& delta = commit.deltas.back();
  const protocol::VerificationMode mode = sequence.speculation.mode;
  const VerificationOutcome outcome = VerifyDraft(summary.rows, mode, sequence.sampling.seed);
  ObserveDrafts(part, summary.rows, outcome.num_accepted);
  const bool was_bound = sequence.bound();
  uint32_t num_kept = outcome.num_accepted;
  for (uint32_t i = 0; i <= num_kept && !delta.ended; ++i) {
    const RowSummary& row = summary.rows[i];
    const bool draft = i < outcome.num_accepted;
    const int32_t token = draft ? row.draft_token : outcome.token;
    if (token < 0) {
      delta.error = absl::InternalError(absl::StrCat("no token at position ", row.position,
                                                     (row.flags & protocol::kRowNonFinite) != 0
                                                         ? ": the logits are not finite"
                                                         : ": no token is allowed"));
      return;
    }
    sequence.tokens.push_back(token);
    sequence.moving_from.reset();
    ++delta.num_tokens;
    sequence.num_accepted_tokens += draft ? 1 : 0;
    commit.tokens.push_back(
        {token, draft ? DraftLogprob(row, mode) : outcome.logprob, row.top, draft});
    delta.ended = EndOf(sequence, geometry_.max_model_len);
    if (sequence.constraint == nullptr) continue;
    sequence.constraint->Advance(token);
    if (!was_bound && i < num_kept && sequence.bound()) num_kept = i;
  }
  counters_.unbound_drafts += outcome.num_accepted - num_kept;
  // The rows of drafts that were kept, and that a token follows, are computed.
  sequence.planned += num_kept;
  sequence.computed = sequence.planned;
}

void GroupScheduler::CommitSequence(const StepInFlight::Part& part,
                                    const protocol::VerificationSummary& summary,
                                    StepCommit& commit) {
  Sequence& sequence = *part.sequence;
  sequence.in_flight = false;
  sequence.computed = sequence.planned;
  sequence.Succeed();
  SequenceDelta& delta = commit.deltas.emplace_back();
  delta.cached_tokens = sequence.cached_tokens.value_or(0);
  delta.sequence = sequence.id;
  delta.num_steps = sequence.num_steps;
  delta.first_token = static_cast<uint32_t>(commit.tokens.size());
  if (sequence.cancelled) {
    delta.cancelled = true;
  } else {
    AppendScores(summary.scores, sequence, delta, commit.scores);
    if (!summary.rows.empty() && delta.error.ok()) AppendTokens(part, summary, commit);
  }
  queue_.Charge(sequence, delta.num_tokens);
  delta.num_draft_tokens = sequence.num_draft_tokens;
  delta.num_accepted_tokens = sequence.num_accepted_tokens;
  if (cache_ != nullptr && delta.error.ok()) PublishBlocks(sequence);
  if (sequence.suspicion.marked()) {
    sequence.suspicion.Survive(sequence.computed);
    if (!sequence.suspicion.on_probation()) Pardon(sequence);
  }
  if (delta.over()) {
    TakeBack(sequence);
  } else if (evicting_ && !sequence.pinned && !limits_.moves_blocks) {
    MoveOut(sequence);
  } else {
    Recount(sequence);
  }
}

absl::Status GroupScheduler::CommitStep(const StepResult& result, StepCommit& commit) {
  if (result.lane >= in_flight_.size() || !in_flight_[result.lane].open) {
    return absl::InvalidArgumentError(absl::StrCat(
        "result of step ", result.step.value(), ": lane ", result.lane, " has no step in flight"));
  }
  StepInFlight& step = in_flight_[result.lane];
  SKEIN_RETURN_IF_ERROR(CheckResult(step, epoch_->epoch, result));
  if (!step.parts.empty()) speculation_.ObserveStep(CostOf(step, result));
  commit.lane = result.lane;
  commit.deltas.clear();
  commit.tokens.clear();
  commit.scores.clear();
  for (size_t i = 0; i < step.parts.size(); ++i) {
    PrefetchCommit(step.parts, result, i);
    FinishStates(step.parts[i]);
    CommitSequence(step.parts[i], result.sequences[i], commit);
  }
  step.parts.clear();
  step.open = false;
  std::erase_if(running_[result.lane], [](const Sequence* sequence) {
    return sequence->state != SequenceState::kRunning;
  });
  return absl::OkStatus();
}

}  // namespace skein::scheduler
