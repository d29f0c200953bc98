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
    {"model.served_model_name", "served-model-name",
     &At<&Config::model, &ModelConfig::served_model_name>, 0, 0, "", "",
     "name of the model in the API; empty: the last part of model.path"},
    {"model.max_model_len", "max-model-len", &At<&Config::model, &ModelConfig::max_model_len>, 1,
     1 << 20, "", "tokens", "longest prompt and answer together; lower it to save cache"},
    {"model.max_logprobs", "max-logprobs", &At<&Config::model, &ModelConfig::max_logprobs>, 0, 20,
     "", "", "largest number of top logprobs that a request may ask for"},
    {"model.seed", "seed", &At<&Config::model, &ModelConfig::seed>, 0, 9.0e15, "", "",
     "root of the random numbers of requests that carry no seed of their own"},

    {"server.host", "host", &At<&Config::server, &ServerConfig::host>, 0, 0, "", "",
     "address the API listens on"},
    {"server.port", "port", &At<&Config::server, &ServerConfig::port>, 0, 65535, "", "",
     "TCP port of the API; 0 takes a free one and prints it"},
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

    {"scheduler.data_parallel_size", "data-parallel-size",
     &At<&Config::scheduler, &SchedulerConfig::data_parallel_size>, 1, 64, "", "",
     "worker groups, each with the whole model; more serve more requests at a time (also -dp)"},
    {"scheduler.max_num_seqs", "max-num-seqs",
     &At<&Config::scheduler, &SchedulerConfig::max_num_seqs>, 1, 1024, "", "",
     "sequences that run at the same time in one worker group"},
    {"scheduler.max_num_batched_tokens", "max-num-batched-tokens",
     &At<&Config::scheduler, &SchedulerConfig::max_num_batched_tokens>, 1, 1 << 16, "", "tokens",
     "tokens computed in one step; more is faster prefill and slower decoding beside it"},
    {"scheduler.block_size", "block-size", &At<&Config::scheduler, &SchedulerConfig::block_size>, 1,
     4096, "", "tokens", "tokens of one cache block; a multiple of the model's compression ratios"},
    {"scheduler.lanes", "lanes", &At<&Config::scheduler, &SchedulerConfig::lanes>, 1, 2, "", "",
     "halves of the batch that take turns on the device; 2 hides the round trip"},
    {"scheduler.max_num_queued_reqs", "max-num-queued-reqs",
     &At<&Config::scheduler, &SchedulerConfig::max_num_queued_reqs>, 1, 1'000'000, "", "",
     "requests that may wait; the next one gets 503"},
    {"scheduler.max_num_queued_tokens", "max-num-queued-tokens",
     &At<&Config::scheduler, &SchedulerConfig::max_num_queued_tokens>, 0, 1e12, "", "tokens",
     "prompt tokens that may wait; 0: four seconds of prefill capacity"},

    {"speculation.method", "speculation-method",
     &At<&Config::speculation, &SpeculationConfig::method>, 0, 0, "auto|dspark|none", "",
     "what drafts tokens: auto takes the checkpoint's own draft head, none decodes without"},
    {"speculation.num_speculative_tokens", "num-speculative-tokens",
     &At<&Config::speculation, &SpeculationConfig::num_speculative_tokens>, 0, 63, "", "tokens",
     "most drafts of a sequence in a step; the draft head may offer fewer"},
    {"speculation.depth", "speculation-depth", &At<&Config::speculation, &SpeculationConfig::depth>,
     0, 0, "adaptive|fixed", "",
     "adaptive drafts as far as acceptance and load make it pay; fixed always drafts the most"},

    {"worker.backend", "backend", &At<&Config::worker, &WorkerConfig::backend>, 0, 0, "", "",
     "kernels to use: auto (skein serve only) or a registered name: cpu, sm90, reference"},
    {"worker.threads", "threads", &At<&Config::worker, &WorkerConfig::threads>, 0, 64, "", "",
     "compute threads of a worker; 0: the processors are shared out among the node's workers"},
    {"worker.pin_threads", "pin-threads", &At<&Config::worker, &WorkerConfig::pin_threads>, 0, 1,
     "", "",
     "1: bind compute threads to processors that no other worker of the host has; 0: do not"},
    {"worker.kernels", "kernels", &At<&Config::worker, &WorkerConfig::kernels>, 0, 0, "", "",
     "operators that another backend serves, as operator=backend,...: to compare or work around"},
    {"worker.num_blocks", "num-blocks", &At<&Config::worker, &WorkerConfig::num_blocks>, 0, 1 << 24,
     "", "", "cache blocks; 0: enough for max-num-seqs sequences of max-model-len, capped"},
    {"worker.enable_faults", "enable-faults", &At<&Config::worker, &WorkerConfig::enable_faults>, 0,
     0, "", "",
     "faults to plant in tests of recovery: abort_on_token:ID, hang_on_token:ID, "
     "exit_at_start:CODE, wedge_on_token:ID; refused unless the API is on loopback"},

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
     "where the coordinator binds and workers connect: ipc:///path or tcp://127.0.0.1:port"},
    {"transport.heartbeat_interval", "heartbeat-interval",
     &At<&Config::transport, &TransportConfig::heartbeat_interval>, 0.01, 60, "", "seconds",
     "time between two signs of life of a connection"},
    {"transport.heartbeat_timeout", "heartbeat-timeout",
     &At<&Config::transport, &TransportConfig::heartbeat_timeout>, 0.02, 60, "", "seconds",
     "silence after which a connection counts as broken"},
    {"transport.lease_timeout", "lease-timeout",
     &At<&Config::transport, &TransportConfig::lease_timeout>, 0.05, 600, "", "seconds",
     "how long a broken connection may take to come back before the peer is down"},

    {"node.run_directory", "run-directory", &At<&Config::node, &NodeConfig::run_directory>, 0, 0,
     "", "", "directory of sockets and generated files; empty: /run/skein or one under /tmp"},
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

    {"log.level", "log-level", &At<&Config::log, &LogConfig::level>, 0, 0, "debug|info|warn|error",
     "", "least important lines that are written"},
    {"log.form", "log-form", &At<&Config::log, &LogConfig::form>, 0, 0, "text|json", "",
     "key=value text for people, JSON lines for collectors"},
};

}  // namespace

std::span<const ConfigKey> ConfigKeys() { return kKeys; }

}  // namespace skein::protocol
