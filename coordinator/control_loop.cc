#include "coordinator/control_loop.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::coordinator {

using protocol::Context;
using protocol::Envelope;
using protocol::RequestId;
using protocol::SequenceId;
using protocol::StepResult;

namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// After the deadline of a drain, time for the last error events to leave.
constexpr absl::Duration kDrainGrace = absl::Seconds(2);
constexpr double kQueueSeconds = 4;
constexpr uint64_t kQueueStepsMin = 16;

// A request is one sequence: the ids are the same number.
SequenceId SequenceOf(RequestId id) { return SequenceId(id.value()); }
RequestId RequestOf(SequenceId id) { return RequestId(id.value()); }

FinishReason ReasonOf(scheduler::EndReason reason) {
  return reason == scheduler::EndReason::kStopToken ? FinishReason::kStop : FinishReason::kLength;
}

TokenDelta ErrorDelta(const absl::Status& error) {
  TokenDelta delta;
  delta.finish = absl::IsCancelled(error) ? FinishReason::kCancelled : FinishReason::kError;
  delta.error = error;
  return delta;
}

}  // namespace

ControlLoop::ControlLoop(const ControlOptions& options, FrontDoorQueue& door,
                         CoordinatorMetrics& metrics, const std::atomic<bool>& drained)
    : options_(options),
      door_(door),
      metrics_(metrics),
      drained_(drained),
      scheduler_(options.limits),
      workers_(options.term),
      steps_(options.limits.lanes) {}

void ControlLoop::OnStart(Context& context) { context.StartTimer(kTick); }

// ---- messages

void ControlLoop::Handle(Context& context, const Envelope& envelope,
                         protocol::RegisterWorker message) {
  const protocol::ActorId worker = envelope.from;
  SKEIN_LOG(kInfo, "worker registered")
      .Field("worker", worker.node)
      .Field("incarnation", message.incarnation)
      .Field("backend", message.backend)
      .Field("build", message.build)
      .Field("blocks", message.geometry.num_blocks);
  // A member that registers again has left its epoch.
  if (workers_.member() && workers_.member()->worker == worker) {
    EndEpoch(scheduler::AbortCause::kWorkerLost, "registered_again", "the worker registered again");
  }
  if (const absl::Status status = workers_.Register(worker, message); !status.ok()) {
    SKEIN_LOG(kError, "worker refused").Field("reason", protocol::StatusText(status));
    const absl::Status sent =
        context.Send(worker, protocol::Epoch(0), protocol::Shutdown{std::string(status.message())});
    if (!sent.ok()) SKEIN_LOG(kWarn, "refusal not sent").Field("worker", worker.node);
  }
  if (!workers_.member()) FormGroup(context);
}

void ControlLoop::FormGroup(Context& context) {
  while (const std::optional<GroupMember> member = workers_.Form()) {
    const protocol::FormGroup form{member->group, member->rank, 1, member->epoch};
    if (context.Send(member->worker, member->epoch, form).ok()) return;
    workers_.Remove(member->worker);
  }
}

void ControlLoop::Handle(Context& context, const Envelope& envelope,
                         const protocol::GroupFormed& message) {
  if (!workers_.Confirm(envelope.from, message)) return;
  const GroupMember& member = *workers_.member();
  const std::vector<scheduler::SequenceDelta> gone = scheduler_.StartEpoch(
      member.group, member.rank, member.epoch, workers_.registration(member.worker).geometry);
  for (const scheduler::SequenceDelta& delta : gone) Deliver(delta, context.Now());
  door_.SetReady(true);
  SKEIN_LOG(kInfo, "group ready").Field("group", member.group).Field("epoch", member.epoch);
}

void ControlLoop::Handle(Context& context, const Envelope& envelope, const protocol::Heartbeat&) {
  // Spares are answered too: it is how they know that a coordinator is there.
  if (!workers_.Knows(envelope.from)) return;
  const bool member = workers_.member() && workers_.member()->worker == envelope.from;
  const protocol::Epoch epoch = member ? workers_.member()->epoch : protocol::Epoch(0);
  const auto lease = static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.lease));
  const absl::Status sent = context.Send(envelope.from, epoch, protocol::LeaseGrant{lease});
  if (!sent.ok()) SKEIN_LOG(kWarn, "lease not sent").Field("worker", envelope.from.node);
}

void ControlLoop::Handle(Context& context, const Envelope& envelope,
                         const protocol::AbortEpoch& message) {
  if (!workers_.member() || workers_.member()->worker != envelope.from ||
      workers_.member()->epoch != message.epoch) {
    return;
  }
  EndEpoch(scheduler::AbortCause::kWorkerLost, "step_failed", message.reason);
  FormGroup(context);
}

