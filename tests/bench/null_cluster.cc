// Starts both, waits until a request would be served.
// Thread: main's. Must never leave a process or a file behind.
#include "tests/bench/null_cluster.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "protocol/http/http_client.h"

namespace skein::bench {
namespace {

constexpr char kPrograms[] = SKEIN_PROGRAM_DIRECTORY;

}  // namespace

absl::StatusOr<std::unique_ptr<NullCluster>> NullCluster::Start(const std::string& model,
                                                                bool two_cores, int64_t step_us) {
  auto cluster = std::make_unique<NullCluster>();
  char path[] = "/tmp/skein_control_XXXXXX";
  cluster->directory_ = ::mkdtemp(path);
  const std::string endpoint = absl::StrCat("ipc://", cluster->directory_, "/control");
  auto coordinator = BenchProcess::Start({absl::StrCat(kPrograms, "/skein-coordinator"),
                                          {"--model",
                                           model,
                                           "--control-endpoint",
                                           endpoint,
                                           "--port",
                                           "0",
                                           "--backend",
                                           "cpu",
                                           "--max-connections",
                                           "20000",
                                           "--max-connections-per-address",
                                           "20000",
                                           "--max-num-seqs",
                                           "1024",
                                           "--max-num-batched-tokens",
                                           "65536",
                                           "--max-num-queued-reqs",
                                           "1000000",
                                           "--max-num-queued-tokens",
                                           "1000000000",
                                           "--lease-timeout",
                                           "10",
                                           "--heartbeat-timeout",
                                           "2",
                                           "--log-level",
                                           "warn"},
                                          two_cores ? 0 : -1});
  if (!coordinator.ok()) return coordinator.status();
  cluster->coordinator_.emplace(*std::move(coordinator));
  const auto address = cluster->coordinator_->WaitReady(absl::Seconds(20));
  if (!address.ok()) return address.status();
  uint32_t port = 0;
  if (!absl::SimpleAtoi(address->substr(address->rfind(':') + 1), &port)) {
    return absl::InternalError(absl::StrCat("no port in \"", *address, "\""));
  }
  cluster->port_ = static_cast<uint16_t>(port);
  auto worker = BenchProcess::Start({absl::StrCat(kPrograms, "/null_worker"),
                                     {"--endpoint", endpoint, "--step-us", std::to_string(step_us)},
                                     two_cores ? 1 : -1});
  if (!worker.ok()) return worker.status();
  cluster->worker_.emplace(*std::move(worker));
  const auto ready = cluster->worker_->WaitReady(absl::Seconds(20));
  if (!ready.ok()) return ready.status();
  if (absl::Status served = cluster->WaitServing(); !served.ok()) return served;
  if (two_cores) PinToCore(1);
  return cluster;
}

absl::Status NullCluster::WaitServing() const {
  protocol::HttpCall call;
  call.port = port_;
  call.target = "/health";
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < end) {
    const auto answer = protocol::CallHttp(call);
    if (answer.ok() && answer->status == 200) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the coordinator did not become healthy in 20 s");
}

}  // namespace skein::bench
