// The worker's side of the protocol: registers, joins an epoch, hands plans to the device thread,
// sends results, leaves the epoch when the coordinator or its lease is gone, and registers again.
// Runs on the actor thread; never computes and never blocks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "protocol/actor/actor.h"
#include "worker/step_runner.h"

namespace skein::worker {

struct WorkerActorOptions {
  protocol::RegisterWorker registration;  // sent as it is
  protocol::ActorId coordinator = protocol::kCoordinatorActor;
  absl::Duration beat = absl::Milliseconds(100);
  // No coordinator for this long ends the process with Unavailable.
  absl::Duration coordinator_wait = absl::Seconds(300);
  std::function<void()> on_group_formed;    // called once per formed group
  const std::atomic<bool>* stop = nullptr;  // set by a signal; looked at on each wake-up
};

class WorkerActor final : public protocol::Actor {
 public:
  WorkerActor(WorkerActorOptions options, std::unique_ptr<StepRunner> runner);

  void OnStart(protocol::Context& context) override;
  void OnMessage(protocol::Context& context, protocol::Envelope envelope) override;
  void OnTimer(protocol::Context& context, protocol::TimerId timer) override;
  void OnPeerDown(protocol::Context& context, const protocol::PeerDown& down) override;
  void OnIdle(protocol::Context& context) override;

  // Plans and results dropped because their epoch was over.
  uint64_t num_stale() const { return num_stale_; }

 private:
  struct Membership {
    protocol::GroupId group;
    protocol::RankId rank;
    protocol::Epoch epoch;
    bool forming = false;  // the ranks have not met
  };

  void Handle(protocol::Context& context, protocol::FormGroup message);
  void Handle(protocol::Context& context, protocol::StepPlan plan);
  void Handle(protocol::Context& context, protocol::MoveBlocks move);
  void Handle(protocol::Context& context, const protocol::AbortEpoch& message);
  void Handle(protocol::Context& context, const protocol::LeaseGrant& grant);
  void Handle(protocol::Context& context, const protocol::Shutdown& shutdown);
  void Unexpected(const char* what);
  bool StopAsked(protocol::Context& context) const;
  void Register(protocol::Context& context);
  void LeaveEpoch(protocol::Context& context, std::string_view reason);
  // The ranks of the epoch are there: says so.
  void Formed(protocol::Context& context);
  void Handle(protocol::Context& context, const FormOutcome& outcome);
  void SendResult(protocol::Context& context, protocol::StepResult result);
  void SendMoved(protocol::Context& context, protocol::BlocksMoved moved);

  const WorkerActorOptions options_;
  const std::unique_ptr<StepRunner> runner_;
  std::optional<Membership> member_;
  bool registered_ = false;
  absl::Time last_contact_;  // anything heard of the coordinator
  absl::Time lease_end_;     // computing is allowed before it
  absl::Time last_timer_;    // when OnTimer ran last
  uint32_t plans_running_ = 0;
  protocol::StepId last_step_;
  uint64_t num_stale_ = 0;
};

}  // namespace skein::worker