void ControlLoop::Handle(const Envelope& envelope, StepResult message) {
  const bool current = workers_.member() && workers_.member()->worker == envelope.from &&
                       workers_.member()->epoch == message.epoch;
  if (!current) {
    metrics_.stale_results.Increment();
    return;
  }
  results_.push_back(std::move(message));
}

void ControlLoop::OnMessage(Context& context, Envelope envelope) {
  std::visit(
      [&](auto& message) {
        using M = std::decay_t<decltype(message)>;
        if constexpr (std::is_same_v<M, StepResult>) {
          Handle(envelope, std::move(message));
        } else if constexpr (std::is_same_v<M, protocol::RegisterWorker> ||
                             std::is_same_v<M, protocol::GroupFormed> ||
                             std::is_same_v<M, protocol::Heartbeat> ||
                             std::is_same_v<M, protocol::AbortEpoch>) {
          Handle(context, envelope, message);
        } else {
          static_assert(
              std::is_same_v<M, protocol::StepPlan> || std::is_same_v<M, protocol::FormGroup> ||
              std::is_same_v<M, protocol::LeaseGrant> || std::is_same_v<M, protocol::Drain> ||
              std::is_same_v<M, protocol::Drained> || std::is_same_v<M, protocol::Shutdown>);
          SKEIN_LOG(kWarn, "unexpected message dropped").Field("worker", envelope.from.node);
        }
      },
      envelope.message);
}

void ControlLoop::EndEpoch(scheduler::AbortCause abort, std::string_view cause,
                           std::string_view reason) {
  door_.SetReady(false);
  results_.clear();
  workers_.Dissolve();
  if (!scheduler_.has_epoch()) return;
  SKEIN_LOG(kWarn, "epoch ended").Field("cause", cause).Field("reason", reason);
  metrics_.epoch_changes.At({cause}).Increment();
  for (const scheduler::SequenceDelta& gone : scheduler_.AbortInflight(abort)) {
    const RequestId id = RequestOf(gone.sequence);
    const auto why = cancelled_in_flight_.find(id);
    Finish(id, ErrorDelta(!gone.error.ok()                    ? gone.error
                          : why == cancelled_in_flight_.end() ? absl::CancelledError("cancelled")
                                                              : why->second));
  }
}

void ControlLoop::OnPeerDown(Context& context, const protocol::PeerDown& down) {
  SKEIN_LOG(kWarn, "worker down")
      .Field("worker", down.peer.node)
      .Field("reason", protocol::StatusText(down.reason));
  const bool member = workers_.member() && workers_.member()->worker == down.peer;
  if (member)
    EndEpoch(scheduler::AbortCause::kWorkerLost, "peer_down", protocol::StatusText(down.reason));
  workers_.Remove(down.peer);
  if (!workers_.member()) FormGroup(context);
}

// ---- requests

void ControlLoop::StopWaiting(Request& request) {
  if (!request.waiting) return;
  request.waiting = false;
  door_.Leave(request.prompt_tokens);
}

void ControlLoop::Finish(RequestId id, TokenDelta delta) {
  cancelled_in_flight_.erase(id);
  auto found = requests_.find(id);
  if (found == requests_.end()) return;
  StopWaiting(found->second);
  metrics_.request_generation_tokens.Observe(static_cast<double>(found->second.generated));
  const std::shared_ptr<TokenSink> sink = std::move(found->second.sink);
  requests_.erase(found);
  sink->Deliver(std::move(delta));
}

void ControlLoop::Submit(Context& context, SubmitRequest request) {
  Request entry;
  entry.sink = std::move(request.sink);
  entry.prompt_tokens = request.prompt_ids.size();
  entry.deadline = request.deadline;
  entry.last_token = context.Now();
  // Time spent in front of the control loop counts too.
  entry.arrived =
      entry.last_token - absl::FromChrono(std::chrono::steady_clock::now() - request.arrival);
  scheduler::NewSequence sequence;
  sequence.id = SequenceOf(request.id);
  sequence.prompt = std::move(request.prompt_ids);
  sequence.sampling = request.sampling;
  sequence.stop = std::move(request.stop);
  sequence.priority = request.priority;
  const uint64_t prompt_tokens = entry.prompt_tokens;
  if (!requests_.emplace(request.id, std::move(entry)).second) {
    SKEIN_LOG(kError, "request id used twice").Field("request", request.id);
    door_.Leave(prompt_tokens);
    return;
  }
  if (absl::Status status = scheduler_.AddSequence(std::move(sequence)); !status.ok()) {
    Finish(request.id, ErrorDelta(status));
    return;
  }
  metrics_.prompt_tokens.Increment(static_cast<double>(prompt_tokens));
  metrics_.request_prompt_tokens.Observe(static_cast<double>(prompt_tokens));
}

