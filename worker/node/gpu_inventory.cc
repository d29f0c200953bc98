// The few calls of NVML that tell who holds a GPU, declared here as its documentation gives them.
// Supervisor's thread. Must never hold NVML open longer than one look.
#include "worker/node/gpu_inventory.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include <glob.h>
#include <signal.h>

#include "protocol/base/dynamic_library.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::DynamicLibrary;

// While one lives, threads that are started take no signals: those that a driver library leaves
// behind must not end the supervisor by a signal that it waits for itself.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlTooSmall = 7;
constexpr unsigned kHoldersMax = 1024;
constexpr uint64_t kUnknownMemory = ~uint64_t{0};

// nvmlProcessInfo_t of the functions that end in _v2 and _v3.
struct NvmlProcess {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance;
  unsigned compute_instance;
};

struct NvmlMemory {
  unsigned long long total, free, used;
};

struct Nvml {
  explicit Nvml(DynamicLibrary opened) : library(std::move(opened)) {
    init = library.Find<int()>("nvmlInit_v2");
    shutdown = library.Find<int()>("nvmlShutdown");
    count = library.Find<int(unsigned*)>("nvmlDeviceGetCount_v2");
    by_index = library.Find<int(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2");
    minor = library.Find<int(NvmlDevice, unsigned*)>("nvmlDeviceGetMinorNumber");
    uuid = library.Find<int(NvmlDevice, char*, unsigned)>("nvmlDeviceGetUUID");
    name = library.Find<int(NvmlDevice, char*, unsigned)>("nvmlDeviceGetName");
    memory = library.Find<int(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo");
    driver = library.Find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  }
  bool complete() const {
    return init != nullptr && shutdown != nullptr && count != nullptr && by_index != nullptr &&
           minor != nullptr && uuid != nullptr && name != nullptr && memory != nullptr &&
           driver != nullptr;
  }

  DynamicLibrary library;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_index)(unsigned, NvmlDevice*) = nullptr;
  int (*minor)(NvmlDevice, unsigned*) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;
};

using ProcessesFunction = int(NvmlDevice, unsigned*, NvmlProcess*);

void AddHolders(const Nvml& nvml, NvmlDevice device, std::string_view kind, Gpu& gpu) {
  auto* function = nvml.library.Find<ProcessesFunction>(Concat("nvmlDeviceGet", kind, "_v3"));
  if (function == nullptr) {
    function = nvml.library.Find<ProcessesFunction>(Concat("nvmlDeviceGet", kind, "_v2"));
  }
  if (function == nullptr) return;
  std::vector<NvmlProcess> processes(64);
  auto found = static_cast<unsigned>(processes.size());
  int result = function(device, &found, processes.data());
  if (result == kNvmlTooSmall) {
    processes.resize(std::min(found + 16, kHoldersMax));
    found = static_cast<unsigned>(processes.size());
    result = function(device, &found, processes.data());
  }
  if (result != kNvmlSuccess) return;
  for (unsigned i = 0; i < found; ++i) {
    const int pid = static_cast<int>(processes[i].pid);
    const bool known = std::any_of(gpu.holders.begin(), gpu.holders.end(),
                                   [pid](const DriverHolder& holder) { return holder.pid == pid; });
    if (known) continue;
    const uint64_t bytes = processes[i].memory;
    gpu.holders.push_back({pid, bytes == kUnknownMemory ? 0 : bytes});
  }
}

// Fills in what the driver knows of the GPUs found; a GPU without a node is not ours to use.
void AskDriver(const Nvml& nvml, GpuInventory& inventory) {
  char text[128] = {};
  if (nvml.driver(text, sizeof text) == kNvmlSuccess) inventory.driver = text;
  unsigned count = 0;
  if (nvml.count(&count) != kNvmlSuccess) return;
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    unsigned minor = 0;
    if (nvml.by_index(i, &device) != kNvmlSuccess || nvml.minor(device, &minor) != kNvmlSuccess) {
      continue;
    }
    const auto gpu = std::find_if(
        inventory.gpus.begin(), inventory.gpus.end(),
        [minor](const Gpu& candidate) { return candidate.minor == static_cast<int>(minor); });
    if (gpu == inventory.gpus.end()) continue;
    if (nvml.uuid(device, text, sizeof text) == kNvmlSuccess) gpu->uuid = text;
    if (nvml.name(device, text, sizeof text) == kNvmlSuccess) gpu->name = text;
    NvmlMemory memory{};
    if (nvml.memory(device, &memory) == kNvmlSuccess) gpu->memory_used_bytes = memory.used;
    for (const char* kind :
         {"ComputeRunningProcesses", "GraphicsRunningProcesses", "MPSComputeRunningProcesses"}) {
      AddHolders(nvml, device, kind, *gpu);
    }
  }
}

// The number at the end of a path; nothing when there is none.
std::optional<int> TrailingNumber(std::string_view path) {
  const size_t begin = path.find_last_not_of("0123456789") + 1;
  int number = 0;
  const auto [end, error] = std::from_chars(path.data() + begin, path.data() + path.size(), number);
  if (error != std::errc() || end != path.data() + path.size()) return std::nullopt;
  return number;
}

}  // namespace

GpuInventory FindGpus(const std::string& device_glob, const std::string& nvml_library) {
  GpuInventory inventory;
  glob_t found{};
  if (::glob(device_glob.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      const std::string node = found.gl_pathv[i];
      if (const std::optional<int> minor = TrailingNumber(node)) {
        Gpu& gpu = inventory.gpus.emplace_back();
        gpu.minor = *minor;
        gpu.node = node;
      }
    }
  }
  ::globfree(&found);
  std::sort(inventory.gpus.begin(), inventory.gpus.end(),
            [](const Gpu& a, const Gpu& b) { return a.minor < b.minor; });
  if (inventory.gpus.empty()) {
    inventory.nvml_problem = "not asked: there is no GPU";
    return inventory;
  }
  const SignalsBlocked blocked;
  absl::StatusOr<DynamicLibrary> library = DynamicLibrary::Open(nvml_library);
  if (!library.ok()) {
    inventory.nvml_problem = protocol::StatusText(library.status());
    return inventory;
  }
  const Nvml nvml(*std::move(library));
  if (!nvml.complete()) {
    inventory.nvml_problem = Concat(nvml_library, " lacks functions of version 2");
    return inventory;
  }
  if (const int error = nvml.init(); error != kNvmlSuccess) {
    inventory.nvml_problem = Concat("nvmlInit_v2 failed with ", error);
    return inventory;
  }
  AskDriver(nvml, inventory);
  nvml.shutdown();
  return inventory;
}

}  // namespace skein::worker
