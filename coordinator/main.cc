// skein-coordinator: admits requests, plans steps, decides what was accepted. Wiring only.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/random.h>

#include "absl/strings/str_cat.h"
#include "coordinator/api/admin_server.h"
#include "coordinator/api/api_keys.h"
#include "coordinator/api/api_server.h"
#include "coordinator/control_loop.h"
#include "coordinator/front_door_queue.h"
#include "coordinator/metrics.h"
#include "coordinator/operator_queue.h"
#include "coordinator/round_waker.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/vllm_names.h"
#include "protocol/actor/threaded_actor_system.h"
#include "protocol/base/clock.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/fingerprint.h"
#include "protocol/base/log.h"
#include "protocol/base/parent_guard.h"
#include "protocol/base/signal_watch.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/base/term_file.h"
#include "protocol/config/admin_address.h"
#include "protocol/config/config.h"
#include "protocol/config/fault_list.h"
#include "protocol/json/json_writer.h"
#include "protocol/transport/control_transport.h"
#include "protocol/transport/frame_metrics.h"

namespace skein::coordinator {
namespace {

using protocol::kExitConfig;
using protocol::kExitInternal;
using protocol::kExitModel;
using protocol::kExitRestart;
using protocol::kExitUsage;

// The control loop runs each 100 ms; a pause of so long means that nothing would be served now.
constexpr std::chrono::milliseconds kPulseMax{800};

// Where a coordinator without a supervisor keeps its term when nothing else was said.
constexpr char kPrivateStateBase[] = "/tmp";

int Fail(const absl::Status& status, int code) {
  return protocol::FailProgram("skein-coordinator", status, code);
}

uint64_t RandomSeed() {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof(seed), 0) != static_cast<ssize_t>(sizeof(seed))) return 1;
  return seed;
}

std::chrono::milliseconds Millis(absl::Duration duration) {
  return absl::ToChronoMilliseconds(duration);
}

protocol::HttpLimits ToHttpLimits(const protocol::ServerConfig& server) {
  protocol::HttpLimits limits;
  limits.connections_max = static_cast<size_t>(server.connections_max);
  limits.connections_per_address_max = static_cast<size_t>(server.connections_per_address_max);
  limits.head_bytes_max = static_cast<size_t>(server.head_bytes_max);
  limits.head_fields_max = static_cast<size_t>(server.head_fields_max);
  limits.head_timeout = Millis(server.head_timeout);
  limits.body_bytes_max = static_cast<size_t>(server.body_bytes_max);
  limits.body_bytes_per_second_min = static_cast<size_t>(server.body_bytes_per_second_min);
  limits.body_grace = Millis(server.body_grace);
  limits.keep_alive_timeout = Millis(server.idle_timeout);
  limits.pipelined_requests_max = static_cast<size_t>(server.pipelined_heads_max);
  limits.egress_bytes_max = static_cast<size_t>(server.egress_bytes_max);
  limits.write_timeout = Millis(server.egress_timeout);
  limits.stream_comment_interval = Millis(server.keep_alive_interval);
  return limits;
}

protocol::JsonLimits ToJsonLimits(const protocol::ServerConfig& server) {
  return {.bytes_max = static_cast<size_t>(server.body_bytes_max),
          .string_bytes_max = static_cast<size_t>(server.json_string_bytes_max),
          .depth_max = static_cast<size_t>(server.json_depth_max),
          .values_max = static_cast<size_t>(server.json_values_max)};
}

scheduler::SpeculationSettings ToSpeculation(const protocol::SpeculationConfig& speculation) {
  scheduler::SpeculationSettings settings;
  if (speculation.method == "none") return settings;
  settings.max_depth = static_cast<uint32_t>(speculation.num_speculative_tokens);
  settings.adaptation = speculation.depth == "fixed" ? scheduler::Adaptation::kFixed
                                                     : scheduler::Adaptation::kAdaptive;
  return settings;
}

