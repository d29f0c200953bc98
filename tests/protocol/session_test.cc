// Tests of protocol/transport/session: two sessions over a link in memory, with virtual time and
// every fault a reconnect can bring: loss, duplicates, restarts of either side, silence.
#include "protocol/transport/session.h"

#include <functional>
#include <memory>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

constexpr ActorId kCoordinator{NodeId(0), 0};
constexpr ActorId kWorker{NodeId(1), 0};

// One end: what it delivered, when it was down, and the frames it put on the link.
class End final : public SessionOutput {
 public:
  void Transmit(ActorId, std::span<const std::byte> frame) override {
    outbox.emplace_back(frame.begin(), frame.end());
  }
  absl::Status Deliver(const FrameHeader& header, std::span<const std::byte> body) override {
    if (refuse_next) {
      refuse_next = false;
      return absl::InvalidArgumentError("not a message");
    }
    last_header = header;
    std::string text;
    for (const std::byte byte : body) text += static_cast<char>(byte);
    delivered.push_back(text);
    return absl::OkStatus();
  }
  void Down(ActorId, const absl::Status& reason) override {
    downs.emplace_back(StatusText(reason));
    if (on_down) on_down();
  }

  std::vector<std::vector<std::byte>> outbox;
  std::vector<std::string> delivered;
  std::vector<std::string> downs;
  FrameHeader last_header;
  bool refuse_next = false;
  std::function<void()> on_down;
  FrameCounters counters;
  std::unique_ptr<Session> session;
};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    StartCoordinator(Term(5));
    StartWorker(Incarnation(100));
  }

  void StartCoordinator(Term term) {
    SessionOptions options;
    options.self = kCoordinator;
    options.peer = kWorker;
    options.role = SessionRole::kAccepting;
    options.term = term;
    coordinator_.session =
        std::make_unique<Session>(options, coordinator_, coordinator_.counters, now_);
    coordinator_.outbox.clear();
  }

  void StartWorker(Incarnation incarnation) {
    SessionOptions options;
    options.self = kWorker;
    options.peer = kCoordinator;
    options.role = SessionRole::kConnecting;
    options.incarnation = incarnation;
    worker_.session = std::make_unique<Session>(options, worker_, worker_.counters, now_);
    worker_.outbox.clear();
  }

  static void Receive(End& to, std::span<const std::byte> frame, absl::Time now) {
    const DecodedFrame decoded = DecodeFrame(frame);
    ASSERT_EQ(decoded.defect, FrameDefect::kNone);
    to.session->OnFrame(decoded.header, decoded.body, now);
  }

  // Moves every frame; `keep` says which survive.
  void Exchange(const std::function<bool()>& keep = [] { return true; }) {
    while (!worker_.outbox.empty() || !coordinator_.outbox.empty()) {
      Move(worker_, coordinator_, keep);
      Move(coordinator_, worker_, keep);
    }
  }
  void Move(End& from, End& to, const std::function<bool()>& keep) {
    const auto frames = std::exchange(from.outbox, {});
    for (const auto& frame : frames) {
      if (keep()) Receive(to, frame, now_);
    }
  }

  void Advance(
      absl::Duration by, const std::function<bool()>& keep = [] { return true; }) {
    for (const absl::Time end = now_ + by; now_ < end;) {
      now_ += absl::Milliseconds(50);
      worker_.session->OnTick(now_);
      coordinator_.session->OnTick(now_);
      Exchange(keep);
    }
  }

  absl::Status Say(End& from, std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    return from.session->Send(2, Epoch(7), {bytes.begin(), bytes.end()}, now_);
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  End coordinator_;
  End worker_;
};

TEST_F(SessionTest, MessagesWaitForTheCoordinatorAndArriveInOrder) {
  EXPECT_TRUE(Say(worker_, "register").ok());
  EXPECT_TRUE(Say(worker_, "beat").ok());
  EXPECT_TRUE(worker_.outbox.empty()) << "nothing numbered leaves before the coordinator answers";
  EXPECT_EQ(Say(coordinator_, "early").code(), absl::StatusCode::kUnavailable);
  Advance(absl::Milliseconds(200));
  EXPECT_EQ(coordinator_.delivered, (std::vector<std::string>{"register", "beat"}));
  EXPECT_EQ(worker_.session->term(), Term(5));
  EXPECT_TRUE(Say(coordinator_, "form").ok());
  Exchange();
  EXPECT_EQ(worker_.delivered, std::vector<std::string>{"form"});
  EXPECT_EQ(worker_.last_header.term, Term(5));
  EXPECT_EQ(worker_.last_header.incarnation, Incarnation(100));
  EXPECT_EQ(worker_.last_header.epoch, Epoch(7));
  EXPECT_EQ(worker_.last_header.ordinal, 1u);
  EXPECT_EQ(worker_.session->unacknowledged(), 0u);
}

