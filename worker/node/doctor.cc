// The probes, one function each, and their judgement.
// Supervisor's thread. Must never report what was not looked at.
#include "worker/node/doctor.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <functional>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "protocol/base/dynamic_library.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"
#include "protocol/base/term_file.h"
#include "worker/node/descriptor.h"
#include "worker/node/processor_shares.h"
#include "worker/node/run_directory.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr uint64_t kSharedMemoryMin = uint64_t{64} << 20;
constexpr rlim_t kDescriptorReserve = 64 + 256;
constexpr rlim_t kDescriptorsMin = 128;  // below it accepted connections starve the control sockets

// What every probe sees.
struct Host {
  const protocol::Config& config;
  const Containment& containment;
  const DoctorOptions& options;
  const HolderReport& holders;
  bool on_gpu() const {
    return config.worker.backend != "cpu" && config.worker.backend != "reference";
  }
  bool many_nodes() const { return config.transport.control_endpoint.rfind("tcp://", 0) == 0; }
};

Feature Ok(std::string_view name, std::string reason) {
  return {std::string(name), FeatureState::kOk, std::move(reason), ""};
}

// Missing: degraded where the configuration could use it, unused elsewhere.
Feature Missing(std::string_view name, bool used, std::string reason, std::string_view fix) {
  return {std::string(name), used ? FeatureState::kDegraded : FeatureState::kUnused,
          std::move(reason), std::string(fix)};
}

std::vector<std::string> EntriesWith(const std::string& directory, std::string_view prefix) {
  std::vector<std::string> names;
  DIR* open = ::opendir(directory.c_str());
  if (open == nullptr) return names;
  while (const dirent* entry = ::readdir(open)) {
    const std::string_view name = entry->d_name;
    if (name.substr(0, prefix.size()) == prefix) names.emplace_back(name);
  }
  ::closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

std::string FirstWord(const std::string& text) { return text.substr(0, text.find_first_of(" \n")); }

Feature ProbePidNamespace(const Host& host) {
  if (host.containment.pid_namespaces()) {
    return Ok("pid_namespace", host.containment.needs_user_namespace()
                                   ? "workers are init of one each, inside a user namespace"
                                   : "workers are init of one each");
  }
  // A GPU worker goes without unless it is required.
  const bool used = !host.on_gpu() || host.config.features.pid_namespace == "required";
  return Missing("pid_namespace", used, host.containment.description(),
                 "run as root, or allow user namespaces (user.max_user_namespaces)");
}

Feature ProbeCgroupLeaf(const Host& host) {
  if (host.containment.leaves()) return Ok("cgroup_leaf", "each child has a cgroup of its own");
  return Missing("cgroup_leaf", true, host.containment.description(),
                 "run under the unit of deploy/systemd, which delegates its cgroup");
}

Feature ProbeRdma(const Host& host) {
  const std::string directory = host.options.dev + "/infiniband";
  const std::vector<std::string> nodes = EntriesWith(directory, "uverbs");
  std::string closed;
  for (const std::string& node : nodes) {
    const std::string path = Concat(directory, "/", node);
    if (::access(path.c_str(), R_OK | W_OK) != 0) {
      closed += Concat(closed.empty() ? "" : ", ", path, ": ", std::strerror(errno));
    }
  }
  if (!nodes.empty() && closed.empty()) return Ok("rdma", Concat(nodes.size(), " devices open"));
  const std::string reason =
      nodes.empty() ? Concat("no ", directory, "/uverbs*; tensors between nodes go by TCP")
                    : Concat(closed, "; tensors between nodes go by TCP");
  return Missing("rdma", host.many_nodes(), reason,
                 nodes.empty() ? "load the driver of the adapter (ib_uverbs)"
                               : "give this user read and write access to the device nodes");
}

Feature ProbeNvml(const Host& host) {
  const GpuInventory& inventory = host.holders.inventory;
  if (inventory.nvml_problem.empty()) {
    return Ok("nvml", Concat("driver ", inventory.driver, ", ", inventory.gpus.size(), " GPUs"));
  }
  return Missing("nvml", !inventory.gpus.empty(),
                 Concat(inventory.nvml_problem, "; open descriptors tell who holds a GPU"),
                 "install the driver's libnvidia-ml.so.1 into this image");
}

Feature ProbeNccl(const Host& host) {
  const auto library = protocol::DynamicLibrary::Open(host.options.nccl_library);
  if (!library.ok()) {
    return Missing("nccl", host.on_gpu(),
                   Concat(protocol::StatusText(library.status()), "; groups have one rank"),
                   "install libnccl2");
  }
  int version = 0;
  auto* get_version = library->Find<int(int*)>("ncclGetVersion");
  if (get_version == nullptr || get_version(&version) != 0) {
    return Missing("nccl", host.on_gpu(), "the library does not tell its version",
                   "install libnccl2 2.18 or later");
  }
  return Ok("nccl", Concat("version ", version));
}

Feature ProbeSharedMemory(const Host& host) {
  struct statvfs space {};
  const std::string path = host.options.dev + "/shm";
  if (::statvfs(path.c_str(), &space) != 0 || ::access(path.c_str(), W_OK) != 0) {
    return Missing("shared_memory", false,
                   Concat(path, " cannot be written; ranks of one host use sockets"),
                   "mount a tmpfs there");
  }
  const uint64_t bytes = uint64_t{space.f_bavail} * space.f_frsize;
  if (bytes >= kSharedMemoryMin) return Ok("shared_memory", Concat(bytes >> 20, " MiB free"));
  return Missing("shared_memory", false,
                 Concat("only ", bytes >> 20, " MiB free in ", path, " of ", kSharedMemoryMin >> 20,
                        "; ranks of one host use sockets"),
                 "give the container a larger /dev/shm (--shm-size)");
}

Feature ProbeMemlock(const Host& host) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_max == RLIM_INFINITY) return Ok("memlock", "unlimited");
  return Missing(
      "memlock", host.on_gpu() || host.many_nodes(),
      Concat("at most ", limit.rlim_max >> 10, " KiB; copies go through pageable memory"),
      "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited");
}

