// skein-worker: owns one device's caches and kernels and runs the plans of a coordinator. Wiring
// only.

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cpu/register.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"
#include "kernels/reference/register.h"
#include "protocol/actor/threaded_actor_system.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/fingerprint.h"
#include "protocol/base/log.h"
#include "protocol/base/parent_guard.h"
#include "protocol/base/signal_watch.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/config/config.h"
#include "protocol/config/fault_list.h"
#include "protocol/config/listen_address.h"
#include "protocol/metrics/metrics.h"
#include "protocol/tensor/ucx_block_channel.h"
#include "protocol/tensor/ucx_group_port.h"
#include "protocol/tensor/ucx_port.h"
#include "protocol/transport/control_transport.h"
#include "protocol/transport/frame_metrics.h"
#include "worker/build_identity.h"
#include "worker/fault_points.h"
#include "worker/gpu_backend.h"
#include "worker/host_placement.h"
#include "worker/loaded_model.h"
#include "worker/metrics.h"
#include "worker/metrics_listener.h"
#include "worker/preflight.h"
#include "worker/start_progress.h"
#include "worker/step_executor.h"
#include "worker/watchdog.h"
#include "worker/worker_actor.h"

namespace skein::worker {
namespace {

using protocol::kExitConfig;
using protocol::kExitInternal;
using protocol::kExitModel;
using protocol::kExitRestart;

int Fail(const absl::Status& status, int code) {
  return protocol::FailProgram("skein-worker", status, code);
}

// Refused models are data errors, unusable combinations configuration errors.
int LoadExitCode(const absl::Status& status) {
  if (absl::IsInternal(status))
    return kExitInternal;  // the device's doing, and worth another start
  return absl::IsUnimplemented(status) || absl::IsResourceExhausted(status) ? kExitConfig
                                                                            : kExitModel;
}

// The planted faults, which LoadConfig has checked.
FaultPoints FaultsOf(const protocol::Config& config) {
  return FaultPoints(
      protocol::ParseFaults(config.worker.enable_faults).value_or(protocol::FaultList{}));
}

// The exit code of a worker that a planted fault ends at its start.
std::optional<int> AnnounceFaults(const protocol::Config& config) {
  if (config.worker.enable_faults.empty()) return std::nullopt;
  SKEIN_LOG(kWarn, "faults are planted; for tests only")
      .Field("faults", config.worker.enable_faults);
  return FaultsOf(config).AtStart();
}

StepExecutor::StepHook StepHookOf(const protocol::Config& config) {
  if (config.worker.enable_faults.empty()) return nullptr;
  return [faults = FaultsOf(config)](const protocol::StepPlan& plan) { faults.BeforeStep(plan); };
}

// Set by TERM or INT; wakes the actor once there is one.
struct StopRequest {
  std::atomic<bool> asked = false;
  std::atomic<protocol::Waker*> actor = nullptr;
  void operator()() {
    asked = true;
    if (protocol::Waker* waker = actor.load(); waker != nullptr) waker->Wake();
  }
};

// What is counted, and what a scrape asks. The pointers are set once there is something to ask; the
// listener, which asks, ends before it goes.
struct Telemetry {
  std::unique_ptr<protocol::MetricsRegistry> registry;
  std::unique_ptr<WorkerMetrics> metrics;
  std::unique_ptr<protocol::FrameMetrics> frames;
  std::atomic<const protocol::ThreadedActorSystem*> system = nullptr;
  std::atomic<const StepExecutor*> executor = nullptr;
  std::atomic<int64_t> round_ns = 0;  // when the actor's loop went round last
  std::filesystem::path counters;     // what the supervisor counts, as text; empty: not here

