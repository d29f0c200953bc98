#include "protocol/config/config_combinations.h"

#include <arpa/inet.h>

#include "protocol/base/strings.h"
#include "protocol/config/admin_address.h"
#include "protocol/config/fault_list.h"
#include "protocol/config/listen_address.h"

namespace skein::protocol {
namespace {

// Whether listeners at these addresses could want the same port.
bool Meet(std::string_view one, std::string_view other) {
  const auto is_any = [](std::string_view host) { return host == "0.0.0.0" || host == "::"; };
  return one == other || is_any(one) || is_any(other);
}

// Whether what is served begins with the path: /v1/models under /v1 would be /models.
bool IsServed(std::string_view path) {
  for (const std::string_view served :
       {"/v1", "/health", "/metrics", "/ping", "/version", "/load", "/tokenize", "/detokenize"}) {
    if (path == served || (path.starts_with(served) && path[served.size()] == '/')) return true;
  }
  return false;
}

// The path is one that requests can begin with.
void CheckRootPath(const Config& config, PathNamer name_of, std::vector<std::string>& problems) {
  const std::string& path = config.server.root_path;
  const bool good = path.empty() || (path.size() > 1 && path.front() == '/' && path.back() != '/' &&
                                     path.find_first_of(" ?#%\"\\") == std::string::npos);
  if (good && IsServed(path)) {
    problems.push_back(Concat(name_of("server.root_path"), ": \"", path,
                              "\" is a path that is served itself; give one as /skein"));
  }
  if (good) return;
  problems.push_back(Concat(name_of("server.root_path"), ": \"", path,
                            "\" is no path of a URL; give one as /skein, without a / at its end"));
}

void CheckOperator(const Config& config, PathNamer name_of, std::vector<std::string>& problems) {
  const absl::StatusOr<AdminAddress> admin = ParseAdminAddress(config.admin.listen);
  if (admin.ok() && admin->port.value_or(0) != 0 && *admin->port == config.server.port &&
      Meet(admin->host, config.server.host)) {
    problems.push_back(Concat(name_of("admin.listen"), ": its port is ", name_of("server.port"),
                              " = ", config.server.port, "; give another, or unix:/path"));
  }
  if (!admin.ok()) {
    problems.push_back(Concat(name_of("admin.listen"), ": ", StatusText(admin.status())));
  } else if (admin->port.has_value() && config.admin.token_file.empty()) {
    problems.push_back(Concat(name_of("admin.token_file"),
                              ": a TCP operator listener needs one; or listen on unix:/path"));
  }
  CheckRootPath(config, name_of, problems);
  const absl::StatusOr<FaultList> faults = ParseFaults(config.worker.enable_faults);
  if (!faults.ok()) {
    problems.push_back(Concat(name_of("worker.enable_faults"), ": ", StatusText(faults.status())));
  } else if (!config.worker.enable_faults.empty() && !IsLoopback(config.server.host)) {
    problems.push_back(Concat(name_of("worker.enable_faults"), ": refused while ",
                              name_of("server.host"), " is ", config.server.host,
                              "; faults are for tests on 127.0.0.1"));
  }
}

// The ports of a node's workers: they exist, and none is the API's or the operators'.
void CheckMetricsListen(const Config& config, PathNamer name_of,
                        std::vector<std::string>& problems) {
  if (config.worker.metrics_listen.empty()) return;
  const absl::StatusOr<ListenAddress> first = ParseListenAddress(config.worker.metrics_listen);
  if (!first.ok()) {
    problems.push_back(Concat(name_of("worker.metrics_listen"), ": ", StatusText(first.status())));
    return;
  }
  if (first->port == 0) return;
  const int64_t workers = WorkersOf(config).count;
  const int64_t last = first->port + workers - 1;
  if (last > 65535) {
    problems.push_back(Concat(name_of("worker.metrics_listen"), ": ", workers,
                              " workers need the ports ", first->port, " to ", last,
                              ", the last port is 65535; give a lower one"));
    return;
  }
  const auto refuse_held = [&](std::string_view path, std::string_view host, int64_t port) {
    if (port < first->port || port > last || !Meet(first->host, host)) return;
    problems.push_back(Concat(name_of("worker.metrics_listen"), ": the workers' ports ",
                              first->port, " to ", last, " hold ", name_of(path), " = ", port,
                              "; give others"));
  };
  refuse_held("server.port", config.server.host, config.server.port);
  const absl::StatusOr<AdminAddress> admin = ParseAdminAddress(config.admin.listen);
  if (admin.ok()) refuse_held("admin.listen", admin->host, admin->port.value_or(0));
}

// Groups of several ranks: whole ones, on a backend that has collectives.
void CheckExpertParallel(const Config& config, PathNamer name_of,
                         std::vector<std::string>& problems) {
  const SchedulerConfig& scheduler = config.scheduler;
  const int64_t engines = scheduler.data_parallel_size;
  const int64_t ranks = ExpertParallelSize(scheduler);
  if (scheduler.enable_expert_parallel != 0 && scheduler.expert_parallel_size != 1 &&
      scheduler.expert_parallel_size != engines) {
    problems.push_back(Concat(name_of("scheduler.expert_parallel_size"), ": ",
                              scheduler.expert_parallel_size, " contradicts ",
                              name_of("scheduler.enable_expert_parallel"), ", which makes it ",
                              engines, "; give one of the two"));
  } else if (engines % ranks != 0) {
    problems.push_back(Concat(name_of("scheduler.data_parallel_size"), ": ", engines,
                              " is no multiple of ", name_of("scheduler.expert_parallel_size"),
                              " = ", ranks, "; a group needs all its workers: give ",
                              (engines / ranks + 1) * ranks));
  }
  if (scheduler.tensor_parallel_size != 1) {
    problems.push_back(
        Concat(name_of("scheduler.tensor_parallel_size"), ": ", scheduler.tensor_parallel_size,
               " is refused: no backend shares single products out; give 1, and ",
               name_of("scheduler.enable_expert_parallel"), " to share the experts out"));
  }
  if (ranks > 1 && config.worker.backend == "sm90") {
    problems.push_back(Concat(name_of("scheduler.expert_parallel_size"), ": ", ranks,
                              " is refused while ", name_of("worker.backend"),
                              " is sm90, which has no collectives yet; give 1, or cpu"));
  }
}

// Loopback, or of a network that is not routed in the internet.
bool IsPrivateIpv4(const std::string& text) {
  in_addr address{};
  if (::inet_pton(AF_INET, text.c_str(), &address) != 1) return false;
  const uint32_t ip = ntohl(address.s_addr);
  return ip >> 24 == 127 || ip >> 24 == 10 || ip >> 16 == 0xC0A8 || ip >> 20 == 0xAC1;
}

// The node's share of the workers, and groups that reach beyond it.
void CheckNodeWorkers(const Config& config, PathNamer name_of, std::vector<std::string>& problems) {
  const NodeWorkers own = WorkersOf(config);
  const int64_t all = config.scheduler.data_parallel_size;
  if (own.count == 0 || own.first + own.count > all) {
    problems.push_back(Concat(name_of("node.first_worker"), ": ", own.first, " and ",
                              name_of("node.workers"), " = ", config.node.workers,
                              " are not within ", name_of("scheduler.data_parallel_size"), " = ",
                              all, ", which counts the workers of all nodes"));
    return;
  }
  const std::string& address = config.transport.group_address;
  if (!address.empty() && !IsPrivateIpv4(address)) {
    problems.push_back(Concat(name_of("transport.group_address"), ": \"", address,
                              "\" is no private IPv4 address; what ranks exchange is not "
                              "encrypted: use 10/8, 172.16/12, 192.168/16 or 127/8"));
  }
  const int64_t ranks = ExpertParallelSize(config.scheduler);
  if (address.empty() && (own.first % ranks != 0 || (own.first + own.count) % ranks != 0)) {
    problems.push_back(Concat(name_of("transport.group_address"), ": the workers ", own.first,
                              " to ", own.first + own.count - 1, " of this node and groups of ",
                              name_of("scheduler.expert_parallel_size"), " = ", ranks,
                              " mean a group with ranks on another node; give a private IPv4 of "
                              "this host"));
  }
}

void CheckRebalance(const Config& config, PathNamer name_of, std::vector<std::string>& problems) {
  const absl::Duration interval = config.scheduler.expert_rebalance_interval;
  if (interval == absl::ZeroDuration() || ExpertParallelSize(config.scheduler) > 1) return;
  problems.push_back(Concat(name_of("scheduler.expert_rebalance_interval"), ": ",
                            absl::ToDoubleSeconds(interval),
                            " seconds, but each worker has every expert; raise ",
                            name_of("scheduler.expert_parallel_size"), " or give 0"));
}

// Where cache blocks cross, and what hands them over.
void CheckBlockMoves(const Config& config, PathNamer name_of, std::vector<std::string>& problems) {
  const std::string& address = config.transport.block_address;
  if (!address.empty() && !IsPrivateIpv4(address)) {
    problems.push_back(Concat(name_of("transport.block_address"), ": \"", address,
                              "\" is no private IPv4 address; cache blocks are not encrypted: use "
                              "10/8, 172.16/12, 192.168/16 or 127/8"));
  }
  const SchedulerConfig& scheduler = config.scheduler;
  if (scheduler.prefill_groups == 0) return;
  const std::string prefill = name_of("scheduler.prefill_groups");
  const int64_t groups = scheduler.data_parallel_size / ExpertParallelSize(scheduler);
  if (scheduler.prefill_groups >= groups) {
    problems.push_back(Concat(
        prefill, ": ", scheduler.prefill_groups, " of ", groups, groups == 1 ? " group" : " groups",
        " leaves none that decodes; raise ", name_of("scheduler.data_parallel_size")));
  }
  if (address.empty()) {
    problems.push_back(Concat(name_of("transport.block_address"), ": ", prefill,
                              " needs one, to hand cache blocks over; give 127.0.0.1 on one host"));
  }
  if (scheduler.enable_prefix_caching == 0) {
    problems.push_back(Concat(name_of("scheduler.enable_prefix_caching"), ": ", prefill,
                              " needs it, since blocks are handed over through the cache; give 1"));
  }
}

void CheckNode(const Config& config, PathNamer name_of, std::vector<std::string>& problems) {
  CheckNodeWorkers(config, name_of, problems);
  CheckOperator(config, name_of, problems);
  CheckMetricsListen(config, name_of, problems);
}

}  // namespace

NodeWorkers WorkersOf(const Config& config) {
  const int64_t first = config.node.first_worker;
  const int64_t rest = std::max<int64_t>(config.scheduler.data_parallel_size - first, 0);
  return {first, config.node.workers > 0 ? config.node.workers : rest};
}

std::vector<std::string> CombinationProblems(const Config& config, const LoadOptions& options,
                                             PathNamer name_of) {
  std::vector<std::string> problems;
  if (config.scheduler.max_num_batched_tokens < config.scheduler.max_num_seqs) {
    problems.push_back(Concat(
        name_of("scheduler.max_num_batched_tokens"), ": ", config.scheduler.max_num_batched_tokens,
        " is less than ", name_of("scheduler.max_num_seqs"), " = ", config.scheduler.max_num_seqs,
        "; each running sequence needs a token of the step: raise it"));
  }
  if (config.transport.heartbeat_timeout <= config.transport.heartbeat_interval) {
    problems.push_back(Concat(name_of("transport.heartbeat_timeout"), ": must be longer than ",
                              name_of("transport.heartbeat_interval"),
                              "; three times it is usual"));
  }
  if (config.transport.lease_timeout < 3 * config.transport.heartbeat_interval) {
    problems.push_back(Concat(name_of("transport.lease_timeout"), ": must be at least three times ",
                              name_of("transport.heartbeat_interval")));
  }
  const absl::Duration hang = config.node.hang_timeout;
  if (hang > absl::ZeroDuration() && hang < absl::Seconds(1)) {
    problems.push_back(Concat(name_of("node.hang_timeout"), ": ", absl::ToDoubleSeconds(hang),
                              " is less than a second, which a healthy process may be late; give 1 "
                              "or more, or 0 for never"));
  } else if (hang > absl::ZeroDuration() && hang < 3 * config.transport.heartbeat_interval) {
    problems.push_back(Concat(name_of("node.hang_timeout"), ": must be at least three times ",
                              name_of("transport.heartbeat_interval"), ", or 0 for never"));
  }
  if (config.node.backoff_max < config.node.backoff_min) {
    problems.push_back(Concat(name_of("node.backoff_max"), ": must not be shorter than ",
                              name_of("node.backoff_min")));
  }
  if (config.server.head_bytes_max > config.server.body_bytes_max) {
    problems.push_back(Concat(name_of("server.head_bytes_max"), ": must not be larger than ",
                              name_of("server.body_bytes_max")));
  }
  if (config.server.ssl_certfile.empty() != config.server.ssl_keyfile.empty()) {
    const bool has_key = config.server.ssl_certfile.empty();
    problems.push_back(Concat(name_of(has_key ? "server.ssl_certfile" : "server.ssl_keyfile"),
                              ": TLS needs both, and ",
                              name_of(has_key ? "server.ssl_keyfile" : "server.ssl_certfile"),
                              " is given alone; give this one too"));
  }
  if (config.worker.backend.empty()) {
    problems.push_back(Concat(name_of("worker.backend"), ": is empty; name one, for example cpu"));
  } else if (config.worker.backend == "auto" && !options.allow_auto_backend) {
    problems.push_back(Concat(name_of("worker.backend"),
                              ": auto is resolved by skein serve only; name one, for example cpu"));
  }
  const std::string& endpoint = config.transport.control_endpoint;
  if (!endpoint.empty() && !endpoint.starts_with("ipc:///") && !endpoint.starts_with("tcp://")) {
    problems.push_back(Concat(name_of("transport.control_endpoint"), ": \"", endpoint,
                              "\" is neither ipc:///path, with an absolute path, nor "
                              "tcp://address:port"));
  }
  CheckExpertParallel(config, name_of, problems);
  CheckRebalance(config, name_of, problems);
  CheckBlockMoves(config, name_of, problems);
  CheckNode(config, name_of, problems);
  return problems;
}

}  // namespace skein::protocol
