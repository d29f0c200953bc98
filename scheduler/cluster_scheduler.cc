#include "scheduler/cluster_scheduler.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "scheduler/group_step.h"

namespace skein::scheduler {
namespace {

// Sequences that wait for groups of their part and are passed in one assignment.
constexpr uint32_t kPassedMax = 32;

}  // namespace

ClusterScheduler::ClusterScheduler(const SchedulerLimits& limits, uint32_t num_groups,
                                   uint32_t num_ranks)
    : limits_(limits),
      num_ranks_(num_ranks),
      admission_(limits.admission),
      turns_(size_t{num_groups} * limits.lanes),
      loads_(size_t{num_groups} * num_ranks),
      rooms_(loads_.size()),
      assigned_(loads_.size()) {
  SKEIN_CHECK(num_groups > 0 && num_ranks > 0) << "a cluster needs a group, and that a rank";
  for (uint32_t i = 0; i < loads_.size(); ++i) {
    engines_.push_back(std::make_unique<GroupScheduler>(limits, i, admission_));
  }
}

void ClusterScheduler::Cordon(protocol::GroupId group) {
  for (const auto& rank : RanksOf(group)) rank->Cordon();
  ForgetPromises(group);
}

void ClusterScheduler::Evict(protocol::GroupId group) {
  for (const auto& rank : RanksOf(group)) rank->Evict();
}

void ClusterScheduler::Uncordon(protocol::GroupId group) {
  for (const auto& rank : RanksOf(group)) rank->Uncordon();
}

bool ClusterScheduler::takes_newcomers() const {
  return std::any_of(engines_.begin(), engines_.end(),
                     [](const auto& engine) { return engine->has_epoch() && !engine->cordoned(); });
}

bool ClusterScheduler::probation(protocol::GroupId group) const {
  const Ranks ranks = RanksOf(group);
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const auto& rank) { return rank->probation() != nullptr; });
}

uint32_t ClusterScheduler::num_running() const {
  uint32_t count = 0;
  for (const auto& engine : engines_) count += engine->num_running();
  return count;
}

uint32_t ClusterScheduler::num_running(protocol::GroupId group) const {
  uint32_t count = 0;
  for (const auto& rank : RanksOf(group)) count += rank->num_running();
  return count;
}

uint32_t ClusterScheduler::num_moving_from(protocol::GroupId group) const {
  uint32_t count = 0;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->moving_from) continue;
    count += *sequence->moving_from / num_ranks_ == group.value() ? 1 : 0;
  }
  return count;
}

// OK if some engine with an epoch can run the sequence, or none has one; else why the first cannot.
absl::Status ClusterScheduler::CheckFits(const Sequence& sequence) const {
  if (sequence.pinned) return engines_[*sequence.pinned]->CheckFits(sequence);
  absl::Status first;
  for (const auto& engine : engines_) {
    if (!engine->has_epoch()) continue;
    absl::Status fits = engine->CheckFits(sequence);
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
    engines_[sequence.engine]->End(sequence);
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

namespace {

// What was cached on the ranks went with their epoch before.
void ForgetLookups(Sequence& sequence, std::span<const std::unique_ptr<GroupScheduler>> ranks) {
  if (sequence.cached_on.empty()) return;
  for (const auto& rank : ranks) sequence.cached_on[rank->index()] = Sequence::kNotLookedUp;
}

}  // namespace

std::vector<SequenceDelta> ClusterScheduler::StartEpoch(
    protocol::GroupId group, protocol::Epoch epoch,
    std::span<const protocol::CacheGeometry> geometry) {
  const Ranks ranks = RanksOf(group);
  SKEIN_CHECK(geometry.size() == ranks.size()) << "each rank has a geometry";
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank]->StartEpoch(group, protocol::RankId(rank), epoch, geometry[rank]);
  }
  // A worker with a smaller cache may have taken over.
  std::vector<SequenceDelta> gone;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->state != SequenceState::kQueued) continue;
    ForgetLookups(*sequence, ranks);
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
  ForgetPromises(group);
  ForgetLoans(group);
  std::vector<SequenceDelta> gone;
  for (const auto& rank : RanksOf(group)) {
    std::vector<SequenceDelta> ended = rank->AbortInflight(cause, node, failed);
    std::move(ended.begin(), ended.end(), std::back_inserter(gone));
  }
  Forget(gone);
  return gone;
}

namespace {

// Why the deaths of its workers end a sequence; OK while they do not.
absl::Status VerdictOn(const Suspicion& suspicion) {
  if (suspicion.condemned()) {
    return absl::AbortedError(absl::StrCat("this request ended its worker ", suspicion.marks(),
                                           " times, the last time alone; it is not tried again"));
  }
  if (!suspicion.worn_out()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "workers of this request died ", suspicion.counted_replays(), " times; try again later"));
}

}  // namespace

