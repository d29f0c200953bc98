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
constexpr size_t kAhead = 8;  // requests
constexpr double kQueueSeconds = 4;
constexpr uint64_t kQueueStepsMin = 16;
// After the first group is ready, how long the others may take before it serves alone.
constexpr absl::Duration kPartialStart = absl::Seconds(10);

// A request is one sequence: the ids are the same number.
SequenceId SequenceOf(RequestId id) { return SequenceId(id.value()); }
RequestId RequestOf(SequenceId id) { return RequestId(id.value()); }

FinishReason ReasonOf(scheduler::EndReason reason) {
  return reason == scheduler::EndReason::kStopToken ? FinishReason::kStop : FinishReason::kLength;
}

// Work of the request so far, for its usage.
void AddWork(const scheduler::SequenceDelta& from, TokenDelta& to) {
  to.num_steps = from.num_steps;
  to.num_draft_tokens = from.num_draft_tokens;
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
      scheduler_(options.limits, options.num_groups),
      workers_(options.term, options.num_groups),
      groups_(options.num_groups) {
  for (Group& group : groups_) group.steps.resize(options.limits.lanes);
}

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
  if (const WorkerGroup* group = workers_.Find(worker)) {
    EndEpoch(group->group, scheduler::AbortCause::kWorkerLost, "registered_again",
             "the worker registered again");
  }
  if (const absl::Status status = workers_.Register(worker, message); !status.ok()) {
    SKEIN_LOG(kError, "worker refused").Field("reason", protocol::StatusText(status));
    const absl::Status sent =
        context.Send(worker, protocol::Epoch(0), protocol::Shutdown{std::string(status.message())});
    if (!sent.ok()) SKEIN_LOG(kWarn, "refusal not sent").Field("worker", worker.node);
  }
  FormGroups(context);
}

bool ControlLoop::SendForm(Context& context, const WorkerGroup& group) {
  const auto num_ranks = static_cast<uint32_t>(group.ranks.size());
  for (const GroupRank& rank : group.ranks) {
    const protocol::FormGroup form{group.group, rank.rank, num_ranks, group.epoch};
    if (context.Send(rank.worker, group.epoch, form).ok()) continue;
    workers_.Remove(rank.worker);
    return false;
  }
  return true;
}

// A send that fails costs the table a worker, so this ends.
void ControlLoop::FormGroups(Context& context) {
  while (const WorkerGroup* group = workers_.Form()) {
    if (!SendForm(context, *group)) SKEIN_LOG(kWarn, "group not formed, its worker is gone");
  }
}

void ControlLoop::Handle(Context& context, const Envelope& envelope,
                         const protocol::GroupFormed& message) {
  const WorkerGroup* group = workers_.Confirm(envelope.from, message);
  if (group == nullptr) return;
  const std::vector<scheduler::SequenceDelta> gone =
      scheduler_.StartEpoch(group->group, group->ranks.front().rank, group->epoch,
                            workers_.registration(group->ranks.front().worker).geometry);
  for (const scheduler::SequenceDelta& delta : gone) DeliverEnd(RequestOf(delta.sequence), delta);
  if (!first_formed_) first_formed_ = context.Now();
  SKEIN_LOG(kInfo, "group ready")
      .Field("group", group->group)
      .Field("epoch", group->epoch)
      .Field("worker", group->ranks.front().worker.node)
      .Field("drafts", DraftsOf(group->ranks.front().worker))
      .Field("ready", NumReady())
      .Field("of", scheduler_.num_groups());
  UpdateReadiness(context.Now());
}

// Drafts of a sequence in a step at most, by the worker's draft head and the configuration.
uint32_t ControlLoop::DraftsOf(protocol::ActorId worker) const {
  return std::min(workers_.registration(worker).geometry.max_draft_tokens,
                  options_.limits.speculation.max_depth);
}

uint32_t ControlLoop::NumReady() const {
  uint32_t ready = 0;
  for (uint32_t i = 0; i < scheduler_.num_groups(); ++i) {
    ready += scheduler_.has_epoch(protocol::GroupId(i)) ? 1 : 0;
  }
  return ready;
}

// Serving starts with all groups, so that the first requests find the whole server. A worker that
// does not come in time must not keep the others idle; from then on one group is enough.
void ControlLoop::UpdateReadiness(absl::Time now) {
  const uint32_t ready = NumReady();
  if (!serving_ && ready > 0) {
    serving_ = ready == scheduler_.num_groups();
    if (!serving_ && now - *first_formed_ >= kPartialStart) {
      SKEIN_LOG(kWarn, "serving without all groups")
          .Field("ready", ready)
          .Field("of", scheduler_.num_groups());
      serving_ = true;
    }
  }
  door_.SetReady(serving_ && ready > 0);
}