  void OnRound() { round_ns = absl::ToUnixNanos(protocol::MonotonicNow()); }
  // For a scrape at this moment. The listener's thread.
  std::string Text() {
    WorkerMetrics::Reading reading;
    if (const StepExecutor* asked = executor.load(); asked != nullptr) {
      reading.device_age = asked->RunningFor();
      reading.plans = asked->num_plans_waiting();
      reading.results = asked->num_results_waiting();
      reading.hangs = asked->num_hangs();
      reading.actor_age = protocol::MonotonicNow() - absl::FromUnixNanos(round_ns);
    }
    metrics->Set(reading);
    const auto* counts = system.load();
    const StepExecutor* ranks = executor.load();
    if (counts != nullptr) frames->Update(counts->counters(), ranks ? ranks->num_stale() : 0);
    std::string text = registry->Text();
    if (counters.empty()) return text;
    std::ifstream file(counters);
    for (std::string line; std::getline(file, line);) text += line + "\n";
    return text;
  }
};

// Serves the metrics where the configuration, or the supervisor, says. None: nowhere.
absl::StatusOr<std::unique_ptr<MetricsListener>> OpenMetrics(const protocol::LoadedConfig& loaded,
                                                             Telemetry& telemetry) {
  const std::string& listen = loaded.config.worker.metrics_listen;
  if (listen.empty()) return std::unique_ptr<MetricsListener>();
  SKEIN_ASSIGN_OR_RETURN(const protocol::ListenAddress first, protocol::ParseListenAddress(listen));
  const int64_t index =
      std::max<int64_t>(loaded.FlagOr("worker-index", 0) - loaded.config.node.first_worker, 0);
  MetricsListener::Options options;
  options.host = first.host;
  options.port = first.port == 0 ? uint16_t{0} : static_cast<uint16_t>(first.port + index);
  options.listen_fd = static_cast<int>(loaded.FlagOr("metrics-fd", -1));
  options.text = [&telemetry] { return telemetry.Text(); };
  auto listener = MetricsListener::Create(std::move(options));
  if (!listener.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker.metrics_listen (--worker-metrics-listen): ",
                     protocol::ToAbsl(protocol::StatusText(listener.status()))));
  }
  SKEIN_LOG(kInfo, "metrics are served")
      .Field("address", protocol::ListenText({first.host, (*listener)->port()}));
  return listener;
}

struct Device {
  kernels::KernelRegistry registry;
  ProcessorClaims processors;
  std::string memory;  // what InterleaveMemory said
  std::unique_ptr<kernels::cpu::ThreadPool> threads;
  std::shared_ptr<kernels::Device> compute;  // what the model runs on
};

// `index`: of the worker on its node, and so of its GPU.
absl::Status OpenDevice(const protocol::Config& config, int index, Device& device) {
  if (IsGpuBackend(config.worker.backend)) {
    // No others: they cannot work on its memory.
    SKEIN_RETURN_IF_ERROR(RegisterGpuKernels(device.registry));
    SKEIN_ASSIGN_OR_RETURN(device.compute, OpenGpu(config.worker.backend, index));
    return absl::OkStatus();
  }
  SKEIN_RETURN_IF_ERROR(kernels::RegisterReferenceKernels(device.registry));
  SKEIN_RETURN_IF_ERROR(kernels::RegisterCpuKernels(device.registry, kernels::CpuIsa::kAuto));
  const auto threads = static_cast<int>(config.worker.threads);
  kernels::cpu::ThreadPoolOptions pool;
  pool.threads = threads > 0 ? threads : UsableProcessors();
  if (config.worker.pin_threads != 0) {
    device.processors = ProcessorClaims::Take(kernels::cpu::UsableProcessorList(), pool.threads);
    pool.processors = device.processors.processors();
  }
  device.memory =
      config.features.numa == "off" ? "not spread: features.numa is off" : InterleaveMemory();
  device.threads = std::make_unique<kernels::cpu::ThreadPool>(pool);
  device.compute =
      std::make_shared<kernels::HostDevice>(kernels::DeviceStream{device.threads.get()});
  return absl::OkStatus();
}

// The part of the model that a worker has in its group: ranks follow the numbers of the workers.
Shard ShardOf(const protocol::Config& config, int index) {
  const auto ranks = static_cast<int>(protocol::ExpertParallelSize(config.scheduler));
  return {index % ranks, ranks};
}