TEST_F(SessionTest, LostFramesAreSentAgainWithoutPeerDown) {
  Advance(absl::Milliseconds(100));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Say(worker_, Concat(i)).ok());
  worker_.outbox.resize(10);  // the reconnect lost the second half
  Exchange();
  EXPECT_EQ(coordinator_.delivered.size(), 10u);
  Advance(absl::Milliseconds(600));
  ASSERT_EQ(coordinator_.delivered.size(), 20u);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(coordinator_.delivered[static_cast<size_t>(i)], Concat(i));
  }
  EXPECT_GT(worker_.counters.resent, 0u);
  EXPECT_TRUE(coordinator_.downs.empty());
  EXPECT_TRUE(worker_.downs.empty());
}

TEST_F(SessionTest, AGapIsReportedAtOnceAndClosed) {
  Advance(absl::Milliseconds(100));
  ASSERT_TRUE(Say(worker_, "a").ok());
  worker_.outbox.clear();
  ASSERT_TRUE(Say(worker_, "b").ok());
  Exchange();  // no time passes: the complaint alone closes the gap
  EXPECT_EQ(coordinator_.delivered, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(coordinator_.counters.gaps, 1u);
}

TEST_F(SessionTest, DuplicatesAreDroppedAndCounted) {
  Advance(absl::Milliseconds(100));
  ASSERT_TRUE(Say(worker_, "once").ok());
  const auto frames = worker_.outbox;
  Exchange();
  for (const auto& frame : frames) Receive(coordinator_, frame, now_);
  EXPECT_EQ(coordinator_.delivered, std::vector<std::string>{"once"});
  EXPECT_EQ(coordinator_.counters.duplicates, 1u);
}

TEST_F(SessionTest, RandomLossNeverBreaksTheOrder) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    coordinator_.delivered.clear();
    worker_.delivered.clear();
    StartCoordinator(Term(5));
    StartWorker(Incarnation(100));
    std::mt19937 random(seed);
    const auto keep = [&random] { return random() % 100 >= 30; };
    int sent[2] = {0, 0};
    for (int round = 0; round < 200; ++round) {
      if (random() % 2 == 0 && Say(worker_, Concat(sent[0])).ok()) ++sent[0];
      if (random() % 2 == 0 && Say(coordinator_, Concat(sent[1])).ok()) ++sent[1];
      Advance(absl::Milliseconds(50), keep);
    }
    Advance(absl::Seconds(3));
    if (!worker_.downs.empty() || !coordinator_.downs.empty()) {
      worker_.downs.clear();
      coordinator_.downs.clear();
      continue;  // so many losses in a row that the lease ended: allowed, and rare
    }
    ASSERT_EQ(coordinator_.delivered.size(), static_cast<size_t>(sent[0])) << seed;
    ASSERT_EQ(worker_.delivered.size(), static_cast<size_t>(sent[1])) << seed;
    for (size_t i = 0; i < coordinator_.delivered.size(); ++i) {
      ASSERT_EQ(coordinator_.delivered[i], Concat(i)) << seed;
    }
    EXPECT_GT(sent[0] + sent[1], 100);
  }
}

TEST_F(SessionTest, TheWindowIsBounded) {
  Advance(absl::Milliseconds(100));
  for (size_t i = 0; i < SessionOptions().window_frames; ++i) ASSERT_TRUE(Say(worker_, "x").ok());
  const absl::Status full = Say(worker_, "x");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(StatusText(full), "window of peer 0 is full: 68 frames are not acknowledged");
  Advance(absl::Milliseconds(200));
  EXPECT_TRUE(Say(worker_, "x").ok());
}

