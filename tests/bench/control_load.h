// The client of control_bench: as many requests at a time as it is told, each followed by the next,
// with the times of first and last event.
// Owns: the connections and the requests in progress.
// Thread: main's. Must never count a failed request as an answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "protocol/http/event_splitter.h"
#include "protocol/http/http_client_pool.h"

namespace skein::bench {

struct LoadSpec {
  std::string target = "/v1/completions";
  std::vector<std::string> bodies;  // request i sends body i modulo their number
  int concurrency = 1;
  // The load ends when this many requests ended or this time is over, whichever is first.
  uint64_t requests_max = UINT64_MAX;
  std::chrono::milliseconds duration{1'000'000};
};

struct LoadCounts {
  uint64_t answers = 0;  // whole, with status 200
  uint64_t failures = 0;
  std::string first_failure;
  uint64_t events = 0;  // of streams, without [DONE]
  uint64_t open = 0;    // streams whose first event came and that have not ended
  std::vector<double> ttft_us;
  std::vector<double> e2e_us;
  double seconds = 0;
};

class ControlLoad final : private protocol::HttpClientPool::Receiver {
 public:
  using Clock = protocol::HttpClientPool::Clock;

  // Unavailable when the host does not resolve.
  static absl::StatusOr<std::unique_ptr<ControlLoad>> Create(uint16_t port, LoadSpec spec);

  // Runs the load to its end. Counts begin with `warm_up`, which is not measured.
  LoadCounts Run(std::chrono::milliseconds warm_up);
  // Starts all requests and polls until `open` streams have had their first event, or the limit
  // is over.
  LoadCounts Open(uint64_t open, std::chrono::milliseconds limit);

 private:
  struct Slot {
    Clock::time_point sent;
    bool has_event = false;
    protocol::EventSplitter events;
  };

  ControlLoad(std::unique_ptr<protocol::HttpClientPool> pool, LoadSpec spec);
  void StartNext(uint64_t slot);
  void OnBody(uint64_t slot, int status, std::string_view bytes, Clock::time_point at) override;
  void OnEnd(uint64_t slot, int status, const absl::Status& result, Clock::time_point at) override;

  const LoadSpec spec_;
  const std::unique_ptr<protocol::HttpClientPool> pool_;
  std::vector<std::string> requests_;
  std::vector<Slot> slots_;
  uint64_t num_started_ = 0;
  bool stops_ = false;
  LoadCounts counts_;
};

}  // namespace skein::bench
