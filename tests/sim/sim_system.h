// Virtual time: what happens next, in order of (time, ordinal), and the hash of all that happened.
// Nothing else advances time. And the processes, each a production actor system that runs a round
// when something came for it or a deadline of its own passed.
// One thread. Must never look at a real clock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "protocol/actor/threaded_actor_system.h"
#include "tests/sim/sim_random.h"

namespace skein::tests {

class SimSystem {
 public:
  explicit SimSystem(uint64_t seed) : random_(seed) {}

  absl::Time Now() const { return now_; }
  void At(absl::Time time, std::function<void()> action);
  void After(absl::Duration delay, std::function<void()> action) {
    At(now_ + delay, std::move(action));
  }
  // Does what comes next; false when nothing does.
  bool Step();

  // Adds to the hash of what happened.
  void Trace(uint64_t what) { trace_ = (trace_ ^ what) * 0x9E3779B97F4A7C15u ^ trace_ >> 29; }
  uint64_t trace() const { return trace_; }
  uint64_t num_events() const { return num_events_; }
  SimRandom& random() { return random_; }

 private:
  struct Event {
    absl::Time time;
    uint64_t ordinal = 0;
    std::function<void()> action;
    // The heap has the greatest on top.
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : ordinal > other.ordinal;
    }
  };

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  uint64_t last_ordinal_ = 0;
  uint64_t num_events_ = 0;
  uint64_t trace_ = 0;
  std::vector<Event> heap_;
  SimRandom random_;
};

// A process with one actor. It ends by itself, when the actor stops, or is killed.
class SimProcess : public std::enable_shared_from_this<SimProcess> {
 public:
  // `on_exit` is called once when the actor has stopped, not when the process is killed; then the
  // process may be dropped.
  SimProcess(SimSystem& system, std::function<void(const absl::Status&)> on_exit)
      : system_(system), on_exit_(std::move(on_exit)) {}

  // Makes the actor system and begins to run it.
  void Start(protocol::ActorSystemOptions options, std::unique_ptr<protocol::Transport> transport,
             protocol::ActorFactory factory);
  // Called after each round; may be empty.
  void SetAfterRound(std::function<void()> after_round) { after_round_ = std::move(after_round); }

  // Something came: a round follows soon.
  void Wake();
  // It does not run for so long, as if stopped by a signal.
  void Pause(absl::Duration duration) { paused_until_ = system_.Now() + duration; }
  bool paused() const { return system_.Now() < paused_until_; }
  // It is gone at once, and nothing of it runs any more.
  void Kill();
  bool alive() const { return actors_ != nullptr; }
  const protocol::FrameCounters& counters() const { return actors_->counters(); }

 private:
  void ScheduleRound(absl::Time at);
  void Round();

  SimSystem& system_;
  std::function<void(const absl::Status&)> on_exit_;
  std::function<void()> after_round_;
  std::unique_ptr<protocol::ThreadedActorSystem> actors_;
  absl::Time paused_until_ = absl::InfinitePast();
  absl::Time next_round_ = absl::InfiniteFuture();
  uint64_t round_ = 0;  // the one that is scheduled; others are outdated
};

}  // namespace skein::tests
