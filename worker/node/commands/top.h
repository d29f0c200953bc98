// `skein top`: the state of a cluster and what it did since the look before, refreshed on a
// terminal. Main thread of skein.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "protocol/json/json.h"

namespace skein::worker {

// What `skein top` reads of /metrics: sums over all labels, counters that only grow unless it says
// otherwise.
struct TopCounts {
  double generated = 0;  // tokens
  double prompts = 0;    // tokens
  double drafted = 0;    // draft tokens that were verified
  double accepted = 0;   // of them kept
  double cached = 0;     // prompt tokens that were not computed
  double refused = 0;    // answers 4xx, but for clients that left
  double failed = 0;     // answers 5xx
  double restarts = 0;   // of workers
};

// Of the text form of metrics; families that it lacks count as 0.
TopCounts ReadTopCounts(std::string_view metrics);

// The screen, at most 80 columns wide. `status`: the answer of GET /admin/status. `seconds`:
// between `before` and `now`; 0: this is the first look, which has no rates.
std::string TopText(const protocol::JsonValue& status, const TopCounts& now,
                    const TopCounts& before, double seconds);

// The whole command. The result is the exit code of the program: 0, 64 wrong flags, 75 when no
// coordinator answers the first look; one that is gone later is shown, and looked for again.
int RunTop(std::span<const std::string> arguments);

}  // namespace skein::worker
