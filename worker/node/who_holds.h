// Who holds each GPU of the host (reliability.md 3): what the driver names, open descriptors and
// mappings, joined by process, each with an owner and a verdict.
// Supervisor's thread, or a command's. Must never signal a process that is not an orphan of ours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/node/gpu_inventory.h"
#include "worker/node/process_entry.h"

namespace skein::worker {

enum class HolderVerdict {
  kOursLive,       // our mark, and its supervisor lives
  kOursOrphan,     // our mark, no live supervisor
  kForeign,        // anybody else
  kForeignOrphan,  // anybody else's, left by its parent and spinning
};
// "ours-live", "ours-orphan", "foreign", "foreign-orphan".
std::string_view HolderVerdictName(HolderVerdict verdict);

struct GpuHolder {
  ProcessEntry process;
  HolderVerdict verdict = HolderVerdict::kForeign;
  std::vector<int> gpus;      // minor numbers
  std::string evidence;       // "driver", "descriptor", "mapping", joined by +
  std::string owner;          // CgroupOwner
  uint64_t memory_bytes = 0;  // on the GPUs, as the driver says; 0: unknown
  double age_s = 0;
  double cpu_share = 0;        // CPU time by age
  int64_t started_unix_s = 0;  // wall time
};

struct HolderReport {
  GpuInventory inventory;
  std::vector<GpuHolder> holders;     // by pid
  std::vector<std::string> problems;  // why the list may be incomplete
  // Driver holders that are no process here, nor translated by one.
  std::vector<int> unresolved_pids;
};

struct HolderQuery {
  std::string proc_root = "/proc";
  std::string device_glob = "/dev/nvidia[0-9]*";
  std::string nvml_library = "libnvidia-ml.so.1";
};

HolderReport FindHolders(const HolderQuery& query);
// The same for GPUs that are already known.
HolderReport FindHolders(const HolderQuery& query, GpuInventory inventory);

// The report for people: one block per GPU.
std::string HolderText(const HolderReport& report);
// 0: nobody but ours that live; 3: foreign; 4: cannot tell; 5: orphans of ours.
int HolderExitCode(const HolderReport& report);

// SIGKILL by process handle to each orphan of ours, after its start time and mark were compared
// again; waits for their ends. The number that were ended.
int KillOrphans(const HolderReport& report);

}  // namespace skein::worker
