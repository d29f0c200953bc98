// Wiring of serve and node: configuration, run directory, containment, supervisor.
// Main thread. Must never leave a process or a file behind on an early return.
#include "worker/node/commands/serve.h"

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <unistd.h>

#include "absl/status/status.h"
#include "protocol/base/clock.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/base/term_file.h"
#include "protocol/config/admin_address.h"
#include "protocol/config/listen_address.h"
#include "worker/node/containment.h"
#include "worker/node/doctor.h"
#include "worker/node/gpu_locks.h"
#include "worker/node/life_signs.h"
#include "worker/node/line_output.h"
#include "worker/node/listen_socket.h"
#include "worker/node/node_supervisor.h"
#include "worker/node/orphan_sweep.h"
#include "worker/node/processor_shares.h"
#include "worker/node/progress_bar.h"
#include "worker/node/run_directory.h"
#include "worker/node/who_holds.h"

namespace skein::worker {
namespace {

using protocol::Concat;

// Where the demo model is, from the directory of the program: build tree, installation.
constexpr std::string_view kDemoModels[] = {"/../../../deploy/models/tiny-v41",
                                            "/../share/skein/models/tiny-v41"};

bool HoldsModel(const std::string& directory) {
  return ::access((directory + "/config.json").c_str(), R_OK) == 0;
}

std::string RealPath(const std::string& path) {
  std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
  return real ? std::string(real.get()) : path;
}

absl::Status ResolveModel(const protocol::LoadedConfig& loaded, const ProgramPaths& paths,
                          ServePlan& plan) {
  std::string& path = plan.config.model.path;
  if (!loaded.positional.empty()) {
    if (loaded.origins.contains("model.path") &&
        loaded.origins.find("model.path")->second == protocol::ConfigOrigin::kFlag) {
      return absl::InvalidArgumentError(Concat("the model is given twice: ", loaded.positional[0],
                                               " and --model ", path, "; give it once"));
    }
    path = loaded.positional[0];
  }
  if (path.empty()) {
    for (const std::string_view candidate : kDemoModels) {
      const std::string demo = Concat(paths.directory, candidate);
      if (path.empty() && HoldsModel(demo)) path = demo;
    }
    plan.embedded_model = true;
    if (path.empty()) {
      return absl::NotFoundError(
          "no demo model beside this program (deploy/models/tiny-v41 or "
          "share/skein/models/tiny-v41); give a checkpoint directory: skein serve DIR");
    }
  }
  if (!HoldsModel(path)) {
    return absl::NotFoundError(
        Concat("model ", path, ": no readable config.json there; give a checkpoint directory"));
  }
  path = RealPath(path);
  return absl::OkStatus();
}

int Fail(const absl::Status& status, int code) {
  return protocol::FailProgram("skein", status, code);
}

int ExitCodeOf(const absl::Status& status) {
  if (absl::IsNotFound(status)) return protocol::kExitModel;
  if (absl::IsInvalidArgument(status)) return protocol::kExitUsage;
  return absl::IsFailedPrecondition(status) ? protocol::kExitConfig : protocol::kExitInternal;
}

ChildSpec CoordinatorSpec(const ProgramPaths& paths, const std::string& config_file) {
  ChildSpec spec;
  spec.role = ChildRole::kCoordinator;
  spec.name = "coordinator";
  spec.program = paths.directory + "/skein-coordinator";
  spec.arguments = {"--config", config_file};
  return spec;
}

// `index`: of the worker among those of all nodes.
ChildSpec WorkerSpec(const ProgramPaths& paths, const std::string& config_file, int64_t index,
                     const std::vector<int>& processors) {
  ChildSpec spec;
  spec.role = ChildRole::kWorker;
  spec.name = Concat("worker.", index);
  spec.program = paths.directory + "/skein-worker";
  spec.arguments = {"--config", config_file, Concat("--worker-index=", index)};
  spec.processors = processors;
  return spec;
}

// Each worker has processors of its own, unless it is alone or was given more threads than its
// share holds.
std::vector<std::vector<int>> PlanProcessors(const protocol::Config& config) {
  const int64_t workers = protocol::WorkersOf(config).count;
  std::vector<std::vector<int>> none(static_cast<size_t>(workers));
  if (workers == 1) return none;
  std::vector<std::vector<int>> shares = ShareProcessors(AllowedProcessors(), workers);
  for (const std::vector<int>& share : shares) {
    if (static_cast<size_t>(config.worker.threads) > share.size()) return none;
  }
  return shares;
}

std::string ThreadsText(const ServePlan& plan) {
  if (plan.config.worker.threads > 0) return Concat(plan.config.worker.threads);
  if (plan.processors.front().empty()) return Concat(AllowedProcessors().size());
  const size_t least = plan.processors.front().size();
  const size_t most = plan.processors.back().size();
  return least == most ? Concat(least) : Concat(least, " or ", most);
}

// "2, one group each; threads 1 each; weights mapped once, read only"; of several nodes first which
// are here: "1 here, from number 2 on; in all 4, ...".
std::string WorkersText(const ServePlan& plan) {
  const int64_t workers = plan.config.scheduler.data_parallel_size;
  const protocol::NodeWorkers own = protocol::WorkersOf(plan.config);
  const std::string threads = ThreadsText(plan);
  const std::string here =
      own.count == workers ? ""
                           : Concat(own.count, " here, from number ", own.first, " on; in all ");
  if (workers == 1) return Concat("1, threads ", threads);
  if (const int64_t ranks = protocol::ExpertParallelSize(plan.config.scheduler); ranks > 1) {
    const int64_t groups = workers / ranks;
    return Concat(here, workers, ", in ", groups, groups == 1 ? " group of " : " groups of ", ranks,
                  " that share its experts; threads ", threads, " each");
  }
  return Concat(here, workers, ", a group each; threads ", threads,
                " each; one read-only mapping of the weights in memory");
}

// "dspark, at most 5 drafts a sequence and step, adaptive depth", or "off" and why.
std::string SpeculationText(const protocol::SpeculationConfig& speculation) {
  if (speculation.method == "none") return "off: speculation.method is none";
  const int64_t drafts = speculation.num_speculative_tokens;
  if (drafts == 0) return "off: speculation.num_speculative_tokens is 0";
  return Concat(speculation.method == "auto" ? "auto (the checkpoint's draft head, if it has one)"
                                             : speculation.method,
                ", at most ", drafts, drafts == 1 ? " draft" : " drafts", " a sequence and step, ",
                speculation.depth, " depth");
}

// What lives as long as the supervisor, in the order of construction.
struct NodeParts {
  NodeParts() = default;
  NodeParts(const NodeParts&) = delete;
  NodeParts& operator=(const NodeParts&) = delete;
  // The log outlives its output: what is still said goes to standard error.
  ~NodeParts() {
    if (output != nullptr) protocol::InstallLog({});
    if (output != nullptr) output->SetBar(nullptr);
  }

