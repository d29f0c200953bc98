// Joining the three sources, and the verdicts.
// Supervisor's thread. Must never count a process of which only the number is known.
#include "worker/node/who_holds.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include "protocol/base/strings.h"
#include "worker/node/cgroup_owner.h"
#include "worker/node/descriptor.h"
#include "worker/node/orphan_sweep.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr double kSpinningShare = 0.9;
constexpr std::string_view kHostPidNamespace = "pid:[4026531836]";
constexpr uint64_t kIdleBytesMax = uint64_t{2} << 30;  // the driver's own share of an idle GPU

// What one process shows of the GPUs.
struct Evidence {
  std::set<int> gpus;
  bool driver = false, descriptor = false, mapping = false;
  uint64_t memory_bytes = 0;
};

const Gpu* FindNode(const GpuInventory& inventory, std::string_view path) {
  for (const Gpu& gpu : inventory.gpus) {
    if (gpu.node == path) return &gpu;
  }
  return nullptr;
}

// False when the descriptors of the process may not be read.
bool LookAtDescriptors(const std::string& process, const GpuInventory& inventory, Evidence& found) {
  const std::string path = process + "/fd";
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return errno != EACCES && errno != EPERM;
  while (const dirent* entry = ::readdir(directory)) {
    char target[256];
    const ssize_t size =
        ::readlink(Concat(path, "/", entry->d_name).c_str(), target, sizeof target);
    if (size <= 0) continue;
    const Gpu* gpu = FindNode(inventory, std::string_view(target, static_cast<size_t>(size)));
    if (gpu == nullptr) continue;
    found.descriptor = true;
    found.gpus.insert(gpu->minor);
  }
  ::closedir(directory);
  return true;
}

void LookAtMappings(const std::string& process, const GpuInventory& inventory, Evidence& found) {
  std::ifstream lines(process + "/maps");
  for (std::string line; std::getline(lines, line);) {
    const size_t path = line.find('/');
    if (path == std::string::npos) continue;
    const Gpu* gpu = FindNode(inventory, std::string_view(line).substr(path));
    if (gpu == nullptr) continue;
    found.mapping = true;
    found.gpus.insert(gpu->minor);
  }
}

// Names of the driver are pids of the host or of the caller's namespace: a process is meant if its
// number here is the one, or else if the number is one of its namespaces'. Inside a PID namespace
// the number of a process of the host may be one of ours by chance: there it must show the GPU too.
std::optional<int> Translate(const std::map<int, ProcessEntry>& processes,
                             const std::map<int, Evidence>& evidence, int pid, bool inside) {
  const auto may_be = [&](int number) { return !inside || evidence.contains(number); };
  if (processes.contains(pid)) return may_be(pid) ? std::optional<int>(pid) : std::nullopt;
  std::optional<int> found;
  for (const auto& [number, process] : processes) {
    const std::vector<int>& pids = process.namespace_pids;
    if (std::find(pids.begin(), pids.end(), pid) == pids.end() || !may_be(number)) continue;
    if (found) return std::nullopt;  // two could be meant
    found = number;
  }
  return found;
}

bool HasLiveSupervisor(const std::map<int, ProcessEntry>& processes, const SupervisorMark& mark) {
  return std::any_of(processes.begin(), processes.end(), [&mark](const auto& entry) {
    return entry.second.state != 'Z' && IsMarked(mark, entry.second);
  });
}

// Its parent is the init of a namespace or a session's manager, which adopts what others left.
bool IsAdopted(const std::map<int, ProcessEntry>& processes, const ProcessEntry& process) {
  if (process.parent <= 1) return true;
  const auto parent = processes.find(process.parent);
  return parent != processes.end() &&
         (parent->second.namespace_pids.back() == 1 ||
          parent->second.command.find("systemd --user") != std::string::npos);
}

HolderVerdict Judge(const std::map<int, ProcessEntry>& processes, const GpuHolder& holder) {
  if (holder.process.mark) {
    return HasLiveSupervisor(processes, *holder.process.mark) ? HolderVerdict::kOursLive
                                                              : HolderVerdict::kOursOrphan;
  }
  const bool left = IsAdopted(processes, holder.process) && holder.cpu_share > kSpinningShare;
  return left ? HolderVerdict::kForeignOrphan : HolderVerdict::kForeign;
}