ControlOptions ToControlOptions(const protocol::Config& config, protocol::Term term) {
  const protocol::SchedulerConfig& scheduler = config.scheduler;
  ControlOptions options;
  options.limits.max_num_seqs = static_cast<uint32_t>(scheduler.max_num_seqs);
  options.limits.max_num_batched_tokens = static_cast<uint32_t>(scheduler.max_num_batched_tokens);
  options.limits.lanes = static_cast<uint32_t>(scheduler.lanes);
  options.limits.speculation = ToSpeculation(config.speculation);
  options.limits.prefix_caching = config.scheduler.enable_prefix_caching != 0;
  options.limits.moves_blocks = !config.transport.block_address.empty();
  options.block_timeout = config.transport.block_timeout;
  options.rebalance_interval = scheduler.expert_rebalance_interval;
  options.limits.prefill_groups = static_cast<uint32_t>(scheduler.prefill_groups);
  options.num_ranks = static_cast<uint32_t>(protocol::ExpertParallelSize(scheduler));
  options.num_groups = static_cast<uint32_t>(scheduler.data_parallel_size) / options.num_ranks;
  // The front door bounds what waits; the scheduler takes what passed it.
  options.limits.admission = {UINT32_MAX, UINT64_MAX};
  options.term = term;
  options.cache_secret = RandomDigest();
  options.queued_tokens_max = static_cast<uint64_t>(scheduler.max_num_queued_tokens);
  options.lease = config.transport.lease_timeout;
  options.shutdown_timeout = config.server.shutdown_timeout;
  options.rollout = {config.rollout.drain_timeout, config.rollout.start_timeout,
                     config.rollout.soak};
  options.wedge_on_token = protocol::ParseFaults(config.worker.enable_faults)
                               .value_or(protocol::FaultList{})
                               .wedge_on_token;
  return options;
}

FrontDoorLimits ToFrontDoorLimits(const protocol::SchedulerConfig& scheduler) {
  const int64_t tokens = scheduler.max_num_queued_tokens;
  return {static_cast<uint32_t>(scheduler.max_num_queued_reqs),
          // Until prefill was measured: what sixteen steps compute.
          static_cast<uint64_t>(tokens > 0 ? tokens : 16 * scheduler.max_num_batched_tokens),
          absl::ToChronoNanoseconds(scheduler.max_queue_delay)};
}

struct Text {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat;
};

absl::StatusOr<Text> LoadText(const std::string& model) {
  Text text;
  auto tokenizer = Tokenizer::Load((std::filesystem::path(model) / "tokenizer.json").string());
  if (!tokenizer.ok()) return tokenizer.status();
  text.tokenizer = *std::move(tokenizer);
  auto chat = ChatTemplate::Load(*text.tokenizer, model);
  if (!chat.ok()) return chat.status();
  text.chat = *std::move(chat);
  return text;
}

absl::Status Health(const FrontDoorQueue& door, HealthProbe probe) {
  switch (probe) {
    case HealthProbe::kLive:
      return absl::OkStatus();
    case HealthProbe::kStartup:
      return door.was_ready() ? absl::OkStatus()
                              : absl::UnavailableError("no worker group was ready yet");
    case HealthProbe::kReady:
      if (door.draining() || door.closed()) return absl::UnavailableError("draining");
      if (door.SincePulse() > kPulseMax) {
        return absl::UnavailableError(absl::StrCat(
            "the control loop has not run for ",
            std::chrono::duration_cast<std::chrono::milliseconds>(door.SincePulse()).count(),
            " ms"));
      }
      return door.ready() ? absl::OkStatus() : absl::UnavailableError("no worker group is ready");
  }
  return absl::OkStatus();
}

