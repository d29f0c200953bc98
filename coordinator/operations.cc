#include "coordinator/operations.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::coordinator {

using protocol::Context;
using protocol::GroupId;

namespace {

std::string_view NameOf(OperatorCommand::Verb verb) {
  switch (verb) {
    case OperatorCommand::Verb::kStatus:
      return "status";
    case OperatorCommand::Verb::kDrain:
      return "drain";
    case OperatorCommand::Verb::kUndrain:
      return "undrain";
    case OperatorCommand::Verb::kRollout:
      return "rollout";
  }
  return "unknown";
}

}  // namespace

ClusterOperations::ClusterOperations(const RolloutLimits& limits, absl::Duration silence,
                                     protocol::Term term, OperatorQueue* queue,
                                     const ControlParts& parts)
    : limits_(limits),
      silence_(silence),
      term_(term),
      queue_(queue),
      parts_(parts),
      rollout_(limits),
      drains_(parts.scheduler.num_groups()) {}

// ---- verbs

void ClusterOperations::TakeCommands(Context& context) {
  if (queue_ == nullptr) return;
  for (OperatorCommand& command : queue_->TakeAll()) {
    const absl::Status status = Carry(context, command);
    if (command.verb != OperatorCommand::Verb::kStatus) {
      SKEIN_LOG(kInfo, "operator")
          .Field("verb", NameOf(command.verb))
          .Field("action", command.action)
          .Field("group", command.group ? absl::StrCat(*command.group) : "all")
          .Field("actor", command.actor)
          .Field("result", status.ok() ? "ok" : protocol::StatusText(status));
    }
    command.reply({status, Status(context.Now())});
  }
}

absl::Status ClusterOperations::Carry(Context& context, const OperatorCommand& command) {
  if (command.group && *command.group >= drains_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no group ", *command.group, "; the ",
                                                   "groups are 0 to ", drains_.size() - 1));
  }
  switch (command.verb) {
    case OperatorCommand::Verb::kStatus:
      return absl::OkStatus();
    case OperatorCommand::Verb::kDrain:
      return Drain(context.Now(), command.group);
    case OperatorCommand::Verb::kUndrain:
      return Undrain(command.group);
    case OperatorCommand::Verb::kRollout:
      return Roll(command);
  }
  return absl::OkStatus();
}

absl::Status ClusterOperations::Drain(absl::Time now, std::optional<uint32_t> group) {
  if (!group) {
    parts_.door.SetClosed(true);
    return absl::OkStatus();
  }
  if (rollout_.active() && rollout_.status().group == *group) {
    return absl::FailedPreconditionError(
        absl::StrCat("group ", *group, " is being replaced by the rollout; abort that first"));
  }
  // Its sequences wait for it, and a group that drains takes none.
  if (parts_.balance.forming(GroupId(*group))) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the experts of group ", *group, " change places; drain it when it is ready"));
  }
  GroupDrain& drain = drains_[*group];
  if (drain.asked) return absl::OkStatus();
  drain = {true, false, now + limits_.drain_timeout};
  parts_.scheduler.Cordon(GroupId(*group));
  return absl::OkStatus();
}

absl::Status ClusterOperations::Undrain(std::optional<uint32_t> group) {
  if (!group) parts_.door.SetClosed(false);
  for (uint32_t i = 0; i < drains_.size(); ++i) {
    if (group && *group != i) continue;
    if (rollout_.active() && rollout_.status().group == i) {
      if (!group) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("group ", i, " is being replaced by the rollout; abort that first"));
    }
    // What a rollout left out has its own reason, which the end of a drain does not touch.
    if (rollout_.left_out() == i) {
      if (std::exchange(drains_[i], {}).asked || !group) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("group ", i, " was left out by a rollout: ", rollout_.status().reason));
    }
    drains_[i] = {};
    parts_.scheduler.Uncordon(GroupId(i));
  }
  return absl::OkStatus();
}

absl::Status ClusterOperations::Roll(const OperatorCommand& command) {
  if (command.action == "pause") return rollout_.Pause();
  if (command.action == "resume") return rollout_.Resume();
  if (command.action == "abort") return rollout_.Abort();
  if (command.action != "start") {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", command.action, "\" is no action; there are start, pause, resume and abort"));
  }
  for (uint32_t i = 0; i < drains_.size(); ++i) {
    if (!drains_[i].asked) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("group ", i, " is drained by an operator; undrain it first"));
  }
  return rollout_.Start(View(), command.build);
}

// ---- progress

void ClusterOperations::Advance(Context& context) {
  for (uint32_t i = 0; i < drains_.size(); ++i) {
    GroupDrain& drain = drains_[i];
    if (!drain.asked || drain.evicted || context.Now() < drain.deadline) continue;
    drain.evicted = true;
    parts_.scheduler.Evict(GroupId(i));
  }
  if (rollout_.active()) AdvanceRollout(context);
}