// What a group of GPUs exchanges over.
absl::Status OpenNccl(const protocol::Config& config, LoadOptions& options) {
  if (options.shard.whole() || options.device->is_host()) return absl::OkStatus();
  if (config.features.nccl == "off") {
    return absl::FailedPreconditionError(
        absl::StrCat("scheduler.expert_parallel_size is ", options.shard.num_ranks,
                     " and features.nccl is off: ranks on GPUs exchange over NCCL"));
  }
  SKEIN_ASSIGN_OR_RETURN(options.nccl, protocol::NcclLibrary::Open("libnccl.so.2"));
  return absl::OkStatus();
}

// Where the compute threads run.
std::string PinnedText(const protocol::Config& config, const Device& device) {
  if (device.threads == nullptr) return "the GPU's";
  if (config.worker.pin_threads == 0) return "not pinned, as configured";
  if (device.processors.processors().empty()) {
    if (const int usable = UsableProcessors(); device.threads->threads() > usable) {
      return protocol::Concat("not pinned: ", device.threads->threads(), " threads, ", usable,
                              usable == 1 ? " processor" : " processors");
    }
    return "not pinned: other workers of this host have the processors";
  }
  return absl::StrJoin(device.processors.processors(), ",");
}

void LogLoaded(const protocol::Config& config, const Device& device, LoadedModel& model,
               const LoadOptions& options, const ModelSpec& spec) {
  const kernels::DeviceProperties found = device.compute->properties();
  SKEIN_LOG(kInfo, "model loaded")
      .Field("model", config.model.path)
      .Field("backend", config.worker.backend)
      .Field("device", found.name)
      .Field("features", found.features)
      .Field("threads", device.threads == nullptr ? 0 : device.threads->threads())
      .Field("processors", PinnedText(config, device))
      .Field("memory", device.memory)
      .Field("free_bytes", found.free_bytes)
      .Field("graphs", model.graphs() == nullptr ? 0 : model.graphs()->size())
      .Field("graph_nodes", model.graphs() == nullptr ? 0 : model.graphs()->num_nodes())
      .Field("rank", options.shard.rank)
      .Field("ranks", options.shard.num_ranks)
      .Field("weight_bytes", model.weights().bytes)
      .Field("skipped_tensors", model.weights().skipped_tensors)
      .Field("arena_bytes", static_cast<uint64_t>(model.arena_bytes()))
      .Field("blocks", options.num_blocks)
      .Field("block_tokens", options.block_tokens)
      .Field("slots", options.num_slots)
      .Field("drafts", options.limits.max_drafts)
      .Field("draft_taps", options.tap_side == TapSide::kEntering ? "entering" : "leaving");
  if (options.make_tensor != nullptr) {
    SKEIN_LOG(kWarn, "weights are random: answers mean nothing")
        .Field("load_format", config.model.load_format);
  }
  if (const std::string reason = WhyNoDrafts(config, spec, options); !reason.empty()) {
    SKEIN_LOG(kInfo, "speculation is off").Field("reason", reason);
  }
}

// The report of the start: what its parts took.
void LogStarted(const StartProgress& progress) {
  const auto seconds = [&progress](StartPhase phase) {
    return absl::ToDoubleSeconds(progress.Took(phase));
  };
  SKEIN_LOG(kInfo, "worker started")
      .Field("preflight_s", seconds(StartPhase::kPreflight))
      .Field("weights_s", seconds(StartPhase::kWeights))
      .Field("engram_s", seconds(StartPhase::kEngram))
      .Field("graph_capture_s", seconds(StartPhase::kGraphCapture))
      .Field("warmup_s", seconds(StartPhase::kWarmup))
      .Field("total_s", absl::ToDoubleSeconds(progress.total()));
}