// Build, protocol and model of this server. `model`, `tokenizer`: fingerprints of its files.
std::string VersionJson(const protocol::Config& config, const std::string& model,
                        const std::string& tokenizer) {
  std::string out;
  protocol::JsonWriter writer(&out);
  writer.BeginObject();
  writer.Key("version");
  writer.String(SKEIN_VERSION);
  writer.Key("protocol");
  writer.String(absl::StrCat(protocol::kProtocolMajor, ".", protocol::kProtocolMinor));
  writer.Key("config");
  writer.String(protocol::ConfigHash(config));
  writer.Key("model");
  writer.BeginObject();
  writer.Key("name");
  writer.String(protocol::ServedModelName(config.model));
  writer.Key("config");
  writer.String(model);
  writer.Key("tokenizer");
  writer.String(tokenizer);
  writer.Key("max_model_len");
  writer.Int(config.model.max_model_len);
  writer.EndObject();
  writer.EndObject();
  return out;
}

// Everything that lives as long as the server, in the order of construction.
struct Server {
  std::filesystem::path directory;  // of the configuration file; empty: there is none
  Text text;
  std::unique_ptr<protocol::MetricsRegistry> registry;
  std::unique_ptr<CoordinatorMetrics> metrics;
  std::unique_ptr<protocol::FrameMetrics> frames;
  std::unique_ptr<protocol::ThreadedActorSystem> system;
  std::unique_ptr<RoundWaker> waker;
  std::unique_ptr<FrontDoorQueue> door;
  std::unique_ptr<OperatorQueue> operators;
  std::atomic<bool> drained = false;
  std::unique_ptr<FlightLog> flights;
  std::unique_ptr<ApiKeys> keys;  // null: none are configured
  std::unique_ptr<ApiServer> api;
  std::unique_ptr<AdminServer> admin;  // null: no listener for operators
};

// The gauges that say what runs and how it is configured; their value is 1.
void DescribeProcess(const protocol::Config& config, protocol::MetricsRegistry& registry) {
  const std::string version = absl::StrCat(protocol::kProtocolMajor, ".", protocol::kProtocolMinor);
  registry
      .AddGauges({"skein_build_info", "The build that runs and the protocol that it speaks."},
                 {{"version", {SKEIN_VERSION}}, {"protocol", {version}}})
      .At({SKEIN_VERSION, version})
      .Set(1);
  const std::string engines = absl::StrCat(config.scheduler.data_parallel_size);
  const std::string ranks = absl::StrCat(protocol::ExpertParallelSize(config.scheduler));
  const std::string tensor_ranks = absl::StrCat(config.scheduler.tensor_parallel_size);
  const std::string lanes = absl::StrCat(config.scheduler.lanes);
  const std::string block = absl::StrCat(config.scheduler.block_size);
  const std::string hash = protocol::ConfigHash(config);
  registry
      .AddGauges({"skein_config_info",
                  "The effective configuration. Two processes with other hashes are configured "
                  "differently: compare `skein config`."},
                 {{"tp", {tensor_ranks}},
                  {"dp", {engines}},
                  {"ep", {ranks}},
                  {"lanes", {lanes}},
                  {"block_size", {block}},
                  {"speculation", {config.speculation.method}},
                  {"hash", {hash}}})
      .At({tensor_ranks, engines, ranks, lanes, block, config.speculation.method, hash})
      .Set(1);
}

// The metrics of this process and, under `skein serve`, the counters that the supervisor keeps in a
// file beside the operators' socket.
std::string MetricsText(const protocol::Config& config, Server& server) {
  server.frames->Update(server.system->counters());
  server.metrics->Refresh(protocol::MonotonicNow(), static_cast<double>(std::time(nullptr)));
  const protocol::GaugeFamily& depth = server.metrics->mailbox_depth;
  depth.At({"control", "request"}).Set(static_cast<double>(server.door->mailbox_depth()));
  depth.At({"control", "command"}).Set(static_cast<double>(server.operators->mailbox_depth()));
  depth.At({"http", "delta"}).Set(static_cast<double>(server.api->mailbox_depth()));
  std::string text = server.registry->Text();
  const auto address = protocol::ParseAdminAddress(config.admin.listen);
  if (!address.ok() || address->unix_path.empty()) return text;
  std::ifstream counters(std::filesystem::path(address->unix_path).parent_path() /
                         "supervisor.prom");
  for (std::string line; std::getline(counters, line);) text += line + "\n";
  return text;
}