Feature ProbeNuma(const Host& host) {
  const std::vector<std::string> names =
      EntriesWith(host.options.sys + "/devices/system/node", "node");
  const auto nodes = std::count_if(names.begin(), names.end(), [](const std::string& name) {
    return name.size() > 4 && std::isdigit(static_cast<unsigned char>(name[4])) != 0;
  });
  if (nodes == 1) return Ok("numa", "one memory node");
  if (nodes > 1) return Ok("numa", Concat(nodes, " memory nodes; pages are spread over them"));
  return Missing("numa", false, "the system does not list memory nodes; pages stay where touched",
                 "mount /sys");
}

Feature ProbeHugePages(const Host& host) {
  const std::string text =
      ReadKernelFile(host.options.sys + "/kernel/mm/transparent_hugepage/enabled");
  if (text.find("[always]") != std::string::npos || text.find("[madvise]") != std::string::npos) {
    return Ok("huge_pages", FirstWord(text.substr(text.find('['))));
  }
  return Missing("huge_pages", !host.on_gpu(), "transparent huge pages are off; 4 KiB pages",
                 "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
}

// What stands in a probe's reason: the text without the key, and the remedy apart.
Feature Refused(std::string_view name, FeatureState state, const absl::Status& status,
                std::string_view more = "") {
  const std::string_view text = protocol::StatusText(status);
  const size_t remedy = text.rfind("; ");
  return {std::string(name), state, Concat(text.substr(0, remedy), more),
          remedy == std::string_view::npos ? "" : std::string(text.substr(remedy + 2))};
}

Feature ProbeRunDirectory(const Host& host) {
  const std::string& configured = host.config.node.run_directory;
  const std::string path = configured.empty() ? host.options.run_base : configured;
  const absl::Status tried = TryRunBase(path);
  if (tried.ok()) return Ok("run_directory", path);
  if (!configured.empty()) return Refused("run_directory", FeatureState::kFailed, tried);
  return Refused("run_directory", FeatureState::kDegraded, tried,
                 "; a private directory under /tmp");
}

Feature ProbeStateDirectory(const Host& host) {
  if (!host.options.listens) {
    return {"state_directory", FeatureState::kUnused, "the coordinator of another process has it",
            ""};
  }
  const std::string& configured = host.config.node.state_directory;
  std::string base = host.config.node.run_directory;
  if (base.empty()) {
    base = TryRunBase(host.options.run_base).ok() ? host.options.run_base : kFallbackRunBase;
  }
  auto path = protocol::TryStateDirectory(configured, base, host.options.state_directory);
  if (!path.ok() && configured.empty() && ::access(base.c_str(), F_OK) != 0) {
    path = protocol::TryStateDirectory(base, "", "");  // the start makes it, and the state in it
  }
  if (!path.ok()) return Refused("state_directory", FeatureState::kFailed, path.status());
  const absl::Status term = protocol::TermFile(*path).Check();
  return term.ok() ? Ok("state_directory", *path)
                   : Refused("state_directory", FeatureState::kFailed, term);
}

Feature ProbeDescriptors(const Host& host) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto wanted = static_cast<rlim_t>(host.config.server.connections_max) + kDescriptorReserve;
  if (limit.rlim_max >= wanted) return Ok("descriptors", Concat("at most ", limit.rlim_max));
  if (limit.rlim_max < kDescriptorsMin) {
    return {"descriptors", FeatureState::kFailed,
            Concat("at most ", limit.rlim_max, ", ", kDescriptorsMin, " needed"),
            "LimitNOFILE in the unit or ulimit -n"};
  }
  return Missing(
      "descriptors", true,
      Concat("at most ", limit.rlim_max, ", ", wanted, " wanted for ",
             host.config.server.connections_max, " connections; later ones are refused with 503"),
      "LimitNOFILE in the unit or ulimit -n, or lower --max-connections");
}

