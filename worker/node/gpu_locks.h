// One lock per GPU of this node. Its descriptor is inherited by the worker and whatever the worker
// starts, so the lock lives as long as anybody who could hold the device.
// Supervisor's thread. Must never wait for a lock, nor signal whoever holds it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/node/descriptor.h"
#include "worker/node/gpu_inventory.h"

namespace skein::worker {

struct GpuLockOptions {
  std::string directory = "/run/skein";
  std::string fallback = "/tmp";  // when the directory cannot be written
  std::string proc_root = "/proc";
};

// Locks the first `count` GPUs, one per worker: DIRECTORY/gpu-UUID.lock, or gpu-MINOR.lock where
// the driver did not tell. FailedPrecondition when there are fewer, or names the holder of one:
// pid, command, owner and age.
absl::StatusOr<std::vector<Descriptor>> LockGpus(const std::vector<Gpu>& gpus, size_t count,
                                                 const GpuLockOptions& options = {});

}  // namespace skein::worker
