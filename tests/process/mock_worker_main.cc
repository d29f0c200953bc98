// mock-worker: a worker with the flags, the protocol and the memory of skein-worker, whose model is
// a hash (mock_model.h). It stands in for skein-worker in a directory of programs. The file
// `mock-worker.speed` beside it may hold the time of a step in microseconds and of each of its rows
// in nanoseconds; without it a step takes 5 ms. `mock-worker.endpoint` may hold the control
// endpoint to dial instead of that of the configuration. Wiring only.

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/actor/threaded_actor_system.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/fingerprint.h"
#include "protocol/base/log.h"
#include "protocol/base/parent_guard.h"
#include "protocol/base/signal_watch.h"
#include "protocol/base/status_macros.h"
#include "protocol/config/config.h"
#include "protocol/transport/control_transport.h"
#include "tests/process/mock_runner.h"
#include "worker/worker_actor.h"

namespace skein::tests {
namespace {

using protocol::kExitConfig;
using protocol::kExitInternal;
using protocol::kExitModel;
using protocol::kExitRestart;

int Fail(const absl::Status& status, int code) {
  return protocol::FailProgram("mock-worker", status, code);
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

// The file of this name beside the program.
std::ifstream Beside(const std::string& program, std::string_view name) {
  return std::ifstream(program.substr(0, program.rfind('/') + 1).append(name));
}

MockSpeed ReadSpeed(const std::string& program) {
  std::ifstream file = Beside(program, "mock-worker.speed");
  int64_t step_us = 5000;
  int64_t row_ns = 0;
  file >> step_us >> row_ns;
  if (!file && !file.eof()) return {};
  return {absl::Microseconds(step_us), absl::Nanoseconds(row_ns)};
}

protocol::CacheGeometry GeometryOf(const protocol::Config& config) {
  protocol::CacheGeometry geometry;
  geometry.block_tokens = static_cast<uint32_t>(config.scheduler.block_size);
  const int64_t blocks = (config.model.max_model_len + config.scheduler.block_size - 1) /
                         config.scheduler.block_size * config.scheduler.max_num_seqs;
  geometry.num_blocks =
      static_cast<uint32_t>(config.worker.num_blocks > 0 ? config.worker.num_blocks : blocks);
  geometry.num_slots = static_cast<uint32_t>(config.scheduler.max_num_seqs);
  geometry.max_rows = static_cast<uint32_t>(config.scheduler.max_num_batched_tokens);
  geometry.max_model_len = static_cast<uint32_t>(config.model.max_model_len);
  return geometry;
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

int Serve(const protocol::LoadedConfig& loaded, const MockSpeed& speed,
          protocol::ParentGuard* parent, StopRequest& stop,
          std::unique_ptr<protocol::ThreadedActorSystem>& system) {
  const protocol::Config& config = loaded.config;
  protocol::ActorSystemOptions options;
  options.self = {protocol::NodeId(static_cast<uint32_t>(1 + loaded.FlagOr("worker-index", 0))), 0};
  auto transport = OpenTransport(config.transport, options.self);
  if (!transport.ok()) return Fail(transport.status(), kExitConfig);
  options.incarnation =
      protocol::Incarnation(static_cast<uint64_t>(loaded.FlagOr("incarnation", 1)));
  options.lease = config.transport.lease_timeout;
  options.beat_interval = config.transport.heartbeat_interval;
  if (parent != nullptr) options.on_round = [parent] { parent->OnRound(); };
  system = std::make_unique<protocol::ThreadedActorSystem>(options, *std::move(transport));
  worker::WorkerActorOptions actor;
  actor.registration.build = SKEIN_VERSION;
  actor.registration.backend = actor.registration.numerics = "mock";
  actor.registration.model = "mock";
  actor.registration.incarnation = options.incarnation;
  actor.registration.geometry = GeometryOf(config);
  actor.registration.predecessor_end =
      static_cast<protocol::PredecessorEnd>(loaded.FlagOr("predecessor-end", 0));
  auto tokenizer = protocol::FileFingerprint(config.model.path + "/tokenizer.json");
  if (!tokenizer.ok()) return Fail(tokenizer.status(), kExitModel);
  actor.registration.tokenizer = *std::move(tokenizer);
  actor.stop = &stop.asked;
  actor.beat = config.transport.heartbeat_interval;
  actor.on_group_formed = [parent] {
    if (parent != nullptr) parent->Report("ready");
  };
  auto spawned = system->Spawn("worker", [&](protocol::Waker& waker) {
    return std::make_unique<worker::WorkerActor>(
        std::move(actor), std::make_unique<MockRunner>(GeometryOf(config), speed, waker));
  });
  if (!spawned.ok()) return Fail(spawned.status(), kExitInternal);
  absl::Status status =
      system->Connect(protocol::kCoordinatorActor, config.transport.control_endpoint);
  if (!status.ok()) return Fail(status, kExitConfig);
  stop.actor = &system->waker();
  status = system->Run();
  stop.actor = nullptr;
  if (status.ok()) return 0;
  if (absl::IsFailedPrecondition(status)) return Fail(status, kExitConfig);
  return Fail(status, absl::IsUnavailable(status) ? kExitRestart : kExitInternal);
}

int Run(const std::string& program, const std::vector<std::string>& arguments) {
  protocol::LoadOptions load_options;
  load_options.required = {"model.path", "transport.control_endpoint"};
  load_options.program_flags = {"supervisor-fd", "incarnation", "worker-index", "predecessor-end",
                                "metrics-fd", "with-counters"};
  auto loaded = protocol::LoadConfig(arguments, load_options);
  if (!loaded.ok()) return Fail(loaded.status(), protocol::ConfigExitCode(loaded.status()));
  Beside(program, "mock-worker.endpoint") >> loaded->config.transport.control_endpoint;
  protocol::InstallLog(protocol::ToLogOptions(loaded->config.log, "mock-worker"));
  std::unique_ptr<protocol::ThreadedActorSystem> system;
  StopRequest stop;
  auto signals = protocol::SignalWatch::Create([&stop](int) { stop(); });
  if (!signals.ok()) return Fail(signals.status(), kExitInternal);
  std::unique_ptr<protocol::ParentGuard> parent;
  if (const int64_t fd = loaded->FlagOr("supervisor-fd", -1); fd >= 0) {
    auto guard = protocol::ParentGuard::Create(static_cast<int>(fd));
    if (!guard.ok()) return Fail(guard.status(), kExitInternal);
    parent = *std::move(guard);
  }
  return Serve(*loaded, ReadSpeed(program), parent.get(), stop, system);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Run(argv[0], {argv + 1, argv + argc}); }
