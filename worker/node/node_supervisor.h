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
#include "protocol/config/config.h"
#include "worker/node/child_process.h"
#include "worker/node/containment.h"
#include "worker/node/restart_policy.h"

namespace skein::worker {

// Exit codes of every program (serving.md 17).
inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 64;
inline constexpr int kExitModel = 65;
inline constexpr int kExitInternal = 70;
inline constexpr int kExitRestart = 75;
inline constexpr int kExitConfig = 78;

enum class ChildRole { kCoordinator, kWorker };

struct ChildSpec {
  ChildRole role = ChildRole::kWorker;
  std::string name;  // "coordinator", "worker.0"
  std::string program;
  std::vector<std::string> arguments;  // the supervisor adds its descriptor and the counter
  std::vector<int> processors;         // it may run on; empty: any
};

struct SupervisorOptions {
  std::vector<ChildSpec> children;
  protocol::NodeConfig node;
  absl::Duration drain_timeout = absl::Seconds(30);
  const Containment* containment = nullptr;  // outlives the supervisor
  int output_fd = 2;                         // where lines of children go
  // A child reported a line over its link, such as "ready http://...".
  std::function<void(const ChildSpec& child, std::string_view line)> on_report;
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
    explicit Child(ChildSpec child_spec, const protocol::NodeConfig& limits)
        : spec(std::move(child_spec)), policy(limits) {}
    ChildSpec spec;
    RestartPolicy policy;
    std::optional<ChildProcess> process;
    absl::Time start_at;   // when not running; InfiniteFuture: never
    uint64_t counter = 0;  // term or incarnation of the newest process
    bool was_ready = false;
    int last_end = 0;    // --predecessor-end of the next process
    std::string line;    // output not yet ended by a newline
    std::string report;  // the same of the link
  };

  explicit NodeSupervisor(SupervisorOptions options);
  absl::Status OpenEvents();
  void Watch(int fd, uint64_t key);
  void StartDue(absl::Time now);
  void StartChild(Child& child, absl::Time now);
  void WaitForEvents(absl::Time now);
  absl::Time NextDeadline() const;
  void OnSignals();
  void OnStopSignal();
  void OnOutput(Child& child);
  void OnLink(Child& child);
  void CollectEnds(absl::Time now);
  void OnEnd(Child& child, const ChildEnd& end, absl::Time now);
  void AdvancePhase(absl::Time now);
  void EnterStopping(absl::Time now);
  void EnterKilling(absl::Time now);
  void KillAdopted();
  bool AnyRunning(std::optional<ChildRole> role) const;
  void PassOn(std::string_view text);
  uint64_t RandomUint64();

  SupervisorOptions options_;
  std::vector<std::unique_ptr<Child>> children_;
  std::vector<Leaf> ended_;  // of children that ended, not removed yet
  Descriptor epoll_;
  Descriptor signals_;
  Phase phase_ = Phase::kRunning;
  absl::Time phase_end_ = absl::InfiniteFuture();
  absl::Time hard_end_ = absl::InfiniteFuture();  // of the whole stop, armed first
  bool abandoned_ = false;                        // a killed child did not end in time
  int exit_code_ = kExitOk;
  uint64_t lines_lost_ = 0;
  uint64_t random_state_ = 0;
};

}  // namespace skein::worker
