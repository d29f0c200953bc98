// Asks the API whether it would serve: GET /health/ready over the listening socket's address, again
// until it answers 200. The self-test before the service manager is told READY.
// Supervisor's thread, step by step. Must never wait for the answer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "protocol/config/admin_address.h"
#include "worker/node/descriptor.h"

namespace skein::worker {

class ReadyProbe {
 public:
  static constexpr absl::Duration kStep = absl::Milliseconds(20);    // between looks at an answer
  static constexpr absl::Duration kAgain = absl::Milliseconds(200);  // between tries
  static constexpr absl::Duration kTryMax = absl::Seconds(2);

  // The operators' listener at this address is asked instead of the API, which speaks TLS.
  void AskOperators(protocol::AdminAddress address) { operators_ = std::move(address); }
  // `listening` is the socket that is asked; only its address is used.
  void Begin(int listening, absl::Time now);
  // Goes on with what is ready. True once, when the answer was 200.
  bool Step(absl::Time now);
  // When Step has something to do; InfiniteFuture before Begin and after the answer.
  absl::Time next() const { return next_; }

 private:
  void Ask(absl::Time now);

  protocol::AdminAddress operators_;
  int listening_ = -1;
  Descriptor connection_;
  bool is_sent_ = false;
  std::string answer_;
  absl::Time try_end_ = absl::InfinitePast();
  absl::Time next_ = absl::InfiniteFuture();
};

}  // namespace skein::worker