// The keys of clients. Without any, others than this host's users must not be able to connect.
absl::Status LoadKeys(const protocol::ServerConfig& config, Server& server) {
  if (config.api_key.empty() && config.api_key_file.empty()) {
    if (protocol::IsLoopback(config.host)) return absl::OkStatus();
    SKEIN_LOG(kWarn,
              "everybody who reaches this address may use the API: it has no keys; give "
              "--api-key-file, or listen on 127.0.0.1")
        .Field("address", protocol::Concat(config.host, ":", config.port));
    return absl::OkStatus();
  }
  if (!config.api_key.empty()) {
    SKEIN_LOG(kWarn,
              "the API key was given as a value, which shells and files keep; prefer "
              "--api-key-file, which has its HMAC only");
  }
  SKEIN_ASSIGN_OR_RETURN(server.keys, ApiKeys::Load(config.api_key, config.api_key_file));
  return absl::OkStatus();
}

// x-skein-degraded, if it was asked for and the supervisor found anything degraded.
absl::StatusOr<protocol::HttpHeaders> DegradedHeader(const protocol::ServerConfig& config,
                                                     const std::filesystem::path& directory) {
  if (config.degraded_header == 0) return protocol::HttpHeaders();
  std::ifstream file(directory / "degraded");
  std::string names;
  if (!file.is_open()) {
    return absl::FailedPreconditionError(
        "server.degraded_header (--degraded-header): 1, but nobody examined this host; start the "
        "coordinator by skein serve, or give 0");
  }
  std::getline(file, names);
  if (names.empty()) return protocol::HttpHeaders();
  return protocol::HttpHeaders{{"x-skein-degraded", names}};
}

absl::Status OpenApi(const protocol::LoadedConfig& loaded, Server& server) {
  const protocol::Config& config = loaded.config;
  SKEIN_RETURN_IF_ERROR(LoadKeys(config.server, server));
  ApiServer::Options options;
  options.host = config.server.host;
  options.port = static_cast<uint16_t>(config.server.port);
  options.listen_fd = static_cast<int>(loaded.FlagOr("listen-fd", -1));
  if (!config.server.ssl_certfile.empty()) {
    SKEIN_ASSIGN_OR_RETURN(options.tls,
                           protocol::TlsCertificate::Load(
                               {"server.ssl_certfile (--ssl-certfile)", config.server.ssl_certfile,
                                "server.ssl_keyfile (--ssl-keyfile)", config.server.ssl_keyfile}));
  }
  options.root_path = config.server.root_path;
  SKEIN_ASSIGN_OR_RETURN(options.headers, DegradedHeader(config.server, server.directory));
  options.http_limits = ToHttpLimits(config.server);
  options.json_limits = ToJsonLimits(config.server);
  options.request_limits.max_model_len = static_cast<int32_t>(config.model.max_model_len);
  options.request_limits.vocab_size = server.text.tokenizer->vocab_size();
  options.request_limits.max_logprobs = static_cast<int32_t>(config.model.max_logprobs);
  options.request_limits.processed_logprobs = config.model.logprobs_mode == "processed_logprobs";
  options.served_names = {protocol::ServedModelName(config.model)};
  options.names_reasoning = config.server.reasoning_field == "both";
  options.fingerprint = absl::StrCat("skein-", SKEIN_VERSION, "-", protocol::ConfigHash(config));
  SKEIN_ASSIGN_OR_RETURN(const std::string model,
                         protocol::FileFingerprint(config.model.path + "/config.json"));
  SKEIN_ASSIGN_OR_RETURN(const std::string tokenizer,
                         protocol::FileFingerprint(config.model.path + "/tokenizer.json"));
  options.version_json = VersionJson(config, model, tokenizer);
  options.keys = server.keys.get();
  options.flights = server.flights.get();
  if (config.scheduler.scheduling_policy == "fcfs") options.policy = SchedulingPolicy::kFcfs;
  options.auth_failures_per_minute_max = config.server.auth_failures_per_minute_max;
  options.id_seed =
      config.model.seed != 0 ? static_cast<uint64_t>(config.model.seed) : RandomSeed();
  options.unix_time = [] { return static_cast<int64_t>(std::time(nullptr)); };
  options.health = [&server](HealthProbe probe) { return Health(*server.door, probe); };
  options.metrics_text = [config, &server] { return MetricsText(config, server); };
  options.metrics_content_type = std::string(protocol::kMetricsContentType);
  options.predicted_wait_s = [&server] { return server.door->PredictedWait(); };
  options.on_event = [&server](const ApiEvent& event) { server.metrics->Count(event); };
  auto api = ApiServer::Create(std::move(options), *server.text.tokenizer, *server.text.chat,
                               *server.door);
  if (!api.ok()) return api.status();
  server.api = *std::move(api);
  server.waker->SetPoster([api_server = server.api.get()](std::function<void()> function) {
    api_server->Post(std::move(function));
  });
  return absl::OkStatus();
}