void ControlLoop::Cancel(RequestId id, const absl::Status& reason) {
  if (!requests_.contains(id)) return;
  if (scheduler_.CancelSequence(SequenceOf(id))) {
    Finish(id, ErrorDelta(reason));
  } else {
    cancelled_in_flight_.emplace(id, reason);
  }
}

void ControlLoop::CancelExpired() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<RequestId> expired;
  for (const auto& [id, request] : requests_) {
    if (request.deadline && *request.deadline < now) expired.push_back(id);
  }
  for (RequestId id : expired) {
    Cancel(id, absl::DeadlineExceededError("the request's deadline passed"));
  }
}

void ControlLoop::DrainFrontDoor(Context& context) {
  for (FrontDoorEvent& event : door_.TakeAll()) {
    if (auto* submit = std::get_if<SubmitRequest>(&event)) {
      Submit(context, std::move(*submit));
    } else {
      Cancel(std::get<CancelRequest>(event).id, absl::CancelledError("the client is gone"));
    }
  }
}

// ---- steps

void ControlLoop::MeasureStep(const Step& step, const StepResult& result, absl::Time now) {
  const char* phase = step.prefills == 0                ? "decode"
                      : step.prefills == step.sequences ? "prefill"
                                                        : "mixed";
  metrics_.step_tokens.At({phase}).Observe(step.tokens);
  metrics_.step_batch_size.At({phase}).Observe(step.sequences);
  metrics_.step_duration.At({phase}).Observe(absl::ToDoubleSeconds(now - step.planned));
  // Capacity is learned from steps that are mostly prompt.
  if (step.prefills == 0 || step.tokens < 64 || result.device_time_us == 0) return;
  const double rate = step.tokens * 1e6 / static_cast<double>(result.device_time_us);
  prefill_tokens_per_second_ =
      prefill_tokens_per_second_ == 0 ? rate : 0.8 * prefill_tokens_per_second_ + 0.2 * rate;
  if (options_.queued_tokens_max != 0) return;
  const uint64_t floor = kQueueStepsMin * options_.limits.max_num_batched_tokens;
  door_.SetQueuedTokensMax(
      std::max(floor, static_cast<uint64_t>(kQueueSeconds * prefill_tokens_per_second_)));
}

void ControlLoop::Deliver(const scheduler::SequenceDelta& delta, absl::Time now) {
  const RequestId id = RequestOf(delta.sequence);
  auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = found->second;
  if (delta.cancelled || !delta.error.ok()) {
    const auto why = cancelled_in_flight_.find(id);
    TokenDelta last =
        ErrorDelta(!delta.error.ok()                   ? delta.error
                   : why == cancelled_in_flight_.end() ? absl::CancelledError("cancelled")
                                                       : why->second);
    last.num_steps = delta.num_steps;
    Finish(id, std::move(last));
    return;
  }
  if (delta.tokens.empty()) return;
  TokenDelta out;
  out.num_steps = delta.num_steps;
  for (const scheduler::CommittedToken& token : delta.tokens) {
    out.tokens.push_back({token.token, token.logprob, token.top});
  }
  const double waited = absl::ToDoubleSeconds(now - request.last_token);
  const auto count = static_cast<double>(delta.tokens.size());
  if (request.generated == 0) {
    metrics_.time_to_first_token.Observe(absl::ToDoubleSeconds(now - request.arrived));
  } else {
    for (size_t i = 0; i < delta.tokens.size(); ++i) {
      metrics_.inter_token_latency.Observe(waited / count);
    }
  }
  request.last_token = now;
  request.generated += delta.tokens.size();
  metrics_.generation_tokens.Increment(count);
  if (!delta.ended) {
    request.sink->Deliver(std::move(out));
    return;
  }
  out.finish = ReasonOf(*delta.ended);
  if (out.finish == FinishReason::kStop) out.stop_token_id = delta.tokens.back().token;
  metrics_.e2e_latency.Observe(absl::ToDoubleSeconds(now - request.arrived));
  Finish(id, std::move(out));
}

void ControlLoop::Commit(Context& context, const StepResult& result) {
  const absl::Time now = context.Now();
  if (result.status != protocol::StepStatus::kOk) {
    SKEIN_LOG(kError, "step failed").Field("step", result.step).Field("reason", result.message);
    const GroupMember member = *workers_.member();
    EndEpoch(scheduler::AbortCause::kStepFailed, "step_failed", result.message);
    const absl::Status sent = context.Send(
        member.worker, member.epoch,
        protocol::AbortEpoch{member.group, member.epoch, "a step failed: " + result.message});
    if (!sent.ok()) workers_.Remove(member.worker);
    FormGroup(context);
    return;
  }
  const absl::StatusOr<scheduler::StepCommit> commit = scheduler_.CommitStep(result);
  if (!commit.ok()) {
    // The worker answers something else than it was asked: no state of it can be trusted.
    SKEIN_LOG(kError, "result refused").Field("reason", protocol::StatusText(commit.status()));
    EndEpoch(scheduler::AbortCause::kStepFailed, "step_failed",
             protocol::StatusText(commit.status()));
    FormGroup(context);
    return;
  }
  MeasureStep(steps_[commit->lane], result, now);
  for (const scheduler::SequenceDelta& delta : commit->deltas) Deliver(delta, now);
}

