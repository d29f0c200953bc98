// The transaction boundary of a worker group: what runs next and what a result changed. A pure
// function with state: no clock, no I/O, no log, no thread. One caller, the control loop.
// Planning proposes and reserves blocks and slots; only CommitStep appends tokens.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "protocol/messages/step.h"
#include "scheduler/admission.h"
#include "scheduler/batch_policy.h"
#include "scheduler/block_pool.h"
#include "scheduler/sequence.h"

namespace skein::scheduler {

struct SchedulerLimits {
  uint32_t max_num_seqs = 0;            // running sequences
  uint32_t max_num_batched_tokens = 0;  // rows of a step
  uint32_t lanes = 1;                   // 1 or 2 steps in flight
  AdmissionLimits admission;
};

// One token that a commit appended.
struct CommittedToken {
  int32_t token = -1;
  float logprob = 0;
  std::vector<protocol::TopLogprob> top;
};

// What a commit did to one sequence. After `ended` or `error` the sequence is gone.
struct SequenceDelta {
  protocol::SequenceId sequence;
  std::vector<CommittedToken> tokens;
  std::optional<EndReason> ended;
  absl::Status error;
  bool cancelled = false;  // it was cancelled while the step ran; its tokens are dropped
  uint64_t num_steps = 0;
};

struct StepCommit {
  uint32_t lane = 0;
  std::vector<SequenceDelta> deltas;
};

// Why an epoch ended.
enum class AbortCause : uint8_t {
  kWorkerLost,  // the worker, its lease or its connection
  kStepFailed,  // a step in flight failed: a sequence of it may be the reason
};

// Failed steps in a row after which a sequence ends with an error. After its first it runs in steps
// of its own, so that the others of the failed step are cleared.
inline constexpr uint32_t kStepFailuresMax = 3;

// Counts that only grow, for the metrics.
struct SchedulerCounters {
  uint64_t preemptions = 0;
  uint64_t preempted_tokens = 0;
  uint64_t replays = 0;  // sequences put back by an ended epoch
};

class GroupScheduler {
 public:
  explicit GroupScheduler(const SchedulerLimits& limits);

  // Queues a generation. ResourceExhausted: a bound of the queue. InvalidArgument: it can never run
  // with this geometry. AlreadyExists: the id is in use.
  absl::Status AddSequence(NewSequence sequence);
  // True if the sequence is gone at once; false if its step in flight must end first (the commit
  // reports it) or the id is unknown.
  bool CancelSequence(protocol::SequenceId id);

  // A group is ready: steps may be planned. Every sequence starts over by prefill. Those that this
  // geometry can never run are gone and reported with ResourceExhausted.
  std::vector<SequenceDelta> StartEpoch(protocol::GroupId group, protocol::RankId rank,
                                        protocol::Epoch epoch,
                                        const protocol::CacheGeometry& geometry);
  // The epoch is over: running sequences return to the queue with their tokens; cancelled ones and
  // those whose steps failed too often are reported.
  std::vector<SequenceDelta> AbortInflight(AbortCause cause);

  // The next step of a lane, or nothing when the lane has one in flight, no epoch runs, or nothing
  // can run.
  std::optional<protocol::StepPlan> PlanStep(uint32_t lane);
  // Applies the result of the lane's step. InvalidArgument if it does not answer the plan in
  // flight; nothing has changed then.
  absl::StatusOr<StepCommit> CommitStep(const protocol::StepResult& result);

  bool has_epoch() const { return epoch_.has_value(); }
  uint32_t num_running() const { return static_cast<uint32_t>(running_.size()); }
  uint32_t num_queued() const { return admission_.num_queued(); }
  bool empty() const { return sequences_.empty(); }
  const SchedulerCounters& counters() const { return counters_; }
  const SchedulerLimits& limits() const { return limits_; }

  // State for CheckInvariants and metrics.
  const std::map<protocol::SequenceId, std::unique_ptr<Sequence>>& sequences() const {
    return sequences_;
  }
  const std::vector<Sequence*>& running() const { return running_; }
  const Admission& admission() const { return admission_; }
  const BlockPool* block_pool() const { return blocks_.get(); }
  const protocol::CacheGeometry& geometry() const { return geometry_; }
  const std::optional<protocol::StepPlan>& in_flight(uint32_t lane) const {
    return in_flight_[lane];
  }
  uint32_t num_free_slots() const { return static_cast<uint32_t>(free_slots_.size()); }

 private:
  struct EpochState {
    protocol::GroupId group;
    protocol::RankId rank;
    protocol::Epoch epoch;
  };

  // Tokens of a sequence as the geometry sees them.
  struct Extent {
    uint64_t prompt = 0;
    uint64_t length = 0;  // prompt and what was generated so far
    uint64_t max_tokens = 0;
  };

  absl::Status CheckFits(const Extent& extent) const;
  bool Admit(uint32_t lane, StepBudget& budget, protocol::StepPlan& plan);
  std::optional<SequenceDelta> EndAborted(const Sequence& sequence) const;
  bool AddToPlan(Sequence& sequence, StepBudget& budget, protocol::StepPlan& plan);
  bool EnsureBlocks(Sequence& sequence, uint32_t tokens);
  void Preempt(Sequence& sequence);
  void TakeBack(Sequence& sequence);
  void Erase(Sequence& sequence);
  void CommitSequence(const protocol::SequenceStep& step,
                      const protocol::VerificationSummary& summary, StepCommit& commit);
  absl::Status CheckResult(const protocol::StepPlan& plan,
                           const protocol::StepResult& result) const;
  bool LaneHasRoom(uint32_t lane) const;

  const SchedulerLimits limits_;
  Admission admission_;
  protocol::CacheGeometry geometry_;
  std::optional<EpochState> epoch_;
  std::unique_ptr<BlockPool> blocks_;
  std::set<uint32_t> free_slots_;
  std::map<protocol::SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;                            // in order of service
  std::vector<std::optional<protocol::StepPlan>> in_flight_;  // by lane
  protocol::StepId last_step_;
  uint64_t last_arrival_ = 0;
  SchedulerCounters counters_;
};

}  // namespace skein::scheduler
