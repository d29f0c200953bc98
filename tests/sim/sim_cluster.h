// A simulated cluster: the production coordinator and workers as processes of virtual time, their
// supervisors, clients and operators, and what goes wrong. One run of one seed: first requests and
// faults, then none of either until all has ended.
// Owns everything of the run. One thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/control_loop.h"
#include "tests/sim/marks.h"
#include "tests/sim/oracles.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_system.h"
#include "tests/sim/workload.h"
#include "worker/worker_actor.h"

namespace skein::tests {

// What a run came to.
struct SimOutcome {
  std::string violation;  // empty: none
  uint64_t trace = 0;     // hash of all that happened
  uint64_t events = 0;
  absl::Duration lasted;  // virtual time
  uint32_t answered = 0;
  uint32_t refused = 0;
  uint32_t failed = 0;
  Marks marks;
};

class SimCluster {
 public:
  SimCluster(uint64_t seed, const SimConfig& config);
  ~SimCluster();
  SimOutcome Run();

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

  // Clients and operators.
  void SubmitNext();
  void Submit(ClientRequest request);
  bool HasCause(const SimClient& client, const absl::Status& error) const;
  void Ask(coordinator::OperatorCommand command);

  // Faults.
  void ScheduleFaults();
  void Inject(Fault fault);
  void StartRollout(bool bad);

  // The end of the run.
  void Heal();
  void Settle();
  bool Repaired();
  void CheckEnd();

  const SimConfig config_;
  SimSystem system_;
  SimRandom random_;
  Oracles oracles_;
  Marks marks_;
  Workload workload_;
  SimNetwork network_;
  Coordinator coordinator_;
  std::vector<Node> nodes_;
  std::vector<DeviceOptions> devices_;  // by node; without faults once they have stopped
  std::vector<std::shared_ptr<SimClient>> clients_;
  std::optional<coordinator::ClusterStatus> status_;  // of the last answer to an operator
  uint64_t term_ = 0;
  uint32_t num_builds_ = 1;
  uint32_t refused_ = 0;
  uint32_t worker_ends_ = 0;
  bool healed_ = false;
  absl::Time deadline_ = absl::InfiniteFuture();  // of everything that was asked for
  std::shared_ptr<SimClient> canary_;
  bool done_ = false;
};

}  // namespace skein::tests
