// Who gets in over tcp: real sockets with right keys, wrong keys and none.
#include "protocol/transport/zap_handler.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <zmq.h>

#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/transport/zmq_transport.h"
#include "tests/protocol/curve_fixture.h"

namespace skein::protocol {
namespace {

using tests::CurveFixture;

// Counts what a coordinator's transport reports.
class Door final : public FrameReceiver {
 public:
  explicit Door(const CurveFixture& fixture) {
    ZmqTransportOptions options;
    options.self = kCoordinatorActor;
    options.keys = fixture.Coordinator();
    auto made = ZmqTransport::Create(options);
    transport_ = *std::move(made);
    EXPECT_TRUE(transport_->Listen("tcp://127.0.0.1:*").ok());
  }
  void OnFrame(ActorId, std::span<const std::byte> frame) override {
    ++frames;
    senders.insert(frame[0]);
  }
  void OnGarbage() override { ++garbage; }
  void OnDenied() override { ++denied; }

  // Polls until `done`; false after ten seconds.
  template <typename Done>
  bool PollUntil(const Done& done) {
    const absl::Time end = MonotonicNow() + absl::Seconds(10);
    while (!done() && MonotonicNow() < end) {
      EXPECT_TRUE(transport_->Poll(absl::Milliseconds(10), *this).ok());
    }
    return done();
  }
  std::string endpoint() const { return transport_->bound_endpoint(); }

  int frames = 0, garbage = 0, denied = 0;
  std::set<std::byte> senders;  // the first byte of every frame

 private:
  std::unique_ptr<ZmqTransport> transport_;
};

// A worker's transport that sends one frame as soon as it can, again and again, and dials anew
// when it was refused or lost: as all have one address, whoever comes later may displace it.
class Visitor final : public FrameReceiver {
 public:
  Visitor(const Door& door, const CurveKeys& keys, char mark = 'v') : frame_(100, std::byte(mark)) {
    ZmqTransportOptions options;
    options.self = {NodeId(1), 0};
    options.keys = keys;
    auto made = ZmqTransport::Create(options);
    transport_ = *std::move(made);
    EXPECT_TRUE(transport_->Connect(kCoordinatorActor, door.endpoint()).ok());
  }
  void OnFrame(ActorId, std::span<const std::byte>) override {}
  void OnGarbage() override {}
  void Knock() {
    EXPECT_TRUE(transport_->Poll(absl::ZeroDuration(), *this).ok());
    [[maybe_unused]] const bool sent = transport_->Send(kCoordinatorActor, frame_).ok();
  }

