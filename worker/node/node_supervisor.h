// The supervisor of one node: starts the children, passes their output on, restarts what ended,
// stops everything in order. Single-threaded, epoll on process handles, pipes and signals.
// Its thread is the main thread of the process: the parent-death signal follows the thread that
// starts a child. Must never hold a device library, a socket of the cluster, or a lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/term_file.h"
#include "protocol/config/config.h"
#include "worker/node/child_output.h"
#include "worker/node/child_process.h"
#include "worker/node/child_pulse.h"
#include "worker/node/containment.h"
#include "worker/node/life_signs.h"
#include "worker/node/line_output.h"
#include "worker/node/oom_watch.h"
#include "worker/node/program_history.h"
#include "worker/node/progress_bar.h"
#include "worker/node/restart_policy.h"

namespace skein::worker {

enum class ChildRole { kCoordinator, kWorker };

struct ChildSpec {
  ChildRole role = ChildRole::kWorker;
  std::string name;  // "coordinator", "worker.0"
  std::string program;
  std::vector<std::string> arguments;  // the supervisor adds its descriptor and the counter
  std::vector<int> processors;         // it may run on; empty: any
  int lock_fd = -1;                    // of its GPU, inherited; -1: none
  int metrics_fd = -1;                 // where it is scraped, inherited; -1: nowhere
};

struct SupervisorOptions {
  std::vector<ChildSpec> children;
  protocol::NodeConfig node;
  absl::Duration drain_timeout = absl::Seconds(30);
  // A program in the place of one that worked says something over its link within this time, or it
  // is ended and the one before is started again.
  absl::Duration start_timeout = absl::Seconds(120);
  const Containment* containment = nullptr;  // outlives the supervisor
  LineOutput* output = nullptr;              // of the children's lines; null: standard error
  LifeSigns* life = nullptr;                 // null: none are shown
  // Inherited by every coordinator; closed once none will come. Not valid: it binds by itself.
  Descriptor listener;
  const protocol::TermFile* terms = nullptr;  // null: terms follow the boot time
  std::string counters_path;  // file of the counters in Prometheus text; empty: none
  std::string features;       // metrics text that stands before the counters
  int orphans_swept = 0;      // before this supervisor started, for the counters
  // A child reported a line over its link, such as "ready http://...".
  std::function<void(const ChildSpec& child, std::string_view line)> on_report;
  // Shows how far children have come; null: nothing does.
  ProgressBar* bar = nullptr;
};

class NodeSupervisor final {
 public:
  // Takes the signals of the process; call on its only thread.
  static absl::StatusOr<std::unique_ptr<NodeSupervisor>> Create(SupervisorOptions options);
  ~NodeSupervisor();

  // Runs until stopped by SIGINT, SIGTERM or SIGHUP, or until a child ended for good. The exit code
  // of the program: that of a child which refused model or configuration, 0 after a stop.
  int Run();

 private:
  enum class Phase { kRunning, kDraining, kStopping, kKilling };

  struct Child {
    Child(ChildSpec child_spec, const protocol::NodeConfig& limits, LineOutput& to)
        : spec(std::move(child_spec)),
          policy(limits),
          output(spec.name, to),
          pulse(limits.hang_timeout) {}
    ChildSpec spec;
    RestartPolicy policy;
    ProgramHistory program;
    ChildOutput output;
    ChildPulse pulse;
    std::optional<ChildProcess> process;
    absl::Time start_at;     // when not running; InfiniteFuture: never
    uint64_t counter = 0;    // term or incarnation of the newest process
    bool was_ready = false;  // some process of it was
    bool is_ready = false;   // the newest process is
    PredecessorEnd last_end = PredecessorEnd::kNone;
    absl::Time trial_end = absl::InfiniteFuture();  // of a new program that said nothing yet
    bool overdue = false;                           // it was ended for that
    bool hung = false;                              // it was ended because its loop stood still
    uint64_t restarts = 0;
    std::string report;  // of the link, not yet ended by a newline
  };

  explicit NodeSupervisor(SupervisorOptions options);
  absl::Status OpenEvents();
  void Watch(int fd, uint64_t key);
  void StartDue(absl::Time now);
  absl::StatusOr<uint64_t> NextCounter(const Child& child) const;
  ChildStart MakeStart(const Child& child) const;
  void StartChild(Child& child, absl::Time now);
  absl::Status TryStart(Child& child);
  void WaitForEvents(absl::Time now);
  absl::Time NextDeadline() const;
  void OnSignals();
  void OnStopSignal();
  void OnOutput(Child& child, absl::Time now);
  void OnLink(Child& child);
  void OnLine(Child& child, const std::string& line);
  void OnReady(Child& child);
  void CollectEnds(absl::Time now);
  void EndLeftovers(absl::Time now);
  void OnEnd(Child& child, const ChildEnd& end, absl::Time now);
  void Restart(Child& child, const ChildEnd& end, absl::Time now);
  bool GoBack(Child& child, const ChildEnd& end, absl::Time now);
  void EndOverdue(absl::Time now);
  void EndHung(absl::Time now);
  void RetryReplaced(absl::Time now);
  void AdvancePhase(absl::Time now);
  void EnterStopping(absl::Time now);
  void EnterKilling(absl::Time now);
  bool IsOwnChild(int pid) const;
  bool AnyRunning(std::optional<ChildRole> role) const;
  void TickSigns(absl::Time now);
  void WriteCounters();
  uint64_t RandomUint64();

  SupervisorOptions options_;
  LineOutput standard_error_{2, nullptr};  // when the options name no output
  std::vector<std::unique_ptr<Child>> children_;
  OomWatch oom_ = OomWatch::OfThisProcess();
  absl::Time adopted_until_ = absl::InfinitePast();  // what a dead child left is ended until then
  std::vector<Leaf> ended_;                          // of children that ended, not removed yet
  Descriptor epoll_;
  Descriptor signals_;
  Phase phase_ = Phase::kRunning;
  absl::Time phase_end_ = absl::InfiniteFuture();
  absl::Time hard_end_ = absl::InfiniteFuture();  // of the whole stop, armed first
  bool abandoned_ = false;                        // a killed child did not end in time
  int exit_code_ = protocol::kExitOk;
  absl::Time counters_at_ = absl::InfinitePast();
  uint64_t random_state_ = 0;
};

}  // namespace skein::worker
