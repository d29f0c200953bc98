// The table of configuration keys: the one place that names a key, its flag, range, unit and help.
// Constant after load. Must never parse anything: config.cc does.
#include "protocol/config/config.h"

namespace skein::protocol {
namespace {

// Address of a member of a section, as a plain function pointer.
template <auto Section, auto Field>
auto& At(Config& config) {
  return config.*Section.*Field;
}

constexpr double kBytesMax = 1 << 30;
constexpr double kDay = 86'400;

constexpr ConfigKey kKeys[] = {
    {"model.path", "model", &At<&Config::model, &ModelConfig::path>, 0, 0, "", "",
     "checkpoint directory to serve"},
    {"model.load_format", "load-format", &At<&Config::model, &ModelConfig::load_format>, 0, 0,
     "auto|dummy", "",
     "auto: the checkpoint's tensors; dummy: random ones in their shapes, to measure with"},
    {"model.served_model_name", "served-model-name",
     &At<&Config::model, &ModelConfig::served_model_name>, 0, 0, "", "",
     "name of the model in the API; empty: the last part of model.path"},
    {"model.max_model_len", "max-model-len", &At<&Config::model, &ModelConfig::max_model_len>, 1,
     1 << 20, "", "tokens", "longest prompt and answer together; lower it to save cache"},
    {"model.max_logprobs", "max-logprobs", &At<&Config::model, &ModelConfig::max_logprobs>, 0, 20,
     "", "", "largest number of top logprobs that a request may ask for"},
    {"model.logprobs_mode", "logprobs-mode", &At<&Config::model, &ModelConfig::logprobs_mode>, 0, 0,
     "raw_logprobs|processed_logprobs", "",
     "what the logprobs of answers are of: the model alone, or the distribution that is sampled, "
     "after penalties, masks, temperature and truncation"},
    {"model.seed", "seed", &At<&Config::model, &ModelConfig::seed>, 0, 9.0e15, "", "",
     "root of the random numbers of requests that carry no seed of their own"},

    {"server.host", "host", &At<&Config::server, &ServerConfig::host>, 0, 0, "", "",
     "address the API listens on"},
    {"server.port", "port", &At<&Config::server, &ServerConfig::port>, 0, 65535, "", "",
     "TCP port of the API; 0 takes a free one and prints it"},
    {"server.api_key", "api-key", &At<&Config::server, &ServerConfig::api_key>, 0, 0, "", "",
     "one key that clients must send, whatever its form; others may read it here: prefer "
     "api-key-file",
     true},
    {"server.api_key_file", "api-key-file", &At<&Config::server, &ServerConfig::api_key_file>, 0, 0,
     "", "",
     "file of clients' keys with tenants, weights and limits, read again when it changes; skein "
     "keygen --api ID makes an entry"},
    {"server.auth_failures_per_minute_max", "auth-failures-per-minute",
     &At<&Config::server, &ServerConfig::auth_failures_per_minute_max>, 1, 1'000'000, "", "",
     "wrong keys of one client address before it is refused unheard; raise it behind a proxy"},
    {"server.root_path", "root-path", &At<&Config::server, &ServerConfig::root_path>, 0, 0, "", "",
     "path under which a proxy shows the API, as /skein: requests may come with it or without; "
     "empty: none"},
    {"server.ssl_certfile", "ssl-certfile", &At<&Config::server, &ServerConfig::ssl_certfile>, 0, 0,
     "", "",
     "PEM file with the server's certificate and its chain; the API then speaks TLS 1.2 or 1.3 "
     "only; read again when it changes"},
    {"server.ssl_keyfile", "ssl-keyfile", &At<&Config::server, &ServerConfig::ssl_keyfile>, 0, 0,
     "", "", "PEM file with the private key of the certificate, without a password"},
    {"server.slow_request_threshold", "slow-request-threshold",
     &At<&Config::server, &ServerConfig::slow_request_threshold>, 0, kDay, "", "seconds",
     "requests that take longer leave a record with their phases, in the log and for skein status "
     "--slow"},
    {"server.metrics_compat", "metrics-compat", &At<&Config::server, &ServerConfig::metrics_compat>,
     0, 0, "none|vllm", "",
     "vllm: /metrics has our families under its names, too, for scrapers without rules"},
    {"server.reasoning_field", "reasoning-field",
     &At<&Config::server, &ServerConfig::reasoning_field>, 0, 0, "reasoning_content|both", "",
     "both: chats have their reasoning under the name reasoning, too, for clients that know only "
     "that one"},
    {"server.degraded_header", "degraded-header",
     &At<&Config::server, &ServerConfig::degraded_header>, 0, 1, "", "",
     "1: answers have x-skein-degraded with the features that the host lacks, as skein doctor "
     "names "
     "them, so that clients can tell them from other servers'; skein serve only"},
    {"server.shutdown_timeout", "shutdown-timeout",
     &At<&Config::server, &ServerConfig::shutdown_timeout>, 0, kDay, "", "seconds",
     "how long running requests may finish after the first stop signal"},
    {"server.connections_max", "max-connections",
     &At<&Config::server, &ServerConfig::connections_max>, 1, 1'000'000, "", "",
     "open client connections; the next one gets 503"},
    {"server.connections_per_address_max", "max-connections-per-address",
     &At<&Config::server, &ServerConfig::connections_per_address_max>, 1, 1'000'000, "", "",
     "open connections of one client address; raise it behind a proxy"},
    {"server.head_bytes_max", "http-head-bytes",
     &At<&Config::server, &ServerConfig::head_bytes_max>, 1024, 1 << 20, "", "bytes",
     "largest request head"},
    {"server.head_fields_max", "http-head-fields",
     &At<&Config::server, &ServerConfig::head_fields_max>, 8, 10'000, "", "",
     "most header fields of a request"},
    {"server.head_timeout", "http-head-timeout", &At<&Config::server, &ServerConfig::head_timeout>,
     0.05, 600, "", "seconds", "how long a client may take to send a request head"},
    {"server.body_bytes_max", "http-body-bytes",
     &At<&Config::server, &ServerConfig::body_bytes_max>, 1024, kBytesMax, "", "bytes",
     "largest request body"},
    {"server.body_bytes_per_second_min", "http-body-rate",
     &At<&Config::server, &ServerConfig::body_bytes_per_second_min>, 1, kBytesMax, "",
     "bytes/second", "slowest body that is waited for, after http-body-grace"},
    {"server.body_grace", "http-body-grace", &At<&Config::server, &ServerConfig::body_grace>, 0.05,
     600, "", "seconds", "time before the slowest body rate is enforced"},
    {"server.idle_timeout", "http-idle-timeout", &At<&Config::server, &ServerConfig::idle_timeout>,
     0.05, kDay, "", "seconds", "how long a kept-alive connection may be silent"},
    {"server.pipelined_heads_max", "http-pipelined-heads",
     &At<&Config::server, &ServerConfig::pipelined_heads_max>, 1, 1000, "", "",
     "requests a client may send before the first answer"},
    {"server.json_depth_max", "json-depth", &At<&Config::server, &ServerConfig::json_depth_max>, 1,
     64, "", "", "deepest nesting of a JSON body"},
    {"server.json_string_bytes_max", "json-string-bytes",
     &At<&Config::server, &ServerConfig::json_string_bytes_max>, 1, kBytesMax, "", "bytes",
     "longest string of a JSON body"},
    {"server.json_values_max", "json-values", &At<&Config::server, &ServerConfig::json_values_max>,
     1, 100'000'000, "", "", "most values of a JSON body"},
    {"server.egress_bytes_max", "http-egress-bytes",
     &At<&Config::server, &ServerConfig::egress_bytes_max>, 1024, kBytesMax, "", "bytes",
     "unsent output a stream may hold before its reader counts as too slow"},
    {"server.egress_timeout", "http-egress-timeout",
     &At<&Config::server, &ServerConfig::egress_timeout>, 0.05, kDay, "", "seconds",
     "how long a reader may take nothing before its request is cancelled"},
    {"server.keep_alive_interval", "sse-keep-alive",
     &At<&Config::server, &ServerConfig::keep_alive_interval>, 0.05, kDay, "", "seconds",
     "silence after which a stream gets a comment line"},

    {"scheduler.tensor_parallel_size", "tensor-parallel-size",
     &At<&Config::scheduler, &SchedulerConfig::tensor_parallel_size>, 1, 64, "", "",
     "workers that share each product of the model; 1 is what there is: give "
     "enable-expert-parallel to share a model out (also -tp)"},
    {"scheduler.data_parallel_size", "data-parallel-size",
     &At<&Config::scheduler, &SchedulerConfig::data_parallel_size>, 1, 64, "", "",
     "workers, each with its own part of the requests and the whole model unless they share "
     "experts; more serve more requests at a time (also -dp)"},
    {"scheduler.expert_parallel_size", "expert-parallel-size",
     &At<&Config::scheduler, &SchedulerConfig::expert_parallel_size>, 1, 64, "", "",
     "workers that form a group, which has the experts and Engram tables of the model once, shared "
     "out among them; data-parallel-size is a multiple of it"},
    {"scheduler.enable_expert_parallel", "enable-expert-parallel",
     &At<&Config::scheduler, &SchedulerConfig::enable_expert_parallel>, 0, 1, "", "",
     "1: expert-parallel-size is data-parallel-size, so that all workers are one group"},
    {"scheduler.expert_rebalance_interval", "expert-rebalance-interval",
     &At<&Config::scheduler, &SchedulerConfig::expert_rebalance_interval>, 0, kDay, "", "seconds",
     "how often experts of a group may change ranks, so that none has most of the work: where that "
     "is worth it the group pauses, loads them and computes its caches again; 0: they stay"},
    {"scheduler.prefill_groups", "prefill-groups",
     &At<&Config::scheduler, &SchedulerConfig::prefill_groups>, 0, 63, "", "",
     "groups, the first ones, that compute prompts and hand sequences over to the others, which so "
     "decode without long steps; 0: every group does both; needs block-address"},
    {"scheduler.max_num_seqs", "max-num-seqs",
     &At<&Config::scheduler, &SchedulerConfig::max_num_seqs>, 1, 1024, "", "",
     "sequences that run at the same time on one worker"},
    {"scheduler.max_num_batched_tokens", "max-num-batched-tokens",
     &At<&Config::scheduler, &SchedulerConfig::max_num_batched_tokens>, 1, 1 << 16, "", "tokens",
     "tokens computed in one step; more is faster prefill and slower decoding beside it"},
    {"scheduler.block_size", "block-size", &At<&Config::scheduler, &SchedulerConfig::block_size>, 1,
     256, "", "tokens", "tokens of one cache block; a multiple of the model's compression ratios"},
    {"scheduler.lanes", "lanes", &At<&Config::scheduler, &SchedulerConfig::lanes>, 1, 2, "", "",
     "halves of the batch that take turns on the device; 2 hides the round trip"},
    {"scheduler.enable_prefix_caching", "enable-prefix-caching",
     &At<&Config::scheduler, &SchedulerConfig::enable_prefix_caching>, 0, 1, "", "",
     "1: what prompts of one tenant begin with alike is computed once; answers are the same;"
     " --no-enable-prefix-caching turns it off"},
    {"scheduler.scheduling_policy", "scheduling-policy",
     &At<&Config::scheduler, &SchedulerConfig::scheduling_policy>, 0, 0, "priority|fcfs", "",
     "what serves the requests of a key first: their field priority, or arrival alone"},
    {"scheduler.max_num_queued_reqs", "max-num-queued-reqs",
     &At<&Config::scheduler, &SchedulerConfig::max_num_queued_reqs>, 1, 1'000'000, "", "",
     "requests that may wait; the next one gets 503"},
    {"scheduler.max_num_queued_tokens", "max-num-queued-tokens",
     &At<&Config::scheduler, &SchedulerConfig::max_num_queued_tokens>, 0, 1e12, "", "tokens",
     "prompt tokens that may wait; 0: four seconds of prefill capacity"},
    {"scheduler.max_queue_delay", "max-queue-delay",
     &At<&Config::scheduler, &SchedulerConfig::max_queue_delay>, 0, 3600, "", "seconds",
     "how long a request may wait: when none began sooner for a second, newcomers get 503 until "
     "one does or nobody waits; 0: they wait as long as it takes"},

    {"speculation.method", "speculation-method",
     &At<&Config::speculation, &SpeculationConfig::method>, 0, 0, "auto|dspark|none", "",
     "what drafts tokens: auto takes the checkpoint's own draft head, none decodes without"},
    {"speculation.num_speculative_tokens", "num-speculative-tokens",
     &At<&Config::speculation, &SpeculationConfig::num_speculative_tokens>, 0, 63, "", "tokens",
     "most drafts of a sequence in a step; the draft head may offer fewer"},
    {"speculation.depth", "speculation-depth", &At<&Config::speculation, &SpeculationConfig::depth>,
     0, 0, "adaptive|fixed", "",
     "adaptive drafts as far as acceptance and load make it pay; fixed always drafts the most"},
    {"speculation.tap_side", "speculation-tap-side",
     &At<&Config::speculation, &SpeculationConfig::tap_side>, 0, 0, "entering|leaving", "",
     "side of its layers on which the draft head reads; the wrong one costs acceptance only"},

    {"worker.backend", "backend", &At<&Config::worker, &WorkerConfig::backend>, 0, 0, "", "",
     "kernels to use: auto (skein serve only) or a registered name: cpu, sm90, reference"},
    {"worker.threads", "threads", &At<&Config::worker, &WorkerConfig::threads>, 0, 64, "", "",
     "compute threads of a worker; 0: the processors are shared out among the node's workers"},
    {"worker.pin_threads", "pin-threads", &At<&Config::worker, &WorkerConfig::pin_threads>, 0, 1,
     "", "",
     "1: bind compute threads to processors that no other worker of the host has; 0: do not"},
    {"worker.enforce_eager", "enforce-eager", &At<&Config::worker, &WorkerConfig::enforce_eager>, 0,
     1, "", "",
     "1: a GPU's steps are queued kernel by kernel instead of as recorded graphs; slower, for a "
     "GPU or a driver that records none"},
    {"worker.kernels", "kernels", &At<&Config::worker, &WorkerConfig::kernels>, 0, 0, "", "",
     "operators that another backend serves, as operator=backend,...: to compare or work around"},
    {"worker.num_blocks", "num-blocks", &At<&Config::worker, &WorkerConfig::num_blocks>, 0, 1 << 24,
     "", "", "cache blocks; 0: enough for max-num-seqs sequences of max-model-len, capped"},
    {"worker.gpu_memory_utilization", "gpu-memory-utilization",
     &At<&Config::worker, &WorkerConfig::gpu_memory_utilization>, 0.01, 1, "", "",
     "share of a GPU's memory that a worker may fill with weights, caches and what steps need; "
     "less leaves room for others. Without meaning where caches lie in the host's memory"},
    {"worker.enable_faults", "enable-faults", &At<&Config::worker, &WorkerConfig::enable_faults>, 0,
     0, "", "",
     "faults to plant in tests of recovery: abort_on_token:ID, hang_on_token:ID, "
     "exit_at_start:CODE, lose_blocks:WORKER, wedge_on_token:ID; refused unless the API is on "
     "loopback"},
    {"worker.metrics_listen", "worker-metrics-listen",
     &At<&Config::worker, &WorkerConfig::metrics_listen>, 0, 0, "", "",
     "where workers are scraped: ADDRESS:PORT of the node's first, the others at the ports behind "
     "it; port 0 takes free ones and prints them; empty: nowhere"},

    {"admin.listen", "admin-listen", &At<&Config::admin, &AdminConfig::listen>, 0, 0, "", "",
     "where operators are served: unix:/path or 127.0.0.1:port; empty: nowhere, and skein serve "
     "takes admin.sock in its run directory"},
    {"admin.token_file", "admin-token-file", &At<&Config::admin, &AdminConfig::token_file>, 0, 0,
     "", "", "file whose first line is the bearer token of operators; needed on TCP"},

    {"rollout.drain_timeout", "rollout-drain-timeout",
     &At<&Config::rollout, &RolloutConfig::drain_timeout>, 0, kDay, "", "seconds",
     "how long sequences may finish on a group that is drained before they move to others"},
    {"rollout.start_timeout", "rollout-start-timeout",
     &At<&Config::rollout, &RolloutConfig::start_timeout>, 1, kDay, "", "seconds",
     "how long a new worker may take to be ready before its start counts as failed"},
    {"rollout.soak", "rollout-soak", &At<&Config::rollout, &RolloutConfig::soak>, 0, kDay, "",
     "seconds", "how long a replaced group serves before the next one is replaced"},

    {"transport.control_endpoint", "control-endpoint",
     &At<&Config::transport, &TransportConfig::control_endpoint>, 0, 0, "", "",
     "where the coordinator binds and workers connect: ipc:///path or tcp://ADDRESS:PORT"},
    {"transport.curve_server_key", "curve-server-key",
     &At<&Config::transport, &TransportConfig::curve_server_key>, 0, 0, "", "",
     "tcp: the coordinator's public key, pinned by workers; OLD,NEW while it is replaced"},
    {"transport.curve_secret_key_file", "curve-secret-key-file",
     &At<&Config::transport, &TransportConfig::curve_secret_key_file>, 0, 0, "", "",
     "tcp: file with the key pair of this process, made by skein keygen FILE"},
    {"transport.curve_allowed_keys_file", "curve-allowed-keys-file",
     &At<&Config::transport, &TransportConfig::curve_allowed_keys_file>, 0, 0, "", "",
     "tcp: file with the public keys that the coordinator lets in, one in a line"},
    {"transport.block_address", "block-address",
     &At<&Config::transport, &TransportConfig::block_address>, 0, 0, "", "",
     "private IPv4 of this host on which its workers lend cache blocks to other groups (UCX, not "
     "encrypted), so that sequences move without being computed again; empty: they are"},
    {"transport.block_timeout", "block-timeout",
     &At<&Config::transport, &TransportConfig::block_timeout>, 0.1, 600, "", "seconds",
     "how long a transfer of cache blocks may take, beside 10 ms for each block; then the sequence "
     "is computed again"},
    {"transport.group_address", "group-address",
     &At<&Config::transport, &TransportConfig::group_address>, 0, 0, "", "",
     "private IPv4 of this host at which ranks of a group on other hosts reach its workers (UCX, "
     "not encrypted); empty: the ranks of each group are on one host"},
    {"transport.heartbeat_interval", "heartbeat-interval",
     &At<&Config::transport, &TransportConfig::heartbeat_interval>, 0.01, 60, "", "seconds",
     "time between two signs of life of a connection"},
    {"transport.heartbeat_timeout", "heartbeat-timeout",
     &At<&Config::transport, &TransportConfig::heartbeat_timeout>, 0.02, 60, "", "seconds",
     "silence after which a connection counts as broken"},
    {"transport.lease_timeout", "lease-timeout",
     &At<&Config::transport, &TransportConfig::lease_timeout>, 0.05, 600, "", "seconds",
     "how long a broken connection may take to come back before the peer is down"},

    {"node.workers", "data-parallel-size-local", &At<&Config::node, &NodeConfig::workers>, 0, 64,
     "", "", "workers of data-parallel-size that this node starts; 0: all, from first-worker on"},
    {"node.first_worker", "data-parallel-start-rank", &At<&Config::node, &NodeConfig::first_worker>,
     0, 63, "", "",
     "number of this node's first worker among those of all nodes, which have no gap"},
    {"node.run_directory", "run-directory", &At<&Config::node, &NodeConfig::run_directory>, 0, 0,
     "", "", "directory of sockets and generated files; empty: /run/skein or one under /tmp"},
    {"node.state_directory", "state-directory", &At<&Config::node, &NodeConfig::state_directory>, 0,
     0, "", "",
     "what must survive a reboot: the term; empty: /var/lib/skein or beside the run directory"},
    {"node.notify_socket", "notify-socket", &At<&Config::node, &NodeConfig::notify_socket>, 0, 0,
     "", "", "socket of the service manager, /path or @name; empty: nobody is told"},
    {"node.restarts_max", "restarts-max", &At<&Config::node, &NodeConfig::restarts_max>, 0, 1000,
     "", "", "restarts of a process within restart-window before it counts as failed"},
    {"node.restart_window", "restart-window", &At<&Config::node, &NodeConfig::restart_window>, 1,
     kDay, "", "seconds", "window of restarts-max"},
    {"node.backoff_min", "restart-backoff-min", &At<&Config::node, &NodeConfig::backoff_min>, 0.01,
     3600, "", "seconds", "pause before the first restart"},
    {"node.backoff_max", "restart-backoff-max", &At<&Config::node, &NodeConfig::backoff_max>, 0.01,
     3600, "", "seconds", "longest pause between restarts"},
    {"node.stop_timeout", "stop-timeout", &At<&Config::node, &NodeConfig::stop_timeout>, 0.05, 3600,
     "", "seconds", "how long a process may take to end before it is killed"},
    {"node.hang_timeout", "hang-timeout", &At<&Config::node, &NodeConfig::hang_timeout>, 0, kDay,
     "", "seconds",
     "a process that answers its supervisor no more for so long is killed and started again; 0: "
     "never, "
     "as for a debugger"},
    {"node.strict", "strict", &At<&Config::node, &NodeConfig::strict>, 0, 1, "", "",
     "1: a feature that is missing ends the start, as if all of them were required"},
    {"node.reap_own", "reap-own", &At<&Config::node, &NodeConfig::reap_own>, 0, 1, "", "",
     "1: end processes of dead skein supervisors of this user wherever they are; 0: list them"},

    {"features.pid_namespace", "feature-pid-namespace",
     &At<&Config::features, &FeatureConfig::pid_namespace>, 0, 0, "off|preferred|required", "",
     "ends everything a worker started with it; without: the cgroup leaf or the supervisor does"},
    {"features.cgroup_leaf", "feature-cgroup-leaf",
     &At<&Config::features, &FeatureConfig::cgroup_leaf>, 0, 0, "off|preferred|required", "",
     "kills detached helpers of a worker at once; without: the PID namespace does"},
    {"features.rdma", "feature-rdma", &At<&Config::features, &FeatureConfig::rdma>, 0, 0,
     "off|preferred|required", "", "tensors between nodes past the kernel; without: TCP"},
    {"features.nvml", "feature-nvml", &At<&Config::features, &FeatureConfig::nvml>, 0, 0,
     "off|preferred|required", "",
     "asks the driver who holds a GPU; without: open descriptors tell"},
    {"features.nccl", "feature-nccl", &At<&Config::features, &FeatureConfig::nccl>, 0, 0,
     "off|preferred|required", "", "collectives between GPUs; without: groups of one rank only"},
    {"features.shared_memory", "feature-shared-memory",
     &At<&Config::features, &FeatureConfig::shared_memory>, 0, 0, "off|preferred|required", "",
     "64 MiB of /dev/shm for ranks of one host; without: sockets"},
    {"features.memlock", "feature-memlock", &At<&Config::features, &FeatureConfig::memlock>, 0, 0,
     "off|preferred|required", "",
     "memory that the device may read directly; without: pageable copies"},
    {"features.numa", "feature-numa", &At<&Config::features, &FeatureConfig::numa>, 0, 0,
     "off|preferred|required", "",
     "spreads a worker's pages over memory nodes; without: where they are touched first"},
    {"features.huge_pages", "feature-huge-pages",
     &At<&Config::features, &FeatureConfig::huge_pages>, 0, 0, "off|preferred|required", "",
     "fewer address translations in weights; without: 4 KiB pages"},
    {"features.run_directory", "feature-run-directory",
     &At<&Config::features, &FeatureConfig::run_directory>, 0, 0, "preferred|required", "",
     "sockets in /run/skein; without: a private directory under /tmp"},
    {"features.descriptors", "feature-descriptors",
     &At<&Config::features, &FeatureConfig::descriptors>, 0, 0, "preferred|required", "",
     "a descriptor for each connection that is allowed; without: fewer connections"},
    {"features.clock", "feature-clock", &At<&Config::features, &FeatureConfig::clock>, 0, 0,
     "preferred|required", "", "a clock read without a system call; without: a slower one"},

    {"log.level", "log-level", &At<&Config::log, &LogConfig::level>, 0, 0, "debug|info|warn|error",
     "", "least important lines that are written"},
    {"log.form", "log-form", &At<&Config::log, &LogConfig::form>, 0, 0, "text|json", "",
     "key=value text for people, JSON lines for collectors"},
    {"log.directory", "log-directory", &At<&Config::log, &LogConfig::directory>, 0, 0, "", "",
     "where the supervisor keeps log files of the node; empty: lines go to standard error"},
    {"log.file_bytes_max", "log-file-bytes", &At<&Config::log, &LogConfig::file_bytes_max>, 1 << 20,
     kBytesMax, "", "bytes", "size at which a log file is rotated"},
    {"log.files_max", "log-files", &At<&Config::log, &LogConfig::files_max>, 1, 100, "", "",
     "log files kept, the newest included; they give way first when the disk runs full"},
};

}  // namespace

std::span<const ConfigKey> ConfigKeys() { return kKeys; }

std::optional<double> NumberOf(const ConfigKey& key, Config& config) {
  if (const auto* number = std::get_if<double& (*)(Config&)>(&key.access)) return (*number)(config);
  const auto* duration = std::get_if<absl::Duration& (*)(Config&)>(&key.access);
  if (duration == nullptr) return std::nullopt;
  return absl::ToDoubleSeconds((*duration)(config));
}

void SetNumber(const ConfigKey& key, double value, Config& config) {
  if (const auto* number = std::get_if<double& (*)(Config&)>(&key.access)) {
    (*number)(config) = value;
  } else {
    std::get<absl::Duration& (*)(Config&)>(key.access)(config) = absl::Seconds(value);
  }
}

}  // namespace skein::protocol