 private:
  const std::vector<std::byte> frame_;
  std::unique_ptr<ZmqTransport> transport_;
};

TEST(ZapHandlerTest, AKeyOnTheListComesIn) {
  const CurveFixture fixture;
  Door door(fixture);
  Visitor visitor(door, fixture.Worker());
  EXPECT_TRUE(door.PollUntil([&] {
    visitor.Knock();
    return door.frames > 0;
  }));
  EXPECT_EQ(door.denied, 0);
}

TEST(ZapHandlerTest, AnUnknownKeyIsTurnedAwayAndComesInOnceItIsListed) {
  const CurveFixture fixture;
  const std::string key = fixture.NewPair("stranger");
  Door door(fixture);
  {
    Visitor stranger(door, fixture.Worker("stranger"));
    EXPECT_TRUE(door.PollUntil([&] {
      stranger.Knock();
      return door.denied > 0;
    }));
    EXPECT_EQ(door.frames, 0);
  }
  fixture.Allow(key);
  Visitor listed(door, fixture.Worker("stranger"));
  EXPECT_TRUE(door.PollUntil([&] {
    listed.Knock();
    return door.frames > 0;
  }));
}

TEST(ZapHandlerTest, WhoWasTurnedAwayComesInByItselfOnceItIsListed) {
  const CurveFixture fixture;
  const std::string key = fixture.NewPair("stranger");
  Door door(fixture);
  Visitor stranger(door, fixture.Worker("stranger"));
  EXPECT_TRUE(door.PollUntil([&] {
    stranger.Knock();
    return door.denied > 0;
  }));
  fixture.Allow(key);
  EXPECT_TRUE(door.PollUntil([&] {
    stranger.Knock();
    return door.frames > 0;
  }));
}

// The lines of the log from here on.
class LogLines {
 public:
  LogLines() {
    LogOptions log;
    log.sink = [this](std::string_view line) { lines_.emplace_back(line); };
    InstallLog(log);
  }
  ~LogLines() { InstallLog({}); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  int64_t Count(std::string_view text) const {
    return std::count_if(lines_.begin(), lines_.end(), [text](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  }

 private:
  std::vector<std::string> lines_;
};

TEST(ZapHandlerTest, AnEmptyListLetsNobodyInAndSaysSo) {
  const CurveFixture fixture;
  fixture.Allow("# nobody");
  const LogLines log;
  Door door(fixture);
  EXPECT_EQ(log.Count("level=warning msg=\"the allow-list is empty, no worker may come in\" file=" +
                      fixture.path("allowed")),
            1);
  Visitor visitor(door, fixture.Worker());
  EXPECT_TRUE(door.PollUntil([&] {
    visitor.Knock();
    return door.denied > 0;
  }));
  EXPECT_EQ(door.frames, 0);
}

TEST(ZapHandlerTest, AVanishedListKeepsTheLastOneAndSaysSoOnce) {
  const CurveFixture fixture;
  Door door(fixture);
  const LogLines log;
  std::filesystem::remove(fixture.path("allowed"));
  for (const char mark : {'a', 'b'}) {
    Visitor visitor(door, fixture.Worker(), mark);
    EXPECT_TRUE(door.PollUntil([&] {
      visitor.Knock();
      return door.senders.contains(std::byte(mark));
    }));
  }
  // Who was not on it stays out, and a new list counts at once.
  const std::string key = fixture.NewPair("stranger");
  Visitor stranger(door, fixture.Worker("stranger"), 's');
  const int denied = door.denied;  // a visitor that left in the middle of its handshake counts too
  EXPECT_TRUE(door.PollUntil([&] {
    stranger.Knock();
    return door.denied > denied;
  }));
  EXPECT_FALSE(door.senders.contains(std::byte('s')));
  EXPECT_EQ(log.Count("the last one stays"), 1);
  fixture.Allow(key);
  EXPECT_TRUE(door.PollUntil([&] {
    stranger.Knock();
    return door.senders.contains(std::byte('s'));
  }));
}

// Both sides say what is wrong, and the one that calls again and again says it once.
TEST(ZapHandlerTest, AWrongServerKeyIsToldOnBothSides) {
  const CurveFixture fixture;
  const std::string other = fixture.NewPair("other");
  const LogLines log;
  Door door(fixture);
  Visitor visitor(door, fixture.Worker("worker", other));
  EXPECT_TRUE(door.PollUntil([&] {
    visitor.Knock();
    return door.denied > 4;
  }));
  EXPECT_EQ(door.frames, 0);
  EXPECT_EQ(log.Count("the coordinator ends the connection before it speaks"), 1);
  EXPECT_EQ(log.Count(other), 1) << "the key that is wrong";
  EXPECT_GT(log.Count("peer turned away\" reason=\"it encrypts for another key; its "
                      "transport.curve_server_key must be the public key of this coordinator"),
            0);
}

TEST(ZapHandlerTest, AWorkerThatIsNotListedIsToldItsOwnKey) {
  const CurveFixture fixture;
  const std::string key = fixture.NewPair("stranger");
  const LogLines log;
  Door door(fixture);
  Visitor stranger(door, fixture.Worker("stranger"));
  EXPECT_TRUE(door.PollUntil([&] {
    stranger.Knock();
    return door.denied > 4;
  }));
  EXPECT_EQ(log.Count("the coordinator ends the connection before it speaks"), 1);
  EXPECT_GT(log.Count(key), 1) << "its own key, and whom the coordinator turns away";
}

TEST(ZapHandlerTest, AWorkerWithTwoServerKeysFindsEither) {
  const CurveFixture fixture;
  const LogLines log;
  const std::string other = fixture.NewPair("other");
  Door door(fixture);
  Visitor visitor(door, fixture.Worker("worker", other + "," + fixture.server_key()));
  EXPECT_TRUE(door.PollUntil([&] {
    visitor.Knock();
    return door.frames > 0;
  }));
}

TEST(ZapHandlerTest, APlainClientIsTurnedAway) {
  const CurveFixture fixture;
  const LogLines log;
  Door door(fixture);
  void* context = ::zmq_ctx_new();
  void* plain = ::zmq_socket(context, ZMQ_DEALER);
  const int linger = 0;
  ASSERT_EQ(::zmq_setsockopt(plain, ZMQ_LINGER, &linger, sizeof linger), 0);
  ASSERT_EQ(::zmq_connect(plain, door.endpoint().c_str()), 0);
  EXPECT_TRUE(door.PollUntil([&] {
    ::zmq_send(plain, "x", 1, ZMQ_DONTWAIT);
    return door.denied > 0;
  }));
  // Whoever of the two notices first ends it.
  EXPECT_EQ(log.Count("peer turned away\" reason=\"it does not speak CURVE; a worker needs ") +
                log.Count("peer turned away\" reason=\"it left in the middle, as one without"),
            door.denied);
  EXPECT_EQ(door.frames + door.garbage, 0);
  ::zmq_close(plain);
  ::zmq_ctx_term(context);
}

TEST(ZapHandlerTest, OnlyOneHandlerJudges) {
  void* context = ::zmq_ctx_new();
  {
    const auto first = ZapHandler::Create(context, "/no/such/file");
    ASSERT_TRUE(first.ok());
    const auto second = ZapHandler::Create(context, "/no/such/file");
    EXPECT_EQ(second.status().code(), absl::StatusCode::kInternal);
  }
  ::zmq_ctx_term(context);
}

}  // namespace
}  // namespace skein::protocol
