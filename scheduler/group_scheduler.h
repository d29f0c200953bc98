// The transaction boundary of one engine, which is a rank of a worker group: what runs there next
// and what a result changed. A pure function with state: no clock, no I/O, no log, no thread. One
// caller, ClusterScheduler, which owns the sequences and keeps the ranks of a group in step.
// Planning proposes and reserves blocks and slots; only CommitStep appends tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "protocol/messages/step.h"
#include "scheduler/admission.h"
#include "scheduler/batch_policy.h"
#include "scheduler/block_move.h"
#include "scheduler/block_pool.h"
#include "scheduler/free_ids.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/sequence.h"
#include "scheduler/step_in_flight.h"

namespace skein::scheduler {

struct SchedulerLimits {
  uint32_t max_num_seqs = 0;            // running sequences of an engine
  uint32_t max_num_batched_tokens = 0;  // rows of a step, on each rank
  uint32_t lanes = 1;                   // 1 or 2 steps in flight of a group
  AdmissionLimits admission;            // of all groups together
  SpeculationSettings speculation = {};
  bool prefix_caching = false;
  // Sequences take their cache along when their group is emptied or hands them over.
  bool moves_blocks = false;
  // Groups, the first ones, that compute prompts and hand the sequences over; needs moves_blocks.
  uint32_t prefill_groups = 0;
  BlockHash cache_hash = &HashTokens;
};

// One token that a commit appended.
struct CommittedToken {
  int32_t token = -1;
  float logprob = 0;
  std::vector<protocol::TopLogprob> top;
  bool drafted = false;  // it was a draft that the rule kept
};

// What a commit, or the end of an epoch, did to one sequence.
struct SequenceDelta {
  protocol::SequenceId sequence;
  uint32_t first_token = 0;  // in StepCommit::tokens
  uint32_t num_tokens = 0;
  std::optional<EndReason> ended;
  bool cancelled = false;  // it was cancelled while the step ran; its tokens are dropped
  absl::Status error;
  uint64_t num_steps = 0;
  uint64_t num_draft_tokens = 0;     // verified for the sequence so far
  uint64_t num_accepted_tokens = 0;  // of them appended: none behind the end of the sequence
  uint32_t cached_tokens = 0;        // prompt tokens not computed at the first admission
  uint32_t first_score = 0;          // in StepCommit::scores
  uint32_t num_scores = 0;

  // The sequence is gone.
  bool over() const { return ended.has_value() || cancelled || !error.ok(); }
};

// What a commit did. One array of tokens for all sequences: a vector each would cost more than the
// rest of the commit.
struct StepCommit {
  uint32_t lane = 0;
  std::vector<SequenceDelta> deltas;
  std::vector<CommittedToken> tokens;
  std::vector<protocol::TokenScore> scores;  // of prompt tokens, in order