// Every key with its value as the configuration file has it.
std::string ConfigJson(const protocol::LoadedConfig& loaded) {
  std::string out;
  protocol::JsonWriter writer(&out);
  writer.BeginObject();
  writer.Key("hash");
  writer.String(protocol::ConfigHash(loaded.config));
  writer.Key("yaml");
  writer.String(protocol::ConfigDump(loaded));
  writer.EndObject();
  return out;
}

absl::Status OpenAdmin(const protocol::LoadedConfig& loaded, Server& server) {
  const protocol::Config& config = loaded.config;
  SKEIN_ASSIGN_OR_RETURN(const protocol::AdminAddress address,
                         protocol::ParseAdminAddress(config.admin.listen));
  if (address.none()) return absl::OkStatus();
  AdminServer::Options options;
  options.unix_path = address.unix_path;
  options.host = address.host;
  options.port = address.port.value_or(0);
  if (!config.admin.token_file.empty()) {
    SKEIN_ASSIGN_OR_RETURN(
        options.token,
        protocol::ReadAdminToken("admin.token_file (--admin-token-file)", config.admin.token_file));
  }
  options.identity = {SKEIN_VERSION,
                      absl::StrCat(protocol::kProtocolMajor, ".", protocol::kProtocolMinor),
                      protocol::ConfigHash(config)};
  options.config_json = ConfigJson(loaded);
  options.flights = server.flights.get();
  options.health = [&server](HealthProbe probe) { return Health(*server.door, probe); };
  options.metrics_text = [config, &server] { return MetricsText(config, server); };
  options.metrics_content_type = std::string(protocol::kMetricsContentType);
  auto admin = AdminServer::Create(std::move(options), *server.operators);
  if (!admin.ok()) {
    return absl::FailedPreconditionError(
        protocol::Concat("admin.listen (--admin-listen): ", protocol::StatusText(admin.status())));
  }
  server.admin = *std::move(admin);
  server.admin->Start();
  SKEIN_LOG(kInfo, "operators are served").Field("address", config.admin.listen);
  return absl::OkStatus();
}

// The term that a supervisor gives; without one the next of the state directory.
absl::StatusOr<protocol::Term> TakeTerm(const protocol::LoadedConfig& loaded) {
  if (const int64_t given = loaded.FlagOr("term", -1); given >= 0) {
    return protocol::Term(static_cast<uint64_t>(given));
  }
  SKEIN_ASSIGN_OR_RETURN(
      const std::string state,
      protocol::ChooseStateDirectory(loaded.config.node.state_directory, kPrivateStateBase,
                                     protocol::kDefaultStateDirectory));
  const protocol::TermFile terms(state);
  SKEIN_ASSIGN_OR_RETURN(const uint64_t term, terms.Next(protocol::SecondsSinceBoot()));
  SKEIN_LOG(kInfo, "term taken").Field("term", term).Field("file", terms.path());
  return protocol::Term(term);
}

