#include "coordinator/control_loop.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <poll.h>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::coordinator {

using protocol::Context;
using protocol::Envelope;
using protocol::RequestId;
using protocol::StepResult;

namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// Between two audits of every account; the sums are compared after each step.
constexpr absl::Duration kAuditPeriod = absl::Seconds(1);
// After the deadline of a drain, time for the last error events to leave.
constexpr absl::Duration kDrainGrace = absl::Seconds(2);
constexpr size_t kAhead = 8;  // requests
constexpr double kQueueSeconds = 4;
constexpr uint64_t kQueueStepsMin = 16;
// After the first group is ready, how long the others may take before it serves alone.
constexpr absl::Duration kPartialStart = absl::Seconds(10);

// A worker that was silent for this share of its lease is suspect.
constexpr double kSuspectShare = 0.3;
constexpr absl::Duration kWedge = absl::Seconds(3);

}  // namespace

ControlLoop::ControlLoop(const ControlOptions& options, FrontDoorQueue& door,
                         CoordinatorMetrics& metrics, const std::atomic<bool>& drained,
                         OperatorQueue* operators)
    : options_(options),
      door_(door),
      metrics_(metrics),
      drained_(drained),
      scheduler_(options.limits, options.num_groups, options.num_ranks),
      workers_(options.term, options.num_groups, options.num_ranks, options.tokenizer),
      requests_(door, metrics),
      steps_(options.limits, options.num_groups, metrics),
      moves_(scheduler_, workers_, metrics, options.block_timeout),
      operations_(options.rollout, kSuspectShare * options.lease, options.term, operators,
                  {scheduler_, workers_, requests_, door, steps_, balance_}),
      balance_(options.num_groups, options.num_ranks, options.rebalance_interval, metrics),
      counted_(scheduler_.num_engines()),
      audited_(scheduler_.num_engines()) {}

void ControlLoop::OnStart(Context& context) {
  last_timer_ = context.Now();
  if (options_.num_ranks > 1) {
    cluster_ = absl::StrCat("skein-", absl::Hex(context.RandomUint64(), absl::kZeroPad16));
  }
  door_.Pulse();
  context.StartTimer(kTick);
}

// ---- messages

void ControlLoop::Handle(Context& context, const Envelope& envelope,
                         protocol::RegisterWorker message) {
  const protocol::ActorId worker = envelope.from;
  SKEIN_LOG(kInfo, "worker registered")
      .Field("worker", worker.node)
      .Field("incarnation", message.incarnation)
      .Field("backend", message.backend)
      .Field("build", message.build)
      .Field("protocol", absl::StrCat(message.protocol_major, ".", message.protocol_minor))
      .Field("blocks", message.geometry.num_blocks);
  const bool reborn = message.incarnation != workers_.LastIncarnation(worker);
  // A member that registers again has left its epoch.
  if (const WorkerGroup* group = workers_.Find(worker)) {
    if (reborn) deaths_[worker] = context.Now();
    EndEpoch(context, group->group,
             {reborn ? scheduler::AbortCause::kWorkerLost : scheduler::AbortCause::kWorkerLeft,
              "registered_again", "the worker registered again", worker});
  }
  if (reborn && workers_.LastIncarnation(worker) != protocol::Incarnation(0)) {
    metrics_.CountRestart(worker.node.value(), message.predecessor_end);
  }
  SettleDeath(worker, reborn && message.predecessor_end == protocol::PredecessorEnd::kOwn);
  if (const absl::Status status = workers_.Register(worker, message); !status.ok()) {
    SKEIN_LOG(kError, "worker refused").Field("reason", protocol::StatusText(status));
    const absl::Status sent =
        context.Send(worker, protocol::Epoch(0),
                     protocol::Shutdown{std::string(protocol::StatusText(status)), true});
    if (!sent.ok()) SKEIN_LOG(kWarn, "refusal not sent").Field("worker", worker.node);
  }
  workers_.Heard(worker, context.Now());
  FormGroups(context);
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
  bool serves = false;
  for (uint32_t i = 0; serving_ && i < scheduler_.num_groups(); ++i) {
    serves = serves || operations_.Serves(protocol::GroupId(i), now);
  }
  // While a group is replaced requests wait for it instead of being sent away.
  door_.SetReady(serves, serving_ && (operations_.PlannedOutage() || balance_.under_way()));
}

