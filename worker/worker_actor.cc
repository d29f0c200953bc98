#include "worker/worker_actor.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::worker {

using protocol::Context;
using protocol::StepResult;

WorkerActor::WorkerActor(WorkerActorOptions options, std::unique_ptr<StepRunner> runner)
    : options_(std::move(options)), runner_(std::move(runner)) {}

void WorkerActor::OnStart(Context& context) {
  last_contact_ = last_timer_ = context.Now();
  Register(context);
  context.StartTimer(options_.beat);
}

void WorkerActor::Register(Context& context) {
  registered_ = context.Send(options_.coordinator, protocol::Epoch(0), options_.registration).ok();
}

void WorkerActor::LeaveEpoch(Context& context, std::string_view reason) {
  if (member_) {
    SKEIN_LOG(kWarn, "epoch left")
        .Field("group", member_->group)
        .Field("epoch", member_->epoch)
        .Field("reason", reason);
    member_.reset();
    // Plans submitted before run to their end; their results are stale and dropped.
    if (const absl::Status status = runner_->Reset(); !status.ok()) context.Stop(status);
  }
}

void WorkerActor::Handle(Context& context, protocol::FormGroup message) {
  LeaveEpoch(context, "a new group is formed");
  const protocol::RegisterWorker& own = options_.registration;
  if (message.rank != own.rank || message.num_ranks != own.num_ranks) {
    context.Stop(absl::FailedPreconditionError(
        absl::StrCat("the coordinator makes this worker rank ", message.rank.value(), " of ",
                     message.num_ranks, ", it loaded the part of rank ", own.rank.value(), " of ",
                     own.num_ranks, "; give both the same scheduler.expert_parallel_size")));
    return;
  }
  absl::Status status = runner_->Reset();
  const bool alone = message.num_ranks == 1;
  if (status.ok() && !alone) status = runner_->Form(message);
  if (!status.ok()) {
    context.Stop(status);
    return;
  }
  member_ = Membership{message.group, message.rank, message.epoch, !alone};
  lease_end_ = absl::InfiniteFuture();
  if (alone) Formed(context);
}

void WorkerActor::Formed(Context& context) {
  SKEIN_LOG(kInfo, "group formed")
      .Field("group", member_->group)
      .Field("rank", member_->rank)
      .Field("epoch", member_->epoch);
  const protocol::GroupFormed formed{member_->group, member_->rank, member_->epoch};
  if (!context.Send(options_.coordinator, member_->epoch, formed).ok()) {
    LeaveEpoch(context, "the coordinator cannot be reached");
    return;
  }
  if (options_.on_group_formed) options_.on_group_formed();
}

void WorkerActor::Handle(Context& context, const FormOutcome& outcome) {
  if (!member_ || !member_->forming || outcome.epoch != member_->epoch) return;
  member_->forming = false;
  if (outcome.status.ok()) return Formed(context);
  const protocol::AbortEpoch abort{member_->group, member_->epoch,
                                   std::string(outcome.status.message())};
  LeaveEpoch(context, abort.reason);
  // If it does not get there, the coordinator misses the answer of this rank.
  context.Send(options_.coordinator, abort.epoch, abort).IgnoreError();
  if (outcome.ends_worker) context.Stop(outcome.status);
}

void WorkerActor::Handle(Context& context, protocol::StepPlan plan) {
  if (!member_ || plan.epoch != member_->epoch) {
    ++num_stale_;
    return;
  }
  const protocol::StepId step = plan.step;
  if (const absl::Status status = runner_->Submit(std::move(plan)); !status.ok()) {
    context.Stop(absl::InternalError(
        absl::StrCat("step ", step.value(), " cannot be queued: ", status.message())));
    return;
  }
  ++plans_running_;
}

void WorkerActor::Handle(Context& context, protocol::MoveBlocks move) {
  if (!member_ || move.epoch != member_->epoch) {
    ++num_stale_;
    return;
  }
  protocol::BlocksMoved refusal;
  refusal.transfer = move.transfer;
  refusal.group = move.group;
  refusal.epoch = move.epoch;
  refusal.side = move.side;
  refusal.status = protocol::MoveStatus::kRefused;
  const absl::Status begun = runner_->Move(std::move(move));
  if (begun.ok()) return;
  refusal.message = std::string(begun.message());
  SendMoved(context, std::move(refusal));
}

