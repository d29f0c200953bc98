// The configuration of every program: typed sections, filled from defaults, one strict YAML file
// and flags (flag > file > default). One table in config.cc describes each key (range, unit, help);
// the YAML keys, the flags, the help and the dump all come from it.
// Plain values after LoadConfig, any thread. Must never read the environment.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/base/log.h"

namespace skein::protocol {

// What is served.
struct ModelConfig {
  std::string path;                  // checkpoint directory
  std::string load_format = "auto";  // auto: the tensors in `path`; dummy: random ones
  std::string served_model_name;     // name in the API; empty: the last component of `path`
  int64_t max_model_len = 4096;      // tokens of prompt and answer together
  int64_t max_logprobs = 20;         // largest top_logprobs a request may ask for
  std::string logprobs_mode = "raw_logprobs";  // or processed_logprobs: of what is sampled
  int64_t seed = 0;                            // root of the seeds of requests that carry none
};

// The HTTP edge and its limits.
struct ServerConfig {
  std::string host = "127.0.0.1";
  int64_t port = 8000;                        // 0: any free port, printed at start
  std::string api_key;                        // one key of clients; a secret; empty: none
  std::string api_key_file;                   // keys with tenants and limits; empty: none
  int64_t auth_failures_per_minute_max = 60;  // of one address
  std::string root_path;                      // path under which a proxy shows the API; empty: none
  std::string ssl_certfile;                   // PEM: the certificate and its chain; empty: no TLS
  std::string ssl_keyfile;                    // PEM: its private key
  absl::Duration slow_request_threshold = absl::Seconds(30);  // 0: every request counts as slow
  std::string metrics_compat = "none";                // vllm: its names for our metrics, too
  std::string reasoning_field = "reasoning_content";  // both: reasoning, too
  int64_t degraded_header = 0;  // 1: answers name the host's degraded features
  absl::Duration shutdown_timeout = absl::Seconds(30);
  int64_t connections_max = 8192;
  int64_t connections_per_address_max = 100;
  int64_t head_bytes_max = 16 << 10;
  int64_t head_fields_max = 100;
  absl::Duration head_timeout = absl::Seconds(5);
  int64_t body_bytes_max = 8 << 20;
  int64_t body_bytes_per_second_min = 1024;
  absl::Duration body_grace = absl::Seconds(5);
  absl::Duration idle_timeout = absl::Seconds(60);
  int64_t pipelined_heads_max = 8;
  int64_t json_depth_max = 64;
  int64_t json_string_bytes_max = 8 << 20;
  int64_t json_values_max = 200'000;
  int64_t egress_bytes_max = 256 << 10;
  absl::Duration egress_timeout = absl::Seconds(30);
  absl::Duration keep_alive_interval = absl::Seconds(10);
};

// What may run together, and what may wait.
struct SchedulerConfig {
  int64_t tensor_parallel_size = 1;    // ranks that share each product; no backend can more than 1
  int64_t data_parallel_size = 1;      // workers in all, each with its own part of the requests
  int64_t expert_parallel_size = 1;    // of them that form a group and share one set of experts
  int64_t enable_expert_parallel = 0;  // 1: all of them are one group
  absl::Duration expert_rebalance_interval;  // between looks at where experts are; 0: they stay
  int64_t prefill_groups = 0;                // groups that compute prompts for the others
  int64_t max_num_seqs = 64;
  int64_t max_num_batched_tokens = 512;
  int64_t block_size = 64;
  int64_t lanes = 1;
  int64_t enable_prefix_caching = 1;           // prompts that begin alike are computed once; 0: not
  std::string scheduling_policy = "priority";  // within a key; fcfs: by arrival alone
  int64_t max_num_queued_reqs = 1024;
  int64_t max_num_queued_tokens = 0;  // 0: four seconds of prefill capacity
  absl::Duration max_queue_delay;     // none began sooner for a second: 503; 0: never
};

// Drafting and its verification.
struct SpeculationConfig {
  std::string method = "auto";         // auto: the draft head of the checkpoint, if it has one
  int64_t num_speculative_tokens = 5;  // drafts per sequence and step at most
  std::string depth = "adaptive";      // adaptive: by acceptance and load; fixed: always the most
  std::string tap_side = "entering";   // of its layers, where the draft head reads: or leaving
};

// The worker's device.
struct WorkerConfig {
  std::string backend = "auto";  // auto (skein serve only) or the name of a registered backend
  int64_t threads = 0;           // 0: one per processor of the worker
  int64_t pin_threads = 1;       // 1: bind compute threads to processors of their own
  int64_t enforce_eager = 0;     // 1: no recorded graphs on a GPU
  std::string kernels;           // operators of another backend: "op=name,op=name"
  int64_t num_blocks = 0;        // 0: what max_num_seqs sequences of max_model_len need, capped
  double gpu_memory_utilization = 1;  // share of a GPU's memory that the worker may fill
  std::string enable_faults;          // planted faults of tests, see fault_list.h; empty: none
  std::string metrics_listen;         // ADDRESS:PORT of the node's first worker; empty: nowhere
};

// The listener for operators.
struct AdminConfig {
  std::string listen;      // unix:/path, 127.0.0.1:port or empty: none; serve makes its own
  std::string token_file;  // its first line is the bearer token; empty: none is asked for
};

// Replacing the workers of a running cluster, group by group.
struct RolloutConfig {
  absl::Duration drain_timeout = absl::Seconds(30);
  absl::Duration start_timeout = absl::Seconds(120);
  absl::Duration soak = absl::Seconds(30);
};

// Coordinator and worker between each other.
struct TransportConfig {
  std::string control_endpoint;  // ipc:///path or tcp://ADDRESS:PORT; serve makes its own
  std::string curve_server_key;  // tcp: public key of the coordinator; two while it is replaced
  std::string curve_secret_key_file;    // tcp: this process's pair, of skein keygen
  std::string curve_allowed_keys_file;  // tcp: public keys that the coordinator lets in
  std::string block_address;            // where a worker lends cache blocks; empty: none move
  absl::Duration block_timeout = absl::Seconds(5);  // of a transfer of cache blocks
  std::string group_address;  // where ranks of other hosts reach a worker; empty: none
  absl::Duration heartbeat_interval = absl::Milliseconds(100);
  absl::Duration heartbeat_timeout = absl::Milliseconds(300);
  absl::Duration lease_timeout = absl::Seconds(1);
};

// The supervisor.
struct NodeConfig {
  int64_t workers = 0;          // that this node starts; 0: all that are left from the first on
  int64_t first_worker = 0;     // its number among those of all nodes
  std::string run_directory;    // empty: /run/skein, or a fresh directory under /tmp
  std::string state_directory;  // empty: /var/lib/skein, or one in the base of run directories
  std::string notify_socket;    // of the service manager; empty: none
  int64_t restarts_max = 5;
  absl::Duration restart_window = absl::Seconds(60);
  absl::Duration backoff_min = absl::Milliseconds(200);
  absl::Duration backoff_max = absl::Seconds(10);
  absl::Duration stop_timeout = absl::Seconds(2);
  absl::Duration hang_timeout = absl::Seconds(10);  // zero: a child that hangs is left alone
  int64_t strict = 0;                               // 1: any degraded feature is an error
  int64_t reap_own = 0;  // 1: what dead supervisors left is ended whatever else contains it
};

// Optional features of the host: "off" does without, "preferred" takes the named alternative when
// it is missing and says so, "required" refuses to start without it.
struct FeatureConfig {
  std::string pid_namespace = "preferred";
  std::string cgroup_leaf = "preferred";
  std::string rdma = "preferred";
  std::string nvml = "preferred";
  std::string nccl = "preferred";
  std::string shared_memory = "preferred";
  std::string memlock = "preferred";
  std::string numa = "preferred";
  std::string huge_pages = "preferred";
  std::string run_directory = "preferred";
  std::string descriptors = "preferred";
  std::string clock = "preferred";
};

struct LogConfig {
  std::string level = "info";
  std::string form = "text";
  std::string directory;  // of the node's log files; empty: lines go to standard error
  int64_t file_bytes_max = 64 << 20;
  int64_t files_max = 8;
};

struct Config {
  ModelConfig model;
  ServerConfig server;
  SchedulerConfig scheduler;
  SpeculationConfig speculation;
  WorkerConfig worker;
  AdminConfig admin;
  RolloutConfig rollout;
  TransportConfig transport;
  NodeConfig node;
  FeatureConfig features;
  LogConfig log;
};

// One row of the table.
struct ConfigKey {
  // Where the value lives; the alternative says its type.
  using Access = std::variant<std::string& (*)(Config&), int64_t& (*)(Config&),
                              double& (*)(Config&), absl::Duration& (*)(Config&)>;
  std::string_view path;  // "server.port"
  std::string_view flag;  // "port": --port
  Access access;
  double min = 0;  // numbers, and durations in seconds
  double max = 0;
  std::string_view choices;  // "a|b" for enumerations; empty: any text
  std::string_view unit;
  std::string_view help;  // what it is and why one would change it
  bool secret = false;    // its value is in no dump and no hash
};

// The workers of a node, by their numbers among those of all nodes.
struct NodeWorkers {
  int64_t first = 0;
  int64_t count = 0;
};
NodeWorkers WorkersOf(const Config& config);

// Ranks of each worker group: expert_parallel_size, or all with enable_expert_parallel.
int64_t ExpertParallelSize(const SchedulerConfig& scheduler);

// Every key there is, grouped by section.
std::span<const ConfigKey> ConfigKeys();

// The value of a key that is a number, or a duration in seconds; nothing for other keys.
std::optional<double> NumberOf(const ConfigKey& key, Config& config);
// Sets it; no other keys.
void SetNumber(const ConfigKey& key, double value, Config& config);

enum class ConfigOrigin { kDefault, kFile, kFlag };

struct LoadedConfig {
  Config config;
  std::map<std::string, ConfigOrigin, std::less<>> origins;   // by path; absent: default
  std::map<std::string, int64_t, std::less<>> program_flags;  // name -> value
  std::vector<std::string> positional;
  std::string file;                  // of --config; empty: none was given
  std::vector<std::string> notices;  // one line each, to be logged once