absl::StatusOr<protocol::RegisterWorker> Registration(const protocol::LoadedConfig& loaded,
                                                      const LoadedModel& model,
                                                      const LoadOptions& options,
                                                      protocol::Incarnation incarnation) {
  const protocol::Config& config = loaded.config;
  protocol::RegisterWorker registration;
  registration.protocol_minor = kMinor;
  registration.build = kBuild;
  registration.backend = config.worker.backend;
  registration.model = model.spec().identity;
  registration.incarnation = incarnation;
  registration.geometry = Geometry(options);
  SKEIN_ASSIGN_OR_RETURN(registration.tokenizer,
                         protocol::FileFingerprint(config.model.path + "/tokenizer.json"));
  registration.cache_layout = CacheLayoutId(config, model.spec(), options);
  registration.numerics = NumericsId(config);
  if (options.limits.max_drafts > 0) registration.features.emplace_back("drafts");
  registration.rank = protocol::RankId(static_cast<uint32_t>(options.shard.rank));
  registration.num_ranks = static_cast<uint32_t>(options.shard.num_ranks);
  registration.predecessor_end =
      static_cast<protocol::PredecessorEnd>(loaded.FlagOr("predecessor-end", 0));
  return registration;
}

absl::StatusOr<std::unique_ptr<protocol::ZmqTransport>> OpenTransport(
    const protocol::TransportConfig& config, protocol::ActorId self) {
  return protocol::OpenControlTransport(
      {.self = self,
       .endpoint = config.control_endpoint,
       .heartbeat_interval = config.heartbeat_interval,
       .heartbeat_timeout = config.heartbeat_timeout,
       .curve = {config.curve_server_key, config.curve_secret_key_file,
                 config.curve_allowed_keys_file}});
}

// Where this worker lends cache blocks, which it registers with; nothing when none move.
absl::StatusOr<std::optional<ExecutorChannel>> OpenChannel(const protocol::Config& config,
                                                           protocol::NodeId self,
                                                           protocol::RegisterWorker& registration) {
  if (config.transport.block_address.empty()) return std::nullopt;
  protocol::UcxPortOptions options;
  options.address = config.transport.block_address;
  if (config.features.rdma == "off") options.transports = protocol::UcxTransports::kTcp;
  SKEIN_ASSIGN_OR_RETURN(std::unique_ptr<protocol::UcxBlockChannel> channel,
                         protocol::UcxBlockChannel::Create(options));
  registration.block_address = channel->address();
  if (FaultsOf(config).LosesBlocks(self.value())) registration.block_address = "127.0.0.1:1";
  SKEIN_LOG(kInfo, "cache blocks are lent").Field("address", channel->address());
  return ExecutorChannel{std::move(channel), {registration.cache_layout, registration.numerics}};
}

// Where ranks of its group on other hosts reach this worker, which it registers with.
absl::StatusOr<std::unique_ptr<protocol::UcxGroupPort>> OpenGroupPort(
    const protocol::Config& config, protocol::RegisterWorker& registration) {
  registration.host = HostIdentity();
  std::unique_ptr<protocol::UcxGroupPort> port;
  if (config.transport.group_address.empty()) return port;
  protocol::UcxPortOptions options;
  options.address = config.transport.group_address;
  if (config.features.rdma == "off") options.transports = protocol::UcxTransports::kTcp;
  SKEIN_ASSIGN_OR_RETURN(port, protocol::UcxGroupPort::Create(std::move(options)));
  registration.group_address = port->address();
  SKEIN_LOG(kInfo, "ranks of other hosts are met").Field("address", port->address());
  return port;
}

// The doors to other workers.
struct Doors {
  std::optional<ExecutorChannel> blocks;
  std::unique_ptr<protocol::UcxGroupPort> ranks;
};

absl::StatusOr<Doors> OpenDoors(const protocol::Config& config, protocol::NodeId self,
                                protocol::RegisterWorker& registration) {
  Doors doors;
  SKEIN_ASSIGN_OR_RETURN(doors.blocks, OpenChannel(config, self, registration));
  SKEIN_ASSIGN_OR_RETURN(doors.ranks, OpenGroupPort(config, registration));
  return doors;
}

// The network may be there at another start.
int DoorExitCode(const absl::Status& status) {
  return absl::IsUnavailable(status) ? kExitRestart : kExitConfig;
}