std::string EvidenceText(const Evidence& found) {
  std::string text;
  for (const auto& [here, name] :
       {std::pair(found.driver, "driver"), std::pair(found.descriptor, "descriptor"),
        std::pair(found.mapping, "mapping")}) {
    if (here) text += (text.empty() ? "" : "+") + std::string(name);
  }
  return text;
}

int64_t BootUnixSeconds(const std::string& proc_root) {
  std::ifstream lines(proc_root + "/stat");
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("btime ", 0) == 0) return std::strtoll(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}

std::string UtcText(int64_t unix_s) {
  const time_t seconds = unix_s;
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

void AddTimes(const std::string& proc_root, GpuHolder& holder) {
  const auto per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const double uptime = std::strtod(ReadKernelFile(proc_root + "/uptime").c_str(), nullptr);
  const double start = static_cast<double>(holder.process.start_ticks) / per_second;
  holder.age_s = std::max(uptime - start, 0.0);
  const double cpu = static_cast<double>(holder.process.cpu_ticks) / per_second;
  holder.cpu_share = holder.age_s > 0 ? cpu / holder.age_s : 0;
  holder.started_unix_s = BootUnixSeconds(proc_root) + static_cast<int64_t>(start);
}

// Processes outside a PID namespace cannot be seen from inside.
bool InsidePidNamespace(const std::string& proc_root) {
  char target[64];
  const ssize_t size = ::readlink((proc_root + "/self/ns/pid").c_str(), target, sizeof target);
  if (size <= 0) return false;
  return std::string_view(target, static_cast<size_t>(size)) != kHostPidNamespace;
}

std::map<int, Evidence> Gather(const std::string& proc_root,
                               const std::map<int, ProcessEntry>& processes, HolderReport& report) {
  std::map<int, Evidence> evidence;
  size_t unreadable = 0;
  for (const auto& [pid, process] : processes) {
    Evidence found;
    const std::string path = Concat(proc_root, "/", pid);
    if (!LookAtDescriptors(path, report.inventory, found)) ++unreadable;
    LookAtMappings(path, report.inventory, found);
    if (!found.gpus.empty()) evidence[pid] = found;
  }
  if (unreadable > 0) {
    report.problems.push_back(
        Concat("the descriptors of ", unreadable, " processes may not be read; run as root"));
  }
  const bool inside = InsidePidNamespace(proc_root);
  const std::map<int, Evidence> shown = evidence;
  for (const Gpu& gpu : report.inventory.gpus) {
    for (const DriverHolder& holder : gpu.holders) {
      const std::optional<int> pid = Translate(processes, shown, holder.pid, inside);
      if (!pid) {
        report.unresolved_pids.push_back(holder.pid);
        continue;
      }
      Evidence& found = evidence[*pid];
      found.driver = true;
      found.gpus.insert(gpu.minor);
      found.memory_bytes += holder.memory_bytes;
    }
  }
  return evidence;
}

std::string HolderLine(const GpuHolder& holder) {
  const ProcessEntry& process = holder.process;
  std::string pids;
  for (const int pid : process.namespace_pids) pids += (pids.empty() ? "" : "/") + Concat(pid);
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, "age %.0f s, cpu/age %.2f, %.0f MiB", holder.age_s,
                holder.cpu_share, static_cast<double>(holder.memory_bytes) / (1 << 20));
  std::string text =
      Concat("  ", HolderVerdictName(holder.verdict), "  pid ", process.pid, "  ", holder.owner,
             "\n    state ", std::string(1, process.state), ", parent ", process.parent,
             ", started ", UtcText(holder.started_unix_s), ", ", numbers, ", pids by namespace ",
             pids, ", seen by ", holder.evidence, "\n    ", process.command, "\n");
  if (holder.verdict == HolderVerdict::kForeignOrphan) {
    text += Concat("    spinning since ", UtcText(holder.started_unix_s), "\n");
  }
  return text;
}

