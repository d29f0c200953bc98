// What a seed stands for: the shape of the cluster, its limits, the requests, and which faults come
// how often. Tiny limits and many zeros: each seed is about a few things.
// Values; drawn once, before the run.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "coordinator/front_door_queue.h"
#include "coordinator/rollout.h"
#include "scheduler/group_scheduler.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_step_runner.h"

namespace skein::tests {

enum class Fault : uint8_t {
  kKillWorker,         // from outside
  kCrashWorker,        // of its own doing
  kPauseWorker,        // and it comes back
  kPauseCoordinator,   //
  kCut,                // a connection
  kClogUp,             // one way
  kClogDown,           //
  kPartition,          // both ways
  kRefuse,             // new connections, after a cut
  kCrashCoordinator,   //
  kDrainCoordinator,   // it ends in good order
  kDrainGroup,         // operators
  kUndrainGroup,       //
  kCloseServer,        //
  kOpenServer,         //
  kRollout,            //
  kRolloutOfBadBuild,  // whose results differ, or that does not start
  kRolloutVerb,        // pause, resume or abort
};
inline constexpr size_t kNumFaults = 18;

struct SimConfig {
  uint32_t num_groups = 1;
  uint32_t num_ranks = 1;              // of each group
  std::vector<DeviceOptions> workers;  // one of each rank of each group, then spares
  scheduler::SchedulerLimits limits;
  coordinator::FrontDoorLimits door;
  coordinator::RolloutLimits rollout;
  absl::Duration rebalance_interval = absl::ZeroDuration();  // of experts; zero: never
  absl::Duration beat = absl::Milliseconds(100);
  absl::Duration lease = absl::Seconds(1);
  absl::Duration coordinator_wait = absl::Seconds(300);
  absl::Duration shutdown_timeout = absl::Seconds(10);
  NetworkOptions network;

  absl::Duration horizon;     // requests and faults come until then
  uint32_t num_requests = 0;  // spread over it
  uint32_t alphabet = 50;     // tokens of prompts
  uint32_t follow_one_in = 0;
  uint32_t cancel_one_in = 0;
  uint32_t deadline_one_in = 0;
  uint32_t constraint_one_in = 0;
  uint32_t poison_one_in = 0;
  uint32_t failing_one_in = 0;
  uint32_t burst_one_in = 0;  // requests that come with the one before

  std::array<absl::Duration, kNumFaults> every{};  // on average; zero: never
  uint32_t num_engines() const { return num_groups * num_ranks; }
  bool Has(Fault fault) const { return every[static_cast<size_t>(fault)] > absl::ZeroDuration(); }
  // Something may end processes of their own doing, or fail steps, that is no request's fault.
  bool own_deaths() const;
  bool failed_steps() const;
  // A worker may be gone for longer than its lease.
  bool may_lose_workers() const;
};

// `faults`: false for a run in which nothing goes wrong.
SimConfig DrawConfig(SimRandom& random, bool faults);

// Makes the requests of a run, one after the other.
class Workload {
 public:
  Workload(const SimConfig& config, SimRandom random) : config_(config), random_(random) {}

  ClientRequest Draw();
  // One that everything serves, for the end of the run.
  ClientRequest DrawCanary();

 private:
  ClientRequest Finish(ClientRequest request);
  void DrawPrompt(ClientRequest& request);

  const SimConfig& config_;
  SimRandom random_;
  uint64_t last_id_ = 0;
  std::vector<std::vector<int32_t>> turns_;  // prompts with their answers
  std::vector<int32_t> poison_;              // the last prompt that ends workers
};

}  // namespace skein::tests