// Who gets a verdict was held until then, so it is in the queue.
std::vector<SequenceDelta> ClusterScheduler::SettleDeath(uint32_t node, bool own) {
  std::vector<SequenceDelta> gone;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->suspicion.Settle(node, own)) continue;
    if (!sequence->suspicion.on_probation() && sequence->state == SequenceState::kRunning) {
      engines_[sequence->engine]->Pardon(*sequence);
    }
    SequenceDelta delta;
    delta.sequence = id;
    delta.error = VerdictOn(sequence->suspicion);
    if (delta.error.ok()) continue;
    SKEIN_CHECK(sequence->state == SequenceState::kQueued)
        << "sequence " << id << " runs before the verdict";
    delta.num_steps = sequence->num_steps;
    delta.num_draft_tokens = sequence->num_draft_tokens;
    delta.num_accepted_tokens = sequence->num_accepted_tokens;
    gone.push_back(std::move(delta));
    admission_.Remove(sequence.get());
  }
  Forget(gone);
  return gone;
}

void ClusterScheduler::MeasureEngines() {
  if (limits_.prefill_groups > 0) NoteParts();
  probation_free_ = true;
  for (size_t i = 0; i < engines_.size(); ++i) {
    const GroupScheduler& engine = *engines_[i];
    assigned_[i].clear();
    rooms_[i] = engine.FindRoom();
    const protocol::CacheGeometry& geometry = engine.geometry();
    loads_[i].outstanding_tokens = engine.outstanding_tokens();
    loads_[i].capacity_tokens = uint64_t{geometry.num_blocks} * geometry.block_tokens;
    probation_free_ = probation_free_ && engine.probation() == nullptr;
  }
}

// The engine where the sequence is on probation: the lowest that takes newcomers and can ever run
// it.
const GroupScheduler* ClusterScheduler::ProbationEngine(const Sequence& sequence) const {
  for (const auto& engine : engines_) {
    if (engine->has_epoch() && !engine->cordoned() && engine->CheckFits(sequence).ok()) {
      return engine.get();
    }
  }
  return nullptr;
}

bool ClusterScheduler::MayRun(const Sequence& sequence, Part part,
                              const GroupScheduler& engine) const {
  const bool probation = sequence.suspicion.on_probation();
  if (probation && !probation_free_) return false;
  if (!probation && engine.starved()) return false;
  if (sequence.pinned) return *sequence.pinned == engine.index();
  if (sequence.moved_to) return *sequence.moved_to == engine.index();
  if (probation) return ProbationEngine(sequence) == &engine;
  return !engine.cordoned() && IsOf(part, engine.index());
}

// Sequences with marks in the group of the engine, which one death would end together.
uint32_t ClusterScheduler::NumMarked(uint32_t engine) const {
  uint32_t count = 0;
  for (const auto& rank : RanksOf(protocol::GroupId(engine / num_ranks_))) {
    count += rank->num_marked();
    for (const Sequence* other : NewcomersOf(*rank)) count += other->suspicion.marked() ? 1 : 0;
  }
  return count;
}

// Takes from the load of each engine that could start the sequence what it has cached of it. Who is
// placed plan after plan, since it finds no room in the steps, is looked up after 1, 2, 4, 8 ...
// times: a prompt is long, and plans are many.
void ClusterScheduler::Appraise(Sequence& sequence) {
  if (std::has_single_bit(++sequence.placings)) {
    sequence.cached_on.assign(engines_.size(), Sequence::kNotLookedUp);
  }
  for (uint32_t i = 0; i < engines_.size(); ++i) {
    if (!loads_[i].can_take) continue;
    uint32_t& cached = sequence.cached_on[i];
    if (cached == Sequence::kNotLookedUp) cached = engines_[i]->CachedTokens(sequence);
    loads_[i].own_tokens -= cached;
  }
}

// The engine that could start the sequence now and has the least to compute with it.
std::optional<uint32_t> ClusterScheduler::PlaceOf(Sequence& sequence) {
  const Part part = PartOf(sequence);
  const uint64_t own = OutstandingTokens(sequence);
  uint32_t takers = 0;
  for (uint32_t i = 0; i < engines_.size(); ++i) {
    GroupScheduler& engine = *engines_[i];
    const uint32_t blocks = rooms_[i].blocks;
    loads_[i].can_take =
        MayRun(sequence, part, engine) && rooms_[i].sequences > 0 &&
        engine.CheckFits(sequence).ok() &&
        (engine.FirstBlocks(sequence) <= blocks || engine.FirstBlocksFound(sequence) <= blocks);
    loads_[i].marked = sequence.suspicion.marked() ? NumMarked(i) : 0;
    loads_[i].own_tokens = own;
    takers += loads_[i].can_take ? 1 : 0;
  }
  if (takers > 1 && limits_.prefix_caching) Appraise(sequence);
  return ChooseEngine(loads_);
}