int Serve(const protocol::LoadedConfig& loaded, std::unique_ptr<LoadedModel> model,
          const LoadOptions& options, protocol::ParentGuard* parent, StopRequest& stop,
          Telemetry& telemetry, std::unique_ptr<protocol::ThreadedActorSystem>& owner) {
  const protocol::Config& config = loaded.config;
  protocol::ActorSystemOptions system_options;
  system_options.self = {
      protocol::NodeId(static_cast<uint32_t>(1 + loaded.FlagOr("worker-index", 0))), 0};
  auto transport = OpenTransport(config.transport, system_options.self);
  if (!transport.ok()) return Fail(transport.status(), kExitConfig);
  system_options.incarnation =
      protocol::Incarnation(static_cast<uint64_t>(loaded.FlagOr("incarnation", 1)));
  system_options.lease = config.transport.lease_timeout;
  system_options.beat_interval = config.transport.heartbeat_interval;
  system_options.on_round = [parent, &telemetry] {
    telemetry.OnRound();
    if (parent != nullptr) parent->OnRound();
  };
  system_options.on_scheduling_delay = [&telemetry](absl::Duration late) {
    telemetry.frames->Observe(late);
  };
  owner = std::make_unique<protocol::ThreadedActorSystem>(system_options, *std::move(transport));
  protocol::ThreadedActorSystem& system = *owner;
  auto registration = Registration(loaded, *model, options, system_options.incarnation);
  if (!registration.ok()) return Fail(registration.status(), kExitModel);
  auto doors = OpenDoors(config, system_options.self.node, *registration);
  if (!doors.ok()) return Fail(doors.status(), DoorExitCode(doors.status()));
  auto watchdog = StepWatchdog::Create({});
  if (!watchdog.ok()) return Fail(watchdog.status(), kExitInternal);
  WorkerActorOptions actor;
  actor.registration = *std::move(registration);
  actor.stop = &stop.asked;
  actor.beat = config.transport.heartbeat_interval;
  actor.on_group_formed = [parent] {
    if (parent != nullptr) parent->Report("ready");
  };
  options.progress->Begin(StartPhase::kWarmup);
  auto spawned = system.Spawn("worker", [&](protocol::Waker& waker) {
    auto executor = std::make_unique<StepExecutor>(
        std::move(model), waker, StepHookOf(config), *std::move(watchdog), telemetry.metrics.get(),
        std::move(doors->blocks), std::move(doors->ranks));
    telemetry.OnRound();  // the loop is as old as what is asked with it
    telemetry.executor = executor.get();
    return std::make_unique<WorkerActor>(std::move(actor), std::move(executor));
  });
  if (!spawned.ok()) return Fail(spawned.status(), kExitInternal);
  options.progress->End();
  telemetry.metrics->SetStart(*options.progress);
  LogStarted(*options.progress);
  telemetry.system = &system;
  absl::Status status =
      system.Connect(protocol::kCoordinatorActor, config.transport.control_endpoint);
  if (!status.ok()) return Fail(status, kExitConfig);
  stop.actor = &system.waker();
  status = system.Run();
  stop.actor = nullptr;
  if (status.ok()) return 0;
  // Refused by the coordinator: another start of the same program changes nothing.
  if (absl::IsFailedPrecondition(status)) return Fail(status, kExitConfig);
  return Fail(status, absl::IsUnavailable(status) ? kExitRestart : kExitInternal);
}

// Progress goes to the supervisor, which shows it; without one, into the log.
StartProgress::Sink ProgressSink(const protocol::ParentGuard* parent) {
  return [parent](StartPhase phase, int percent) {
    if (parent != nullptr) {
      parent->Report(protocol::Concat("progress ", StartPhaseName(phase), " ", percent));
    } else if (percent == 0) {
      SKEIN_LOG(kInfo, "starting").Field("phase", StartPhaseName(phase));
    }
  };
}

// The file of the supervisor's counters: beside the configuration that it wrote for its children.
std::filesystem::path CountersOf(const protocol::LoadedConfig& loaded) {
  if (loaded.file.empty()) return {};
  return std::filesystem::path(loaded.file).parent_path() / "supervisor.prom";
}