Feature ProbeClock(const Host& host) {
  const std::string source = FirstWord(ReadKernelFile(
      host.options.sys + "/devices/system/clocksource/clocksource0/current_clocksource"));
  for (const char* fast : {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"}) {
    if (source == fast) return Ok("clock", source);
  }
  return Missing("clock", true,
                 source.empty() ? "the clock source is not known; reads may be system calls"
                                : Concat(source, "; each read is a system call"),
                 "boot with clocksource=tsc if the processor's is stable");
}

Feature ProbeGpu(const Host& host) {
  const GpuInventory& inventory = host.holders.inventory;
  if (inventory.gpus.empty()) {
    return {"gpu", host.on_gpu() ? FeatureState::kFailed : FeatureState::kUnused,
            Concat("no ", host.options.dev, "/nvidia[0-9]* is visible"),
            host.on_gpu() ? "pass the device nodes into the container, or --backend cpu" : ""};
  }
  const Gpu& first = inventory.gpus.front();
  return Ok("gpu", Concat(inventory.gpus.size(), " visible, first ",
                          first.name.empty() ? first.node : first.name));
}

Feature ProbeHolders(const Host& host) {
  const int code = HolderExitCode(host.holders);
  if (host.holders.inventory.gpus.empty()) return Ok("gpu_holders", "no GPU to hold");
  if (code == 0) return Ok("gpu_holders", "nobody");
  const bool foreign = code == 3 && host.on_gpu();
  return {"gpu_holders", foreign ? FeatureState::kFailed : FeatureState::kUnused,
          Concat(host.holders.holders.size(), " processes\n", HolderText(host.holders)),
          "end them or choose another host; skein whoholds shows them again"};
}

Feature ProbePort(const Host& host) {
  const protocol::ServerConfig& server = host.config.server;
  if (!host.options.listens) {
    return {"port", FeatureState::kUnused, "the coordinator of another process has it", ""};
  }
  const std::string where = Concat(server.host, ":", server.port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV;  // as the start does
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(server.host.c_str(), Concat(server.port).c_str(), &hints, &found);
  if (error != 0) {
    return {"port", FeatureState::kFailed, Concat(where, ": ", ::gai_strerror(error)),
            "give --host a numeric address of this machine"};
  }
  const Descriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool bound = ::bind(socket.get(), found->ai_addr, found->ai_addrlen) == 0;
  const std::string reason = bound ? "free" : std::strerror(errno);
  ::freeaddrinfo(found);
  if (bound) return Ok("port", Concat(where, " is free"));
  return {"port", FeatureState::kFailed, Concat(where, ": ", reason),
          "end what listens there, or give another --port"};
}

Feature ProbeProcessors(const Host&) {
  return Ok("processors", Concat(AllowedProcessors().size(), " may be used"));
}

// A feature that is switched off is not missing.
void ApplyPolicy(const protocol::Config& config, Feature& feature) {
  if (FeaturePolicy(config, feature.name) != "off") return;
  feature.state = FeatureState::kUnused;
  feature.reason = Concat("off by features.", feature.name);
  feature.fix.clear();
}

// As the text format of metrics wants it.
std::string LabelValue(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string_view FeatureStateName(FeatureState state) {
  switch (state) {
    case FeatureState::kOk:
      return "ok";
    case FeatureState::kDegraded:
      return "degraded";
    case FeatureState::kUnused:
      return "unused";
    case FeatureState::kFailed:
      return "failed";
  }
  return "";
}

std::string_view FeaturePolicy(const protocol::Config& config, std::string_view name) {
  const std::string path = Concat("features.", name);
  for (const protocol::ConfigKey& key : protocol::ConfigKeys()) {
    if (key.path != path) continue;
    // The table gives addresses of members; nothing is written through them here.
    const auto text = std::get<std::string& (*)(protocol::Config&)>(key.access);
    return text(const_cast<protocol::Config&>(config));
  }
  return {};
}

std::vector<Feature> ExamineHost(const protocol::Config& config, const Containment& containment,
                                 const DoctorOptions& options) {
  HolderQuery query;
  query.proc_root = options.proc;
  query.device_glob = options.dev + "/nvidia[0-9]*";
  // Off: the driver is not asked, and says so.
  query.nvml_library = config.features.nvml == "off" ? "(off)" : options.nvml_library;
  const HolderReport holders = FindHolders(query);
  const Host host{config, containment, options, holders};
  std::vector<Feature> features;
  for (const auto& probe :
       {ProbePidNamespace, ProbeCgroupLeaf, ProbeProcessors, ProbeNuma, ProbeHugePages, ProbeClock,
        ProbeSharedMemory, ProbeMemlock, ProbeDescriptors, ProbeRunDirectory, ProbeStateDirectory,
        ProbePort, ProbeGpu, ProbeHolders, ProbeNvml, ProbeNccl, ProbeRdma}) {
    features.push_back(probe(host));
    ApplyPolicy(config, features.back());
  }
  return features;
}

absl::Status JudgeFeatures(const protocol::Config& config, const std::vector<Feature>& features) {
  std::string problems;
  for (const Feature& feature : features) {
    const bool missing = feature.state != FeatureState::kOk;
    const bool degraded = feature.state == FeatureState::kDegraded;
    const bool required = missing && FeaturePolicy(config, feature.name) == "required";
    const bool strict = degraded && config.node.strict != 0;
    if (feature.state == FeatureState::kFailed || required || strict) {
      const std::string_view why = required ? " is required (features."
                                   : strict ? " (--strict"
                                            : "";
      problems += Concat(problems.empty() ? "" : "\n", feature.name, why,
                         required ? feature.name : "", why.empty() ? "" : ")", ": ", feature.reason,
                         feature.fix.empty() ? "" : "; ", feature.fix);
    } else if (degraded) {
      SKEIN_LOG(kWarn, "feature degraded")
          .Field("feature", feature.name)
          .Field("reason", feature.reason)
          .Field("fix", feature.fix);
    }
  }
  return problems.empty() ? absl::OkStatus() : absl::FailedPreconditionError(problems);
}

std::string FeatureTable(const std::vector<Feature>& features) {
  std::string text;
  for (const Feature& feature : features) {
    std::string name = feature.name, state(FeatureStateName(feature.state));
    name.resize(std::max<size_t>(name.size(), 15), ' ');
    state.resize(std::max<size_t>(state.size(), 9), ' ');
    text += Concat(name, " ", state, " ", feature.reason, "\n");
    const bool wanting =
        feature.state == FeatureState::kDegraded || feature.state == FeatureState::kFailed;
    if (wanting && !feature.fix.empty())
      text += Concat(std::string(26, ' '), "fix: ", feature.fix, "\n");
  }
  return text;
}

std::string FeatureMetrics(const std::vector<Feature>& features) {
  std::string text =
      "# HELP skein_feature What the host has, as the probes of the start found it: 1 for the "
      "state "
      "of each feature, with the reason. degraded: skein doctor says what is used instead and how "
      "to get it.\n# TYPE skein_feature gauge\n";
  for (const Feature& feature : features) {
    for (const FeatureState state : {FeatureState::kOk, FeatureState::kDegraded,
                                     FeatureState::kUnused, FeatureState::kFailed}) {
      const bool is_it = state == feature.state;
      text += Concat("skein_feature{name=\"", LabelValue(feature.name), "\",state=\"",
                     FeatureStateName(state), "\",reason=\"",
                     is_it ? LabelValue(feature.reason) : "", "\"} ", is_it ? 1 : 0, "\n");
    }
  }
  return text;
}

std::string DegradedNames(const std::vector<Feature>& features, std::string_view separator) {
  std::string names;
  for (const Feature& feature : features) {
    if (feature.state != FeatureState::kDegraded) continue;
    names += Concat(names.empty() ? "" : separator, feature.name);
  }
  return names;
}

std::string FeatureSummary(const std::vector<Feature>& features) {
  size_t ok = 0, unused = 0;
  for (const Feature& feature : features) {
    ok += feature.state == FeatureState::kOk ? 1 : 0;
    unused += feature.state == FeatureState::kUnused ? 1 : 0;
  }
  const std::string degraded = DegradedNames(features, ", ");
  return Concat(ok, " ok, ", unused, " unused", degraded.empty() ? "" : ", degraded: ", degraded,
                "; skein doctor shows each");
}

}  // namespace skein::worker