void ClusterOperations::AdvanceRollout(Context& context) {
  TakeCheck();
  const RolloutStatus before = rollout_.status();
  for (const RolloutAction& action : rollout_.Advance(context.Now(), View())) Act(context, action);
  const RolloutStatus& now = rollout_.status();
  if (!rollout_.awaits_check()) DropCheck();
  if (before.state == now.state && before.phase == now.phase && before.group == now.group &&
      before.failed_starts == now.failed_starts) {
    return;
  }
  if (before.failed_starts < now.failed_starts || now.state == RolloutState::kHalted) {
    SKEIN_LOG(kError, "rollout in trouble").Field("reason", now.reason);
  }
  SKEIN_LOG(kInfo, "rollout")
      .Field("state", NameOf(now.state))
      .Field("phase", NameOf(now.phase))
      .Field("group", now.group)
      .Field("replaced", now.replaced)
      .Field("of", now.num_groups)
      .Field("reason", now.reason);
}

void ClusterOperations::Act(Context& context, const RolloutAction& action) {
  const GroupId group(action.group);
  switch (action.step) {
    case RolloutStep::kCordon:
      parts_.workers.Reserve(group);
      return parts_.scheduler.Cordon(group);
    case RolloutStep::kEvict:
      return parts_.scheduler.Evict(group);
    case RolloutStep::kUncordon:
      parts_.workers.Release(group);
      // What an operator drained meanwhile stays drained.
      if (!drains_[action.group].asked) parts_.scheduler.Uncordon(group);
      return;
    case RolloutStep::kCheck:
      return StartCheck(action.group);
    case RolloutStep::kShutdown:
    case RolloutStep::kRefuse:
      break;
  }
  const protocol::Shutdown shutdown =
      action.step == RolloutStep::kRefuse
          ? protocol::Shutdown{"the rollout goes back: " + rollout_.status().reason, true}
          : protocol::Shutdown{"rolling restart"};
  const std::optional<WorkerGroup>& formed = parts_.workers.group(group);
  if (!formed) return;
  for (const GroupRank& rank : formed->ranks) {
    const absl::Status sent = context.Send(rank.worker, formed->epoch, shutdown);
    if (!sent.ok()) SKEIN_LOG(kWarn, "shutdown not sent").Field("worker", rank.worker.node);
  }
}

void ClusterOperations::StartCheck(uint32_t group) {
  DropCheck();
  for (uint32_t rank = 0; rank < parts_.scheduler.num_ranks(); ++rank) {
    check_.push_back(
        StartRankCheck(parts_.scheduler.EngineOf(GroupId(group), protocol::RankId(rank))));
  }
}

ClusterOperations::RankCheck ClusterOperations::StartRankCheck(uint32_t engine) {
  auto sink = std::make_shared<CheckSink>();
  const protocol::CacheGeometry& geometry = parts_.scheduler.engine(engine).geometry();
  SubmitRequest request = MakeCheck(++num_checks_, geometry.max_model_len, sink);
  scheduler::NewSequence sequence;
  sequence.id = SequenceOf(request.id);
  sequence.prompt = request.prompt_ids;
  sequence.sampling = request.sampling;
  sequence.stop = request.stop;
  sequence.speculation = request.speculation;
  sequence.priority = request.priority;
  sequence.pinned = engine;
  parts_.requests.Open(request, absl::UnixEpoch());
  const absl::Status added = parts_.scheduler.AddSequence(std::move(sequence));
  if (!added.ok()) parts_.requests.Fail(request.id, added);
  return {request.id, std::move(sink)};
}

// The answers of all ranks, one after the other, are the result.
void ClusterOperations::TakeCheck() {
  if (check_.empty() || !std::all_of(check_.begin(), check_.end(),
                                     [](const RankCheck& check) { return check.sink->ended(); })) {
    return;
  }
  CheckResult result;
  for (const RankCheck& check : std::exchange(check_, {})) {
    if (!check.sink->error().ok()) {
      rollout_.OnCheckFailed(absl::StrCat("the check of group ", rollout_.status().group,
                                          " failed: ", check.sink->error().message()));
      return;
    }
    const CheckResult& of_rank = check.sink->result();
    result.tokens.insert(result.tokens.end(), of_rank.tokens.begin(), of_rank.tokens.end());
    result.logprob_bits.insert(result.logprob_bits.end(), of_rank.logprob_bits.begin(),
                               of_rank.logprob_bits.end());
  }
  rollout_.OnCheck(std::move(result));
}

void ClusterOperations::DropCheck() {
  const absl::Status dropped = absl::CancelledError("the check is not needed any more");
  for (const RankCheck& check : std::exchange(check_, {})) {
    if (check.sink->ended()) continue;
    if (parts_.scheduler.CancelSequence(SequenceOf(check.id))) {
      parts_.requests.Fail(check.id, dropped);
    } else {
      parts_.requests.Doom(check.id, dropped);
    }
  }
}

// "0.2.0", or "0.2.0, 0.1.0" while ranks differ.
std::string ClusterOperations::BuildOf(const WorkerGroup& group) const {
  std::vector<std::string> builds;
  for (const GroupRank& rank : group.ranks) {
    const std::string& build = parts_.workers.registration(rank.worker).build;
    if (std::find(builds.begin(), builds.end(), build) == builds.end()) builds.push_back(build);
  }
  return absl::StrJoin(builds, ", ");
}

