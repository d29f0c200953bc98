// Tests of protocol/transport/zmq_transport and actor/threaded_actor_system together: real sockets
// over ipc and tcp, plans and results, death of a peer, damaged frames, refused endpoints.
#include "protocol/transport/zmq_transport.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "protocol/actor/mailbox.h"
#include "protocol/actor/threaded_actor_system.h"
#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/protocol/curve_fixture.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

constexpr ActorId kWorkerActor{NodeId(1), 0};

// A private directory for sockets, removed at the end.
class SocketDirectory {
 public:
  SocketDirectory() {
    char path[] = "/tmp/skein_zmq_XXXXXX";
    path_ = ::mkdtemp(path);
  }
  ~SocketDirectory() {
    ::unlink((path_ + "/control").c_str());
    ::rmdir(path_.c_str());
  }
  std::string endpoint() const { return Concat("ipc://", path_, "/control"); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The keys of every test.
const tests::CurveFixture& Keys() {
  static const tests::CurveFixture fixture;
  return fixture;
}

// An actor made of functions; what a test does not set does nothing.
struct Script {
  std::function<void(Context&)> on_start = [](Context&) {};
  std::function<void(Context&, Envelope)> on_message = [](Context&, Envelope) {};
  std::function<void(Context&, TimerId)> on_timer = [](Context&, TimerId) {};
  std::function<void(Context&, const PeerDown&)> on_peer_down = [](Context&, const PeerDown&) {};
  std::function<void(Context&)> on_idle = [](Context&) {};
};

class ScriptedActor final : public Actor {
 public:
  explicit ScriptedActor(Script script) : script_(std::move(script)) {}
  void OnStart(Context& context) override { script_.on_start(context); }
  void OnMessage(Context& context, Envelope envelope) override {
    script_.on_message(context, std::move(envelope));
  }
  void OnTimer(Context& context, TimerId timer) override { script_.on_timer(context, timer); }
  void OnPeerDown(Context& context, const PeerDown& down) override {
    script_.on_peer_down(context, down);
  }
  void OnIdle(Context& context) override { script_.on_idle(context); }

 private:
  Script script_;
};

struct TestSystem {
  ZmqTransport* transport = nullptr;  // owned by `system`
  std::unique_ptr<ThreadedActorSystem> system;
};

TestSystem MakeSystem(ActorSystemOptions options, Script script) {
  TestSystem made;
  ZmqTransportOptions transport_options;
  transport_options.self = options.self;
  transport_options.keys =
      options.self == kCoordinatorActor ? Keys().Coordinator() : Keys().Worker();
  auto transport = ZmqTransport::Create(transport_options);
  EXPECT_TRUE(transport.ok()) << transport.status();
  made.transport = transport->get();
  made.system = std::make_unique<ThreadedActorSystem>(options, *std::move(transport));
  EXPECT_TRUE(
      made.system
          ->Spawn("scripted", [&script](Waker&) { return std::make_unique<ScriptedActor>(script); })
          .ok());
  return made;
}

TestSystem MakeCoordinator(Script script) {
  ActorSystemOptions options;
  options.self = kCoordinatorActor;
  options.term = Term(1);
  options.lease = absl::Milliseconds(600);
  return MakeSystem(options, std::move(script));
}

TestSystem MakeWorker(Script script, Incarnation incarnation = Incarnation(10)) {
  ActorSystemOptions options;
  options.self = kWorkerActor;
  options.incarnation = incarnation;
  options.lease = absl::Milliseconds(600);
  return MakeSystem(options, std::move(script));
}

StepPlan PlanOf(uint64_t step) {
  StepPlan plan{GroupId(1), RankId(0), Epoch(2), StepId(step), 0, {}};
  SequenceStep sequence;
  sequence.sequence = SequenceId(step);
  sequence.tokens = {1, 2, 3};
  plan.sequences.push_back(sequence);
  return plan;
}

// A worker that answers each plan, and a coordinator that sends the next plan on each answer.
void RunPlansAndResults(std::string_view listen_endpoint) {
  constexpr uint64_t kSteps = 200;
  uint64_t answered = 0;
  Script coordinator_script;
  coordinator_script.on_message = [&answered](Context& context, Envelope envelope) {
    EXPECT_EQ(envelope.from, kWorkerActor);
    EXPECT_EQ(envelope.incarnation, Incarnation(10));
    if (std::holds_alternative<StepResult>(envelope.message)) {
      const auto& result = std::get<StepResult>(envelope.message);
      EXPECT_EQ(result.step, StepId(answered));
      EXPECT_EQ(envelope.epoch, Epoch(2));
      ++answered;
    }
    if (answered == kSteps) return context.Stop(absl::OkStatus());
    EXPECT_TRUE(context.Send(envelope.from, Epoch(2), PlanOf(answered)).ok());
  };
  TestSystem coordinator = MakeCoordinator(coordinator_script);
  ASSERT_TRUE(coordinator.system->Listen(listen_endpoint).ok());

  Script worker_script;
  worker_script.on_start = [](Context& context) {
    EXPECT_TRUE(context.Send(kCoordinatorActor, Epoch(), RegisterWorker{}).ok());
  };
  worker_script.on_message = [](Context& context, Envelope envelope) {
    const auto& plan = std::get<StepPlan>(envelope.message);
    EXPECT_EQ(envelope.term, Term(1));
    EXPECT_EQ(plan, PlanOf(plan.step.value()));
    StepResult result;
    result.step = plan.step;
    EXPECT_TRUE(context.Send(envelope.from, plan.epoch, result).ok());
  };
  worker_script.on_peer_down = [](Context& context, const PeerDown&) {
    context.Stop(absl::OkStatus());
  };
  TestSystem worker = MakeWorker(worker_script);
  ASSERT_TRUE(
      worker.system->Connect(kCoordinatorActor, coordinator.transport->bound_endpoint()).ok());
  absl::Status worker_end;
  std::thread worker_thread([&] { worker_end = worker.system->Run(); });
  EXPECT_TRUE(coordinator.system->Run().ok());
  EXPECT_EQ(answered, kSteps);
  coordinator.system.reset();  // closes its sockets: the worker sees its peer go
  worker_thread.join();
  EXPECT_TRUE(worker_end.ok()) << worker_end;
  EXPECT_EQ(worker.system->counters().bad_checksum, 0u);
}

TEST(ActorsOverZmqTest, PlansAndResultsOverIpc) {
  const SocketDirectory directory;
  RunPlansAndResults(directory.endpoint());
}

TEST(ActorsOverZmqTest, PlansAndResultsOverTcp) { RunPlansAndResults("tcp://127.0.0.1:*"); }

TEST(ActorsOverZmqTest, APeerThatDiesIsPeerDownWithinItsLease) {
  const SocketDirectory directory;
  std::string reason;
  absl::Time asked;
  absl::Duration took;
  Script coordinator_script;
  coordinator_script.on_message = [&](Context& context, Envelope envelope) {
    asked = context.Now();
    EXPECT_TRUE(context.Send(envelope.from, Epoch(), LeaseGrant{}).ok());
  };
  coordinator_script.on_peer_down = [&](Context& context, const PeerDown& down) {
    EXPECT_EQ(down.peer, kWorkerActor);
    reason = StatusText(down.reason);
    took = context.Now() - asked;
    EXPECT_EQ(context.Send(down.peer, Epoch(), LeaseGrant{}).code(),
              absl::StatusCode::kUnavailable);
    context.Stop(absl::InternalError("enough"));
  };
  TestSystem coordinator = MakeCoordinator(coordinator_script);
  ASSERT_TRUE(coordinator.system->Listen(directory.endpoint()).ok());
  std::thread worker_thread([&] {
    Script worker_script;
    worker_script.on_start = [](Context& context) {
      EXPECT_TRUE(context.Send(kCoordinatorActor, Epoch(), RegisterWorker{}).ok());
    };
    worker_script.on_message = [](Context& context, Envelope) { context.Stop(absl::OkStatus()); };
    TestSystem worker = MakeWorker(worker_script);
    ASSERT_TRUE(worker.system->Connect(kCoordinatorActor, directory.endpoint()).ok());
    EXPECT_TRUE(worker.system->Run().ok());
  });
  EXPECT_EQ(StatusText(coordinator.system->Run()), "enough");
  worker_thread.join();
  EXPECT_THAT(reason, HasSubstr("peer 1 was silent for"));
  EXPECT_GE(took, absl::Milliseconds(590));
  EXPECT_LT(took, absl::Seconds(3));
}

TEST(ActorsOverZmqTest, AMailboxWakesTheActor) {
  std::unique_ptr<Mailbox<int>> mailbox;
  int sum = 0;
  Script script;
  script.on_idle = [&](Context& context) {
    for (const int value : mailbox->TakeAll()) sum += value;
    if (sum == 6) context.Stop(absl::OkStatus());
  };
  TestSystem coordinator = MakeCoordinator(script);
  mailbox = std::make_unique<Mailbox<int>>(8, coordinator.system->waker());
  std::thread producer([&] {
    for (int i = 1; i <= 3; ++i) EXPECT_TRUE(mailbox->TryPush(i).ok());
  });
  EXPECT_TRUE(coordinator.system->Run().ok());
  producer.join();
  EXPECT_EQ(sum, 6);
}

// The number behind `number` in the sequence of a SplitMix64 that is in its state.
uint64_t AfterInSplitMix(uint64_t number) {
  uint64_t z = number ^ (number >> 31) ^ (number >> 62);
  z *= 0x319642B2D24D8EC3u;  // the inverses of the factors below
  z = z ^ (z >> 27) ^ (z >> 54);
  z *= 0x96DE1B173F119089u;
  z = z ^ (z >> 30) ^ (z >> 60);
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

TEST(ActorsOverZmqTest, TimersFireInOrderAndCancelledOnesDoNot) {
  std::vector<uint64_t> fired;
  std::vector<TimerId> timers;
  Script script;
  script.on_start = [&](Context& context) {
    timers.push_back(context.StartTimer(absl::Milliseconds(30)));
    timers.push_back(context.StartTimer(absl::Milliseconds(10)));
    timers.push_back(context.StartTimer(absl::Milliseconds(20)));
    context.CancelTimer(timers[2]);
    const uint64_t first = context.RandomUint64();
    EXPECT_NE(context.RandomUint64(), AfterInSplitMix(first)) << "one number tells the next";
  };
  script.on_timer = [&](Context& context, TimerId timer) {
    fired.push_back(timer.value);
    if (fired.size() == 2) context.Stop(absl::OkStatus());
  };
  EXPECT_TRUE(MakeCoordinator(script).system->Run().ok());
  EXPECT_EQ(fired, (std::vector<uint64_t>{timers[1].value, timers[0].value}));
}

// A raw DEALER that speaks as the worker's address.
class RawPeer {
 public:
  explicit RawPeer(const std::string& endpoint, std::string_view id)
      : context_(::zmq_ctx_new()), socket_(::zmq_socket(context_, ZMQ_DEALER)) {
    const int zero = 0;
    ::zmq_setsockopt(socket_, ZMQ_LINGER, &zero, sizeof zero);
    ::zmq_setsockopt(socket_, ZMQ_ROUTING_ID, id.data(), id.size());
    EXPECT_EQ(::zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~RawPeer() {
    ::zmq_close(socket_);
    ::zmq_ctx_term(context_);
  }
  void Send(std::span<const std::byte> bytes, int flags = 0) {
    EXPECT_GE(::zmq_send(socket_, bytes.data(), bytes.size(), flags), 0);
  }

 private:
  void* context_;
  void* socket_;
};

TEST(ActorsOverZmqTest, DamagedAndForgedFramesAreDroppedAndCounted) {
  const SocketDirectory directory;
  int messages = 0;
  Script script;
  script.on_message = [&](Context& context, Envelope envelope) {
    ++messages;
    EXPECT_TRUE(std::holds_alternative<Heartbeat>(envelope.message));
    context.Stop(absl::InternalError("the good frame arrived"));
  };
  TestSystem coordinator = MakeCoordinator(script);
  ASSERT_TRUE(coordinator.system->Listen(directory.endpoint()).ok());
  RawPeer peer(directory.endpoint(), std::string_view("S\1\0\0\0\0\0\0\0", 9));
  FrameHeader header;
  header.type = static_cast<uint16_t>(MessageType::kHeartbeat);
  header.incarnation = Incarnation(10);
  header.session = 1;
  header.ordinal = 1;
  header.from = kWorkerActor;
  header.to = kCoordinatorActor;
  const auto body = EncodeMessage(Heartbeat{});
  ASSERT_TRUE(body.ok());
  const std::vector<std::byte> good = EncodeFrame(header, *body);
  std::vector<std::byte> bad = good;
  bad.back() ^= std::byte{1};
  peer.Send(bad);
  peer.Send(std::span(good).first(50));
  bad = good;
  bad[0] = std::byte{0};
  peer.Send(bad);
  FrameHeader forged = header;
  forged.from = {NodeId(2), 0};
  peer.Send(EncodeFrame(forged, *body));
  peer.Send(good, ZMQ_SNDMORE);
  peer.Send(good);  // a message of two parts
  RawPeer stranger(directory.endpoint(), "nobody");
  stranger.Send(good);
  peer.Send(good);
  EXPECT_EQ(StatusText(coordinator.system->Run()), "the good frame arrived");
  EXPECT_EQ(messages, 1);
  const FrameCounters& counters = coordinator.system->counters();
  EXPECT_EQ(counters.bad_checksum, 1u);
  EXPECT_EQ(counters.bad_magic, 1u);
  EXPECT_EQ(counters.bad_address, 1u);
  EXPECT_GE(counters.bad_length, 2u);
}

TEST(ThreadedActorSystemTest, RolesAndCountsAreChecked) {
  TestSystem coordinator = MakeCoordinator({});
  EXPECT_EQ(coordinator.system->Connect(kWorkerActor, "tcp://127.0.0.1:1").code(),
            absl::StatusCode::kFailedPrecondition);
  const auto second = coordinator.system->Spawn(
      "second", [](Waker&) { return std::make_unique<ScriptedActor>(Script{}); });
  EXPECT_THAT(std::string(StatusText(second.status())), HasSubstr("the system runs scripted"));
  TestSystem worker = MakeWorker({});
  EXPECT_EQ(worker.system->Listen("tcp://127.0.0.1:*").code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ZmqTransportTest, ATakenPortAndAnUnknownPeerAreErrors) {
  ZmqTransportOptions options;
  options.keys = Keys().Coordinator();
  auto first = ZmqTransport::Create(options);
  auto second = ZmqTransport::Create(options);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE((*first)->Listen("tcp://127.0.0.1:*").ok());
  const absl::Status taken = (*second)->Listen((*first)->bound_endpoint());
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(StatusText(taken)), HasSubstr("choose another --control-endpoint"));
  const std::vector<std::byte> frame(100);
  EXPECT_EQ((*first)->Send(kWorkerActor, frame).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*second)->Send(kWorkerActor, frame).code(), absl::StatusCode::kUnavailable);
}

// Takes what a transport reports.
struct Ignore final : FrameReceiver {
  void OnFrame(ActorId, std::span<const std::byte>) override {}
  void OnGarbage() override {}
};

TEST(ZmqTransportTest, APeerThatClosesWhatItAcceptsIsCalledEverMoreRarely) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ZmqTransportOptions options;
  options.self = kWorkerActor;
  options.keys = Keys().Worker();
  auto transport = ZmqTransport::Create(options);
  ASSERT_TRUE(transport.ok());
  ASSERT_TRUE((*transport)
                  ->Connect(kCoordinatorActor, Concat("tcp://127.0.0.1:", ntohs(address.sin_port)))
                  .ok());
  Ignore ignore;
  int connects = 0;
  const absl::Time end = MonotonicNow() + absl::Seconds(2);
  while (MonotonicNow() < end) {
    ASSERT_TRUE((*transport)->Poll(absl::Milliseconds(5), ignore).ok());
    for (int peer = ::accept(listener, nullptr, nullptr); peer >= 0;
         peer = ::accept(listener, nullptr, nullptr)) {
      ++connects;
      ::close(peer);
    }
  }
  ::close(listener);
  EXPECT_GE(connects, 2);
  EXPECT_LE(connects, 20);
}

// ZeroMQ itself takes the path of a listener away without a word; what a dead one left is no
// hindrance.
TEST(ZmqTransportTest, AnEndpointThatIsServedIsNotTakenAway) {
  const SocketDirectory directory;
  ZmqTransportOptions options;
  options.self = kCoordinatorActor;
  const auto second = ZmqTransport::Create(options);
  ASSERT_TRUE(second.ok());
  {
    const auto first = ZmqTransport::Create(options);
    ASSERT_TRUE(first.ok());
    ASSERT_TRUE((*first)->Listen(directory.endpoint()).ok());
    const absl::Status refused = (*second)->Listen(directory.endpoint());
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("another process listens there"));
  }
  const int left = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory.path() + "/control";
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ::unlink(path.c_str());
  ASSERT_EQ(::bind(left, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(left);  // the path stays
  EXPECT_TRUE((*second)->Listen(directory.endpoint()).ok());
}

}  // namespace
}  // namespace skein::protocol