absl::Status OpenControl(const protocol::Config& config, protocol::Term term,
                         protocol::ParentGuard* parent, Server& server) {
  SKEIN_ASSIGN_OR_RETURN(
      auto transport,
      protocol::OpenControlTransport(
          {.self = protocol::kCoordinatorActor,
           .endpoint = config.transport.control_endpoint,
           .heartbeat_interval = config.transport.heartbeat_interval,
           .heartbeat_timeout = config.transport.heartbeat_timeout,
           .curve = {config.transport.curve_server_key, config.transport.curve_secret_key_file,
                     config.transport.curve_allowed_keys_file}}));
  protocol::ActorSystemOptions options;
  options.self = protocol::kCoordinatorActor;
  options.term = term;
  options.lease = config.transport.lease_timeout;
  options.beat_interval = config.transport.heartbeat_interval;
  if (parent != nullptr) options.on_round = [parent] { parent->OnRound(); };
  options.on_scheduling_delay = [&server](absl::Duration late) { server.frames->Observe(late); };
  server.system = std::make_unique<protocol::ThreadedActorSystem>(options, std::move(transport));
  server.waker = std::make_unique<RoundWaker>(server.system->waker());
  server.door =
      std::make_unique<FrontDoorQueue>(ToFrontDoorLimits(config.scheduler), *server.waker);
  server.operators = std::make_unique<OperatorQueue>(server.system->waker());
  ControlOptions control = ToControlOptions(config, term);
  SKEIN_ASSIGN_OR_RETURN(control.tokenizer,
                         protocol::FileFingerprint(config.model.path + "/tokenizer.json"));
  auto spawned = server.system->Spawn("control", [&](protocol::Waker&) {
    return std::make_unique<ControlLoop>(control, *server.door, *server.metrics, server.drained,
                                         server.operators.get());
  });
  if (!spawned.ok()) return spawned.status();
  return server.system->Listen(config.transport.control_endpoint);
}

// First TERM: refuse new requests, let the others end. Runs on the signal thread.
void BeginDrain(Server& server) {
  server.door->StartDraining();
  server.api->Drain([&server] {
    server.drained = true;
    server.system->waker().Wake();
  });
}

int Serve(const protocol::LoadedConfig& loaded, protocol::ParentGuard* parent, Server& server,
          std::atomic<Server*>& running) {
  const protocol::Config& config = loaded.config;
  auto text = LoadText(config.model.path);
  if (!text.ok()) return Fail(text.status(), kExitModel);
  server.text = *std::move(text);
  server.registry = std::make_unique<protocol::MetricsRegistry>(
      protocol::MetricLabels{{"model_name", protocol::ServedModelName(config.model)}});
  server.metrics = std::make_unique<CoordinatorMetrics>(
      *server.registry, static_cast<uint32_t>(config.scheduler.data_parallel_size),
      ToSpeculation(config.speculation).max_depth);
  server.frames = std::make_unique<protocol::FrameMetrics>(*server.registry);
  server.flights = std::make_unique<FlightLog>(config.server.slow_request_threshold);
  DescribeProcess(config, *server.registry);
  if (config.server.metrics_compat == "vllm") AddVllmNames(*server.registry);
  const absl::StatusOr<protocol::Term> term = TakeTerm(loaded);
  if (!term.ok()) {
    return Fail(term.status(), absl::IsUnavailable(term.status()) ? kExitRestart : kExitConfig);
  }
  if (absl::Status status = OpenControl(config, *term, parent, server); !status.ok()) {
    return Fail(status, kExitConfig);
  }
  if (absl::Status status = OpenApi(loaded, server); !status.ok()) {
    return Fail(status, kExitConfig);
  }
  if (absl::Status status = OpenAdmin(loaded, server); !status.ok()) {
    return Fail(status, kExitConfig);
  }
  server.api->Start();
  const std::string address =
      absl::StrCat(config.server.ssl_certfile.empty() ? "http://" : "https://", config.server.host,
                   ":", server.api->port());
  SKEIN_LOG(kInfo, "listening").Field("address", address);
  if (parent != nullptr) parent->Report("ready " + address);
  running = &server;
  const absl::Status status = server.system->Run();
  running = nullptr;
  server.api->Stop();
  if (server.admin != nullptr) server.admin->Stop();
  return status.ok() ? 0 : Fail(status, kExitInternal);
}

