#include "coordinator/rollout.h"

#include <algorithm>
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
    case RolloutPhase::kReturning:
      return "returning";
    case RolloutPhase::kComparing:
      return "comparing";
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
  aborting_ = evicted_ = refused_ = false;
  checked_.reset();
  check_failure_.clear();
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
  const bool awaits = status_.phase == RolloutPhase::kMeasuring ||
                      status_.phase == RolloutPhase::kChecking ||
                      status_.phase == RolloutPhase::kComparing;
  return active() && awaits ? std::optional<uint32_t>(status_.group) : std::nullopt;
}

void Rollout::Halt(std::string reason) {
  status_.state = RolloutState::kHalted;
  status_.reason = std::move(reason);
}

// Nothing more is done with the group in turn, which stays cordoned.
void Rollout::LeaveOut(std::string_view reason) {
  left_out_ = status_.group;
  left_out_baseline_ = baseline_;
  Halt(absl::StrCat(std::string(reason), "; group ", status_.group,
                    " stays out: install a program that works and start a rollout"));
}

void Rollout::FailStart(absl::Time now, std::string reason) {
  ++status_.failed_starts;
  status_.reason = std::move(reason);
  if (status_.failed_starts < kFailedStartsMax) {
    status_.phase = RolloutPhase::kStarting;
    deadline_ = now + limits_.start_timeout;
    return;
  }
  GoBack(now, absl::StrCat(status_.reason, "; ", status_.failed_starts, " starts failed"));
}

void Rollout::GoBack(absl::Time now, std::string reason) {
  status_.reason = std::move(reason);
  status_.phase = RolloutPhase::kReturning;
  refused_ = false;
  deadline_ = now + limits_.start_timeout;
}

void Rollout::StartCheck(RolloutPhase phase, Actions& actions) {
  status_.phase = phase;
  checked_.reset();
  check_failure_.clear();
  actions.push_back({RolloutStep::kCheck, status_.group});
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
  const bool left_out = left_out_ == status_.group;
  const GroupView& group = view.groups[status_.group];
  if (!left_out && !status_.build.empty() && group.build == status_.build) return Next();
  for (uint32_t i = 0; i < status_.num_groups; ++i) {
    if (view.groups[i].ready || (left_out && i == status_.group)) continue;
    status_.reason = absl::StrCat("group ", i, " is not ready");
    return;
  }
  status_.reason.clear();
  if (left_out && !group.ready) {  // there is nothing to drain or to stop
    baseline_ = left_out_baseline_;
    old_build_ = group.build;
    old_ = group.incarnations;
    failed_.clear();
    status_.phase = RolloutPhase::kStarting;
    deadline_ = now + limits_.start_timeout;
    return;
  }
  status_.phase = RolloutPhase::kDraining;
  deadline_ = now + limits_.drain_timeout;
  actions.push_back({RolloutStep::kCordon, status_.group});
}

void Rollout::DrainGroup(absl::Time now, const GroupView& group, Actions& actions) {
  if (group.running > 0 && now >= deadline_ && !evicted_) {
    evicted_ = true;
    deadline_ = now + limits_.drain_timeout;
    actions.push_back({RolloutStep::kEvict, status_.group});
  }
  if (group.running > 0 || !group.ready) return;
  // What moves is computed by its new group before the old one ends; with one group it waits.
  if (group.moving > 0 && status_.num_groups > 1 && now < deadline_) return;
  if (left_out_ == status_.group) {  // its worker is no measure: the one before it was
    baseline_ = left_out_baseline_;
    return StopOld(now, group, actions);
  }
  StartCheck(RolloutPhase::kMeasuring, actions);
}

void Rollout::Measure(absl::Time now, const GroupView& group, Actions& actions) {
  if (!check_failure_.empty()) {  // nothing was changed yet
    actions.push_back({RolloutStep::kUncordon, status_.group});
    return Halt(check_failure_);
  }
  if (!checked_) return;
  baseline_ = *std::exchange(checked_, std::nullopt);
  StopOld(now, group, actions);
}

void Rollout::StopOld(absl::Time now, const GroupView& group, Actions& actions) {
  old_ = group.incarnations;
  failed_.clear();
  old_build_ = group.build;
  status_.phase = RolloutPhase::kStarting;
  deadline_ = now + limits_.start_timeout;
  actions.push_back({RolloutStep::kShutdown, status_.group});
}

// All its workers are later processes than those that were told to end, and not those that failed.
bool Rollout::Replaced(const GroupView& group) const {
  if (!group.ready || group.incarnations.empty() || group.incarnations == failed_) return false;
  for (size_t rank = 0; rank < std::min(old_.size(), group.incarnations.size()); ++rank) {
    if (group.incarnations[rank] <= old_[rank]) return false;
  }
  return true;
}