// Who waits for groups of its part is overtaken by those of the other part alone.
void ClusterScheduler::CloseRooms(const Sequence& sequence) {
  const Part part = PartOf(sequence);
  for (uint32_t i = 0; i < engines_.size(); ++i) {
    if (IsOf(part, i)) rooms_[i] = {};
  }
}

// Gives queued sequences, in order of service, to the engines that could start them now. The first
// that none can start ends it: nothing overtakes it, but for one that waits for its own engine, for
// its turn on probation, for a verdict, for its cache or for groups of the other part. Assignments
// hold for one plan only; who does not start in it is as free as before.
void ClusterScheduler::Assign() {
  MeasureEngines();
  uint32_t passed = 0;
  admission_.BeginWalk();
  while (Sequence* sequence = admission_.Next()) {
    if (sequence->suspicion.held()) continue;
    if (sequence->awaits) continue;
    const std::optional<uint32_t> chosen = PlaceOf(*sequence);
    const bool probation = sequence->suspicion.on_probation();
    if (!chosen) {
      if (probation || sequence->pinned) continue;
      // Nothing overtakes it on the engine that it waits for.
      if (sequence->moved_to) {
        rooms_[*sequence->moved_to] = {};
        continue;
      }
      if (limits_.prefill_groups == 0 || ++passed > kPassedMax) return;
      CloseRooms(*sequence);
      continue;
    }
    // It starts before the others of this plan, which are kept out then.
    auto& assigned = assigned_[*chosen];
    assigned.insert(probation ? assigned.begin() : assigned.end(), sequence);
    if (probation) probation_free_ = false;
    --rooms_[*chosen].sequences;
    rooms_[*chosen].blocks -=
        std::min(rooms_[*chosen].blocks, engines_[*chosen]->FirstBlocks(*sequence));
    loads_[*chosen].outstanding_tokens += loads_[*chosen].own_tokens;
  }
}

// Fills the plans of a step by rank, those without sequences aside; false when there are none. A
// suspect has the step of its group to itself. So that it gets one, the ranks take turns at being
// the first, who finds no company. On probation nothing else of the group is in flight at all.
bool ClusterScheduler::PlanRanks(Ranks ranks, uint32_t lane, uint32_t turn,
                                 std::vector<protocol::StepPlan>& plans) const {
  const auto alone = std::find_if(ranks.begin(), ranks.end(), [this](const auto& rank) {
    return rank->WantsProbation(NewcomersOf(*rank));
  });
  if (alone != ranks.end()) {
    if (std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->in_flight(); }))
      return false;
    std::optional<protocol::StepPlan> plan = (*alone)->PlanStep(lane, NewcomersOf(**alone));
    if (plan) plans[alone - ranks.begin()] = *std::move(plan);
    return plan.has_value();
  }
  bool company = false;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const size_t at = (turn + i) % ranks.size();
    GroupScheduler& rank = *ranks[at];
    std::optional<protocol::StepPlan> plan = rank.PlanStep(lane, NewcomersOf(rank), company);
    if (!plan) continue;
    plans[at] = *std::move(plan);
    company = true;
    if (rank.in_flight(lane).parts.front().sequence->alone()) break;
  }
  return company;
}

std::vector<protocol::StepPlan> ClusterScheduler::PlanStep(protocol::GroupId group, uint32_t lane) {
  const Ranks ranks = RanksOf(group);
  std::vector<protocol::StepPlan> plans;
  if (std::any_of(ranks.begin(), ranks.end(),
                  [lane](const auto& rank) { return rank->in_flight(lane).open; })) {
    return plans;
  }
  Assign();
  plans.resize(ranks.size());
  uint32_t& turn = turns_[group.value() * limits_.lanes + lane];
  if (!PlanRanks(ranks, lane, turn, plans)) return {};
  ++turn;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (plans[i].sequences.empty()) plans[i] = ranks[i]->PlanIdle(lane);
  }
  SealStep(plans);
  return plans;
}

absl::Status ClusterScheduler::CommitStep(protocol::GroupId group,
                                          const protocol::StepResult& result, StepCommit& commit) {
  if (result.rank.value() >= num_ranks_) {
    return absl::InvalidArgumentError(absl::StrCat("result of rank ", result.rank.value(),
                                                   " of a group of ", num_ranks_, " ranks"));
  }
  SKEIN_RETURN_IF_ERROR(engines_[EngineOf(group, result.rank)]->CommitStep(result, commit));
  Forget(commit.deltas);
  return absl::OkStatus();
}

}  // namespace skein::scheduler
