// A ClusterScheduler with a FakeWorker behind each rank of each group: every call is followed by
// CheckInvariants, every delta is kept per sequence. Owns all. Thread: the test's. Must never:
// change state of the scheduler past its interface.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/audit.h"
#include "scheduler/cluster_scheduler.h"
#include "scheduler/invariants.h"
#include "tests/scheduler/fake_worker.h"

namespace skein::tests {

struct HarnessSetup {
  uint32_t max_num_seqs = 4;
  uint32_t budget = 64;
  uint32_t lanes = 1;
  uint32_t block_tokens = 4;
  uint32_t num_blocks = 64;
  uint32_t max_model_len = 64;
  uint32_t queued_requests_max = 100;
  uint64_t queued_tokens_max = 10'000;
  uint32_t groups = 1;
  uint32_t ranks = 1;              // of each group
  uint32_t max_draft_tokens = 0;   // of the workers' draft heads
  bool edits_logits = true;        // the workers know edits
  bool scores_prompts = true;      // and logprobs of prompts
  bool processes_logprobs = true;  // and those of what is sampled
  bool prefix_caching = false;
  bool moves_blocks = false;
  uint32_t prefill_groups = 0;
  uint32_t num_checkpoints = 0;
  uint32_t recompute_tokens = 0;
  scheduler::BlockHash hash = &scheduler::HashTokens;
  scheduler::SpeculationSettings speculation = {};
};

inline scheduler::SchedulerLimits LimitsOf(const HarnessSetup& setup) {
  scheduler::SchedulerLimits limits;
  limits.max_num_seqs = setup.max_num_seqs;
  limits.max_num_batched_tokens = setup.budget;
  limits.lanes = setup.lanes;
  limits.speculation = setup.speculation;
  limits.prefix_caching = setup.prefix_caching;
  limits.moves_blocks = setup.moves_blocks;
  limits.prefill_groups = setup.prefill_groups;
  limits.cache_hash = setup.hash;
  limits.admission = {setup.queued_requests_max, setup.queued_tokens_max};
  return limits;
}

inline protocol::CacheGeometry GeometryOf(const HarnessSetup& setup) {
  return {setup.block_tokens,   setup.num_blocks,        setup.max_num_seqs,
          setup.budget,         setup.max_model_len,     setup.max_draft_tokens,
          setup.edits_logits,   setup.num_checkpoints,   setup.recompute_tokens,
          setup.scores_prompts, setup.processes_logprobs};
}

// What a sequence got so far.
struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> scores;  // of its prompt, from the second token on
  std::optional<scheduler::EndReason> ended;
  absl::Status error;
  bool cancelled = false;
  uint64_t num_steps = 0;
  uint64_t num_draft_tokens = 0;
  uint64_t num_accepted_tokens = 0;
  uint64_t num_drafted = 0;  // of the tokens
  uint32_t cached_tokens = 0;
  bool over() const { return ended.has_value() || !error.ok() || cancelled; }
};

class GroupHarness {
 public:
  explicit GroupHarness(const HarnessSetup& setup)
      : setup_(setup),
        scheduler_(LimitsOf(setup), setup.groups, setup.ranks),
        workers_(setup.groups * setup.ranks),
        pending_(workers_.size(), std::vector<std::optional<protocol::StepResult>>(setup.lanes)) {}

  void Start(uint64_t epoch = 1, uint32_t group = 0) {
    for (const uint32_t engine : RanksOf(group)) workers_[engine].Restart(GeometryOf(setup_));
    const std::vector<protocol::CacheGeometry> geometry(setup_.ranks, GeometryOf(setup_));
    Take(scheduler_.StartEpoch(protocol::GroupId(group), protocol::Epoch(epoch), geometry));
    Check("StartEpoch");
  }
  void Abort(uint32_t group = 0, scheduler::AbortCause cause = scheduler::AbortCause::kWorkerLeft,
             uint32_t node = 0, uint32_t failed = scheduler::kAnyLane) {
    Take(scheduler_.AbortInflight(protocol::GroupId(group), cause, node, failed));
    for (const uint32_t engine : RanksOf(group)) {
      for (auto& result : pending_[engine]) result.reset();
    }
    Check("AbortInflight");
  }
  // The worker of the group dies in its running step.
  void Die(uint32_t group = 0) { Abort(group, scheduler::AbortCause::kWorkerLost, group + 1); }
  // It is known how.
  void Settle(uint32_t group, bool own) {
    Take(scheduler_.SettleDeath(group + 1, own));
    Check("SettleDeath");
  }
  void Resize(uint32_t num_blocks, uint32_t max_model_len) {
    setup_.num_blocks = num_blocks;
    setup_.max_model_len = max_model_len;
  }

