// Moves opaque frames to and from peers. Implemented over ZeroMQ and, in simulation, over a network
// that misbehaves on purpose. A frame handed over may be lost at a reconnect: the session above
// numbers, acknowledges and resends.
// One thread calls everything but Wake.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "protocol/actor/actor.h"

namespace skein::protocol {

// What a transport reports, during Poll, on the thread that polls.
class FrameReceiver {
 public:
  virtual ~FrameReceiver() = default;
  // `peer` is the address the connection announced; `frame` is borrowed for the call.
  virtual void OnFrame(ActorId peer, std::span<const std::byte> frame) = 0;
  // Something arrived that cannot be a frame (parts, sizes or an address of the wrong form).
  virtual void OnGarbage() = 0;
  // A peer without the right keys was turned away.
  virtual void OnDenied() {}
};

class Transport : public Waker {
 public:
  // Accepts peers at `endpoint`. InvalidArgument for an address that may not be used, Unavailable
  // when it is taken.
  virtual absl::Status Listen(std::string_view endpoint) = 0;
  // Begins to connect to `peer` and keeps trying; success is seen by frames arriving.
  virtual absl::Status Connect(ActorId peer, std::string_view endpoint) = 0;
  // Unavailable when there is no connection to the peer, ResourceExhausted when its queue is full.
  virtual absl::Status Send(ActorId peer, std::span<const std::byte> frame) = 0;
  // Waits up to `timeout` for frames or a Wake and reports what came.
  virtual absl::Status Poll(absl::Duration timeout, FrameReceiver& receiver) = 0;
};

}  // namespace skein::protocol
