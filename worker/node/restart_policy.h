// When a child that ended is started again: at most so many restarts within a window, with a
// growing pause; beyond that it counts as failed and is tried again later, twice. A value with time
// and random numbers as arguments; one per child, the supervisor's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "protocol/config/config.h"

namespace skein::worker {

class RestartPolicy {
 public:
  // A failed child is tried again after this pause, at most kRetriesMax times.
  static constexpr absl::Duration kRetryAfter = absl::Minutes(10);
  static constexpr int kRetriesMax = 2;

  explicit RestartPolicy(const protocol::NodeConfig& limits) : limits_(limits) {}

  struct Decision {
    bool failed = false;   // the intensity was exceeded: the child is out of service
    absl::Duration pause;  // before the next start; InfiniteDuration: never again
  };

  // The child ended at `now`. `random` spreads restarts of several children.
  Decision OnExit(absl::Time now, uint64_t random);

 private:
  protocol::NodeConfig limits_;
  std::deque<absl::Time> exits_;  // within the window
  int retries_ = 0;
};

}  // namespace skein::worker