TEST_F(SessionTest, SilenceIsPeerDownOnBothSides) {
  Advance(absl::Milliseconds(100));
  Advance(absl::Milliseconds(900), [] { return false; });
  EXPECT_TRUE(worker_.downs.empty()) << "the lease is one second of silence, not less";
  Advance(absl::Milliseconds(300), [] { return false; });
  ASSERT_EQ(worker_.downs.size(), 1u);
  ASSERT_EQ(coordinator_.downs.size(), 1u);
  EXPECT_THAT(worker_.downs[0], HasSubstr("peer 0 was silent for 1"));
  EXPECT_EQ(Say(coordinator_, "x").code(), absl::StatusCode::kUnavailable);
  // The link heals: a new session, nothing of the old one.
  ASSERT_TRUE(Say(worker_, "again").ok());
  Advance(absl::Milliseconds(200));
  EXPECT_EQ(coordinator_.delivered, std::vector<std::string>{"again"});
  EXPECT_EQ(worker_.downs.size(), 1u);
  EXPECT_EQ(coordinator_.downs.size(), 1u);
}

TEST_F(SessionTest, SilenceBelowTheFloorProvesNothing) {
  Advance(absl::Milliseconds(100));
  for (int i = 0; i < 29; ++i) {
    now_ += absl::Milliseconds(100);
    coordinator_.session->OnTick(now_, absl::Seconds(3));
  }
  EXPECT_TRUE(coordinator_.downs.empty());
  for (int i = 0; i < 3; ++i) {
    now_ += absl::Milliseconds(100);
    coordinator_.session->OnTick(now_, absl::Seconds(3));
  }
  ASSERT_EQ(coordinator_.downs.size(), 1u);
  EXPECT_THAT(coordinator_.downs[0], HasSubstr("peer 1 was silent for 3"));
}

TEST_F(SessionTest, FramesOfASessionThatIsOverAreCounted) {
  Advance(absl::Milliseconds(100));
  Advance(absl::Milliseconds(1200), [] { return false; });
  ASSERT_EQ(coordinator_.downs.size(), 1u);
  const uint64_t before = coordinator_.counters.stale_session;
  FrameHeader late;
  late.incarnation = coordinator_.session->incarnation();
  late.session = 1;
  coordinator_.session->OnFrame(late, {}, now_);
  EXPECT_EQ(coordinator_.counters.stale_session, before + 1);
}

TEST_F(SessionTest, OneSidedLossOfAcknowledgementsEndsTheSession) {
  Advance(absl::Milliseconds(100));
  ASSERT_TRUE(Say(worker_, "x").ok());
  // Frames towards the coordinator vanish; its beats still arrive.
  for (int i = 0; i < 30 && worker_.downs.empty(); ++i) {
    now_ += absl::Milliseconds(50);
    worker_.session->OnTick(now_);
    worker_.outbox.clear();
    coordinator_.session->OnTick(now_);
    Move(coordinator_, worker_, [] { return true; });
  }
  ASSERT_EQ(worker_.downs.size(), 1u);
  EXPECT_THAT(worker_.downs[0], HasSubstr("peer 0 acknowledged nothing for 1"));
}

// Ticks come when next_tick() says, as in a running system: sending often must not put them off.
TEST_F(SessionTest, SilenceAfterABusyTimeIsPeerDownAfterOneLease) {
  Advance(absl::Milliseconds(200));
  const auto tick = [&](End& end) {
    if (end.session->next_tick() <= now_) end.session->OnTick(now_);
  };
  for (int i = 0; i < 2000; ++i) {
    now_ += absl::Milliseconds(5);
    EXPECT_TRUE(Say(coordinator_, "plan").ok());
    EXPECT_TRUE(Say(worker_, "result").ok());
    tick(coordinator_);
    tick(worker_);
    Exchange();
  }
  EXPECT_EQ(worker_.delivered.size(), 2000u);
  EXPECT_TRUE(coordinator_.downs.empty());
  const absl::Time silent = now_;
  while (coordinator_.downs.empty() && now_ < silent + absl::Seconds(20)) {
    now_ += absl::Milliseconds(5);
    tick(coordinator_);
  }
  EXPECT_GT(now_ - silent, absl::Seconds(1));
  EXPECT_LE(now_ - silent, absl::Milliseconds(1100)) << "a lease, and a beat to notice";
  ASSERT_EQ(coordinator_.downs.size(), 1u);
  EXPECT_THAT(coordinator_.downs[0], HasSubstr("peer 1 was silent for 1"));
}

