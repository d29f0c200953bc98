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
  uint64_t tokens = 0;   // answers times the asked length
  double mean_ttft_ms = 0;
  double output_throughput = 0;  // tokens per second
};

// Sends each body once, `concurrency` at a time; each asks for `output_len` tokens, exactly.
RawResult RunRawClient(uint16_t port, const std::vector<std::string>& bodies, int concurrency,
                       int64_t output_len);

}  // namespace skein::bench