// `keygen --api ID`: makes a key of a client. Only its HMAC is to be kept.
int MakeClientKey(const std::string& id) {
  const auto made = MakeApiKey(id);
  if (!made.ok()) return Fail(made.status(), kExitUsage);
  std::printf(
      "# Give the key to its user; it is kept nowhere.\n# key: %s\n"
      "# In the file of --api-key-file:\nkeys:\n%s",
      made->key.c_str(), made->entry.c_str());
  return 0;
}

// `keygen FILE`: makes a key pair for tcp endpoints; skein keygen becomes this.
int MakeKeys(const std::vector<std::string>& arguments) {
  constexpr char kHelp[] =
      "usage: skein keygen FILE       a key pair for control endpoints on tcp; prints its public "
      "key\n"
      "       skein keygen --api ID   an API key of a client; prints it and its entry in the file "
      "of "
      "keys\n";
  if (arguments.size() == 2 && (arguments[1] == "--help" || arguments[1] == "-h")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (arguments.size() == 3 && arguments[1] == "--api") return MakeClientKey(arguments[2]);
  if (arguments.size() != 2 || arguments[1].rfind('-', 0) == 0) {
    return Fail(absl::InvalidArgumentError(
                    "keygen needs one argument: the file that will hold the new key pair; or two: "
                    "--api and the id of a client's key"),
                kExitUsage);
  }
  const auto public_key = protocol::WriteNewCurveKeys(arguments[1]);
  if (!public_key.ok()) return Fail(public_key.status(), kExitConfig);
  std::printf("public %s\n", public_key->c_str());
  return 0;
}

int Run(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "keygen") return MakeKeys(arguments);
  protocol::LoadOptions load_options;
  load_options.required = {"model.path", "transport.control_endpoint"};
  load_options.program_flags = {"supervisor-fd", "term", "listen-fd"};
  auto loaded = protocol::LoadConfig(arguments, load_options);
  if (!loaded.ok()) return Fail(loaded.status(), protocol::ConfigExitCode(loaded.status()));
  protocol::InstallLog(protocol::ToLogOptions(loaded->config.log, "skein-coordinator"));
  Server server;
  // Under skein serve the run directory.
  server.directory = std::filesystem::path(loaded->file).parent_path();
  std::atomic<Server*> running = nullptr;
  auto signals = protocol::SignalWatch::Create([&running](int count) {
    Server* target = running.load();
    if (target == nullptr || count > 1) std::_Exit(0);
    BeginDrain(*target);
  });
  if (!signals.ok()) return Fail(signals.status(), kExitInternal);
  std::unique_ptr<protocol::ParentGuard> parent;
  if (const int64_t fd = loaded->FlagOr("supervisor-fd", -1); fd >= 0) {
    auto guard = protocol::ParentGuard::Create(static_cast<int>(fd));
    if (!guard.ok()) return Fail(guard.status(), kExitInternal);
    parent = *std::move(guard);
  }
  return Serve(*loaded, parent.get(), server, running);
}

}  // namespace
}  // namespace skein::coordinator

int main(int argc, char** argv) {
  return skein::coordinator::Run(skein::protocol::TakeArguments(argc, argv));
}