  // The value of a program flag, or `missing` when it was not given.
  int64_t FlagOr(std::string_view name, int64_t missing) const;
};

// What differs between programs.
struct LoadOptions {
  bool allow_auto_backend = false;         // only skein serve and skein config
  size_t positional_max = 0;               // skein serve [MODEL]
  std::vector<std::string_view> required;  // paths that must not be empty
  // Further flags without dashes; their values are integers from 0 on.
  std::vector<std::string_view> program_flags;
};

// Reads flags (argv without the program's name), the file of --config, and checks everything.
// All problems, one a line: "file:line: path: what, and what would be right" or "--flag: ...".
// InvalidArgument when only flags are wrong, FailedPrecondition when the file or a combination is,
// NotFound when the file cannot be read.
absl::StatusOr<LoadedConfig> LoadConfig(std::span<const std::string> arguments,
                                        const LoadOptions& options);

// The exit code of a program whose LoadConfig failed: 64 (usage) or 78 (configuration).
int ConfigExitCode(const absl::Status& status);

// Says on standard error why `program` ends, and returns `code` for its main().
int FailProgram(std::string_view program, const absl::Status& status, int code);

// Ranges and combinations of a finished configuration, as LoadConfig applies them.
absl::Status ValidateConfig(const Config& config, const LoadOptions& options);

// The arguments of main() behind the program's name. The values of flags that are secrets are
// overwritten in `argv`, so that no list of processes shows them; call it before anything else.
std::vector<std::string> TakeArguments(int argc, char** argv);

// The configuration as YAML that LoadConfig reads back to the same values: secrets are in it.
std::string ConfigYaml(const Config& config);

// The same with the origin of each value and without secrets, for people.
std::string ConfigDump(const LoadedConfig& loaded);

// 16 hexadecimal digits over every value that is no secret: tells two configurations apart.
std::string ConfigHash(const Config& config);

// Flags with range, default and help.
std::string ConfigHelp();

// What InstallLog takes for this configuration; `process` names the program in each line.
LogOptions ToLogOptions(const LogConfig& log, std::string_view process);

// The name under which the model is served.
std::string ServedModelName(const ModelConfig& model);

}  // namespace skein::protocol