void WorkerActor::SendMoved(Context& context, protocol::BlocksMoved moved) {
  if (!member_ || moved.epoch != member_->epoch) {
    ++num_stale_;
    return;
  }
  const absl::Status sent = context.Send(options_.coordinator, member_->epoch, std::move(moved));
  if (sent.ok()) return;
  LeaveEpoch(context, absl::StrCat("the end of a block transfer: ", sent.message()));
  registered_ = false;
}

void WorkerActor::Handle(Context& context, const protocol::AbortEpoch& message) {
  if (member_ && message.epoch == member_->epoch) LeaveEpoch(context, message.reason);
}

void WorkerActor::Handle(Context& context, const protocol::LeaseGrant& grant) {
  // The worker stops before the coordinator declares it dead.
  lease_end_ = context.Now() + absl::Milliseconds(grant.duration_ms) * 0.8;
}

void WorkerActor::Handle(Context& context, const protocol::Shutdown& shutdown) {
  if (shutdown.refused) {
    context.Stop(absl::FailedPreconditionError(
        absl::StrCat("the coordinator refused this worker: ", shutdown.reason)));
    return;
  }
  SKEIN_LOG(kInfo, "shutdown").Field("reason", shutdown.reason);
  context.Stop(absl::OkStatus());
}

void WorkerActor::Unexpected(const char* what) {
  SKEIN_LOG(kWarn, "message for coordinators dropped").Field("message", std::string_view(what));
}

void WorkerActor::OnMessage(Context& context, protocol::Envelope envelope) {
  last_contact_ = context.Now();
  std::visit(
      [&](auto& message) {
        using M = std::decay_t<decltype(message)>;
        if constexpr (std::is_same_v<M, protocol::StepResult> ||
                      std::is_same_v<M, protocol::RegisterWorker> ||
                      std::is_same_v<M, protocol::GroupFormed> ||
                      std::is_same_v<M, protocol::Heartbeat> ||
                      std::is_same_v<M, protocol::BlocksMoved>) {
          Unexpected("step_result, register_worker, group_formed, heartbeat or blocks_moved");
        } else {
          Handle(context, std::move(message));
        }
      },
      envelope.message);
}

bool WorkerActor::StopAsked(Context& context) const {
  if (options_.stop == nullptr || !options_.stop->load()) return false;
  context.Stop(absl::OkStatus());
  return true;
}

void WorkerActor::OnTimer(Context& context, protocol::TimerId) {
  if (StopAsked(context)) return;
  const absl::Time now = context.Now();
  // When this thread itself was late, a grant may wait unread: its own delay is no silence.
  const absl::Duration late = now - last_timer_ - 2 * options_.beat;
  if (late > absl::ZeroDuration()) lease_end_ += late;
  last_timer_ = now;
  if (member_ && now > lease_end_) {
    LeaveEpoch(context, "the lease ended");
    registered_ = false;
  }
  if (now - last_contact_ > options_.coordinator_wait) {
    context.Stop(absl::UnavailableError(
        absl::StrCat("no coordinator for ", absl::FormatDuration(options_.coordinator_wait))));
    return;
  }
  if (!registered_) {
    Register(context);
  } else {
    const auto running_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(runner_->RunningFor()));
    // A spare beats too: the answer shows that the coordinator is there.
    const absl::Status sent =
        context.Send(options_.coordinator, member_ ? member_->epoch : protocol::Epoch(0),
                     protocol::Heartbeat{last_step_, plans_running_, running_ms});
    if (absl::IsUnavailable(sent)) registered_ = false;
  }
  context.StartTimer(options_.beat);
}

void WorkerActor::OnPeerDown(Context& context, const protocol::PeerDown& down) {
  LeaveEpoch(context, protocol::StatusText(down.reason));
  registered_ = false;
}

void WorkerActor::SendResult(Context& context, StepResult result) {
  if (plans_running_ > 0) --plans_running_;
  if (!member_ || result.epoch != member_->epoch) {
    ++num_stale_;
    return;
  }
  last_step_ = result.step;
  const protocol::StepId step = result.step;
  const absl::Status sent = context.Send(options_.coordinator, member_->epoch, std::move(result));
  if (!sent.ok()) {
    LeaveEpoch(context, absl::StrCat("result of step ", step.value(), ": ", sent.message()));
    registered_ = false;
    return;
  }
}

void WorkerActor::OnIdle(Context& context) {
  if (StopAsked(context)) return;
  if (const std::optional<FormOutcome> outcome = runner_->TakeFormed()) Handle(context, *outcome);
  for (StepResult& result : runner_->TakeResults()) SendResult(context, std::move(result));
  for (protocol::BlocksMoved& moved : runner_->TakeMoved()) SendMoved(context, std::move(moved));
}

}  // namespace skein::worker