void Rollout::AwaitStart(absl::Time now, const GroupView& group, Actions& actions) {
  if (Replaced(group)) {
    new_ = group.incarnations;
    const bool expected = status_.build.empty() || group.build == status_.build;
    // Its supervisor went back by itself, because the new program did not start.
    const bool came_back = group.build == old_build_ && (group.failed_before || !expected);
    if (expected && !came_back) return StartCheck(RolloutPhase::kChecking, actions);
    std::string reason = expected
                             ? absl::StrCat("a new worker of group ", status_.group,
                                            " ended by itself when it was started")
                             : absl::StrCat("the new worker of group ", status_.group, " is build ",
                                            group.build, ", expected ", status_.build);
    if (!came_back) return GoBack(now, std::move(reason));
    status_.reason = std::move(reason);
    return StartCheck(RolloutPhase::kComparing, actions);
  }
  if (now < deadline_) return;
  FailStart(now, absl::StrCat("group ", status_.group, " was not ready within ",
                              absl::FormatDuration(limits_.start_timeout)));
}

void Rollout::Check(absl::Time now, const GroupView& group, Actions& actions) {
  if (group.incarnations != new_) {
    failed_ = new_;
    return FailStart(now, absl::StrCat("the new worker of group ", status_.group,
                                       " died before its check ended"));
  }
  if (!check_failure_.empty()) return GoBack(now, check_failure_);
  if (!checked_) return;
  const std::string difference = Difference(baseline_, *std::exchange(checked_, std::nullopt));
  if (!difference.empty()) {
    return GoBack(now,
                  absl::StrCat("the check of group ", status_.group, " differs: ", difference));
  }
  status_.phase = RolloutPhase::kSoaking;
  deadline_ = now + limits_.soak;
  ++status_.replaced;
  if (left_out_ == status_.group) left_out_.reset();
  actions.push_back({RolloutStep::kUncordon, status_.group});
}

void Rollout::Soak(absl::Time now, const RolloutView& view, Actions& actions) {
  const uint64_t failed = view.failed - failed_before_;
  const uint64_t ended = view.ended - ended_before_;
  if (failed * kRequestsPerFailure > ended) {
    --status_.replaced;
    actions.push_back({RolloutStep::kCordon, status_.group});
    actions.push_back({RolloutStep::kEvict, status_.group});
    return GoBack(now, absl::StrCat(failed, " of ", ended, " requests failed since the start"));
  }
  if (now >= deadline_ && view.groups[status_.group].ready) Next();
}

void Rollout::Return(absl::Time now, const GroupView& group, Actions& actions) {
  const bool came_back =
      !status_.build.empty() && old_build_ != status_.build && group.build == old_build_;
  if (!refused_ && group.ready && group.running == 0) {
    refused_ = true;
    if (came_back) {  // by its supervisor's own decision
      new_ = group.incarnations;
      return StartCheck(RolloutPhase::kComparing, actions);
    }
    old_ = group.incarnations;
    failed_.clear();
    deadline_ = now + limits_.start_timeout;
    actions.push_back({RolloutStep::kRefuse, status_.group});
    return;
  }
  if (refused_ && Replaced(group)) {
    new_ = group.incarnations;
    return StartCheck(RolloutPhase::kComparing, actions);
  }
  if (now < deadline_) return;
  LeaveOut(absl::StrCat(status_.reason, "; the worker of before did not come back within ",
                        absl::FormatDuration(limits_.start_timeout)));
}

void Rollout::Compare(const GroupView& group, Actions& actions) {
  if (group.incarnations != new_) {
    return LeaveOut(status_.reason + "; the worker that came back died before its check ended");
  }
  if (!check_failure_.empty()) return LeaveOut(status_.reason + "; " + check_failure_);
  if (!checked_) return;
  const std::string difference = Difference(baseline_, *std::exchange(checked_, std::nullopt));
  if (!difference.empty()) {
    return LeaveOut(absl::StrCat(status_.reason, "; the worker that came back, build ", group.build,
                                 ", differs too: ", difference));
  }
  if (left_out_ == status_.group) left_out_.reset();
  actions.push_back({RolloutStep::kUncordon, status_.group});
  Halt(absl::StrCat(status_.reason, "; the group went back and serves with build ", group.build));
}

std::vector<RolloutAction> Rollout::Advance(absl::Time now, const RolloutView& view) {
  Actions actions;
  if (!active()) return actions;
  const RolloutPhase before = status_.phase;
  const GroupView& group = view.groups[status_.group];
  const bool stopped = before == RolloutPhase::kStarting || before == RolloutPhase::kChecking ||
                       before == RolloutPhase::kReturning || before == RolloutPhase::kComparing;
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
      Soak(now, view, actions);
      break;
    case RolloutPhase::kReturning:
      Return(now, group, actions);
      break;
    case RolloutPhase::kComparing:
      Compare(group, actions);
      break;
  }
  return actions;
}

}  // namespace skein::coordinator
