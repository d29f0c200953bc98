// The actor interface: an object that handles one message to completion and touches the world only
// through its Context. Implemented by the programs, driven by the threaded and the simulated
// system. Every call of an Actor comes from one thread. Must never block or hold a lock in a
// callback.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/base/ids.h"
#include "protocol/messages/message.h"

namespace skein::protocol {

// The address of an actor, stable across restarts of the process behind it.
struct ActorId {
  NodeId node;
  uint32_t slot = 0;
  friend auto operator<=>(const ActorId&, const ActorId&) = default;
};

// The coordinator's control loop. Workers are node 1, 2, ... in the order of their configuration.
inline constexpr ActorId kCoordinatorActor{NodeId(0), 0};

struct Envelope {
  ActorId from;
  ActorId to;
  Term term;                // of the coordinator process
  Incarnation incarnation;  // of the worker process
  Epoch epoch;              // of the group; receivers drop and count anything older or of another
  uint64_t ordinal = 0;     // per session, increasing by one; the session resends after a reconnect
                            // within the lease, and a gap it cannot close is PeerDown
  Message message;
};

struct TimerId {
  uint64_t value = 0;
  friend auto operator<=>(const TimerId&, const TimerId&) = default;
};

// A peer's connection or lease ended. Delivered in order, after its last message.
struct PeerDown {
  ActorId peer;
  absl::Status reason;
};

// The actor's only door to the outside. Production and simulation implement it.
class Context {
 public:
  virtual ~Context() = default;
  virtual ActorId self() const = 0;
  // Monotonic; only differences mean something.
  virtual absl::Time Now() const = 0;
  // Queues for delivery; never blocks. ResourceExhausted when the peer's window is full or the
  // message is over a limit, Unavailable when the peer is down.
  virtual absl::Status Send(ActorId to, Epoch epoch, Message message) = 0;
  virtual TimerId StartTimer(absl::Duration delay) = 0;
  virtual void CancelTimer(TimerId timer) = 0;
  // Those of before do not tell the next; seeded in simulation.
  virtual uint64_t RandomUint64() = 0;
  virtual void Stop(absl::Status reason) = 0;  // an error here ends the whole process
  // Silence of a peer that proves nothing, because this process itself is woken so late.
  virtual absl::Duration LeaseFloor() const { return absl::ZeroDuration(); }
};

class Actor {
 public:
  virtual ~Actor() = default;
  // Each call runs to completion: no blocking, no lock held, bounded work.
  virtual void OnStart(Context& context) = 0;
  virtual void OnMessage(Context& context, Envelope envelope) = 0;
  virtual void OnTimer(Context& context, TimerId timer) = 0;
  virtual void OnPeerDown(Context& context, const PeerDown& down) = 0;
  // Nothing else is waiting: drain the mailboxes this actor owns, act on what was learned.
  virtual void OnIdle(Context& context) = 0;
};

// Lets another thread say "I left something in a Mailbox you own". Causes one OnIdle.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void Wake() = 0;  // from any thread, cheap, idempotent
};

// How a supervisor treats a child process that ended.
struct SupervisionPolicy {
  int restarts_max = 5;  // within `window`, then give up and report
  absl::Duration window = absl::Seconds(60);
  absl::Duration backoff_min = absl::Milliseconds(200);
  absl::Duration backoff_max = absl::Seconds(10);
};

using ActorFactory = absl::AnyInvocable<std::unique_ptr<Actor>(Waker&)>;

class ActorSystem {
 public:
  virtual ~ActorSystem() = default;
  virtual absl::StatusOr<ActorId> Spawn(std::string name, ActorFactory factory) = 0;
  virtual absl::Status Listen(std::string_view endpoint) = 0;
  virtual absl::Status Connect(ActorId peer, std::string_view endpoint) = 0;
  virtual absl::Status Run() = 0;  // until an actor fails or all stop; why
};

}  // namespace skein::protocol
