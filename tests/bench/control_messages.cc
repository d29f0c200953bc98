// Step messages and round trips.
// Thread: main's, and one that echoes. Must never outlive its echo.
#include "tests/bench/control_messages.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/actor/mailbox.h"
#include "protocol/base/status_macros.h"
#include "protocol/codec/codec.h"
#include "protocol/transport/zmq_transport.h"
#include "tests/bench/bench_line.h"
#include "tests/protocol/curve_fixture.h"

namespace skein::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Frame = std::array<std::byte, 64>;

constexpr int kCodecReps = 200;
constexpr protocol::ActorId kEcho{protocol::NodeId(1), 0};

double NanosSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

protocol::StepPlan DecodePlan(uint32_t live) {
  protocol::StepPlan plan;
  plan.group = protocol::GroupId(1);
  plan.epoch = protocol::Epoch(1);
  plan.step = protocol::StepId(7);
  for (uint32_t i = 0; i < live; ++i) {
    protocol::SequenceStep step;
    step.sequence = protocol::SequenceId(1000 + i);
    step.slot = protocol::SlotId(i);
    step.first_position = 100 + i;
    step.tokens = {static_cast<int32_t>(300 + i)};
    step.table_size_before = 2;
    step.sample = true;
    step.sampling.seed = i * 0x9E3779B97F4A7C15u;
    plan.sequences.push_back(std::move(step));
  }
  return plan;
}

// Counts frames; what it does with one is `on_frame`.
class FrameCount final : public protocol::FrameReceiver {
 public:
  void OnFrame(protocol::ActorId, std::span<const std::byte>) override { ++frames; }
  void OnGarbage() override {}
  uint64_t frames = 0;
};

RoundTrip Summary(std::vector<double>& micros) {
  return {Percentile(micros, 50), Percentile(micros, 99)};
}

absl::StatusOr<std::unique_ptr<protocol::ZmqTransport>> OpenTransport(protocol::ActorId self) {
  static const tests::CurveFixture keys;
  protocol::ZmqTransportOptions options;
  options.self = self;
  options.keys = self == protocol::kCoordinatorActor ? keys.Coordinator() : keys.Worker();
  options.heartbeat_timeout = absl::Seconds(5);
  return protocol::ZmqTransport::Create(options);
}

class Flag final : public protocol::Waker {
 public:
  void Wake() override {
    wakes.fetch_add(1);
    wakes.notify_one();
  }
  void WaitFor(uint64_t count) {
    for (uint64_t seen = wakes.load(); seen < count; seen = wakes.load()) wakes.wait(seen);
  }
  std::atomic<uint64_t> wakes{0};
};

}  // namespace

CodecTimes MeasureCodec(uint32_t live) {
  const protocol::Message plan = DecodePlan(live);
  CodecTimes times;
  times.equal = true;
  std::vector<double> encode;
  std::vector<double> decode;
  for (int i = 0; i < kCodecReps; ++i) {
    const Clock::time_point begin = Clock::now();
    const auto bytes = protocol::EncodeMessage(plan);
    encode.push_back(NanosSince(begin) / live);
    const Clock::time_point half = Clock::now();
    const auto back = protocol::DecodeMessage(protocol::MessageType::kStepPlan, *bytes);
    decode.push_back(NanosSince(half) / live);
    times.equal = times.equal && back.ok() && *back == plan;
  }
  times.encode_ns = Percentile(encode, 50);
  times.decode_ns = Percentile(decode, 50);
  return times;
}

absl::StatusOr<RoundTrip> MeasureTransport(const std::string& endpoint, int rounds) {
  SKEIN_ASSIGN_OR_RETURN(auto server, OpenTransport(protocol::kCoordinatorActor));
  SKEIN_RETURN_IF_ERROR(server->Listen(endpoint));
  SKEIN_ASSIGN_OR_RETURN(auto client, OpenTransport(kEcho));
  SKEIN_RETURN_IF_ERROR(client->Connect(protocol::kCoordinatorActor, server->bound_endpoint()));
  std::atomic<bool> ends = false;
  std::thread echo([&] {
    FrameCount seen;
    for (uint64_t answered = 0; !ends;) {
      if (!server->Poll(absl::Milliseconds(20), seen).ok()) return;
      for (; answered < seen.frames; ++answered) {
        if (!server->Send(kEcho, Frame{}).ok()) return;
      }
    }
  });
  std::vector<double> micros;
  FrameCount seen;
  const Clock::time_point limit = Clock::now() + std::chrono::seconds(10);
  // Until the connection stands, frames are refused.
  while (!client->Send(protocol::kCoordinatorActor, Frame{}).ok() && Clock::now() < limit) {
    (void)client->Poll(absl::Milliseconds(1), seen);
  }
  for (uint64_t round = 1; round < static_cast<uint64_t>(rounds) && Clock::now() < limit; ++round) {
    while (seen.frames < round && Clock::now() < limit) {
      (void)client->Poll(absl::Milliseconds(100), seen);
    }
    const Clock::time_point begin = Clock::now();
    if (!client->Send(protocol::kCoordinatorActor, Frame{}).ok()) break;
    while (seen.frames <= round && Clock::now() < limit) {
      (void)client->Poll(absl::Milliseconds(100), seen);
    }
    micros.push_back(NanosSince(begin) / 1000);
  }
  ends = true;
  server->Wake();
  echo.join();
  if (micros.size() + 1 < static_cast<size_t>(rounds)) {
    return absl::DeadlineExceededError("the round trips over " + endpoint + " did not end in 10 s");
  }
  return Summary(micros);
}

absl::StatusOr<RoundTrip> MeasureMailbox(int rounds) {
  Flag there;
  Flag back;
  protocol::Mailbox<int> requests(16, there);
  protocol::Mailbox<int> answers(16, back);
  std::thread echo([&] {
    for (int round = 1; round <= rounds; ++round) {
      there.WaitFor(static_cast<uint64_t>(round));
      for (const int value : requests.TakeAll()) (void)answers.TryPush(value);
    }
  });
  std::vector<double> micros;
  for (int round = 1; round <= rounds; ++round) {
    const Clock::time_point begin = Clock::now();
    (void)requests.TryPush(round);
    back.WaitFor(static_cast<uint64_t>(round));
    (void)answers.TakeAll();
    micros.push_back(NanosSince(begin) / 1000);
  }
  echo.join();
  return Summary(micros);
}

}  // namespace skein::bench