RolloutView ClusterOperations::View() const {
  RolloutView view;
  view.ended = parts_.requests.num_ended();
  view.failed = parts_.requests.num_failed();
  for (uint32_t i = 0; i < drains_.size(); ++i) {
    GroupView& group = view.groups.emplace_back();
    group.ready = parts_.scheduler.has_epoch(GroupId(i));
    group.running = parts_.scheduler.num_running(GroupId(i));
    group.moving = parts_.scheduler.num_moving_from(GroupId(i));
    const std::optional<WorkerGroup>& formed = parts_.workers.group(GroupId(i));
    if (!formed) continue;
    group.build = BuildOf(*formed);
    for (const GroupRank& rank : formed->ranks) {
      const protocol::RegisterWorker& said = parts_.workers.registration(rank.worker);
      group.incarnations.push_back(said.incarnation.value());
      group.failed_before =
          group.failed_before || said.predecessor_end == protocol::PredecessorEnd::kOwn;
    }
  }
  return view;
}

// ---- status

std::string_view ClusterOperations::StateOf(protocol::ActorId worker, absl::Time now) const {
  const auto found = parts_.workers.workers().find(worker);
  if (found == parts_.workers.workers().end()) return "dead";
  if (now - found->second.heard > silence_) return "suspect";
  return parts_.workers.Find(worker) == nullptr ? "spare" : "ready";
}

std::string_view ClusterOperations::StateOf(GroupId group, absl::Time now) const {
  const std::optional<WorkerGroup>& formed = parts_.workers.group(group);
  if (!parts_.scheduler.has_epoch(group)) {
    return !formed && parts_.workers.num_dead() > 0 ? "dead" : "starting";
  }
  if (!formed) return "starting";
  const bool suspect =
      std::any_of(formed->ranks.begin(), formed->ranks.end(),
                  [&](const GroupRank& rank) { return StateOf(rank.worker, now) == "suspect"; });
  if (suspect || formed->aborted) return "suspect";
  if (parts_.steps.Overdue(group, now)) return "hung";
  return parts_.scheduler.cordoned(group) ? "draining" : "ready";
}

GroupStatus ClusterOperations::GroupStatusOf(GroupId group, absl::Time now) const {
  GroupStatus status;
  status.group = group.value();
  status.state = StateOf(group, now);
  status.running = parts_.scheduler.num_running(group);
  status.moving = parts_.scheduler.num_moving_from(group);
  status.step_age = parts_.steps.Age(group, now);
  status.cordoned = parts_.scheduler.cordoned(group);
  status.probation = parts_.scheduler.probation(group);
  for (uint32_t rank = 0; rank < parts_.scheduler.num_ranks(); ++rank) {
    const uint32_t engine = parts_.scheduler.EngineOf(group, protocol::RankId(rank));
    const scheduler::BlockPool* blocks = parts_.scheduler.engine(engine).block_pool();
    if (blocks == nullptr) continue;
    status.blocks += blocks->num_blocks();
    status.blocks_used += blocks->num_blocks() - blocks->num_free();
  }
  if (const std::optional<WorkerGroup>& formed = parts_.workers.group(group)) {
    status.epoch = formed->epoch.value();
    for (const GroupRank& rank : formed->ranks) {
      status.workers.push_back(rank.worker.node.value());
    }
  }
  return status;
}

WorkerStatus ClusterOperations::WorkerStatusOf(protocol::ActorId worker, const KnownWorker& known,
                                               absl::Time now) const {
  const protocol::RegisterWorker& said = known.registration;
  WorkerStatus status;
  status.node = worker.node.value();
  status.incarnation = said.incarnation.value();
  status.build = said.build;
  status.protocol = absl::StrCat(said.protocol_major, ".", said.protocol_minor);
  status.backend = said.backend;
  status.numerics = said.numerics;
  status.features = said.features;
  status.state = StateOf(worker, now);
  status.last_step = known.step.value();
  status.queued_plans = known.queued_plans;
  status.running_ms = known.running_ms;
  status.heard_age = now - known.heard;
  status.progress_age = now - known.progressed;
  return status;
}

ClusterStatus ClusterOperations::Status(absl::Time now) const {
  ClusterStatus status;
  status.term = term_.value();
  status.ready = parts_.door.ready();
  status.draining = parts_.door.draining();
  status.closed = parts_.door.closed();
  status.running = parts_.scheduler.num_running();
  status.waiting = parts_.scheduler.num_queued();
  status.waiting_tokens = parts_.scheduler.admission().num_tokens();
  status.requests_ended = parts_.requests.num_ended();
  status.requests_failed = parts_.requests.num_failed();
  status.quarantined_prompts = parts_.requests.num_quarantined();
  for (uint32_t i = 0; i < drains_.size(); ++i) {
    status.groups.push_back(GroupStatusOf(GroupId(i), now));
  }
  for (const auto& [worker, known] : parts_.workers.workers()) {
    status.workers.push_back(WorkerStatusOf(worker, known, now));
  }
  status.rollout = rollout_.status();
  return status;
}

}  // namespace skein::coordinator
