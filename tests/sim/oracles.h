// What must never happen in a simulated run, checked from outside, by number:
//   1  an answer is that of decoding it alone, whatever happened
//   2  a client sees each token once, in order, and one end; an error has a cause
//   3  the accounts of blocks, slots, checkpoints and lanes are right
//   4  nothing of a finished epoch is computed
//   5  every queue stays within its bound
//   6  each worker is what its group believes it to be
//   7  when faults have stopped, everything ends and the cluster serves again
//   8  the ranks of a group are given the same steps in the same order
// Owns the first violation. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/front_door_queue.h"
#include "scheduler/cluster_scheduler.h"

namespace skein::tests {

class Oracles {
 public:
  // Keeps the first one.
  void Violate(int oracle, std::string what);
  bool ok() const { return what_.empty(); }
  const std::string& what() const { return what_; }

  // 3 and 5, after each round of the control loop.
  void CheckScheduler(const scheduler::ClusterScheduler& scheduler);
  void CheckDoor(const coordinator::FrontDoorQueue& door,
                 const coordinator::FrontDoorLimits& limits);
  // 7: nothing is left of any request.
  void CheckIdle(const scheduler::ClusterScheduler& scheduler,
                 const coordinator::FrontDoorQueue& door);

 private:
  std::string what_;
};

}  // namespace skein::tests
