#include "coordinator/rollout.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace skein::coordinator {
namespace {

constexpr uint32_t kFailedStartsMax = 2;
// Of the requests that ended since the start of the rollout, one in so many may have failed.
constexpr uint64_t kRequestsPerFailure = 1000;

absl::Status NotRunning(RolloutState state) {
  return absl::FailedPreconditionError(
      absl::StrCat("no rollout is under way; its state is ", std::string(NameOf(state))));
}

}  // namespace

std::string_view NameOf(RolloutState state) {
  switch (state) {
    case RolloutState::kIdle:
      return "idle";
    case RolloutState::kRunning:
      return "running";
    case RolloutState::kPaused:
      return "paused";
    case RolloutState::kDone:
      return "done";
    case RolloutState::kHalted:
      return "halted";
    case RolloutState::kAborted:
      return "aborted";
  }
  return "unknown";
}

std::string_view NameOf(RolloutPhase phase) {
  switch (phase) {
    case RolloutPhase::kWaiting:
      return "waiting";
    case RolloutPhase::kDraining:
      return "draining";
    case RolloutPhase::kMeasuring:
      return "measuring";
    case RolloutPhase::kStarting:
      return "starting";
    case RolloutPhase::kChecking:
      return "checking";
    case RolloutPhase::kSoaking:
      return "soaking";
  }
  return "unknown";
}

absl::Status Rollout::Start(const RolloutView& view, std::string build) {
  if (active()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a rollout is ", std::string(NameOf(status_.state)), " at group ",
                     status_.group, "; abort it first"));
  }
  status_ = RolloutStatus();
  status_.state = RolloutState::kRunning;
  status_.num_groups = static_cast<uint32_t>(view.groups.size());
  status_.build = std::move(build);
  aborting_ = evicted_ = false;
  checked_.reset();
  ended_before_ = view.ended;
  failed_before_ = view.failed;
  return absl::OkStatus();
}

absl::Status Rollout::Pause() {
  if (status_.state != RolloutState::kRunning) return NotRunning(status_.state);
  status_.state = RolloutState::kPaused;
  return absl::OkStatus();
}

absl::Status Rollout::Resume() {
  if (status_.state != RolloutState::kPaused) return NotRunning(status_.state);
  status_.state = RolloutState::kRunning;
  return absl::OkStatus();
}

absl::Status Rollout::Abort() {
  if (!active()) return NotRunning(status_.state);
  aborting_ = true;
  return absl::OkStatus();
}

std::optional<uint32_t> Rollout::awaits_check() const {
  const bool awaits =
      status_.phase == RolloutPhase::kMeasuring || status_.phase == RolloutPhase::kChecking;
  return active() && awaits ? std::optional<uint32_t>(status_.group) : std::nullopt;
}

void Rollout::Halt(std::string reason) {
  status_.state = RolloutState::kHalted;
  status_.reason = std::move(reason);
}

void Rollout::FailStart(absl::Time now, std::string reason) {
  ++status_.failed_starts;
  status_.reason = std::move(reason);
  if (status_.failed_starts >= kFailedStartsMax) {
    Halt(absl::StrCat(status_.reason, "; ", status_.failed_starts, " starts failed"));
    return;
  }
  status_.phase = RolloutPhase::kStarting;
  deadline_ = now + limits_.start_timeout;
}

void Rollout::Next() {
  ++status_.group;
  status_.phase = RolloutPhase::kWaiting;
  status_.reason.clear();
  evicted_ = false;
  if (status_.group == status_.num_groups) status_.state = RolloutState::kDone;
}

void Rollout::Wait(absl::Time now, const RolloutView& view, Actions& actions) {
  if (status_.state == RolloutState::kPaused) return;
  if (!status_.build.empty() && view.groups[status_.group].build == status_.build) return Next();
  for (uint32_t i = 0; i < status_.num_groups; ++i) {
    if (view.groups[i].ready) continue;
    status_.reason = absl::StrCat("group ", i, " is not ready");
    return;
  }
  status_.reason.clear();
  status_.phase = RolloutPhase::kDraining;
  deadline_ = now + limits_.drain_timeout;
  actions.push_back({RolloutStep::kCordon, status_.group});
}