void ControlLoop::Handle(Context& context, const Envelope& envelope,
                         const protocol::Heartbeat& message) {
  workers_.Beat(envelope.from, message, context.Now());
  // Spares are answered too: it is how they know that a coordinator is there.
  if (!workers_.Knows(envelope.from)) return;
  const WorkerGroup* group = workers_.Find(envelope.from);
  const protocol::Epoch epoch = group != nullptr ? group->epoch : protocol::Epoch(0);
  const auto lease = static_cast<uint32_t>(
      absl::ToInt64Milliseconds(std::max(options_.lease, context.LeaseFloor())));
  const absl::Status sent = context.Send(envelope.from, epoch, protocol::LeaseGrant{lease});
  if (!sent.ok()) SKEIN_LOG(kWarn, "lease not sent").Field("worker", envelope.from.node);
}

void ControlLoop::Handle(const Envelope& envelope, StepResult message) {
  const WorkerGroup* group = workers_.Find(envelope.from);
  if (group == nullptr || group->epoch != message.epoch || group->group != message.group ||
      group->RankOf(envelope.from)->rank != message.rank) {
    metrics_.stale_results.Increment();
    return;
  }
  results_.push_back(std::move(message));
}

void ControlLoop::OnMessage(Context& context, Envelope envelope) {
  workers_.Heard(envelope.from, context.Now());
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
        } else if constexpr (std::is_same_v<M, protocol::BlocksMoved>) {
          moves_.Handle(envelope.from, message, context.Now());
        } else {
          static_assert(
              std::is_same_v<M, protocol::StepPlan> || std::is_same_v<M, protocol::FormGroup> ||
              std::is_same_v<M, protocol::LeaseGrant> || std::is_same_v<M, protocol::Shutdown> ||
              std::is_same_v<M, protocol::MoveBlocks>);
          SKEIN_LOG(kWarn, "unexpected message dropped").Field("worker", envelope.from.node);
        }
      },
      envelope.message);
}

void ControlLoop::OnPeerDown(Context& context, const protocol::PeerDown& down) {
  SKEIN_LOG(kWarn, "worker down")
      .Field("worker", down.peer.node)
      .Field("reason", protocol::StatusText(down.reason));
  LoseWorker(context, down.peer, protocol::StatusText(down.reason));
}

// ---- requests

void ControlLoop::Submit(Context& context, SubmitRequest request) {
  if (options_.wedge_on_token && std::find(request.prompt_ids.begin(), request.prompt_ids.end(),
                                           *options_.wedge_on_token) != request.prompt_ids.end()) {
    SKEIN_LOG(kError, "planted fault: the control loop stands still").Field("for_s", 3);
    ::poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(kWedge)));
  }
  if (!requests_.Open(request, context.Now())) return;
  scheduler::NewSequence sequence;
  sequence.id = SequenceOf(request.id);
  sequence.prompt = std::move(request.prompt_ids);
  sequence.sampling = request.sampling;
  sequence.stop = std::move(request.stop);
  sequence.speculation = request.speculation;
  sequence.constraint = std::move(request.constraint);
  sequence.priority = request.priority;
  sequence.flow = std::move(request.flow);
  sequence.weight = request.weight;
  sequence.arrived_ms = absl::ToUnixMillis(context.Now());
  sequence.cache_root = cache_roots_.Of(request.tenant, request.cache_salt);
  sequence.salted = !request.cache_salt.empty();
  if (absl::Status status = scheduler_.AddSequence(std::move(sequence)); !status.ok()) {
    requests_.Fail(request.id, status);
  }
}

void ControlLoop::Cancel(RequestId id, const absl::Status& reason) {
  if (!requests_.Contains(id)) return;
  if (scheduler_.CancelSequence(SequenceOf(id))) {
    requests_.Fail(id, reason);
  } else {
    requests_.Doom(id, reason);
  }
}