void ControlLoop::Handle(Context& context, const Envelope& envelope, const protocol::Heartbeat&) {
  // Spares are answered too: it is how they know that a coordinator is there.
  if (!workers_.Knows(envelope.from)) return;
  const WorkerGroup* group = workers_.Find(envelope.from);
  const protocol::Epoch epoch = group != nullptr ? group->epoch : protocol::Epoch(0);
  const auto lease = static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.lease));
  const absl::Status sent = context.Send(envelope.from, epoch, protocol::LeaseGrant{lease});
  if (!sent.ok()) SKEIN_LOG(kWarn, "lease not sent").Field("worker", envelope.from.node);
}

void ControlLoop::Handle(Context& context, const Envelope& envelope,
                         const protocol::AbortEpoch& message) {
  const WorkerGroup* group = workers_.Find(envelope.from);
  if (group == nullptr || group->epoch != message.epoch) return;
  EndEpoch(group->group, scheduler::AbortCause::kWorkerLost, "step_failed", message.reason);
  FormGroups(context);
}

void ControlLoop::Handle(const Envelope& envelope, StepResult message) {
  const WorkerGroup* group = workers_.Find(envelope.from);
  if (group == nullptr || group->epoch != message.epoch || group->group != message.group) {
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

void ControlLoop::EndEpoch(protocol::GroupId group, scheduler::AbortCause abort,
                           std::string_view cause, std::string_view reason) {
  workers_.Dissolve(group);
  if (!scheduler_.has_epoch(group)) return;
  SKEIN_LOG(kWarn, "epoch ended")
      .Field("group", group)
      .Field("cause", cause)
      .Field("reason", reason);
  metrics_.epoch_changes.At({cause}).Increment();
  for (const scheduler::SequenceDelta& gone : scheduler_.AbortInflight(group, abort)) {
    DeliverEnd(RequestOf(gone.sequence), gone);
  }
  door_.SetReady(serving_ && NumReady() > 0);
}

// The worker cannot be reached: its epoch is over, and it has to register again.
void ControlLoop::LoseWorker(Context& context, protocol::ActorId worker, std::string_view reason) {
  if (const WorkerGroup* group = workers_.Find(worker)) {
    EndEpoch(group->group, scheduler::AbortCause::kWorkerLost, "peer_down", reason);
  }
  workers_.Remove(worker);
  FormGroups(context);
}

void ControlLoop::OnPeerDown(Context& context, const protocol::PeerDown& down) {
  SKEIN_LOG(kWarn, "worker down")
      .Field("worker", down.peer.node)
      .Field("reason", protocol::StatusText(down.reason));
  LoseWorker(context, down.peer, protocol::StatusText(down.reason));
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
  sequence.speculation = request.speculation;
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
}

void ControlLoop::Cancel(RequestId id, const absl::Status& reason) {
  if (!requests_.contains(id)) return;
  if (scheduler_.CancelSequence(SequenceOf(id))) {
    Finish(id, ErrorDelta(reason));
  } else {
    cancelled_in_flight_.emplace(id, reason);
  }
}

// In the order of their ids: the map has none.
std::vector<RequestId> ControlLoop::SortedRequests() const {
  std::vector<RequestId> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, request] : requests_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

void ControlLoop::CancelExpired() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<RequestId> expired;
  for (const auto& [id, request] : requests_) {
    if (request.deadline && *request.deadline < now) expired.push_back(id);
  }
  std::sort(expired.begin(), expired.end());
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
  uint32_t rows = step.tokens;
  for (const protocol::VerificationSummary& summary : result.sequences) {
    rows += static_cast<uint32_t>(std::max<size_t>(summary.rows.size(), 1) - 1);
  }
  metrics_.step_tokens.At({phase}).Observe(rows);
  metrics_.step_batch_size.At({phase}).Observe(step.sequences);
  metrics_.step_duration.At({phase}).Observe(absl::ToDoubleSeconds(now - step.planned));
  // Capacity is learned from steps that are mostly prompt: large ones, or full ones of a small
  // budget.
  const uint32_t rows_min = std::min<uint32_t>(64, options_.limits.max_num_batched_tokens);
  if (step.prefills == 0 || rows < rows_min || result.device_time_us == 0) return;
  const double rate = rows * 1e6 / static_cast<double>(result.device_time_us);
  prefill_tokens_per_second_ =
      prefill_tokens_per_second_ == 0 ? rate : 0.8 * prefill_tokens_per_second_ + 0.2 * rate;
  if (options_.queued_tokens_max != 0) return;
  const uint64_t floor = kQueueStepsMin * options_.limits.max_num_batched_tokens;
  door_.SetQueuedTokensMax(std::max(
      floor,
      static_cast<uint64_t>(kQueueSeconds * prefill_tokens_per_second_ * scheduler_.num_groups())));
}

// The last delta of a request that no token ended.
void ControlLoop::DeliverEnd(RequestId id, const scheduler::SequenceDelta& delta) {
  const auto why = cancelled_in_flight_.find(id);
  TokenDelta last =
      ErrorDelta(!delta.error.ok()                   ? delta.error
                 : why == cancelled_in_flight_.end() ? absl::CancelledError("cancelled")
                                                     : why->second);
  AddWork(delta, last);
  Finish(id, std::move(last));
}

void ControlLoop::Deliver(protocol::GroupId group, const scheduler::SequenceDelta& delta,
                          absl::Time now) {
  const RequestId id = RequestOf(delta.sequence);
  if (delta.cancelled || !delta.error.ok()) return DeliverEnd(id, delta);
  if (delta.num_tokens == 0) return;
  auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = found->second;
  GroupMetrics& engine = metrics_.engines[group.value()];
  TokenDelta out;
  AddWork(delta, out);
  out.tokens.reserve(delta.num_tokens);
  for (scheduler::CommittedToken& token : commit_.TokensOf(delta)) {
    out.tokens.push_back({token.token, token.logprob, std::move(token.top), token.drafted});
  }
  const double waited = absl::ToDoubleSeconds(now - request.last_token);
  const auto count = static_cast<double>(delta.num_tokens);
  if (request.generated == 0) {
    engine.time_to_first_token.Observe(absl::ToDoubleSeconds(now - request.arrived));
  } else {
    for (uint32_t i = 0; i < delta.num_tokens; ++i) {
      engine.inter_token_latency.Observe(waited / count);
    }
  }
  request.last_token = now;
  request.generated += delta.num_tokens;
  if (!delta.ended) {
    request.sink->Deliver(std::move(out));
    return;
  }
  out.finish = ReasonOf(*delta.ended);
  if (out.finish == FinishReason::kStop) out.stop_token_id = out.tokens.back().id;
  engine.e2e_latency.Observe(absl::ToDoubleSeconds(now - request.arrived));
  engine.request_generation_tokens.Observe(static_cast<double>(request.generated));
  Finish(id, std::move(out));
}

// A step that failed, or a result that answers something else than was asked: no state of the group
// can be trusted.
void ControlLoop::FailStep(Context& context, const StepResult& result) {
  const WorkerGroup group = *workers_.group(result.group);
  EndEpoch(result.group, scheduler::AbortCause::kStepFailed, "step_failed", result.message);
  for (const GroupRank& rank : group.ranks) {
    const absl::Status sent = context.Send(
        rank.worker, group.epoch,
        protocol::AbortEpoch{group.group, group.epoch, "a step failed: " + result.message});
    if (!sent.ok()) workers_.Remove(rank.worker);
  }
  FormGroups(context);
}

void ControlLoop::Commit(Context& context, const StepResult& result) {
  const absl::Time now = context.Now();
  if (result.status != protocol::StepStatus::kOk) {
    SKEIN_LOG(kError, "step failed").Field("step", result.step).Field("reason", result.message);
    return FailStep(context, result);
  }
  const absl::Status committed = scheduler_.CommitStep(result.group, result, commit_);
  if (!committed.ok()) {
    SKEIN_LOG(kError, "result refused").Field("reason", protocol::StatusText(committed));
    EndEpoch(result.group, scheduler::AbortCause::kStepFailed, "step_failed",
             protocol::StatusText(committed));
    FormGroups(context);
    return;
  }
  MeasureStep(groups_[result.group.value()].steps[result.lane], result, now);
  for (size_t i = 0; i < commit_.deltas.size(); ++i) {
    // With thousands of requests each is far away in memory: ask for it ahead of its turn.
    if (i + kAhead < commit_.deltas.size()) {
      requests_.prefetch(RequestOf(commit_.deltas[i + kAhead].sequence));
    }
    Deliver(result.group, commit_.deltas[i], now);
  }
  metrics_.engines[result.group.value()].generation_tokens.Increment(
      static_cast<double>(commit_.tokens.size()));
}

void ControlLoop::CommitResults(Context& context) {
  const std::vector<StepResult> results = std::exchange(results_, {});
  for (const StepResult& result : results) {
    // An earlier one may have ended the epoch.
    const std::optional<WorkerGroup>& group = workers_.group(result.group);
    if (group && group->epoch == result.epoch) Commit(context, result);
  }
}

void ControlLoop::NotePlan(const protocol::StepPlan& plan, absl::Time now) {
  Step step;
  step.planned = now;
  step.sequences = static_cast<uint32_t>(plan.sequences.size());
  GroupMetrics& engine = metrics_.engines[plan.group.value()];
  for (const protocol::SequenceStep& sequence : plan.sequences) {
    step.tokens += static_cast<uint32_t>(sequence.tokens.size());
    if (sequence.tokens.size() > 1) ++step.prefills;
    // Only a first step begins with a slot that is new to it.
    if (!sequence.fresh_slot) continue;
    auto found = requests_.find(RequestOf(sequence.sequence));
    if (found == requests_.end() || !found->second.waiting) continue;
    const auto prompt_tokens = static_cast<double>(found->second.prompt_tokens);
    engine.queue_time.Observe(absl::ToDoubleSeconds(now - found->second.arrived));
    engine.prompt_tokens.Increment(prompt_tokens);
    engine.request_prompt_tokens.Observe(prompt_tokens);
    StopWaiting(found->second);
  }
  groups_[plan.group.value()].steps[plan.lane] = step;
}

// False when the worker could not be reached: its sequences are free for the other groups.
bool ControlLoop::PlanGroup(Context& context, protocol::GroupId group) {
  for (uint32_t lane = 0; lane < options_.limits.lanes; ++lane) {
    std::optional<protocol::StepPlan> plan = scheduler_.PlanStep(group, lane);
    if (!plan) continue;
    NotePlan(*plan, context.Now());
    const protocol::ActorId worker = workers_.group(group)->ranks.front().worker;
    const protocol::Epoch epoch = plan->epoch;
    if (const absl::Status sent = context.Send(worker, epoch, *std::move(plan)); !sent.ok()) {
      LoseWorker(context, worker, protocol::StatusText(sent));
      return false;
    }
  }
  return true;
}

// Each loss of a worker gives the groups that were planned before it another chance.
void ControlLoop::PlanLanes(Context& context) {
  for (uint32_t round = 0; round <= scheduler_.num_groups(); ++round) {
    bool all = true;
    for (uint32_t i = 0; i < scheduler_.num_groups(); ++i) {
      all = PlanGroup(context, protocol::GroupId(i)) && all;
    }
    if (all) return;
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
  for (RequestId id : SortedRequests()) {
    scheduler_.CancelSequence(SequenceOf(id));
    Finish(id, ErrorDelta(absl::UnavailableError("the server stopped before the answer ended")));
  }
  if (now > *drain_deadline_ + kDrainGrace) context.Stop(absl::OkStatus());
}

void ControlLoop::UpdateGroupGauges(protocol::GroupId group) {
  const scheduler::GroupScheduler& schedule = scheduler_.group(group);
  GroupMetrics& engine = metrics_.engines[group.value()];
  engine.requests_running.Set(schedule.num_running());
  scheduler::SchedulerCounters& counted = groups_[group.value()].counted;
  const scheduler::SchedulerCounters& counters = schedule.counters();
  engine.preemptions.Increment(static_cast<double>(counters.preemptions - counted.preemptions));
  engine.preempted_tokens.Increment(
      static_cast<double>(counters.preempted_tokens - counted.preempted_tokens));
  metrics_.replays.Increment(static_cast<double>(counters.replays - counted.replays));
  engine.speculation.Add(counters, counted);
  counted = counters;
  const scheduler::BlockPool* blocks = schedule.block_pool();
  if (blocks == nullptr) return;
  const double used = blocks->num_blocks() - blocks->num_free();
  engine.kv_blocks_free.Set(blocks->num_free());
  engine.kv_blocks_used.Set(used);
  engine.kv_cache_usage.Set(blocks->num_blocks() == 0 ? 0 : used / blocks->num_blocks());
}

void ControlLoop::UpdateGauges() {
  const double ready = NumReady();
  metrics_.requests_waiting.Set(door_.waiting_requests());
  metrics_.groups.At({"ready"}).Set(ready);
  metrics_.groups.At({"starting"}).Set(scheduler_.num_groups() - ready);
  metrics_.workers.At({"ready"}).Set(ready);
  metrics_.workers.At({"spare"}).Set(static_cast<double>(workers_.num_spares()));
  for (uint32_t i = 0; i < scheduler_.num_groups(); ++i) UpdateGroupGauges(protocol::GroupId(i));
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
  UpdateReadiness(context.Now());
  CheckDrain(context);
  context.StartTimer(kTick);
}

}  // namespace skein::coordinator
