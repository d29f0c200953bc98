// A second opinion on skein bench: blocking sockets and one thread per request in progress, nothing
// of the HTTP library. Measures a closed loop of completions.
// Owns: its threads and sockets. Thread: the caller's, and its own until Run returns.
// Must never share code with what it checks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace skein::bench {

struct RawResult {
  double seconds = 0;
  uint64_t answers = 0;  // streams that ended with [DONE]
  double mean_ttft_ms = 0;
};

// Sends each body once, `concurrency` at a time.
RawResult RunRawClient(uint16_t port, const std::vector<std::string>& bodies, int concurrency);

}  // namespace skein::bench