// Nothing is computed for a request whose deadline has passed.
void ControlLoop::DropExpired() {
  for (RequestId id : requests_.TakeExpired()) {
    Cancel(id, absl::DeadlineExceededError("the request's deadline passed"));
  }
}

void ControlLoop::DeliverEnds(const std::vector<scheduler::SequenceDelta>& gone) {
  for (const scheduler::SequenceDelta& delta : gone) requests_.DeliverEnd(delta);
}

void ControlLoop::DrainFrontDoor(Context& context) {
  for (FrontDoorEvent& event : door_.TakeAll()) {
    if (auto* submit = std::get_if<SubmitRequest>(&event)) {
      Submit(context, std::move(*submit));
    } else {
      const auto& cancel = std::get<CancelRequest>(event);
      if (cancel.client_left) requests_.CountLeft(cancel.id);
      Cancel(cancel.id, absl::CancelledError("the client is gone"));
    }
  }
}

// ---- steps

// How many prompt tokens may wait follows the measured capacity.
void ControlLoop::LearnCapacity() {
  if (options_.queued_tokens_max != 0 || steps_.prefill_rate() == 0) return;
  const uint64_t floor = kQueueStepsMin * options_.limits.max_num_batched_tokens;
  door_.SetQueuedTokensMax(std::max(
      floor,
      static_cast<uint64_t>(kQueueSeconds * steps_.prefill_rate() * scheduler_.num_engines())));
}

// A step that failed, or a result that answers something else than was asked: no state of the group
// can be trusted.
void ControlLoop::FailStep(Context& context, const StepResult& result, std::string_view reason) {
  EndEpoch(context, result.group,
           {.abort = scheduler::AbortCause::kStepFailed,
            .cause = "step_failed",
            .reason = reason,
            .failed_lane = result.lane});
  UpdateReadiness(context.Now());
  FormGroups(context);
}

void ControlLoop::Commit(Context& context, const StepResult& result) {
  const absl::Time now = context.Now();
  if (result.status == protocol::StepStatus::kAborted) {
    // A symptom: the rank that is gone, or the step that failed on another one, ends the epoch, and
    // only that says whom to blame.
    SKEIN_LOG(kWarn, "step aborted").Field("step", result.step).Field("reason", result.message);
    return workers_.NoteAborted(result.group, now);
  }
  if (result.status != protocol::StepStatus::kOk) {
    SKEIN_LOG(kError, "step failed").Field("step", result.step).Field("reason", result.message);
    return FailStep(context, result, "a step failed: " + result.message);
  }
  const absl::Status committed = scheduler_.CommitStep(result.group, result, commit_);
  if (!committed.ok()) {
    SKEIN_LOG(kError, "result refused").Field("reason", protocol::StatusText(committed));
    return FailStep(context, result, protocol::StatusText(committed));
  }
  steps_.Committed(result, now);
  balance_.Count(result.group, result.expert_load);
  LearnCapacity();
  const uint32_t engine = scheduler_.EngineOf(result.group, result.rank);
  // What is wrong is counted once; then the next look at everything says whether there is more.
  if (audited_[engine] == scheduler::AuditFindings{} &&
      !scheduler::SumsAgree(scheduler_.engine(engine))) {
    AuditEngine(engine);
  }
  // Before the clients hear of it: whoever saw the last token may ask for the sums.
  CountEngine(engine);
  metrics_.engines[engine].generation_tokens.Increment(static_cast<double>(commit_.tokens.size()));
  for (size_t i = 0; i < commit_.deltas.size(); ++i) {
    // With thousands of requests each is far away in memory: ask for it ahead of its turn.
    if (i + kAhead < commit_.deltas.size()) {
      requests_.Prefetch(RequestOf(commit_.deltas[i + kAhead].sequence));
    }
    const scheduler::SequenceDelta& delta = commit_.deltas[i];
    requests_.Deliver(engine, delta, commit_.TokensOf(delta), commit_.ScoresOf(delta), now);
  }
  metrics_.engines[engine].Flush();
  metrics_.commit_seconds.Increment(absl::ToDoubleSeconds(context.Now() - now));
}