// What may be missing although nothing failed.
void AddBlindSpots(const std::string& proc_root, HolderReport& report) {
  if (!InsidePidNamespace(proc_root)) return;
  if (!report.inventory.nvml_problem.empty()) {
    report.problems.push_back(Concat("this is a PID namespace and the driver was not asked (",
                                     report.inventory.nvml_problem,
                                     "); run skein whoholds on the host"));
  }
  for (const Gpu& gpu : report.inventory.gpus) {
    if (!gpu.holders.empty() || gpu.memory_used_bytes < kIdleBytesMax) continue;
    report.problems.push_back(Concat("GPU ", gpu.minor, " has ", gpu.memory_used_bytes >> 20,
                                     " MiB in use by processes that are not visible in this PID "
                                     "namespace; run skein whoholds on the host"));
  }
}

}  // namespace

std::string_view HolderVerdictName(HolderVerdict verdict) {
  switch (verdict) {
    case HolderVerdict::kOursLive:
      return "ours-live";
    case HolderVerdict::kOursOrphan:
      return "ours-orphan";
    case HolderVerdict::kForeign:
      return "foreign";
    case HolderVerdict::kForeignOrphan:
      return "foreign-orphan";
  }
  return "";
}

HolderReport FindHolders(const HolderQuery& query) {
  return FindHolders(query, FindGpus(query.device_glob, query.nvml_library));
}

HolderReport FindHolders(const HolderQuery& query, GpuInventory inventory) {
  HolderReport report;
  report.inventory = std::move(inventory);
  if (report.inventory.gpus.empty()) return report;
  std::map<int, ProcessEntry> processes;
  for (const int pid : ListProcesses(query.proc_root)) {
    if (auto process = ReadProcess(query.proc_root, pid)) processes[pid] = *std::move(process);
  }
  if (processes.empty()) {
    report.problems.push_back(
        Concat(query.proc_root, " lists no process; mount proc there to see who holds a GPU"));
  }
  AddBlindSpots(query.proc_root, report);
  for (const auto& [pid, found] : Gather(query.proc_root, processes, report)) {
    GpuHolder holder;
    holder.process = processes.at(pid);
    holder.gpus.assign(found.gpus.begin(), found.gpus.end());
    holder.evidence = EvidenceText(found);
    holder.owner = CgroupOwner(holder.process.cgroup);
    holder.memory_bytes = found.memory_bytes;
    AddTimes(query.proc_root, holder);
    holder.verdict = Judge(processes, holder);
    report.holders.push_back(std::move(holder));
  }
  return report;
}

std::string HolderText(const HolderReport& report) {
  if (report.inventory.gpus.empty()) return "no GPU is visible here\n";
  std::string text;
  for (const Gpu& gpu : report.inventory.gpus) {
    text += Concat("GPU ", gpu.minor, "  ", gpu.node, gpu.name.empty() ? "" : "  ", gpu.name,
                   gpu.uuid.empty() ? "" : "  ", gpu.uuid, "\n");
    bool any = false;
    for (const GpuHolder& holder : report.holders) {
      if (std::find(holder.gpus.begin(), holder.gpus.end(), gpu.minor) == holder.gpus.end())
        continue;
      text += HolderLine(holder);
      any = true;
    }
    if (!any) text += "  nobody found\n";
  }
  for (const int pid : report.unresolved_pids) {
    text += Concat("the driver names process ", pid,
                   ", which is none of this PID namespace; run skein whoholds on the host\n");
  }
  for (const std::string& problem : report.problems) text += Concat("note: ", problem, "\n");
  return text;
}

int HolderExitCode(const HolderReport& report) {
  bool orphan = false;
  for (const GpuHolder& holder : report.holders) {
    const HolderVerdict verdict = holder.verdict;
    if (verdict == HolderVerdict::kForeign || verdict == HolderVerdict::kForeignOrphan) return 3;
    orphan |= verdict == HolderVerdict::kOursOrphan;
  }
  if (orphan) return 5;
  return report.unresolved_pids.empty() && report.problems.empty() ? 0 : 4;
}

int KillOrphans(const HolderReport& report) {
  std::vector<ProcessEntry> orphans;
  for (const GpuHolder& holder : report.holders) {
    if (holder.verdict == HolderVerdict::kOursOrphan) orphans.push_back(holder.process);
  }
  return EndOrphans(orphans);
}

}  // namespace skein::worker
