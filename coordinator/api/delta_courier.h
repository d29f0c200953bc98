// Carries deltas from the control thread to the listener's: what a step committed crosses at once,
// with one wake-up, and not sequence by sequence.
// Owns: the deltas on their way.
// Thread: Send is the control thread's; what it posts, and Close, run on the listener's or main's.
// Must never: wait, or change the order of the deltas of a request.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "coordinator/front_door.h"
#include "protocol/actor/mailbox.h"

namespace skein::coordinator {

// Takes deltas on the listener's thread.
class DeltaReceiver {
 public:
  virtual ~DeltaReceiver() = default;
  virtual void OnDelta(const TokenDelta& delta) = 0;
};

class DeltaCourier final : public std::enable_shared_from_this<DeltaCourier>,
                           private protocol::Waker {
 public:
  // Runs a function on the listener's thread.
  using Poster = std::function<void(std::function<void()>)>;

  DeltaCourier();

  // Keeps the delta for `to`. Posts one delivery unless one is on its way already. After Close the
  // delta is dropped.
  void Send(std::shared_ptr<DeltaReceiver> to, TokenDelta delta, const Poster& post);
  // Deltas that wait for the listener's thread. Any thread.
  size_t mailbox_depth() const { return items_.depth(); }
  // The listener is stopped: nothing is delivered any more.
  void Close();

 private:
  struct Item {
    std::shared_ptr<DeltaReceiver> to;
    TokenDelta delta;
  };
  void Wake() override {}  // the post does it
  void Deliver();

  protocol::Mailbox<Item> items_;
  std::atomic<bool> is_posted_ = false;  // a delivery is on its way
  std::atomic<bool> is_closed_ = false;
};

}  // namespace skein::coordinator
