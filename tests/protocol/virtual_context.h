// A complete small world for one actor: a clock that only the test moves, timers in order, sent
// messages kept, peers that can be down. Owns what it records. Thread: the test's.
// Must never: deliver anything by itself; the test hands messages over.
#pragma once

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/actor/actor.h"

namespace skein::tests {

struct SentMessage {
  protocol::ActorId to;
  protocol::Epoch epoch;
  protocol::Message message;
};

class VirtualContext final : public protocol::Context {
 public:
  explicit VirtualContext(protocol::ActorId self) : self_(self) {}

  protocol::ActorId self() const override { return self_; }
  absl::Time Now() const override { return now_; }
  absl::Status Send(protocol::ActorId to, protocol::Epoch epoch,
                    protocol::Message message) override {
    if (down_.contains(to)) return absl::UnavailableError("the peer is down");
    sent_.push_back({to, epoch, std::move(message)});
    return absl::OkStatus();
  }
  protocol::TimerId StartTimer(absl::Duration delay) override {
    const protocol::TimerId timer{++last_timer_};
    timers_.emplace(now_ + delay, timer);
    return timer;
  }
  void CancelTimer(protocol::TimerId timer) override {
    std::erase_if(timers_, [&](const auto& entry) { return entry.second == timer; });
  }
  uint64_t RandomUint64() override { return ++random_; }
  void Stop(absl::Status reason) override {
    if (!stopped_) stopped_ = std::move(reason);
  }

  // Moves the clock by `duration`, firing timers on the way; OnIdle follows each, as in production.
  void Advance(absl::Duration duration, protocol::Actor& actor) {
    const absl::Time end = now_ + duration;
    while (!timers_.empty() && timers_.begin()->first <= end) {
      const auto [time, timer] = *timers_.begin();
      timers_.erase(timers_.begin());
      now_ = std::max(now_, time);  // a timer that Starve passed fires late
      actor.OnTimer(*this, timer);
      actor.OnIdle(*this);
    }
    now_ = end;
  }
  // Moves the clock while the actor's thread does not run: timers that fall due fire late.
  void Starve(absl::Duration duration) { now_ += duration; }
  void SetDown(protocol::ActorId peer, bool down) {
    if (down) {
      down_.insert(peer);
    } else {
      down_.erase(peer);
    }
  }

  // Messages sent since the last call.
  std::vector<SentMessage> TakeSent() { return std::exchange(sent_, {}); }
  // The first message of a kind among those sent since the last TakeSent.
  template <typename M>
  std::optional<M> Sent() const {
    for (const SentMessage& sent : sent_) {
      if (const M* message = std::get_if<M>(&sent.message)) return *message;
    }
    return std::nullopt;
  }
  template <typename M>
  size_t CountSent() const {
    size_t count = 0;
    for (const SentMessage& sent : sent_) count += std::holds_alternative<M>(sent.message) ? 1 : 0;
    return count;
  }
  // Set by the first Stop.
  const std::optional<absl::Status>& stopped() const { return stopped_; }
  size_t num_timers() const { return timers_.size(); }

 private:
  const protocol::ActorId self_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::set<protocol::ActorId> down_;
  std::vector<SentMessage> sent_;
  std::set<std::pair<absl::Time, protocol::TimerId>> timers_;
  uint64_t last_timer_ = 0;
  uint64_t random_ = 0;
  std::optional<absl::Status> stopped_;
};

// Counts the calls of Wake.
class CountingWaker final : public protocol::Waker {
 public:
  void Wake() override { ++count_; }
  int count() const { return count_; }

 private:
  int count_ = 0;
};

}  // namespace skein::tests