void Rollout::DrainGroup(absl::Time now, const GroupView& group, Actions& actions) {
  if (group.running > 0 && now >= deadline_ && !evicted_) {
    evicted_ = true;
    actions.push_back({RolloutStep::kEvict, status_.group});
  }
  if (group.running > 0 || !group.ready) return;
  status_.phase = RolloutPhase::kMeasuring;
  checked_.reset();
  actions.push_back({RolloutStep::kCheck, status_.group});
}

void Rollout::Measure(absl::Time now, const GroupView& group, Actions& actions) {
  if (!checked_) return;
  baseline_ = *std::exchange(checked_, std::nullopt);
  old_incarnation_ = group.incarnation;
  status_.phase = RolloutPhase::kStarting;
  deadline_ = now + limits_.start_timeout;
  actions.push_back({RolloutStep::kShutdown, status_.group});
}

void Rollout::AwaitStart(absl::Time now, const GroupView& group, Actions& actions) {
  if (group.ready && group.incarnation > old_incarnation_) {
    if (!status_.build.empty() && group.build != status_.build) {
      return Halt(absl::StrCat("the new worker of group ", status_.group, " is build ", group.build,
                               ", expected ", status_.build));
    }
    new_incarnation_ = group.incarnation;
    status_.phase = RolloutPhase::kChecking;
    checked_.reset();
    actions.push_back({RolloutStep::kCheck, status_.group});
    return;
  }
  if (now < deadline_) return;
  FailStart(now, absl::StrCat("group ", status_.group, " was not ready within ",
                              absl::FormatDuration(limits_.start_timeout)));
}

void Rollout::Check(absl::Time now, const GroupView& group, Actions& actions) {
  if (group.incarnation != new_incarnation_) {
    old_incarnation_ = new_incarnation_;
    return FailStart(now, absl::StrCat("the new worker of group ", status_.group,
                                       " died before its check ended"));
  }
  if (!checked_) return;
  const std::string difference = Difference(baseline_, *std::exchange(checked_, std::nullopt));
  if (!difference.empty()) {
    return Halt(absl::StrCat("the check of group ", status_.group, " differs: ", difference,
                             "; the group stays out: start the old build again"));
  }
  status_.phase = RolloutPhase::kSoaking;
  deadline_ = now + limits_.soak;
  ++status_.replaced;
  actions.push_back({RolloutStep::kUncordon, status_.group});
}

void Rollout::Soak(absl::Time now, const RolloutView& view) {
  const uint64_t failed = view.failed - failed_before_;
  const uint64_t ended = view.ended - ended_before_;
  if (failed * kRequestsPerFailure > ended) {
    return Halt(absl::StrCat(failed, " of ", ended, " requests failed since the start"));
  }
  if (now >= deadline_ && view.groups[status_.group].ready) Next();
}

std::vector<RolloutAction> Rollout::Advance(absl::Time now, const RolloutView& view) {
  Actions actions;
  if (!active()) return actions;
  const RolloutPhase before = status_.phase;
  const GroupView& group = view.groups[status_.group];
  const bool stopped = before == RolloutPhase::kStarting || before == RolloutPhase::kChecking;
  if (aborting_ && !stopped) {
    status_.state = RolloutState::kAborted;
    if (before == RolloutPhase::kDraining || before == RolloutPhase::kMeasuring) {
      actions.push_back({RolloutStep::kUncordon, status_.group});
    }
    return actions;
  }
  switch (before) {
    case RolloutPhase::kWaiting:
      Wait(now, view, actions);
      break;
    case RolloutPhase::kDraining:
      DrainGroup(now, group, actions);
      break;
    case RolloutPhase::kMeasuring:
      Measure(now, group, actions);
      break;
    case RolloutPhase::kStarting:
      AwaitStart(now, group, actions);
      break;
    case RolloutPhase::kChecking:
      Check(now, group, actions);
      break;
    case RolloutPhase::kSoaking:
      Soak(now, view);
      break;
  }
  return actions;
}

}  // namespace skein::coordinator
