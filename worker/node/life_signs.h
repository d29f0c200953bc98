// What the supervisor's loop shows of itself: a file in the run directory that it touches, and the
// messages to the service manager. Both come from the loop alone, so a loop that hangs shows none.
// Supervisor's thread. Must never say READY before the self-test passed.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/node/descriptor.h"
#include "worker/node/notify_socket.h"
#include "worker/node/ready_probe.h"

namespace skein::worker {

class LifeSigns {
 public:
  static constexpr absl::Duration kTouchEvery = absl::Seconds(2);
  static constexpr absl::Duration kWatchdogEvery = absl::Seconds(3);

  // `alive_path` is made; empty: none. `notify_socket` as NotifySocket::Open takes it.
  static absl::StatusOr<LifeSigns> Create(const std::string& alive_path,
                                          std::string_view notify_socket);

  // Does what is due. Called once in each round of the loop.
  void Tick(absl::Time now);
  absl::Time next() const;

  // The children of this node are up: asks the API behind `listening` until it is ready, then says
  // READY; with -1, a node without the API, at once. Only the first call counts.
  void ChildrenReady(int listening, absl::Time now);
  void Stopping();
  // See ReadyProbe.
  void AskOperators(protocol::AdminAddress address) { probe_.AskOperators(std::move(address)); }

 private:
  void SayReady();

  Descriptor alive_;
  NotifySocket notify_;
  ReadyProbe probe_;
  bool is_begun_ = false;  // ChildrenReady was called
  bool is_stopping_ = false;
  absl::Time touch_at_ = absl::InfinitePast();
  absl::Time watchdog_at_ = absl::InfinitePast();
};

}  // namespace skein::worker
