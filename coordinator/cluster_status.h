// What an operator is shown of the cluster: a snapshot by the control loop, written as JSON on the
// operators' thread. Plain values. Must never hold prompts, keys or paths.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/rollout.h"

namespace skein::coordinator {

struct WorkerStatus {
  uint32_t node = 0;
  uint64_t incarnation = 0;
  std::string build, protocol, backend, numerics;
  std::vector<std::string> features;
  std::string state;  // ready, spare, suspect
  uint64_t last_step = 0;
  uint32_t queued_plans = 0;
  uint32_t running_ms = 0;  // of the step on its device thread; 0: none runs
  absl::Duration heard_age, progress_age;
};

struct GroupStatus {
  uint32_t group = 0;
  std::string state;  // starting, ready, draining, suspect, hung, dead
  uint64_t epoch = 0;
  std::vector<uint32_t> workers;  // nodes, by rank; none while it is not formed
  uint32_t running = 0;
  uint32_t moving = 0;  // sequences that it was emptied of, until another group computed them
  std::optional<absl::Duration> step_age;  // of the oldest step in flight
  uint32_t blocks = 0;                     // of all ranks
  uint32_t blocks_used = 0;
  bool cordoned = false;
  bool probation = false;  // a suspected request runs there, alone
};

struct ClusterStatus {
  uint64_t term = 0;
  bool ready = false;
  bool draining = false;
  bool closed = false;
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t waiting_tokens = 0;
  uint64_t requests_ended = 0;
  uint64_t requests_failed = 0;
  uint64_t quarantined_prompts = 0;
  std::vector<GroupStatus> groups;
  std::vector<WorkerStatus> workers;
  RolloutStatus rollout;
};

}  // namespace skein::coordinator