  std::span<CommittedToken> TokensOf(const SequenceDelta& delta) {
    return std::span(tokens).subspan(delta.first_token, delta.num_tokens);
  }
  std::span<protocol::TokenScore> ScoresOf(const SequenceDelta& delta) {
    return std::span(scores).subspan(delta.first_score, delta.num_scores);
  }
};

// Why an epoch ended.
enum class AbortCause : uint8_t {
  kWorkerLost,  // the worker, its lease or its connection: it may have died of its running step
  kWorkerLeft,  // the worker lives and left the epoch
  kStepFailed,  // a step in flight failed: a sequence of it may be the reason
};

// The step that failed is that of no lane in particular.
inline constexpr uint32_t kAnyLane = ~0u;

// Failed steps after which a sequence ends with an error, when it never came past them. After its
// first it runs in steps of its own, so that the others of the failed step are cleared.
inline constexpr uint32_t kStepFailuresMax = 3;

// Why prompt tokens were computed although a prefix cache is on.
enum class CacheMiss : uint8_t {
  kCold,          // nobody computed them before, as far as is known
  kEvicted,       // their blocks were evicted
  kStateMissing,  // their blocks are there, the state at their end is not
  kSalt,          // cold, and the request has a salt
  kAlignment,     // after the last whole block
};
inline constexpr size_t kNumCacheMisses = 5;

// Why a running sequence went back to the queue with its tokens and without its cache.
enum class PreemptReason : uint8_t {
  kBlocks,     // one that is served before it needed its blocks
  kProbation,  // so did one on probation, which runs alone
};
inline constexpr size_t kNumPreemptReasons = 2;

// Counts that only grow, for the metrics.
struct SchedulerCounters {
  // By PreemptReason: sequences, and tokens that were computed for nothing.
  std::array<uint64_t, kNumPreemptReasons> preemptions{};
  std::array<uint64_t, kNumPreemptReasons> preempted_tokens{};
  uint64_t replays = 0;            // sequences put back by an ended epoch
  uint64_t moves = 0;              // sequences put back because their group is emptied
  uint64_t drafts = 0;             // sequences' steps that verified drafts
  uint64_t draft_tokens = 0;       // verified
  std::vector<uint64_t> accepted;  // drafts that were kept, by their position in the step
  uint64_t provided_drafts = 0;    // the same three of drafts that a constraint provided
  uint64_t provided_draft_tokens = 0;
  uint64_t provided_accepted_tokens = 0;
  uint64_t unbound_drafts =
      0;  // kept by the rule, and thrown away since a constraint began to bind
  std::array<uint64_t, kNumUndrafted> undrafted{};  // sequences, once for each Undrafted
  // Prompt tokens at first admissions, those that were not computed, the others by reason.
  uint64_t cache_queries = 0;
  uint64_t cache_hits = 0;
  std::array<uint64_t, kNumCacheMisses> cache_misses{};
  uint64_t cache_evictions = 0;  // blocks
};

// What an engine says to blocks that another one would send.
enum class Expectation : uint8_t {
  kNoRoom,  // it has no room for them
  kHere,    // it has them and their state
  kComes,   // their places are kept
};

class GroupScheduler {
 public:
  // `index`: of the engine, among all groups. `queue` gets the sequences that return and outlives
  // the group.
  GroupScheduler(const SchedulerLimits& limits, uint32_t index, Admission& queue);

  // The group is ready: steps may be planned.
  void StartEpoch(protocol::GroupId group, protocol::RankId rank, protocol::Epoch epoch,
                  const protocol::CacheGeometry& geometry);
  // The epoch is over: running sequences return to the queue with their tokens; cancelled ones and
  // those whose steps failed too often are in the state kEnded and reported.
  // With kWorkerLost those in a step get a mark, unsettled, of worker `node`.
  // With kStepFailed those of the step of lane `failed` are its suspects, the other lane's are not.
  std::vector<SequenceDelta> AbortInflight(AbortCause cause, uint32_t node, uint32_t failed);

  // A cordoned group gets no newcomers but pinned ones; what runs goes on.
  void Cordon() { cordoned_ = true; }
  // What runs returns to the queue, at once or when its step in flight ends; pinned ones stay. With
  // `moves_blocks` it stays until ClusterScheduler::PlanMoves takes it.
  void Evict();
  bool evicting() const { return evicting_; }

  // Tokens of a sequence, which need not run here, whose blocks and the state behind them are held;
  // 0: none.
  uint32_t Lendable(const Sequence& sequence);
  // Keeps them for a transfer; there are some.
  const Loan& Lend(protocol::TransferId transfer, const Sequence& sequence);
  // Takes places for the blocks of the first `position` tokens and for their state.
  Expectation Expect(protocol::TransferId transfer, const Sequence& sequence, uint32_t position);
  // The worker reads, or writes, nothing more for the transfer. Unknown ones are ignored.
  void EndLoan(protocol::TransferId transfer);
  void EndArrival(protocol::TransferId transfer, bool arrived);
  // A running sequence without a step in flight returns to the queue.
  void Depart(Sequence& sequence, MoveCause cause);
  // Newcomers again.
  void Uncordon() { cordoned_ = evicting_ = false; }
  bool cordoned() const { return cordoned_; }
  // The sequence on probation that runs here, or null. Nothing runs beside it.
  const Sequence* probation() const { return probation_; }
  // One that runs here was left out of its lane's last plan for want of blocks. Until it has them
  // nobody starts but who is on probation: newcomers would take the blocks that it waits for, and
  // where its lanes overlap it would wait without end.
  bool starved() const {
    return std::any_of(starved_.begin(), starved_.end(),
                       [](const Sequence* sequence) { return sequence != nullptr; });
  }
  const Sequence* starved(uint32_t lane) const { return starved_[lane]; }
  // Sequences with marks that run here.
  uint32_t num_marked() const;
  // A verdict took the sequence off probation.
  void Pardon(const Sequence& sequence) {
    if (probation_ == &sequence) probation_ = nullptr;
  }

