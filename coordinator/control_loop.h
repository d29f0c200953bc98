// The one actor that owns scheduling state: takes requests from the front door, plans the steps of
// every worker group, sends, commits and delivers. Messages are only recorded; OnIdle does the
// work, so batching falls out. Runs on the control thread. Never blocks, never waits for a client.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "coordinator/front_door_queue.h"
#include "coordinator/metrics.h"
#include "coordinator/worker_table.h"
#include "protocol/actor/actor.h"
#include "scheduler/cluster_scheduler.h"

namespace skein::coordinator {

struct ControlOptions {
  scheduler::SchedulerLimits limits;
  uint32_t num_groups = 1;
  protocol::Term term;
  uint64_t queued_tokens_max = 0;  // 0: four seconds of measured prefill
  absl::Duration lease = absl::Seconds(1);
  absl::Duration shutdown_timeout = absl::Seconds(30);
};

class ControlLoop final : public protocol::Actor {
 public:
  // `door` and `metrics` outlive the loop. `drained` is set by the HTTP edge when its last
  // connection closed after StartDraining; the loop then stops.
  ControlLoop(const ControlOptions& options, FrontDoorQueue& door, CoordinatorMetrics& metrics,
              const std::atomic<bool>& drained);

  void OnStart(protocol::Context& context) override;
  void OnMessage(protocol::Context& context, protocol::Envelope envelope) override;
  void OnTimer(protocol::Context& context, protocol::TimerId timer) override;
  void OnPeerDown(protocol::Context& context, const protocol::PeerDown& down) override;
  void OnIdle(protocol::Context& context) override;

  const scheduler::ClusterScheduler& scheduler() const { return scheduler_; }

 private:
  struct Request {
    std::shared_ptr<TokenSink> sink;
    uint64_t prompt_tokens = 0;
    uint64_t generated = 0;
    bool waiting = true;  // counted by the front door
    std::optional<std::chrono::steady_clock::time_point> deadline;
    absl::Time arrived, last_token;
  };
  struct Step {
    absl::Time planned;
    uint32_t tokens = 0;  // rows without drafts
    uint32_t sequences = 0;
    uint32_t prefills = 0;
  };
  // What the loop keeps of a worker group beside its schedule.
  struct Group {
    std::vector<Step> steps;  // by lane
    scheduler::SchedulerCounters counted;
  };

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
  bool SendForm(protocol::Context& context, const WorkerGroup& group);
  void EndEpoch(protocol::GroupId group, scheduler::AbortCause abort, std::string_view cause,
                std::string_view reason);
  void LoseWorker(protocol::Context& context, protocol::ActorId worker, std::string_view reason);
  void UpdateReadiness(absl::Time now);
  uint32_t NumReady() const;
  uint32_t DraftsOf(protocol::ActorId worker) const;

  // Requests.
  void DrainFrontDoor(protocol::Context& context);
  void Submit(protocol::Context& context, SubmitRequest request);
  void Cancel(protocol::RequestId id, const absl::Status& reason);
  void CancelExpired();
  void Finish(protocol::RequestId id, TokenDelta delta);
  std::vector<protocol::RequestId> SortedRequests() const;
  void StopWaiting(Request& request);

  // Steps.
  void CommitResults(protocol::Context& context);
  void Commit(protocol::Context& context, const protocol::StepResult& result);
  void FailStep(protocol::Context& context, const protocol::StepResult& result);
  void Deliver(protocol::GroupId group, const scheduler::SequenceDelta& delta, absl::Time now);
  void DeliverEnd(protocol::RequestId id, const scheduler::SequenceDelta& delta);
  void PlanLanes(protocol::Context& context);
  bool PlanGroup(protocol::Context& context, protocol::GroupId group);
  void NotePlan(const protocol::StepPlan& plan, absl::Time now);
  void MeasureStep(const Step& step, const protocol::StepResult& result, absl::Time now);

  void CheckDrain(protocol::Context& context);
  void UpdateGauges();
  void UpdateGroupGauges(protocol::GroupId group);

  const ControlOptions options_;
  FrontDoorQueue& door_;
  CoordinatorMetrics& metrics_;
  const std::atomic<bool>& drained_;
  scheduler::ClusterScheduler scheduler_;
  WorkerTable workers_;
  std::vector<Group> groups_;
  absl::flat_hash_map<protocol::RequestId, Request> requests_;
  absl::flat_hash_map<protocol::RequestId, absl::Status> cancelled_in_flight_;
  std::vector<protocol::StepResult> results_;
  scheduler::StepCommit commit_;            // of the step being committed; kept for its memory
  bool serving_ = false;                    // all groups were ready, or waited for long enough
  std::optional<absl::Time> first_formed_;  // when the first group was
  double prefill_tokens_per_second_ = 0;
  std::optional<absl::Time> drain_deadline_;
};

}  // namespace skein::coordinator
