// Two sessions and what lies between them: the input says message, arrival, loss, repetition,
// restart and time. Messages arrive once and in order, nothing is missing within a session, and
// once nothing is lost any more the next message arrives. With a forged frame only bounds are
// judged.
// Thread: one.
// Must never: depend on anything but the input.
#include <deque>
#include <memory>

#include "protocol/transport/session.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using protocol::ActorId;
using protocol::FrameHeader;
using protocol::NodeId;
using protocol::Session;
using protocol::SessionOptions;
using protocol::SessionRole;

constexpr ActorId kCoordinator{NodeId(0), 0};
constexpr ActorId kWorker{NodeId(1), 0};
constexpr size_t kWindow = 8;

// One end: the frames it put on the link and what it was given.
class End final : public protocol::SessionOutput {
 public:
  void Transmit(ActorId, std::span<const std::byte> frame) override {
    outbox.emplace_back(frame.begin(), frame.end());
  }
  absl::Status Deliver(const FrameHeader&, std::span<const std::byte> body) override {
    uint64_t number = 0;
    for (const std::byte byte : body) number = number << 8 | static_cast<uint8_t>(byte);
    if (forged) return absl::OkStatus();
    Require(number > last, "a message arrives once and in order");
    Require(!in_session || number == last + 1, "none is missing within a session");
    last = number;
    in_session = true;
    return absl::OkStatus();
  }
  void Down(ActorId, const absl::Status&) override { in_session = false; }

  std::deque<std::vector<std::byte>> outbox;
  uint64_t last = 0, sent = 0;
  bool in_session = false;  // a message came since the session began
  bool forged = false;
  protocol::FrameCounters counters;
  std::unique_ptr<Session> session;
};

class Link {
 public:
  Link() {
    Restart(coordinator_);
    Restart(worker_);
  }

  void Play(std::string_view input) {
    for (Bytes bytes(input); !bytes.empty();) Act(bytes);
    if (forged_) return;
    const uint64_t before = coordinator_.last;
    for (int i = 0; i < 100; ++i) Pass(absl::Milliseconds(50));
    Send(worker_);
    for (int i = 0; i < 10; ++i) Pass(absl::Milliseconds(50));
    Require(coordinator_.last > before && coordinator_.last == worker_.sent,
            "a message arrives when nothing is lost");
  }

 private:
  void Restart(End& end) {
    SessionOptions options;
    const bool is_worker = &end == &worker_;
    options.self = is_worker ? kWorker : kCoordinator;
    options.peer = is_worker ? kCoordinator : kWorker;
    options.role = is_worker ? SessionRole::kConnecting : SessionRole::kAccepting;
    if (is_worker) options.incarnation = protocol::Incarnation(++incarnation_);
    if (!is_worker) options.term = protocol::Term(++term_);
    options.window_frames = kWindow;
    end.session = std::make_unique<Session>(options, end, end.counters, now_);
    end.outbox.clear();
    end.in_session = false;
  }

  void Send(End& end) {
    std::vector<std::byte> body(8);
    for (size_t i = 0; i < 8; ++i) body[i] = std::byte((end.sent + 1) >> (56 - 8 * i) & 0xFF);
    const absl::Status sent = end.session->Send(2, protocol::Epoch(7), std::move(body), now_);
    if (sent.ok()) ++end.sent;
    Require(end.session->unacknowledged() <= kWindow, "the window is bounded");
  }

  void Arrive(End& to, const std::vector<std::byte>& frame) {
    const protocol::DecodedFrame decoded = protocol::DecodeFrame(frame);
    Require(decoded.defect == protocol::FrameDefect::kNone, "a session sends frames");
    to.session->OnFrame(decoded.header, decoded.body, now_);
  }

  void Move(End& from, End& to) {
    if (from.outbox.empty()) return;
    old_ = from.outbox.front();
    from.outbox.pop_front();
    old_to_ = &to;
    Arrive(to, std::vector<std::byte>(old_));
  }

  void Pass(absl::Duration time) {
    now_ += time;
    worker_.session->OnTick(now_);
    coordinator_.session->OnTick(now_);
    for (int i = 0; i < 1000 && !(worker_.outbox.empty() && coordinator_.outbox.empty()); ++i) {
      Move(worker_, coordinator_);
      Move(coordinator_, worker_);
    }
  }

  void Forge(Bytes& bytes) {
    forged_ = worker_.forged = coordinator_.forged = true;
    FrameHeader header;
    header.term = protocol::Term(bytes.Number(1));
    header.incarnation = protocol::Incarnation(bytes.Number(1));
    header.session = bytes.Number(1);
    header.ordinal = bytes.Number(1);
    header.acknowledged = bytes.Number(1);
    header.flags = bytes.Number(1);
    const std::vector<std::byte> body(8);
    (header.flags % 2 == 0 ? worker_ : coordinator_).session->OnFrame(header, body, now_);
  }

  void Act(Bytes& bytes) {
    const uint64_t action = bytes.Number(1);
    End& one = action % 2 == 0 ? worker_ : coordinator_;
    End& other = action % 2 == 0 ? coordinator_ : worker_;
    switch (action / 2 % 8) {
      case 0:
        return Send(one);
      case 1:
        return Move(one, other);
      case 2:
        if (!one.outbox.empty()) one.outbox.pop_front();
        return;
      case 3:
        if (old_to_ != nullptr) Arrive(*old_to_, std::vector<std::byte>(old_));
        return;
      case 4:
        return Restart(one);
      case 5:
        now_ += absl::Milliseconds(10 * static_cast<int64_t>(bytes.Number(1)));
        return one.session->OnTick(now_);
      case 6:
        return action < 128 ? Pass(absl::Milliseconds(100)) : Send(one);
      default:
        if (action >= 224) Forge(bytes);
    }
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  uint64_t incarnation_ = 100, term_ = 5;
  bool forged_ = false;
  End coordinator_, worker_;
  std::vector<std::byte> old_;  // the last frame that arrived, and where
  End* old_to_ = nullptr;
};

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Link().Play(skein::tests::TextOf(data, size));
  return 0;
}