  // OK, or InvalidArgument: the sequence with all that it may still generate can never run with the
  // geometry of this epoch. OK without an epoch.
  absl::Status CheckFits(const Sequence& sequence) const;
  // What newcomers may take now: sequences and blocks. Nothing without an epoch.
  struct Room {
    uint32_t sequences = 0;
    uint32_t blocks = 0;
  };
  Room FindRoom() const;
  // Blocks of the first chunk of a queued sequence.
  uint32_t FirstBlocks(const Sequence& sequence) const;
  // The same without those that the prefix cache has and somebody uses: looks them up.
  uint32_t FirstBlocksFound(const Sequence& sequence);
  // Tokens of a queued sequence that it would not compute here: looks them up.
  uint32_t CachedTokens(const Sequence& sequence);

  // The next step of a lane, or nothing when the lane has one in flight, no epoch runs, or nothing
  // can run. `newcomers`: queued sequences that were assigned to this group, in order of service;
  // those that find room in this step run from now on, the others stay in the queue. `company`:
  // other ranks of the group have sequences in this step, so that a suspect takes no part.
  std::optional<protocol::StepPlan> PlanStep(uint32_t lane, std::span<Sequence* const> newcomers,
                                             bool company = false);
  // A step without sequences, since other ranks of the group have some. The lane has none in
  // flight.
  protocol::StepPlan PlanIdle(uint32_t lane);
  // Applies the result of the lane's step. InvalidArgument if it does not answer the plan in
  // flight; nothing has changed then. Sequences that ended are in the state kEnded. Overwrites
  // `commit`, whose memory the caller keeps from step to step.
  absl::Status CommitStep(const protocol::StepResult& result, StepCommit& commit);
  // Ends a running sequence that has no step in flight.
  void End(Sequence& sequence);

  bool has_epoch() const { return epoch_.has_value(); }
  // A step is in flight in some lane.
  bool in_flight() const;
  // A sequence on probation runs here, or is to start.
  bool WantsProbation(std::span<Sequence* const> newcomers) const;
  uint32_t num_running() const;
  // Tokens still to compute for the running sequences, see group_assignment.h.
  uint64_t outstanding_tokens() const { return outstanding_tokens_; }
  const SchedulerCounters& counters() const { return counters_; }
  const SpeculationPolicy& speculation() const { return speculation_; }

  // State for CheckInvariants and metrics.
  uint32_t index() const { return index_; }
  uint32_t num_lanes() const { return limits_.lanes; }
  const std::vector<Sequence*>& running(uint32_t lane) const { return running_[lane]; }
  const BlockPool* block_pool() const { return blocks_.get(); }
  const PrefixCache* prefix_cache() const { return cache_.get(); }  // null: it is off
  const std::map<protocol::TransferId, Loan>& loans() const { return loans_; }
  const std::map<protocol::TransferId, Arrival>& arrivals() const { return arrivals_; }
  uint32_t num_free_blocks() const;  // free ones and those that eviction frees
  const protocol::CacheGeometry& geometry() const { return geometry_; }
  const StepInFlight& in_flight(uint32_t lane) const { return in_flight_[lane]; }
  uint32_t num_free_slots() const { return free_slots_.size(); }
  protocol::StepId last_step() const { return last_step_; }

 private:
  struct EpochState {
    protocol::GroupId group;
    protocol::RankId rank;
    protocol::Epoch epoch;
  };

