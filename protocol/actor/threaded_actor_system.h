// Runs one actor on the thread that calls Run. A process with a second actor makes a second system
// on another thread. A simulation gives it a clock and a transport of its own and calls Round.
// Run's thread owns actor, sessions, timers and transport; others only call waker().Wake().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/actor/actor.h"
#include "protocol/actor/scheduling_delay.h"
#include "protocol/base/clock.h"
#include "protocol/codec/codec.h"
#include "protocol/transport/session.h"
#include "protocol/transport/transport.h"

namespace skein::protocol {

struct ActorSystemOptions {
  ActorId self;
  Term term;                // of a coordinator, from one; zero in a worker
  Incarnation incarnation;  // of a worker; zero in a coordinator
  absl::Duration beat_interval = absl::Milliseconds(100);
  absl::Duration lease = absl::Seconds(1);
  std::function<void(absl::Duration)> on_scheduling_delay;  // each wake-up by time; may be empty
  std::function<void()> on_round;  // each round of the loop, on its thread; may be empty
  size_t peers_max = 1024;         // sessions accepted; frames of further peers are dropped
  std::function<absl::Time()> clock = &BootNow;
  std::optional<uint64_t> random_seed;  // of a sequence; empty: each number is the kernel's
};

class ThreadedActorSystem final : public ActorSystem,
                                  private Context,
                                  private FrameReceiver,
                                  private SessionOutput {
 public:
  ThreadedActorSystem(const ActorSystemOptions& options, std::unique_ptr<Transport> transport);
  ~ThreadedActorSystem() override;

  // One actor per system: a second Spawn is FailedPrecondition.
  absl::StatusOr<ActorId> Spawn(std::string name, ActorFactory factory) override;
  absl::Status Listen(std::string_view endpoint) override;
  absl::Status Connect(ActorId peer, std::string_view endpoint) override;
  // Returns the reason given to Stop, or the transport's failure. After a stop without error it
  // waits up to half a second for the acknowledgement of what was sent.
  absl::Status Run() override;

  // Run in pieces: Start, then Round while running(), whenever something came or next_round() is.
  absl::Status Start();
  // Polls until next_round() or until something comes, and acts on it.
  void Round();
  bool running() const;
  absl::Time next_round() const;
  // Why it stopped.
  const absl::Status& stop_reason() const { return stop_reason_; }

  // Causes one OnIdle; any thread.
  Waker& waker() { return *transport_; }

  // For metrics; any thread.
  const FrameCounters& counters() const { return counters_; }

 private:
  ActorId self() const override { return options_.self; }
  absl::Time Now() const override { return options_.clock(); }
  absl::Duration LeaseFloor() const override { return delay_.LeaseFloor(); }
  absl::Status Send(ActorId to, Epoch epoch, Message message) override;
  TimerId StartTimer(absl::Duration delay) override;
  void CancelTimer(TimerId timer) override;
  uint64_t RandomUint64() override;
  void Stop(absl::Status reason) override;

  void OnFrame(ActorId peer, std::span<const std::byte> frame) override;
  void OnGarbage() override;
  void OnDenied() override;

  void Transmit(ActorId peer, std::span<const std::byte> frame) override;
  absl::Status Deliver(const FrameHeader& header, std::span<const std::byte> body) override;
  void Down(ActorId peer, const absl::Status& reason) override;

  Session* FindOrAccept(ActorId peer);
  void FireTimers();
  void TickSessions();
  void NoteDelay(absl::Time due);

  const ActorSystemOptions options_;
  const std::unique_ptr<Transport> transport_;
  FrameCounters counters_;
  SchedulingDelay delay_;
  std::string name_;
  std::unique_ptr<Actor> actor_;
  std::map<ActorId, std::unique_ptr<Session>> sessions_;
  std::set<std::pair<absl::Time, TimerId>> timers_;
  std::map<TimerId, absl::Time> timer_times_;
  uint64_t last_timer_ = 0;
  uint64_t random_state_ = 0;
  bool stopped_ = false;
  absl::Status stop_reason_;
  absl::Time flush_end_;  // of a stop without error
};

}  // namespace skein::protocol
