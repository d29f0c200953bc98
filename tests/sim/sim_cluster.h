// A simulated cluster: the production coordinator and workers as processes of virtual time, their
// supervisors, clients and operators, and what goes wrong. One run of one seed: first requests and
// faults, then none of either until all has ended.
// Owns everything of the run. One thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/control_loop.h"
#include "tests/sim/marks.h"
#include "tests/sim/oracles.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_meeting.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_system.h"
#include "tests/sim/workload.h"
#include "worker/worker_actor.h"

namespace skein::tests {

// The actor of the worker on a node, counted from 0.
inline protocol::ActorId ActorOf(size_t node) {
  return {protocol::NodeId(static_cast<uint32_t>(node) + 1), 0};
}

// What a run came to.
struct SimOutcome {
  std::string violation;  // empty: none
  uint64_t trace = 0;     // hash of all that happened
  uint64_t events = 0;
  absl::Duration lasted;  // virtual time
  uint32_t answered = 0;
  uint32_t refused = 0;
  uint32_t failed = 0;
  uint64_t stale_dropped = 0;  // frames and results of what was over
  Marks marks;
};

class SimCluster {
 public:
  SimCluster(uint64_t seed, const SimConfig& config);
  ~SimCluster();
  SimOutcome Run();

  // Virtual time since the beginning.
  absl::Duration Elapsed() const { return system_.Now() - begin_; }
  // Does something at such a time.
  void At(absl::Duration elapsed, std::function<void()> action) {
    system_.At(begin_ + elapsed, std::move(action));
  }

 private:
  // A process of the coordinator with what main() wires around it.
  struct Coordinator {
    std::shared_ptr<SimProcess> process;
    std::unique_ptr<coordinator::FrontDoorQueue> door;
    std::unique_ptr<coordinator::OperatorQueue> operators;
    coordinator::ControlLoop* loop = nullptr;  // of the process
    std::atomic<bool> drained = false;
    std::unique_ptr<protocol::Waker> waker;
  };
  // A program of the workers.
  struct Build {
    std::string name = "first";
    bool wrong_model = false;
    bool dies_at_start = false;
  };
  // A worker's place on its node, with its supervisor.
  struct Node {
    std::shared_ptr<SimProcess> process;
    uint64_t incarnation = 0;
    Build running, before;
    std::optional<Build> installed;  // that the next ordered start takes
    uint32_t failed_starts = 0;
    protocol::PredecessorEnd end = protocol::PredecessorEnd::kNone;
  };

  // Processes.
  void StartCoordinator();
  void EndCoordinator();
  void StartWorker(size_t index);
  void EndWorker(size_t index, protocol::PredecessorEnd end);
  void OnWorkerExit(size_t index, const absl::Status& reason);
  void AfterControlRound();
  void CheckDeadlines();

  // Clients and operators.
  void SubmitNext();
  void Submit(ClientRequest request);
  bool HasCause(const SimClient& client, const absl::Status& error) const;
  double Losses() const;
  void Ask(coordinator::OperatorCommand command);

  // Faults.
  void ScheduleFaults();
  void ScheduleFault(Fault fault);
  void Watch();
  void Inject(Fault fault);
  void StartRollout(bool bad);

  // What was reached.
  void ObserveSequence(const scheduler::Sequence& sequence);
  void ObserveGroup(const scheduler::GroupScheduler& group);
  void ObserveFrames(const protocol::FrameCounters& counters);
  void ObserveLast(const SimProcess& process);
  void ObserveRound();
  void ObserveRefusal(const absl::Status& status);
  void ObserveStatus(const coordinator::ClusterStatus& status);
  void ObserveClient(const SimClient& client);
  void ObserveEnd();
  const coordinator::CoordinatorMetrics& Metrics() const;

  // The end of the run.
  void Heal();
  void Settle();
  bool Repaired();
  void CheckEnd();
  void CheckIsolation(const SimClient& client);
  bool AnyOpen() const;
  bool AnyMoves() const;
  std::string DescribeStall() const;

  const SimConfig config_;
  SimSystem system_;
  const absl::Time begin_ = system_.Now();
  SimRandom random_;
  Oracles oracles_;
  Marks marks_;
  Workload workload_;
  SimNetwork network_;
  SimMeetings meetings_;
  SimTransfers transfers_;
  Coordinator coordinator_;
  std::vector<Node> nodes_;
  std::vector<DeviceOptions> devices_;  // by node; without faults once they have stopped
  std::vector<std::shared_ptr<SimClient>> clients_;
  std::optional<coordinator::ClusterStatus> status_;  // of the last answer to an operator
  uint64_t term_ = 0;
  uint32_t num_builds_ = 1;
  uint32_t refused_ = 0;
  uint32_t own_deaths_ = 0;
  uint64_t stale_dropped_ = 0;
  std::set<protocol::SequenceId> worn_;  // held after too many deaths
  const double losses_before_, stale_results_before_;
  bool healed_ = false;
  bool rolling_ = false;                          // when an operator looked last
  bool undrained_ = false;                        // the last thing that the operators tried
  bool repairing_ = false;                        // the rollout is theirs
  absl::Time deadline_ = absl::InfiniteFuture();  // of everything that was asked for
  std::shared_ptr<SimClient> canary_;
  bool done_ = false;
};

// The run of one seed, from its configuration on.
SimOutcome RunSeed(uint64_t seed, bool faults);

}  // namespace skein::tests