  void Enlist(Sequence& sequence, uint32_t lane);
  protocol::StepPlan Number(protocol::StepPlan plan);
  std::optional<protocol::StepPlan> PlanProbation(uint32_t lane,
                                                  std::span<Sequence* const> newcomers);
  void FillPlan(uint32_t lane, std::span<Sequence* const> newcomers, protocol::StepPlan& plan);
  bool Admit(Sequence& sequence, uint32_t lane, StepBudget& budget, protocol::StepPlan& plan);
  std::optional<SequenceDelta> EndAborted(const Sequence& sequence) const;
  bool AddToPlan(Sequence& sequence, StepBudget& budget, protocol::StepPlan& plan,
                 DraftWish drafts = DraftWish());
  void AddStep(Sequence& sequence, uint32_t chunk, const DraftWish& drafts,
               protocol::StepPlan& plan);
  void SortOut(uint32_t lane);
  void ChooseDepths(const StepBudget& budget, size_t num_newcomers);
  void NoteUndrafted(Sequence& sequence);
  uint32_t FitDrafts(const Sequence& sequence, uint32_t depth) const;
  bool EnsureBlocks(Sequence& sequence, uint32_t tokens);
  bool TakeBlocks(uint32_t count, BlockTable& table);
  uint32_t LookUp(const Sequence& sequence, uint32_t chunk, CacheUse& use);
  bool UseCache(Sequence& sequence, const StepBudget& budget);
  void CountHit(Sequence& sequence, uint32_t whole);
  uint32_t NextChunk(const Sequence& sequence, const StepBudget& budget) const;
  void SaveState(Sequence& sequence, protocol::SequenceStep& step, StepInFlight::Part& part);
  void FinishStates(const StepInFlight::Part& part);
  void PublishBlocks(Sequence& sequence);
  Sequence* FindVictim(const Sequence& wanting) const;
  void Preempt(Sequence& sequence, PreemptReason reason);
  void TakeBack(Sequence& sequence);
  void Requeue(Sequence& sequence);
  void MoveOut(Sequence& sequence);
  void Unlist(Sequence& sequence);
  void Recount(Sequence& sequence);
  void AppendTokens(const StepInFlight::Part& part, const protocol::VerificationSummary& summary,
                    StepCommit& commit);
  void ObserveDrafts(const StepInFlight::Part& part, std::span<const protocol::RowSummary> rows,
                     uint32_t num_accepted);
  void CommitSequence(const StepInFlight::Part& part, const protocol::VerificationSummary& summary,
                      StepCommit& commit);
  bool LaneHasRoom(uint32_t lane, size_t waiting) const;

  const SchedulerLimits limits_;
  const uint32_t index_;
  Admission& queue_;
  protocol::CacheGeometry geometry_;
  std::optional<EpochState> epoch_;
  std::unique_ptr<BlockPool> blocks_;
  std::unique_ptr<PrefixCache> cache_;  // null: it is off
  PrefixCache::Match match_;            // of the sequence being admitted
  std::map<protocol::TransferId, Loan> loans_;
  std::map<protocol::TransferId, Arrival> arrivals_;
  FreeIds free_slots_;
  bool cordoned_ = false;
  bool evicting_ = false;
  Sequence* probation_ = nullptr;
  std::vector<const Sequence*> starved_;         // by lane, or null; see starved()
  std::vector<std::vector<Sequence*>> running_;  // by lane, each in order of service
  std::vector<StepInFlight> in_flight_;          // by lane
  SpeculationPolicy speculation_;
  // Of the plan being made; kept for their memory.
  std::vector<Sequence*> order_, decodes_, prefills_;
  std::vector<Sequence*> growing_;  // decodes that need a block for their next row
  std::vector<SpeculationPolicy::Candidate> candidates_;
  std::vector<std::vector<int32_t>> provided_;  // of each decode, when any is bound
  bool any_bound_ = false;
  bool company_ = false;  // other ranks have sequences in the step
  SpeculationPolicy::Choice drafting_;
  protocol::StepId last_step_;
  uint64_t outstanding_tokens_ = 0;
  SchedulerCounters counters_;
};

}  // namespace skein::scheduler