void ControlLoop::CommitResults(Context& context) {
  const std::vector<StepResult> results = std::exchange(results_, {});
  for (const StepResult& result : results) {
    // An earlier one may have ended the epoch.
    if (workers_.member() && workers_.member()->epoch == result.epoch) Commit(context, result);
  }
}

void ControlLoop::NotePlan(const protocol::StepPlan& plan, absl::Time now) {
  Step step;
  step.planned = now;
  step.sequences = static_cast<uint32_t>(plan.sequences.size());
  for (const protocol::SequenceStep& sequence : plan.sequences) {
    step.tokens += static_cast<uint32_t>(sequence.tokens.size());
    if (sequence.tokens.size() > 1) ++step.prefills;
    auto found = requests_.find(RequestOf(sequence.sequence));
    if (found != requests_.end() && found->second.waiting) {
      metrics_.queue_time.Observe(absl::ToDoubleSeconds(now - found->second.arrived));
      StopWaiting(found->second);
    }
  }
  steps_[plan.lane] = step;
}

void ControlLoop::PlanLanes(Context& context) {
  for (uint32_t lane = 0; lane < options_.limits.lanes; ++lane) {
    std::optional<protocol::StepPlan> plan = scheduler_.PlanStep(lane);
    if (!plan) continue;
    NotePlan(*plan, context.Now());
    const protocol::ActorId worker = workers_.member()->worker;
    const protocol::Epoch epoch = plan->epoch;
    if (const absl::Status sent = context.Send(worker, epoch, *std::move(plan)); !sent.ok()) {
      EndEpoch(scheduler::AbortCause::kWorkerLost, "peer_down", protocol::StatusText(sent));
      workers_.Remove(worker);
      FormGroup(context);
      return;
    }
  }
}

void ControlLoop::CheckDrain(Context& context) {
  if (!door_.draining()) return;
  const absl::Time now = context.Now();
  if (!drain_deadline_) {
    drain_deadline_ = now + options_.shutdown_timeout;
    SKEIN_LOG(kInfo, "draining").Field("requests", static_cast<uint64_t>(requests_.size()));
  }
  if (drained_.load() && requests_.empty()) {
    context.Stop(absl::OkStatus());
    return;
  }
  if (now < *drain_deadline_) return;
  std::vector<RequestId> left;
  for (const auto& [id, request] : requests_) left.push_back(id);
  for (RequestId id : left) {
    scheduler_.CancelSequence(SequenceOf(id));
    Finish(id, ErrorDelta(absl::UnavailableError("the server stopped before the answer ended")));
  }
  if (now > *drain_deadline_ + kDrainGrace) context.Stop(absl::OkStatus());
}

void ControlLoop::UpdateGauges() {
  metrics_.requests_running.Set(scheduler_.num_running());
  metrics_.requests_waiting.Set(door_.waiting_requests());
  metrics_.workers.At({"ready"}).Set(scheduler_.has_epoch() ? 1 : 0);
  metrics_.workers.At({"spare"}).Set(static_cast<double>(workers_.num_workers()) -
                                     (workers_.member() ? 1 : 0));
  const scheduler::SchedulerCounters& counters = scheduler_.counters();
  metrics_.preemptions.Increment(static_cast<double>(counters.preemptions - counted_.preemptions));
  metrics_.preempted_tokens.Increment(
      static_cast<double>(counters.preempted_tokens - counted_.preempted_tokens));
  metrics_.replays.Increment(static_cast<double>(counters.replays - counted_.replays));
  counted_ = counters;
  const scheduler::BlockPool* blocks = scheduler_.block_pool();
  if (blocks == nullptr) return;
  const double used = blocks->num_blocks() - blocks->num_free();
  metrics_.kv_blocks.At({"free"}).Set(blocks->num_free());
  metrics_.kv_blocks.At({"used"}).Set(used);
  metrics_.kv_cache_usage.Set(blocks->num_blocks() == 0 ? 0 : used / blocks->num_blocks());
}

void ControlLoop::OnIdle(Context& context) {
  DrainFrontDoor(context);
  CommitResults(context);
  PlanLanes(context);
  UpdateGauges();
  CheckDrain(context);
}

void ControlLoop::OnTimer(Context& context, protocol::TimerId) {
  CancelExpired();
  CheckDrain(context);
  context.StartTimer(kTick);
}

}  // namespace skein::coordinator
