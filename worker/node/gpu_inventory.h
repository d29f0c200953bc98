// The GPUs of the host and the processes that the driver says hold them: NVML where it can be
// opened, else the device nodes alone.
// Supervisor's thread, or a command's. Must never create a device context: looking is not holding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace skein::worker {

// A process that the driver names. Its pid may be of another PID namespace than ours.
struct DriverHolder {
  int pid = 0;
  uint64_t memory_bytes = 0;  // 0: unknown
};

struct Gpu {
  int minor = 0;     // of its device node
  std::string node;  // "/dev/nvidia0"
  std::string uuid;  // empty without NVML
  std::string name;
  uint64_t memory_used_bytes = 0;
  std::vector<DriverHolder> holders;  // compute, graphics and MPS, each pid once
};

struct GpuInventory {
  std::vector<Gpu> gpus;     // by minor number
  std::string driver;        // version; empty: unknown
  std::string nvml_problem;  // why NVML said nothing; empty: it answered
};

// `device_glob` names the device nodes, one per GPU; "/dev/nvidia[0-9]*". `nvml_library` is opened
// only when there is a node.
GpuInventory FindGpus(const std::string& device_glob, const std::string& nvml_library);

}  // namespace skein::worker
