#include "tests/sim/sim_network.h"

#include <algorithm>

namespace skein::tests {
namespace {

constexpr size_t kQueueMax = 1000;                             // frames, ZeroMQ's high-water mark
constexpr absl::Duration kFirstDial = absl::Milliseconds(50);  // after the start at most

uint64_t HashBytes(std::span<const std::byte> bytes) {
  uint64_t hash = bytes.size();
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001B3u;
  return hash;
}

size_t Index(Direction direction) { return static_cast<size_t>(direction); }

}  // namespace

// ---- the transport of a process

SimTransport::SimTransport(SimNetwork& network, protocol::ActorId self,
                           std::weak_ptr<SimProcess> process)
    : network_(network), self_(self), process_(std::move(process)) {}

SimTransport::~SimTransport() { network_.Detach(*this); }

absl::Status SimTransport::Listen(std::string_view) {
  network_.Attach(*this, true);
  return absl::OkStatus();
}

absl::Status SimTransport::Connect(protocol::ActorId, std::string_view) {
  network_.Attach(*this, false);
  return absl::OkStatus();
}

absl::Status SimTransport::Send(protocol::ActorId peer, std::span<const std::byte> frame) {
  return self_ == protocol::kCoordinatorActor ? network_.Send(peer, Direction::kDown, frame)
                                              : network_.Send(self_, Direction::kUp, frame);
}

absl::Status SimTransport::Poll(absl::Duration, protocol::FrameReceiver& receiver) {
  while (!arrived_.empty()) {
    const auto [from, frame] = std::move(arrived_.front());
    arrived_.pop_front();
    receiver.OnFrame(from, frame);
  }
  return absl::OkStatus();
}

void SimTransport::Wake() {
  if (const auto process = process_.lock()) process->Wake();
}

void SimTransport::Receive(protocol::ActorId from, std::vector<std::byte> frame) {
  arrived_.emplace_back(from, std::move(frame));
  Wake();
}

// ---- the network

SimNetwork::SimNetwork(SimSystem& system, const NetworkOptions& options)
    : system_(system), options_(options), random_(system.random().Fork()) {}

void SimNetwork::Attach(SimTransport& transport, bool listens) {
  if (listens) {
    coordinator_ = &transport;
    return;
  }
  Link& link = links_.try_emplace(transport.self()).first->second;
  link.worker = &transport;
  Dial(transport.self(), random_.Between(absl::ZeroDuration(), kFirstDial));
}

void SimNetwork::Detach(SimTransport& transport) {
  const bool all = &transport == coordinator_;
  if (all) coordinator_ = nullptr;
  for (auto& [worker, link] : links_) {
    if (!all && link.worker != &transport) continue;
    Break(link);
    link.under_way[Index(all ? Direction::kUp : Direction::kDown)].clear();
    if (all) {
      Dial(worker, link.pause.Next(random_.Next()));
    } else {
      link.worker = nullptr;
    }
  }
}

void SimNetwork::Dial(protocol::ActorId worker, absl::Duration delay) {
  const uint64_t connection = ++links_.at(worker).connection;
  system_.After(delay, [this, worker, connection] {
    Link& link = links_.at(worker);
    if (link.connection != connection || link.worker == nullptr) return;
    if (coordinator_ == nullptr || system_.Now() < link.refused) {
      return Dial(worker, link.pause.Next(random_.Next()));
    }
    link.connected = true;
    link.pause.Reset();
  });
}

// What is under way arrives up to some frame.
void SimNetwork::Break(Link& link) {
  ++link.connection;
  if (link.connected) ++num_cut_;
  link.connected = false;
  for (std::deque<Frame>& frames : link.under_way) {
    const size_t kept = random_.Below(static_cast<uint32_t>(frames.size()) + 1);
    num_lost_ += frames.size() - kept;
    frames.resize(kept);
  }
}

void SimNetwork::Cut(protocol::ActorId worker) {
  const auto found = links_.find(worker);
  if (found == links_.end()) return;
  Break(found->second);
  Dial(worker, found->second.pause.Next(random_.Next()));
}

void SimNetwork::Clog(protocol::ActorId worker, Direction direction, absl::Duration duration) {
  const auto found = links_.find(worker);
  if (found == links_.end()) return;
  Link& link = found->second;
  absl::Time& clogged = link.clogged[Index(direction)];
  clogged = std::max(clogged, system_.Now() + duration);
  for (Frame& frame : link.under_way[Index(direction)]) {
    if (frame.arrives >= clogged) continue;
    frame.arrives = clogged;
    system_.At(clogged, [this, worker, direction] { Arrive(worker, direction); });
  }
}

void SimNetwork::Refuse(protocol::ActorId worker, absl::Duration duration) {
  const auto found = links_.find(worker);
  if (found != links_.end()) found->second.refused = system_.Now() + duration;
}

void SimNetwork::Heal() {
  options_.damage_one_in = 0;
  for (auto& [worker, link] : links_) {
    link.refused = absl::InfinitePast();
    // What was held back still arrives when it was to.
    link.clogged[0] = link.clogged[1] = absl::InfinitePast();
  }
}

void SimNetwork::Damage(std::vector<std::byte>& bytes) {
  ++num_damaged_;
  const uint32_t at = random_.Below(static_cast<uint32_t>(bytes.size()));
  if (random_.OneIn(2)) {
    bytes.resize(at);
  } else {
    bytes[at] ^= static_cast<std::byte>(1u << random_.Below(8));
  }
}

absl::Status SimNetwork::Send(protocol::ActorId worker, Direction direction,
                              std::span<const std::byte> frame) {
  const auto found = links_.find(worker);
  if (found == links_.end() || !found->second.connected) {
    return absl::UnavailableError("there is no connection");
  }
  Link& link = found->second;
  std::deque<Frame>& frames = link.under_way[Index(direction)];
  if (frames.size() >= kQueueMax) return absl::ResourceExhaustedError("the queue is full");
  Frame& sent = frames.emplace_back();
  sent.bytes.assign(frame.begin(), frame.end());
  if (random_.OneIn(options_.damage_one_in)) Damage(sent.bytes);
  sent.arrives = std::max(system_.Now() + random_.Between(options_.delay_min, options_.delay_max),
                          link.clogged[Index(direction)]);
  if (frames.size() > 1) sent.arrives = std::max(sent.arrives, frames[frames.size() - 2].arrives);
  system_.At(sent.arrives, [this, worker, direction] { Arrive(worker, direction); });
  return absl::OkStatus();
}

// All that is due by now: a frame that was held back has an event of its own later.
void SimNetwork::Arrive(protocol::ActorId worker, Direction direction) {
  Link& link = links_.at(worker);
  std::deque<Frame>& frames = link.under_way[Index(direction)];
  while (!frames.empty() && frames.front().arrives <= system_.Now()) {
    std::vector<std::byte> bytes = std::move(frames.front().bytes);
    frames.pop_front();
    system_.Trace(HashBytes(bytes) + worker.node.value());
    if (direction == Direction::kUp && coordinator_ != nullptr) {
      coordinator_->Receive(worker, std::move(bytes));
    } else if (direction == Direction::kDown && link.worker != nullptr) {
      link.worker->Receive(protocol::kCoordinatorActor, std::move(bytes));
    }
  }
}

}  // namespace skein::tests
