// The one actor that owns scheduling state: takes requests from the front door, plans the steps of
// every worker group, sends, commits and delivers. Messages are only recorded; OnIdle does the
// work, so batching falls out. Runs on the control thread. Never blocks, never waits for a client.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/block_moves.h"
#include "coordinator/cache_roots.h"
#include "coordinator/expert_balance.h"
#include "coordinator/front_door_queue.h"
#include "coordinator/key_digest.h"
#include "coordinator/metrics.h"
#include "coordinator/operations.h"
#include "coordinator/operator_queue.h"
#include "coordinator/request_table.h"
#include "coordinator/rollout.h"
#include "coordinator/step_watch.h"
#include "coordinator/worker_table.h"
#include "protocol/actor/actor.h"
#include "scheduler/audit.h"
#include "scheduler/cluster_scheduler.h"

namespace skein::coordinator {

struct ControlOptions {
  scheduler::SchedulerLimits limits;
  uint32_t num_groups = 1;
  uint32_t num_ranks = 1;  // of each group
  protocol::Term term;
  uint64_t queued_tokens_max = 0;  // 0: four seconds of measured prefill
  absl::Duration lease = absl::Seconds(1);
  absl::Duration shutdown_timeout = absl::Seconds(30);
  absl::Duration block_timeout = absl::Seconds(5);
  RolloutLimits rollout;
  absl::Duration rebalance_interval = absl::ZeroDuration();  // of experts; 0: never
  // What no client knows, so that none can choose tokens by where their blocks are looked for.
  KeyDigest cache_secret{};
  std::string tokenizer;                  // id of the vocabulary; empty: any worker's
  std::optional<int32_t> wedge_on_token;  // planted fault: a prompt with it stops the loop for 3 s
};

class ControlLoop final : public protocol::Actor {
 public:
  // `door`, `metrics` and `operators` outlive the loop; `operators` may be null. `drained` is set
  // by the HTTP edge when its last connection closed after StartDraining; the loop then stops.
  ControlLoop(const ControlOptions& options, FrontDoorQueue& door, CoordinatorMetrics& metrics,
              const std::atomic<bool>& drained, OperatorQueue* operators = nullptr);

  void OnStart(protocol::Context& context) override;
  void OnMessage(protocol::Context& context, protocol::Envelope envelope) override;
  void OnTimer(protocol::Context& context, protocol::TimerId timer) override;
  void OnPeerDown(protocol::Context& context, const protocol::PeerDown& down) override;
  void OnIdle(protocol::Context& context) override;

  const scheduler::ClusterScheduler& scheduler() const { return scheduler_; }

 private:
  // Messages.
  void Handle(protocol::Context& context, const protocol::Envelope& envelope,
              protocol::RegisterWorker message);
  void Handle(protocol::Context& context, const protocol::Envelope& envelope,
              const protocol::GroupFormed& message);
  void Handle(protocol::Context& context, const protocol::Envelope& envelope,
              const protocol::Heartbeat& message);
  void Handle(protocol::Context& context, const protocol::Envelope& envelope,
              const protocol::AbortEpoch& message);
  void Handle(const protocol::Envelope& envelope, protocol::StepResult message);
  void FormGroups(protocol::Context& context);
  std::vector<protocol::RankAddress> PlacesOf(const WorkerGroup& group) const;
  bool SendForm(protocol::Context& context, const WorkerGroup& group);
  void TellRanks(protocol::Context& context, const WorkerGroup& group,
                 std::optional<protocol::ActorId> but, std::string_view reason);
  // Why an epoch ended.
  struct EpochEnd {
    scheduler::AbortCause abort = scheduler::AbortCause::kWorkerLeft;
    std::string_view cause;  // label of skein_epoch_changes_total
    std::string_view reason;
    std::optional<protocol::ActorId> worker = std::nullopt;  // by whom; it is not told
    uint32_t failed_lane = scheduler::kAnyLane;
  };
  void EndEpoch(protocol::Context& context, protocol::GroupId group, const EpochEnd& end);
  bool TakesPlacement(const WorkerGroup& group) const;
  bool InFlight(protocol::GroupId group) const;
  bool AllServe(absl::Time now) const;
  void ProposeRebalance(absl::Time now);
  void BeginRebalance(protocol::Context& context);
  void PlanMoves(protocol::Context& context);
  void CheckGroups(protocol::Context& context);
  void LoseWorker(protocol::Context& context, protocol::ActorId worker, std::string_view reason);
  void SettleDeath(protocol::ActorId worker, bool own);
  void SettleForgotten(absl::Time now);
  void UpdateReadiness(absl::Time now);
  uint32_t NumReady() const;
  uint32_t DraftsOf(protocol::ActorId worker) const;

  // Requests.
  void DrainFrontDoor(protocol::Context& context);
  void Submit(protocol::Context& context, SubmitRequest request);
  void Cancel(protocol::RequestId id, const absl::Status& reason);
  void DropExpired();
  void DeliverEnds(const std::vector<scheduler::SequenceDelta>& gone);

  // Steps.
  void CommitResults(protocol::Context& context);
  void Commit(protocol::Context& context, const protocol::StepResult& result);
  void FailStep(protocol::Context& context, const protocol::StepResult& result,
                std::string_view reason);
  void LearnCapacity();
  void PlanLanes(protocol::Context& context);
  bool PlanGroup(protocol::Context& context, protocol::GroupId group);
  bool SendPlan(protocol::Context& context, protocol::StepPlan plan, absl::Time now);

  void CheckDrain(protocol::Context& context);
  void UpdateGauges(absl::Time now);
  // Adds what an engine counted since the last call to its metrics.
  void CountEngine(uint32_t number);
  void UpdateEngineGauges(uint32_t number);
  void NoteWorkerTimes();
  void AuditEngine(uint32_t engine);

  const ControlOptions options_;
  CacheRoots cache_roots_{options_.cache_secret};
  FrontDoorQueue& door_;
  CoordinatorMetrics& metrics_;
  const std::atomic<bool>& drained_;
  scheduler::ClusterScheduler scheduler_;
  WorkerTable workers_;
  RequestTable requests_;
  StepWatch steps_;
  BlockMoves moves_;
  ClusterOperations operations_;
  ExpertBalance balance_;
  std::vector<scheduler::SchedulerCounters> counted_;  // by engine
  std::vector<scheduler::AuditFindings> audited_;      // by engine: what the last audit found
  std::vector<protocol::StepResult> results_;
  scheduler::StepCommit commit_;            // of the step being committed; kept for its memory
  bool serving_ = false;                    // all groups were ready, or waited for long enough
  std::optional<absl::Time> first_formed_;  // when the first group was
  std::string cluster_;  // begins the names of communicators, which nobody else's has
  absl::Time last_timer_;
  absl::Time last_audit_;
  // Workers that were lost and of whose end nothing is known yet, by when.
  std::map<protocol::ActorId, absl::Time> deaths_;
  std::optional<absl::Time> drain_deadline_;
};

}  // namespace skein::coordinator
