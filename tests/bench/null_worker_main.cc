// null_worker: a worker without a model. It speaks the worker's side of the protocol and answers
// every plan at once, or after a programmed time, with tokens that mean nothing.
// Main thread, no other. Must never compute.
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "protocol/actor/threaded_actor_system.h"
#include "protocol/base/parent_guard.h"
#include "protocol/base/strings.h"
#include "protocol/transport/zmq_transport.h"

namespace skein::bench {
namespace {

using protocol::Context;

struct NullWorkerOptions {
  std::string endpoint;
  int64_t step_us = 0;
  int64_t supervisor_fd = -1;
  int64_t vocab_size = 4096;
};

// A token of the upper half of the vocabulary: never one of the special ids below it.
int32_t TokenOf(uint64_t sequence, uint64_t position, int64_t vocab_size) {
  uint64_t z = sequence * 0x9E3779B97F4A7C15u + position;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z ^= z >> 27;
  const auto half = static_cast<uint64_t>(vocab_size / 2);
  return static_cast<int32_t>(half + z % half);
}

class NullWorker final : public protocol::Actor {
 public:
  NullWorker(const NullWorkerOptions& options, const protocol::ParentGuard* parent)
      : options_(options), parent_(parent) {}

  void OnStart(Context& context) override {
    Register(context);
    context.StartTimer(kBeat);
  }

  void OnMessage(Context& context, protocol::Envelope envelope) override {
    std::visit(
        [&](auto& message) {
          using M = std::decay_t<decltype(message)>;
          if constexpr (std::is_same_v<M, protocol::StepPlan>) {
            Answer(context, message);
          } else if constexpr (std::is_same_v<M, protocol::FormGroup>) {
            const protocol::GroupFormed formed{message.group, message.rank, message.epoch};
            const bool sent = Send(context, message.epoch, formed);
            if (sent && parent_ != nullptr) parent_->Report("ready null worker");
          } else if constexpr (std::is_same_v<M, protocol::Shutdown>) {
            context.Stop(absl::CancelledError(message.reason));
          }
        },
        envelope.message);
  }

  void OnTimer(Context& context, protocol::TimerId timer) override {
    if (!waiting_.empty() && waiting_.front().timer == timer) {
      const protocol::StepResult result = std::move(waiting_.front().result);
      waiting_.pop_front();
      Send(context, result.epoch, result);
      return;
    }
    if (!registered_) Register(context);
    Send(context, protocol::Epoch(0), protocol::Heartbeat{last_step_, 0});
    context.StartTimer(kBeat);
  }

  void OnPeerDown(Context& context, const protocol::PeerDown& down) override {
    context.Stop(down.reason);
  }
  void OnIdle(Context&) override {}

 private:
  static constexpr absl::Duration kBeat = absl::Milliseconds(100);
  struct Waiting {
    protocol::TimerId timer;
    protocol::StepResult result;
  };

  bool Send(Context& context, protocol::Epoch epoch, protocol::Message message) {
    return context.Send(protocol::kCoordinatorActor, epoch, std::move(message)).ok();
  }

  void Register(Context& context) {
    protocol::RegisterWorker hello;
    hello.build = SKEIN_VERSION;
    hello.backend = "null";
    hello.model = "null";
    hello.incarnation = protocol::Incarnation(1);
    hello.geometry = {64, 1 << 17, 2048, 1 << 16, 4096};
    registered_ = Send(context, protocol::Epoch(0), hello);
  }

  void Answer(Context& context, const protocol::StepPlan& plan) {
    protocol::StepResult result;
    result.group = plan.group;
    result.rank = plan.rank;
    result.epoch = plan.epoch;
    result.step = plan.step;
    result.lane = plan.lane;
    result.device_time_us = static_cast<uint64_t>(options_.step_us);
    result.sequences.reserve(plan.sequences.size());
    for (const protocol::SequenceStep& step : plan.sequences) {
      protocol::VerificationSummary summary;
      summary.sequence = step.sequence;
      if (step.sample) {
        protocol::RowSummary row;
        row.position = step.first_position + static_cast<uint32_t>(step.tokens.size());
        row.plain_token = TokenOf(step.sequence.value(), row.position, options_.vocab_size);
        row.argmax_token = row.plain_token;
        row.plain_logprob = row.argmax_logprob = -1;
        summary.rows.push_back(row);
      }
      result.sequences.push_back(std::move(summary));
    }
    last_step_ = plan.step;
    if (options_.step_us == 0) {
      Send(context, result.epoch, result);
      return;
    }
    const protocol::TimerId timer = context.StartTimer(absl::Microseconds(options_.step_us));
    waiting_.push_back({timer, std::move(result)});
  }

  const NullWorkerOptions options_;
  const protocol::ParentGuard* const parent_;
  std::deque<Waiting> waiting_;
  protocol::StepId last_step_;
  bool registered_ = false;
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "null_worker: %s\n", std::string(protocol::StatusText(status)).c_str());
  return 70;
}

int Run(const NullWorkerOptions& options) {
  std::unique_ptr<protocol::ParentGuard> parent;
  if (options.supervisor_fd >= 0) {
    auto guard = protocol::ParentGuard::Create(static_cast<int>(options.supervisor_fd));
    if (!guard.ok()) return Fail(guard.status());
    parent = *std::move(guard);
  }
  protocol::ZmqTransportOptions transport_options;
  transport_options.self = {protocol::NodeId(1), 0};
  transport_options.heartbeat_timeout = absl::Seconds(2);
  auto transport = protocol::ZmqTransport::Create(transport_options);
  if (!transport.ok()) return Fail(transport.status());
  protocol::ActorSystemOptions system_options;
  system_options.self = transport_options.self;
  system_options.incarnation = protocol::Incarnation(1);
  system_options.lease = absl::Seconds(10);
  protocol::ThreadedActorSystem system(system_options, *std::move(transport));
  const auto spawned = system.Spawn("null", [&](protocol::Waker&) {
    return std::make_unique<NullWorker>(options, parent.get());
  });
  if (!spawned.ok()) return Fail(spawned.status());
  const absl::Status connected = system.Connect(protocol::kCoordinatorActor, options.endpoint);
  if (!connected.ok()) return Fail(connected);
  return Fail(system.Run());
}

int Main(int argc, char** argv) {
  NullWorkerOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    int64_t* number = name == "--step-us"         ? &options.step_us
                      : name == "--supervisor-fd" ? &options.supervisor_fd
                      : name == "--vocab-size"    ? &options.vocab_size
                                                  : nullptr;
    if (name == "--endpoint") {
      options.endpoint = argv[i + 1];
    } else if (number == nullptr || !absl::SimpleAtoi(argv[i + 1], number)) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat(argv[i], " ", argv[i + 1], ": no such flag, or no number")));
    }
  }
  return Run(options);
}

}  // namespace
}  // namespace skein::bench

int main(int argc, char** argv) { return skein::bench::Main(argc, argv); }
