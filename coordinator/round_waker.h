// Wakes the control loop once for the requests that the HTTP thread read in one round, instead of
// once for each: a wake-up costs a system call there and a change of thread here.
// Owns: nothing. Any thread calls Wake. Must never delay a wake-up beyond the round, or by more
// than kRequestsMax requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "protocol/actor/actor.h"

namespace skein::coordinator {

class RoundWaker final : public protocol::Waker {
 public:
  // Runs a function on the HTTP thread after what is ready there.
  using Poster = std::function<void(std::function<void()>)>;
  static constexpr uint32_t kRequestsMax = 16;

  // `target` outlives the waker. Without a poster every call wakes at once.
  explicit RoundWaker(protocol::Waker& target) : target_(target) {}
  // While wiring, before another thread calls Wake.
  void SetPoster(Poster post) { post_ = std::move(post); }

  void Wake() override;

 private:
  protocol::Waker& target_;
  Poster post_;
  std::atomic<uint32_t> asked_ = 0;  // since the last wake-up that was posted
};

}  // namespace skein::coordinator