void ControlLoop::CommitResults(Context& context) {
  const std::vector<StepResult> results = std::exchange(results_, {});
  for (const StepResult& result : results) {
    // An earlier one may have ended the epoch.
    const std::optional<WorkerGroup>& group = workers_.group(result.group);
    if (group && group->epoch == result.epoch) Commit(context, result);
  }
}

// False when the worker could not be reached, and is lost.
bool ControlLoop::SendPlan(Context& context, protocol::StepPlan plan, absl::Time now) {
  const uint32_t engine = scheduler_.EngineOf(plan.group, plan.rank);
  for (const protocol::SequenceStep& step : plan.sequences) {
    // Only a first step begins with a slot that is new to it.
    if (!step.fresh_slot) continue;
    requests_.Begin(RequestOf(step.sequence), engine, step.first_position, now);
  }
  const protocol::ActorId worker = workers_.group(plan.group)->ranks[plan.rank.value()].worker;
  const protocol::Epoch epoch = plan.epoch;
  const absl::Status sent = context.Send(worker, epoch, std::move(plan));
  if (!sent.ok()) LoseWorker(context, worker, protocol::StatusText(sent));
  return sent.ok();
}

// False when a worker could not be reached: its sequences are free for the other groups.
bool ControlLoop::PlanGroup(Context& context, protocol::GroupId group) {
  if (operations_.StateOf(group, context.Now()) == "suspect" || balance_.quiet(group)) return true;
  for (uint32_t lane = 0; lane < options_.limits.lanes; ++lane) {
    const absl::Time asked = context.Now();
    std::vector<protocol::StepPlan> plans = scheduler_.PlanStep(group, lane);
    if (plans.empty()) continue;
    const absl::Time now = context.Now();
    metrics_.schedule_seconds.Increment(absl::ToDoubleSeconds(now - asked));
    steps_.Planned(plans, now);
    for (protocol::StepPlan& plan : plans) {
      if (SendPlan(context, std::move(plan), now)) continue;
      return false;
    }
    metrics_.transport_seconds.Increment(absl::ToDoubleSeconds(context.Now() - now));
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
  if (drained_.load() && requests_.size() == 0) {
    context.Stop(absl::OkStatus());
    return;
  }
  if (now < *drain_deadline_) return;
  for (RequestId id : requests_.Sorted()) {
    scheduler_.CancelSequence(SequenceOf(id));
    requests_.Fail(id, absl::UnavailableError("the server stopped before the answer ended"));
  }
  if (now > *drain_deadline_ + kDrainGrace) context.Stop(absl::OkStatus());
}

void ControlLoop::CountEngine(uint32_t number) {
  scheduler::SchedulerCounters& counted = counted_[number];
  const scheduler::SchedulerCounters& counters = scheduler_.engine(number).counters();
  metrics_.engines[number].Add(counters, counted);
  metrics_.replays.At({"replayed"})
      .Increment(static_cast<double>(counters.replays - counted.replays));
  // With moves of blocks they are counted by what becomes of them.
  if (!options_.limits.moves_blocks) {
    metrics_.migrations.At({"drain", "replayed"})
        .Increment(static_cast<double>(counters.moves - counted.moves));
  }
  counted = counters;
}

void ControlLoop::UpdateEngineGauges(uint32_t number) {
  CountEngine(number);
  const scheduler::GroupScheduler& schedule = scheduler_.engine(number);
  GroupMetrics& engine = metrics_.engines[number];
  engine.requests_running.Set(schedule.num_running());
  const scheduler::BlockPool* blocks = schedule.block_pool();
  if (blocks == nullptr) return;
  const scheduler::PrefixCache* cache = schedule.prefix_cache();
  const uint32_t cached = cache == nullptr ? 0 : cache->num_idle();
  size_t lent = 0;
  for (const auto& [transfer, loan] : schedule.loans()) lent += loan.blocks.size();
  const double used = blocks->num_blocks() - blocks->num_free() - cached;
  engine.kv_blocks_free.Set(blocks->num_free());
  engine.kv_blocks_used.Set(used);
  engine.kv_blocks_cached.Set(cached);
  engine.kv_blocks_lent.Set(static_cast<double>(lent));
  engine.cache.slots_free.Set(schedule.num_free_slots());
  engine.cache.slots_used.Set(schedule.num_running());
  engine.cache.slots_cached.Set(cache == nullptr ? 0 : cache->num_checkpoints());
  engine.kv_cache_usage.Set(blocks->num_blocks() == 0 ? 0 : used / blocks->num_blocks());
}

void ControlLoop::NoteWorkerTimes() {
  for (const auto& [worker, known] : workers_.workers()) {
    const size_t at = worker.node.value() - 1;
    if (worker.node.value() == 0 || at >= metrics_.fleet.by_group.size()) continue;
    WorkerMetrics& metrics = metrics_.fleet.by_group[at];
    metrics.times->heard_ns = absl::ToUnixNanos(known.heard);
    metrics.times->progressed_ns = absl::ToUnixNanos(known.progressed);
    metrics.step_sequence.Set(static_cast<double>(known.step.value()));
  }
}

// Counts blocks whose accounts are wrong now and were not before.
void ControlLoop::AuditEngine(uint32_t engine) {
  const scheduler::AuditFindings found = scheduler::AuditBlocks(scheduler_.engine(engine));
  scheduler::AuditFindings& known = audited_[engine];
  if (found == known) return;
  CacheMetrics& metrics = metrics_.engines[engine].cache;
  metrics.leaks.Increment(found.leaks - std::min(found.leaks, known.leaks));
  metrics.double_frees.Increment(found.double_frees -
                                 std::min(found.double_frees, known.double_frees));
  known = found;
  if (found == scheduler::AuditFindings{}) return;
  SKEIN_LOG(kError, "the accounts of cache blocks are wrong: a defect of this program")
      .Field("engine", engine)
      .Field("leaks", found.leaks)
      .Field("double_frees", found.double_frees);
}

void ControlLoop::UpdateGauges(absl::Time now) {
  metrics_.SetWaiting(door_.waiting_requests(), scheduler_.takes_newcomers());
  std::map<std::string_view, int> groups;
  for (uint32_t i = 0; i < scheduler_.num_groups(); ++i) {
    ++groups[operations_.StateOf(protocol::GroupId(i), now)];
  }
  for (uint32_t i = 0; i < scheduler_.num_engines(); ++i) UpdateEngineGauges(i);
  for (const std::string& state : GroupStates()) metrics_.groups.At({state}).Set(groups[state]);
  std::map<std::string_view, int> workers;
  for (const auto& [worker, known] : workers_.workers())
    ++workers[operations_.StateOf(worker, now)];
  workers["dead"] = static_cast<int>(workers_.num_dead());
  for (const std::string& state : WorkerStates()) metrics_.workers.At({state}).Set(workers[state]);
}

void ControlLoop::OnIdle(Context& context) {
  door_.Pulse();
  DrainFrontDoor(context);
  CommitResults(context);
  BeginRebalance(context);
  operations_.TakeCommands(context);
  operations_.Advance(context);
  DropExpired();
  PlanMoves(context);
  PlanLanes(context);
  UpdateGauges(context.Now());
  CheckDrain(context);
}

void ControlLoop::OnTimer(Context& context, protocol::TimerId) {
  const absl::Time now = context.Now();
  // When this thread itself was late, what was sent to it waits unread: nobody else was silent.
  const absl::Duration late = now - last_timer_ - kTick;
  if (late > kTick) workers_.Excuse(late);
  last_timer_ = now;
  operations_.SetSilence(std::max(kSuspectShare * options_.lease, context.LeaseFloor()));
  SettleForgotten(now);
  CheckGroups(context);
  ProposeRebalance(now);
  moves_.Expire(now);
  UpdateReadiness(now);
  NoteWorkerTimes();
  if (now - last_audit_ >= kAuditPeriod) {
    last_audit_ = now;
    for (uint32_t i = 0; i < scheduler_.num_engines(); ++i) AuditEngine(i);
  }
  CheckDrain(context);
  context.StartTimer(kTick);
}

}  // namespace skein::coordinator