TEST_F(SessionTest, BeingLateOurselvesIsNotTheirDeath) {
  Advance(absl::Milliseconds(100));
  now_ += absl::Seconds(5);  // this process did not run
  coordinator_.session->OnTick(now_);
  EXPECT_TRUE(coordinator_.downs.empty());
  Advance(absl::Milliseconds(200));
  EXPECT_TRUE(coordinator_.downs.empty());
}

TEST_F(SessionTest, ARestartedWorkerReplacesItsSession) {
  Advance(absl::Milliseconds(100));
  ASSERT_TRUE(Say(worker_, "old").ok());
  Exchange();
  ASSERT_TRUE(Say(worker_, "late").ok());
  const auto late = worker_.outbox;
  StartWorker(Incarnation(101));
  ASSERT_TRUE(Say(worker_, "new").ok());
  Advance(absl::Milliseconds(200));
  ASSERT_EQ(coordinator_.downs.size(), 1u);
  EXPECT_EQ(coordinator_.downs[0], "process restarted: incarnation 101 replaces 100");
  for (const auto& frame : late) Receive(coordinator_, frame, now_);
  EXPECT_EQ(coordinator_.delivered, (std::vector<std::string>{"old", "new"}));
  EXPECT_EQ(coordinator_.counters.stale_incarnation, late.size());
}

TEST_F(SessionTest, ARestartedCoordinatorIsPeerDownAndANewSession) {
  worker_.on_down = [this] { EXPECT_TRUE(Say(worker_, "register again").ok()); };
  Advance(absl::Milliseconds(100));
  ASSERT_TRUE(Say(worker_, "to term 5").ok());
  Exchange();
  coordinator_.delivered.clear();
  StartCoordinator(Term(6));
  ASSERT_TRUE(Say(worker_, "lost with the old term").ok());
  Advance(absl::Milliseconds(400));
  ASSERT_EQ(worker_.downs.size(), 1u);
  EXPECT_EQ(worker_.downs[0], "coordinator restarted: term 5 ended, 6 began");
  EXPECT_EQ(coordinator_.delivered, std::vector<std::string>{"register again"});
  EXPECT_EQ(worker_.session->term(), Term(6));
  EXPECT_GT(coordinator_.counters.stale_term, 0u);
  EXPECT_TRUE(coordinator_.downs.empty());
}

TEST_F(SessionTest, AnOlderCoordinatorIsRefused) {
  Advance(absl::Milliseconds(100));
  ASSERT_TRUE(worker_.session->alive());
  StartCoordinator(Term(4));
  Advance(absl::Seconds(2));
  EXPECT_GT(worker_.counters.stale_term, 0u);
  EXPECT_EQ(worker_.session->term(), Term(5));
  EXPECT_FALSE(worker_.session->alive());
  EXPECT_TRUE(worker_.delivered.empty());
}

TEST_F(SessionTest, AnUndecodableMessageEndsTheSession) {
  Advance(absl::Milliseconds(100));
  coordinator_.refuse_next = true;
  ASSERT_TRUE(Say(worker_, "bad").ok());
  Exchange();
  ASSERT_EQ(coordinator_.downs.size(), 1u);
  EXPECT_EQ(coordinator_.downs[0], "not a message");
  EXPECT_EQ(coordinator_.counters.bad_body, 1u);
  Advance(absl::Milliseconds(300));
  ASSERT_EQ(worker_.downs.size(), 1u);
  EXPECT_EQ(worker_.downs[0], "the peer ended the session");
  ASSERT_TRUE(Say(worker_, "good").ok());
  Advance(absl::Milliseconds(200));
  EXPECT_EQ(coordinator_.delivered, std::vector<std::string>{"good"});
}

TEST_F(SessionTest, AnImpossibleAcknowledgementEndsTheSession) {
  Advance(absl::Milliseconds(100));
  FrameHeader header;
  header.term = Term(5);
  header.incarnation = Incarnation(100);
  header.session = 1;
  header.acknowledged = 99;
  header.from = kWorker;
  header.to = kCoordinator;
  coordinator_.session->OnFrame(header, {}, now_);
  ASSERT_EQ(coordinator_.downs.size(), 1u);
  EXPECT_EQ(coordinator_.downs[0], "peer 1 acknowledged frame 99 of 0");
}

}  // namespace
}  // namespace skein::protocol