  std::unique_ptr<Containment> containment;
  std::unique_ptr<RunDirectory> run;
  std::unique_ptr<LineOutput> output;
  std::optional<protocol::TermFile> terms;
  std::optional<LifeSigns> life;
  ListenSocket listening;
  std::vector<ListenSocket> scraped;  // one per worker, or none
  std::unique_ptr<ProgressBar> bar;
  std::vector<Descriptor> gpu_locks;  // one per worker, or none
  std::string features;               // as metrics
  int orphans_swept = 0;
};

// Ends what earlier runs left. Without leaves the mark alone tells it.
void SweepEarlierRuns(const protocol::Config& config, NodeParts& parts) {
  parts.orphans_swept = parts.containment->orphans_swept() +
                        SweepOrphans(!parts.containment->leaves() || config.node.reap_own != 0);
}

bool OnGpu(const protocol::Config& config) {
  const std::string& backend = config.worker.backend;
  return backend != "cpu" && backend.rfind("reference", 0) != 0;
}

absl::Status LockWorkers(const ServePlan& plan, NodeParts& parts) {
  if (!OnGpu(plan.config)) return absl::OkStatus();
  const HolderQuery query;
  const GpuInventory inventory = FindGpus(query.device_glob, query.nvml_library);
  SKEIN_ASSIGN_OR_RETURN(parts.gpu_locks, LockGpus(inventory.gpus, plan.processors.size()));
  return absl::OkStatus();
}

// The sockets at which workers are scraped.
absl::Status OpenScraped(const ServePlan& plan, NodeParts& parts) {
  const std::string& listen = plan.config.worker.metrics_listen;
  if (listen.empty()) return absl::OkStatus();
  SKEIN_ASSIGN_OR_RETURN(const protocol::ListenAddress first, protocol::ParseListenAddress(listen));
  constexpr std::string_view kFlag = "--worker-metrics-listen";
  for (size_t i = 0; i < plan.processors.size(); ++i) {
    const size_t port = first.port == 0 ? 0 : first.port + i;
    SKEIN_ASSIGN_OR_RETURN(ListenSocket socket,
                           OpenListenSocket(first.host, static_cast<uint16_t>(port), kFlag, kFlag));
    parts.scraped.push_back(std::move(socket));
  }
  if (!protocol::IsLoopback(first.host)) {
    SKEIN_LOG(kWarn, "everybody who reaches this address can read the workers' metrics")
        .Field("address", listen);
  }
  return absl::OkStatus();
}

// "127.0.0.1:9400, 127.0.0.1:9401"; empty: nowhere.
std::string ScrapedText(const protocol::Config& config, const NodeParts& parts) {
  std::string text;
  for (const ListenSocket& socket : parts.scraped) {
    const std::string host = protocol::ParseListenAddress(config.worker.metrics_listen)->host;
    text += Concat(text.empty() ? "" : ", ", protocol::ListenText({host, socket.port}));
  }
  return text;
}

// What shows how far the workers are: below the log on a terminal, else lines of their own.
void OpenBar(NodeParts& parts) {
  ProgressBar::Options options;
  options.fd = parts.output->fd();
  options.is_terminal = ::isatty(STDERR_FILENO) == 1;
  options.plain = [](std::string_view line) {
    std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
    std::fflush(stdout);
  };
  parts.bar = std::make_unique<ProgressBar>(std::move(options));
  parts.output->SetBar(parts.bar.get());
}

// From here on lines of this process and its children go where the configuration says.
absl::Status OpenOutput(const protocol::LogConfig& log, std::string_view process,
                        NodeParts& parts) {
  std::unique_ptr<LogFiles> files;
  if (!log.directory.empty()) {
    LogFilesOptions options;
    options.directory = log.directory;
    options.file_bytes_max = static_cast<uint64_t>(log.file_bytes_max);
    options.files_max = static_cast<int>(log.files_max);
    SKEIN_ASSIGN_OR_RETURN(files, LogFiles::Create(std::move(options)));
  }
  parts.output = std::make_unique<LineOutput>(STDERR_FILENO, std::move(files));
  protocol::LogOptions options = protocol::ToLogOptions(log, process);
  options.sink = [output = parts.output.get()](std::string_view line) { output->Write(line); };
  protocol::InstallLog(std::move(options));
  return absl::OkStatus();
}

// Everything that can refuse a start, before the first child.
absl::Status PrepareNode(const ServePlan& plan, bool with_coordinator, NodeParts& parts) {
  const protocol::Config& config = plan.config;
  SKEIN_ASSIGN_OR_RETURN(parts.run, RunDirectory::Create(config.node.run_directory));
  SKEIN_RETURN_IF_ERROR(LockWorkers(plan, parts));
  if (with_coordinator) {
    SKEIN_ASSIGN_OR_RETURN(
        parts.listening,
        OpenListenSocket(config.server.host, static_cast<uint16_t>(config.server.port)));
    const std::string& run = parts.run->path();
    SKEIN_ASSIGN_OR_RETURN(
        const std::string state,
        protocol::ChooseStateDirectory(config.node.state_directory, run.substr(0, run.rfind('/')),
                                       protocol::kDefaultStateDirectory));
    parts.terms.emplace(state);
  }
  SKEIN_RETURN_IF_ERROR(OpenScraped(plan, parts));
  SKEIN_ASSIGN_OR_RETURN(
      parts.life, LifeSigns::Create(parts.run->path() + "/alive", config.node.notify_socket));
  SKEIN_RETURN_IF_ERROR(OpenOutput(config.log, with_coordinator ? "skein" : "skein-node", parts));
  OpenBar(parts);
  return absl::OkStatus();
}

// The configuration of the children, with the sockets of this run.
protocol::Config ChildConfig(protocol::Config config, bool with_coordinator,
                             const RunDirectory& run) {
  if (with_coordinator && config.transport.control_endpoint.empty()) {
    config.transport.control_endpoint = Concat("ipc://", run.path(), "/control");
  }
  if (with_coordinator && config.admin.listen.empty()) {
    config.admin.listen = Concat("unix:", run.path(), "/admin.sock");
  }
  return config;
}

// What the probes found, and the two choices of the start that are no probe.
std::vector<Feature> ShownFeatures(const ServePlan& plan, const Containment& containment,
                                   std::vector<Feature> features) {
  const FeatureState contained =
      containment.rung() == 1 ? FeatureState::kOk : FeatureState::kDegraded;
  features.push_back({"containment", contained, containment.description(), ""});
  features.push_back(
      {"backend", FeatureState::kOk, Concat(plan.backend.backend, ": ", plan.backend.reason), ""});
  return features;
}

// What the children read of this run: their configuration, whose path it returns, and beside it the
// degraded features, which the coordinator may have to name in its answers.
absl::StatusOr<std::string> WriteForChildren(const protocol::Config& child,
                                             const std::vector<Feature>& features,
                                             const RunDirectory& run) {
  SKEIN_RETURN_IF_ERROR(run.WriteFile("degraded", DegradedNames(features, ",")).status());
  return run.WriteFile("node.yaml", protocol::ConfigYaml(child));
}

SupervisorOptions ToSupervisorOptions(const ServePlan& plan, NodeParts& parts,
                                      std::vector<ChildSpec> children) {
  SupervisorOptions options;
  options.children = std::move(children);
  options.node = plan.config.node;
  options.drain_timeout = plan.config.server.shutdown_timeout;
  options.start_timeout = plan.config.rollout.start_timeout;
  options.containment = parts.containment.get();
  options.output = parts.output.get();
  options.life = &*parts.life;
  options.listener = std::move(parts.listening.socket);
  if (parts.terms) options.terms = &*parts.terms;
  options.counters_path = parts.run->path() + "/supervisor.prom";
  options.features = parts.features;
  options.orphans_swept = parts.orphans_swept;
  options.bar = parts.bar.get();
  options.on_report = [bar = parts.bar.get(), started = protocol::MonotonicNow()](
                          const ChildSpec& child, std::string_view line) {
    bar->Hide();  // standard output may be the same terminal
    const double seconds = absl::ToDoubleSeconds(protocol::MonotonicNow() - started);
    std::printf("%s: %.*s (after %.1f s)\n", child.name.c_str(), static_cast<int>(line.size()),
                line.data(), seconds);
    std::fflush(stdout);
    bar->Show();
  };
  return options;
}

// Runs the children until they are stopped.
int Supervise(const ServePlan& plan, const ProgramPaths& paths, NodeParts& parts,
              std::vector<ChildSpec> children) {
  auto supervisor = NodeSupervisor::Create(ToSupervisorOptions(plan, parts, std::move(children)));
  if (!supervisor.ok()) return Fail(supervisor.status(), protocol::kExitInternal);
  SKEIN_LOG(kInfo, "supervisor started")
      .Field("version", paths.version)
      .Field("containment", parts.containment->description())
      .Field("orphans_swept", parts.orphans_swept)
      .Field("term_file", parts.terms ? parts.terms->path() : std::string("none"));
  const int code = (*supervisor)->Run();
  SKEIN_LOG(kInfo, "supervisor ends").Field("code", code);
  if (const std::string& logs = plan.config.log.directory;
      code != protocol::kExitOk && !logs.empty()) {
    std::fprintf(stderr, "skein: ended with code %d; %s/skein.log says why\n", code, logs.c_str());
  }
  return code;
}

int StartNode(const ServePlan& plan, const ProgramPaths& paths, bool with_coordinator) {
  NodeParts parts;
  parts.containment = ProbeContainment(plan.config);
  SweepEarlierRuns(plan.config, parts);
  DoctorOptions probes;
  probes.listens = with_coordinator;
  const std::vector<Feature> features = ExamineHost(plan.config, *parts.containment, probes);
  if (const absl::Status judged = JudgeFeatures(plan.config, features); !judged.ok()) {
    return Fail(judged, protocol::kExitConfig);
  }
  const std::vector<Feature> shown = ShownFeatures(plan, *parts.containment, features);
  parts.features = FeatureMetrics(shown);
  if (const absl::Status ready = PrepareNode(plan, with_coordinator, parts); !ready.ok()) {
    return Fail(ready, protocol::kExitConfig);
  }
  const protocol::Config child = ChildConfig(plan.config, with_coordinator, *parts.run);
  if (!child.server.ssl_certfile.empty()) {
    parts.life->AskOperators(protocol::ParseAdminAddress(child.admin.listen).value());
  }
  const auto file = WriteForChildren(child, shown, *parts.run);
  if (!file.ok()) return Fail(file.status(), protocol::kExitConfig);
  const StartFacts facts = {parts.containment->description(), FeatureSummary(features),
                            parts.run->path(),
                            with_coordinator ? parts.listening.port : plan.config.server.port,
                            ScrapedText(plan.config, parts)};
  std::fputs(StartTable(plan, paths, facts).c_str(), stdout);
  std::fflush(stdout);
  std::vector<ChildSpec> children;
  if (with_coordinator) children.push_back(CoordinatorSpec(paths, *file));
  for (size_t i = 0; i < plan.processors.size(); ++i) {
    const int64_t index = protocol::WorkersOf(plan.config).first + static_cast<int64_t>(i);
    children.push_back(WorkerSpec(paths, *file, index, plan.processors[i]));
    if (!parts.gpu_locks.empty()) children.back().lock_fd = parts.gpu_locks[i].get();
    if (parts.scraped.empty()) continue;
    children.back().metrics_fd = parts.scraped[i].socket.get();
    // Under `skein serve` the coordinator has them.
    if (!with_coordinator && i == 0) children.back().arguments.emplace_back("--with-counters=1");
  }
  return Supervise(plan, paths, parts, std::move(children));
}

}  // namespace

absl::StatusOr<ServePlan> ResolveServe(const protocol::LoadedConfig& loaded,
                                       const ProgramPaths& paths) {
  ServePlan plan;
  plan.config = loaded.config;
  SKEIN_RETURN_IF_ERROR(ResolveModel(loaded, paths, plan));
  SKEIN_ASSIGN_OR_RETURN(plan.backend, ChooseBackend(plan.config.worker.backend,
                                                     paths.built_backends, paths.device_directory));
  plan.config.worker.backend = plan.backend.backend;
  // Not every backend does what was asked for.
  SKEIN_RETURN_IF_ERROR(protocol::ValidateConfig(plan.config, {}));
  plan.config.node.run_directory = AbsolutePath(plan.config.node.run_directory);
  plan.config.model.served_model_name = protocol::ServedModelName(plan.config.model);
  plan.processors = PlanProcessors(plan.config);
  return plan;
}

std::unique_ptr<Containment> ProbeContainment(const protocol::Config& config) {
  ContainmentOptions options;
  const std::string& wanted = config.features.pid_namespace;
  options.pid_namespaces = wanted == "required" || (wanted == "preferred" && !OnGpu(config));
  if (wanted == "preferred") {
    options.no_namespace_reason = "the GPU driver does not open a device inside one";
  }
  options.leaves = config.features.cgroup_leaf != "off";
  return Containment::Probe(options);
}

absl::Duration StopBudget(const protocol::Config& config) {
  return config.server.shutdown_timeout + 3 * config.node.stop_timeout + absl::Seconds(1);
}

std::string StartTable(const ServePlan& plan, const ProgramPaths& paths, const StartFacts& facts) {
  const protocol::Config& config = plan.config;
  const std::string& logs = config.log.directory;
  return Concat("skein ", paths.version, "\n  model        ", config.model.served_model_name, " (",
                config.model.path, plan.embedded_model ? ", embedded default)" : ")",
                "\n  backend      ", plan.backend.backend, ": ", plan.backend.reason,
                "\n  workers      ", WorkersText(plan), "\n  speculation  ",
                SpeculationText(config.speculation), "\n  api          ",
                config.server.ssl_certfile.empty() ? "http://" : "https://", config.server.host,
                ":", facts.port, "\n  metrics      /metrics of the API; of workers: ",
                facts.scraped.empty() ? "none without --worker-metrics-listen" : facts.scraped,
                "\n  containment  ", facts.containment, "\n  host         ", facts.features,
                "\n  run files    ", facts.run_directory, "\n  log          ",
                logs.empty() ? "standard error" : Concat(logs, "/skein.log"),
                "\n  config       hash ", protocol::ConfigHash(config),
                "; skein config shows every value", "\n  stop         Ctrl-C drains for at most ",
                absl::ToDoubleSeconds(config.server.shutdown_timeout),
                " s, twice stops at once; all has ended within ",
                absl::ToDoubleSeconds(StopBudget(config)), " s\n");
}

int RunServe(std::span<const std::string> arguments, const ProgramPaths& paths) {
  protocol::LoadOptions options;
  options.allow_auto_backend = true;
  options.positional_max = 1;
  const auto loaded = protocol::LoadConfig(arguments, options);
  if (!loaded.ok()) return Fail(loaded.status(), protocol::ConfigExitCode(loaded.status()));
  protocol::InstallLog(protocol::ToLogOptions(loaded->config.log, "skein"));
  for (const std::string& notice : loaded->notices) SKEIN_LOG(kInfo, notice);
  absl::StatusOr<ServePlan> plan = ResolveServe(*loaded, paths);
  if (!plan.ok()) return Fail(plan.status(), ExitCodeOf(plan.status()));
  return StartNode(*plan, paths, true);
}

int RunNode(std::span<const std::string> arguments, const ProgramPaths& paths) {
  protocol::LoadOptions options;
  options.required = {"model.path", "transport.control_endpoint"};
  const auto loaded = protocol::LoadConfig(arguments, options);
  if (!loaded.ok()) return Fail(loaded.status(), protocol::ConfigExitCode(loaded.status()));
  protocol::InstallLog(protocol::ToLogOptions(loaded->config.log, "skein-node"));
  for (const std::string& notice : loaded->notices) SKEIN_LOG(kInfo, notice);
  absl::StatusOr<ServePlan> plan = ResolveServe(*loaded, paths);
  if (!plan.ok()) return Fail(plan.status(), ExitCodeOf(plan.status()));
  return StartNode(*plan, paths, false);
}

ProgramPaths OwnPaths() {
  ProgramPaths paths;
  char text[PATH_MAX] = {};
  const ssize_t size = ::readlink("/proc/self/exe", text, sizeof text - 1);
  const std::string_view program(text, size > 0 ? static_cast<size_t>(size) : 0);
  paths.directory = program.substr(0, program.rfind('/'));
  paths.built_backends = SKEIN_BACKENDS;
  paths.version = SKEIN_VERSION;
  return paths;
}

}  // namespace skein::worker