void OpenTelemetry(const protocol::Config& config, int index,
                   const kernels::KernelRegistry& kernels, const kernels::KernelManifest& manifest,
                   Telemetry& telemetry) {
  telemetry.registry = std::make_unique<protocol::MetricsRegistry>(WorkerLabels(index));
  telemetry.metrics =
      std::make_unique<WorkerMetrics>(*telemetry.registry, config, kernels, manifest);
  telemetry.frames = std::make_unique<protocol::FrameMetrics>(*telemetry.registry);
}

int Run(const std::vector<std::string>& arguments) {
  protocol::LoadOptions load_options;
  load_options.required = {"model.path", "transport.control_endpoint"};
  load_options.program_flags = {"supervisor-fd",   "incarnation", "worker-index",
                                "predecessor-end", "metrics-fd",  "with-counters"};
  auto loaded = protocol::LoadConfig(arguments, load_options);
  if (!loaded.ok()) return Fail(loaded.status(), protocol::ConfigExitCode(loaded.status()));
  const protocol::Config& config = loaded->config;
  protocol::InstallLog(protocol::ToLogOptions(config.log, "skein-worker"));
  if (const std::optional<int> code = AnnounceFaults(config)) return *code;

  Device device;        // a step may run until the system ends
  Telemetry telemetry;  // outlives the system, whose threads count
  // Outlives the signal thread, which may be waking it.
  std::unique_ptr<protocol::ThreadedActorSystem> system;
  std::unique_ptr<MetricsListener> listener;  // goes first: it asks the system
  StopRequest stop;
  auto signals = protocol::SignalWatch::Create([&stop](int) { stop(); });
  if (!signals.ok()) return Fail(signals.status(), kExitInternal);
  std::unique_ptr<protocol::ParentGuard> parent;
  if (const int64_t fd = loaded->FlagOr("supervisor-fd", -1); fd >= 0) {
    auto guard = protocol::ParentGuard::Create(static_cast<int>(fd));
    if (!guard.ok()) return Fail(guard.status(), kExitInternal);
    parent = *std::move(guard);
  }
  const auto index = static_cast<int>(loaded->FlagOr("worker-index", 0));
  StartProgress progress(ProgressSink(parent.get()), &protocol::MonotonicNow);
  progress.Begin(StartPhase::kPreflight);
  const int on_node = std::max(index - static_cast<int>(config.node.first_worker), 0);
  if (absl::Status status = OpenDevice(config, on_node, device); !status.ok()) {
    return Fail(status, absl::IsFailedPrecondition(status) ? kExitConfig : kExitInternal);
  }
  auto manifest = PlanManifest(config, device.registry);
  if (!manifest.ok()) return Fail(manifest.status(), kExitConfig);
  OpenTelemetry(config, index, device.registry, *manifest, telemetry);
  if (loaded->FlagOr("with-counters", 0) != 0) telemetry.counters = CountersOf(*loaded);
  auto metrics = OpenMetrics(*loaded, telemetry);
  if (!metrics.ok()) return Fail(metrics.status(), kExitConfig);
  listener = *std::move(metrics);
  auto spec = ModelSpec::Load(config.model.path);
  if (!spec.ok()) return Fail(spec.status(), LoadExitCode(spec.status()));
  auto options = PlanLoad(config, *spec, device.compute->properties(), ShardOf(config, index));
  if (!options.ok()) return Fail(options.status(), kExitConfig);
  options->device = device.compute;
  if (absl::Status status = OpenNccl(config, *options); !status.ok()) {
    return Fail(status, kExitConfig);
  }
  options->progress = &progress;
  options->record_steps = !device.compute->is_host() && config.worker.enforce_eager == 0;
  auto model = LoadedModel::Load(device.registry, *manifest, *options);
  if (!model.ok()) return Fail(model.status(), LoadExitCode(model.status()));
  telemetry.metrics->SetMemory((*model)->Memory(device.compute->properties().free_bytes));
  LogLoaded(config, device, **model, *options, *spec);
  if (parent != nullptr) parent->Report("loaded");
  return Serve(*loaded, *std::move(model), *options, parent.get(), stop, telemetry, system);
}

}  // namespace
}  // namespace skein::worker

int main(int argc, char** argv) {
  return skein::worker::Run(skein::protocol::TakeArguments(argc, argv));
}