  absl::Status Add(uint64_t id, std::vector<int32_t> prompt, protocol::StopConditions stop,
                   int32_t priority = 0, protocol::SpeculationParams speculation = {},
                   std::string root = {},
                   std::shared_ptr<const scheduler::TokenConstraint> constraint = nullptr) {
    scheduler::NewSequence sequence;
    sequence.cache_root = std::move(root);
    sequence.constraint = std::move(constraint);
    sequence.speculation = speculation;
    sequence.id = protocol::SequenceId(id);
    sequence.prompt = std::move(prompt);
    sequence.stop = std::move(stop);
    sequence.priority = priority;
    absl::Status status = scheduler_.AddSequence(std::move(sequence));
    Check("AddSequence");
    return status;
  }
  // A sequence of `prompt` tokens that differ by id, `generated` tokens long.
  absl::Status AddSimple(uint64_t id, size_t prompt, int32_t generated, int32_t priority = 0) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < prompt; ++i) tokens.push_back(static_cast<int32_t>(id * 100 + i));
    return Add(id, std::move(tokens), StopAt(generated), priority);
  }
  bool Cancel(uint64_t id) {
    const bool gone = scheduler_.CancelSequence(protocol::SequenceId(id));
    Check("CancelSequence");
    return gone;
  }

  // Begins the transfers that are due; they are under way until EndMove.
  const std::vector<scheduler::MoveOrder>& PlanMoves(
      scheduler::MoveAnswer may_move = scheduler::MoveAnswer::kYes) {
    const scheduler::MoveInputs inputs{[may_move](uint32_t, uint32_t) { return may_move; },
                                       [this] { return protocol::TransferId(++transfers_); }};
    for (scheduler::MoveOrder& order : scheduler_.PlanMoves(inputs)) {
      parcels_.push_back(workers_[order.from].Export(order.lent, order.lent_checkpoint));
      orders_.push_back(std::move(order));
    }
    Check("PlanMoves");
    return orders_;
  }
  // The oldest transfer ends; the lender first.
  void EndMove(bool arrived = true) {
    const scheduler::MoveOrder order = orders_.front();
    orders_.erase(orders_.begin());
    const FakeWorker::Parcel parcel = std::move(parcels_.front());
    parcels_.erase(parcels_.begin());
    // A worker whose epoch ended meanwhile has dropped it.
    if (arrived && engine(order.to).arrivals().contains(order.transfer)) {
      workers_[order.to].Import(parcel, order.wanted, order.wanted_checkpoint);
    }
    scheduler_.EndLoan(order.from, order.transfer);
    Check("EndLoan");
    scheduler_.EndArrival(order.to, order.transfer, arrived);
    Check("EndArrival");
  }

  // Plans a lane and lets the workers of all ranks run it; the results wait for Deliver.
  std::vector<protocol::StepPlan> PlanRanks(uint32_t lane = 0, uint32_t group = 0) {
    std::vector<protocol::StepPlan> plans = scheduler_.PlanStep(protocol::GroupId(group), lane);
    Check("PlanStep");
    for (const protocol::StepPlan& plan : plans) {
      const uint32_t engine = scheduler_.EngineOf(plan.group, plan.rank);
      pending_[engine][lane] = workers_[engine].Run(plan);
      EXPECT_EQ(workers_[engine].defect(), "");
      EXPECT_EQ(plan.step, plans.front().step) << "ranks of a group take every step together";
      EXPECT_EQ(plan.plan_hash, plans.front().plan_hash);
    }
    return plans;
  }
  // The plan of the first rank.
  std::optional<protocol::StepPlan> Plan(uint32_t lane = 0, uint32_t group = 0) {
    std::vector<protocol::StepPlan> plans = PlanRanks(lane, group);
    if (plans.empty()) return std::nullopt;
    return std::move(plans.front());
  }
  bool waiting(uint32_t lane, uint32_t engine = 0) const {
    return pending_[engine][lane].has_value();
  }
  const protocol::StepResult& result(uint32_t lane = 0, uint32_t engine = 0) const {
    return *pending_[engine][lane];
  }
  absl::Status Deliver(uint32_t lane = 0, uint32_t engine = 0) {
    const protocol::StepResult result = *std::exchange(pending_[engine][lane], std::nullopt);
    return Commit(result, engine / setup_.ranks);
  }
  absl::Status Commit(const protocol::StepResult& result, uint32_t group = 0) {
    scheduler::StepCommit commit;
    const absl::Status status = scheduler_.CommitStep(protocol::GroupId(group), result, commit);
    Check("CommitStep");
    if (!status.ok()) return status;
    EXPECT_EQ(commit.lane, result.lane);
    for (const scheduler::SequenceDelta& delta : commit.deltas) {
      for (const protocol::TokenScore& score : commit.ScoresOf(delta)) {
        outcomes_[delta.sequence.value()].scores.push_back(score.logprob);
      }
      for (const scheduler::CommittedToken& token : commit.TokensOf(delta)) {
        outcomes_[delta.sequence.value()].tokens.push_back(token.token);
        outcomes_[delta.sequence.value()].num_drafted += token.drafted ? 1 : 0;
      }
    }
    Take(commit.deltas);
    return status;
  }
  // Runs every lane of every group until nothing can be planned; false if that takes more than
  // `steps` steps.
  bool Finish(int steps = 1000) {
    for (int i = 0; i < steps; ++i) {
      bool any = false;
      for (uint32_t engine = 0; engine < pending_.size(); ++engine) {
        for (uint32_t lane = 0; lane < setup_.lanes; ++lane) {
          if (!waiting(lane, engine)) continue;
          EXPECT_TRUE(Deliver(lane, engine).ok());
          any = true;
        }
      }
      for (uint32_t group = 0; group < setup_.groups; ++group) {
        for (uint32_t lane = 0; lane < setup_.lanes; ++lane) {
          any = Plan(lane, group).has_value() || any;
        }
      }
      if (!any) return scheduler_.empty();
    }
    return false;
  }

  scheduler::ClusterScheduler& scheduler() { return scheduler_; }
  const scheduler::GroupScheduler& engine(uint32_t engine = 0) const {
    return scheduler_.engine(engine);
  }
  const Outcome& outcome(uint64_t id) { return outcomes_[id]; }
  uint32_t max_model_len() const { return setup_.max_model_len; }
  std::vector<int32_t> Alone(uint64_t id, size_t prompt, int32_t generated) const {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < prompt; ++i) tokens.push_back(static_cast<int32_t>(id * 100 + i));
    return DecodeAlone(std::move(tokens), StopAt(generated), setup_.max_model_len);
  }

 private:
  std::vector<uint32_t> RanksOf(uint32_t group) const {
    std::vector<uint32_t> engines;
    for (uint32_t r = 0; r < setup_.ranks; ++r) engines.push_back(group * setup_.ranks + r);
    return engines;
  }
  void Check(const char* after) {
    const absl::Status status = scheduler::CheckInvariants(scheduler_);
    EXPECT_TRUE(status.ok()) << "after " << after << ": " << status;
    for (uint32_t i = 0; i < workers_.size(); ++i) {
      EXPECT_TRUE(scheduler::SumsAgree(engine(i))) << "after " << after;
      EXPECT_EQ(scheduler::AuditBlocks(engine(i)), scheduler::AuditFindings{}) << "after " << after;
    }
  }
  void Take(const std::vector<scheduler::SequenceDelta>& deltas) {
    for (const scheduler::SequenceDelta& delta : deltas) {
      Outcome& outcome = outcomes_[delta.sequence.value()];
      EXPECT_FALSE(outcome.over()) << "sequence " << delta.sequence << " goes on after its end";
      outcome.ended = delta.ended;
      outcome.error = delta.error;
      outcome.cancelled = delta.cancelled;
      outcome.num_steps = delta.num_steps;
      outcome.cached_tokens = delta.cached_tokens;
      outcome.num_draft_tokens = delta.num_draft_tokens;
      outcome.num_accepted_tokens = delta.num_accepted_tokens;
    }
  }

  HarnessSetup setup_;
  scheduler::ClusterScheduler scheduler_;
  std::vector<FakeWorker> workers_;                                        // by engine
  std::vector<std::vector<std::optional<protocol::StepResult>>> pending_;  // by engine and lane
  std::map<uint64_t, Outcome> outcomes_;
  std::vector<scheduler::MoveOrder> orders_;  // of transfers under way
  std::vector<FakeWorker::Parcel> parcels_;   // of them
  uint64_t transfers_ = 0;
};

}  // namespace skein::tests
