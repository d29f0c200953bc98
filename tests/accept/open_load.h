// Requests that arrive by the clock, whether or not earlier ones were answered, each compared with
// what the mock model answers.
// Owns the connections and what was received. One thread; Poll alone waits. Must never hold back an
// arrival because the server is slow.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/http/event_splitter.h"
#include "protocol/http/http_client_pool.h"

namespace skein::tests {

// What became of one request. Times in seconds from its arrival; arrivals from the first one.
struct OpenCall {
  enum class End { kNone, kWhole, kRefused, kFlawed, kBroken };
  End end = End::kNone;
  double arrived_s = 0;
  double first_token_s = -1;
  double ended_s = -1;
  int status = 0;
};

class OpenLoad final : private protocol::HttpClientPool::Receiver {
 public:
  using Clock = protocol::HttpClientPool::Clock;

  struct Options {
    uint16_t port = 0;
    size_t prompt_tokens = 32;
    size_t tokens = 32;  // of each answer
  };

  explicit OpenLoad(const Options& options);

  // Arrivals at this rate for so long, while what comes is handled.
  void Run(double per_second, double seconds);
  // Waits for the answers that are still open.
  void Finish();

  const std::vector<OpenCall>& calls() const { return calls_; }
  double now_s() const;
  const std::string& first_failure() const { return first_failure_; }

 private:
  struct Answer {
    std::string expected, got;
    protocol::EventSplitter events;
    bool is_done = false;
  };

  void Begin();
  void OnBody(uint64_t call, int status, std::string_view bytes, Clock::time_point at) override;
  void OnEnd(uint64_t call, int status, const absl::Status& result, Clock::time_point at) override;

  const Options options_;
  const Clock::time_point start_ = Clock::now();
  std::unique_ptr<protocol::HttpClientPool> pool_;
  std::vector<OpenCall> calls_;
  std::vector<std::unique_ptr<Answer>> answers_;  // by call; null once it ended
  std::string first_failure_;
};

}  // namespace skein::tests
