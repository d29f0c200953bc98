// The state of a rolling restart: which group is replaced now, how far it is, whether to go on.
// A pure function with state: time and what is seen come in, actions go out. Control thread.
// Must never have two groups out of service, or go on past a group that did not come back as it
// was.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/group_check.h"

namespace skein::coordinator {

struct RolloutLimits {
  absl::Duration drain_timeout = absl::Seconds(30);   // until sequences are moved
  absl::Duration start_timeout = absl::Seconds(120);  // of a new worker, until it is ready
  absl::Duration soak = absl::Seconds(30);            // of a replaced group before the next
};

enum class RolloutState { kIdle, kRunning, kPaused, kDone, kHalted, kAborted };
// What is done with the group in turn.
enum class RolloutPhase {
  kWaiting,    // until every group is ready
  kDraining,   // cordoned; its sequences finish, or move
  kMeasuring,  // the old worker answers the check
  kStarting,   // the old worker was told to end; the new one is awaited
  kChecking,   // the new worker answers the check
  kSoaking,    // it serves, and is watched
  kReturning,  // the new worker was refused; the one of the program before it is awaited
  kComparing,  // that one answers the check
};
std::string_view NameOf(RolloutState state);
std::string_view NameOf(RolloutPhase phase);

// What Advance sees of a group.
struct GroupView {
  bool ready = false;                  // an epoch runs
  std::vector<uint64_t> incarnations;  // newest that registered of the worker of each rank
  std::string build;                   // of them; all that there are, when they differ
  // A process before them ended by itself: a start failed, and perhaps its supervisor went back.
  bool failed_before = false;
  uint32_t running = 0;  // sequences, checks not among them
  uint32_t moving = 0;   // that it was emptied of and no other group computed so far
};
struct RolloutView {
  std::vector<GroupView> groups;
  uint64_t ended = 0;   // requests so far
  uint64_t failed = 0;  // of them by the server's fault
};

// kRefuse: the worker is told that another start of its program changes nothing, whereupon its
// supervisor starts the program before it.
enum class RolloutStep { kCordon, kEvict, kCheck, kShutdown, kRefuse, kUncordon };
struct RolloutAction {
  RolloutStep step = RolloutStep::kCordon;
  uint32_t group = 0;
  friend bool operator==(const RolloutAction&, const RolloutAction&) = default;
};

struct RolloutStatus {
  RolloutState state = RolloutState::kIdle;
  RolloutPhase phase = RolloutPhase::kWaiting;  // meaningful while it runs, pauses or is halted
  uint32_t group = 0;                           // in turn
  uint32_t num_groups = 0;
  uint32_t replaced = 0;  // groups that are done
  uint32_t failed_starts = 0;
  std::string build;   // that new workers must have; empty: any
  std::string reason;  // why it halted or waits
};

class Rollout {
 public:
  explicit Rollout(const RolloutLimits& limits) : limits_(limits) {}

  // Begins with the first group. Groups whose worker has `build` already are passed over, unless it
  // is empty. FailedPrecondition when one runs or is paused.
  absl::Status Start(const RolloutView& view, std::string build);
  // No further group is begun; the one in turn is finished. FailedPrecondition unless it runs.
  absl::Status Pause();
  absl::Status Resume();
  // The same for good. A group that was not stopped yet is let in again. FailedPrecondition unless
  // it runs or is paused.
  absl::Status Abort();

  // What to do now. Call it whenever something may have changed, and at least each 100 ms.
  std::vector<RolloutAction> Advance(absl::Time now, const RolloutView& view);
  // The check that was asked for ended.
  void OnCheck(CheckResult result) { checked_ = std::move(result); }
  // It could not be made: nothing is known of the group.
  void OnCheckFailed(std::string reason) { check_failure_ = std::move(reason); }
  // A check is awaited of this group.
  std::optional<uint32_t> awaits_check() const;

  // The group that a halted rollout left cordoned: neither the new program nor the one before it
  // passed there. The next rollout replaces its worker whatever its build.
  std::optional<uint32_t> left_out() const { return left_out_; }

  const RolloutStatus& status() const { return status_; }
  bool active() const {
    return status_.state == RolloutState::kRunning || status_.state == RolloutState::kPaused;
  }

 private:
  using Actions = std::vector<RolloutAction>;
  void Wait(absl::Time now, const RolloutView& view, Actions& actions);
  void DrainGroup(absl::Time now, const GroupView& group, Actions& actions);
  void Measure(absl::Time now, const GroupView& group, Actions& actions);
  void StopOld(absl::Time now, const GroupView& group, Actions& actions);
  void AwaitStart(absl::Time now, const GroupView& group, Actions& actions);
  void Check(absl::Time now, const GroupView& group, Actions& actions);
  void Soak(absl::Time now, const RolloutView& view, Actions& actions);
  void GoBack(absl::Time now, std::string reason);
  void Return(absl::Time now, const GroupView& group, Actions& actions);
  void Compare(const GroupView& group, Actions& actions);
  bool Replaced(const GroupView& group) const;
  void StartCheck(RolloutPhase phase, Actions& actions);
  void FailStart(absl::Time now, std::string reason);
  void Halt(std::string reason);
  void LeaveOut(std::string_view reason);
  void Next();

  const RolloutLimits limits_;
  RolloutStatus status_;
  bool aborting_ = false;
  bool evicted_ = false;
  bool refused_ = false;          // while it goes back: the new worker was told
  absl::Time deadline_;           // of the phase
  std::vector<uint64_t> old_;     // incarnations by rank that were told to end
  std::vector<uint64_t> failed_;  // whose start failed
  std::vector<uint64_t> new_;     // that are checked or soak
  uint64_t ended_before_ = 0;
  uint64_t failed_before_ = 0;
  std::optional<CheckResult> checked_;
  std::string check_failure_;
  CheckResult baseline_;   // of the group in turn, by its old worker
  std::string old_build_;  // of that worker
  std::optional<uint32_t> left_out_;
  CheckResult left_out_baseline_;
};

}  // namespace skein::coordinator
