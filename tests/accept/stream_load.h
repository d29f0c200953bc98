// Streams that run against a server and are checked to the last character while somebody breaks
// its processes. A stream that ends begins anew until the load is told to finish.
// Owns: the connections and what was received. One thread; Poll alone waits.
// Must never repeat a request to hide a failure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/http/event_splitter.h"
#include "protocol/http/http_client_pool.h"

namespace skein::tests {

// What is wrong with an answer, by the first place where it differs.
enum class Flaw { kNone, kLost, kDuplicated, kMixed };

// Compares what came with the beginning of what should have come.
Flaw FlawOf(std::string_view expected, std::string_view got);

// The characters that an event of a completion adds, as its JSON writes them.
std::string_view TextOf(std::string_view event);

class StreamLoad final : private protocol::HttpClientPool::Receiver {
 public:
  using Clock = protocol::HttpClientPool::Clock;

  struct Options {
    uint16_t port = 0;
    size_t streams = 64;
    size_t tokens = 0;    // of each answer
    bool is_mock = true;  // the answers are those of the mock model; else they are recorded first
  };
  struct Totals {
    uint64_t started = 0, whole = 0;
    uint64_t lost = 0, duplicated = 0, mixed = 0;  // streams with such a flaw
    uint64_t unfinished = 0;                       // ended otherwise than with their last token
    uint64_t characters = 0;
    uint64_t rows = 0;  // prompt and answer of whole streams that were computed once at least
    double shortest_s = 1e9;
    std::string failure;  // of the first that was not whole
  };

  explicit StreamLoad(const Options& options);

  // Lets each stream run once, alone among equals, and keeps its answers. Only without a mock.
  bool Record();
  void Start();
  // Handles what came within `timeout`.
  void Poll(std::chrono::milliseconds timeout);
  // Streams that end are not begun anew.
  void Finish() { repeats_ = false; }
  bool idle() const { return pool_->num_calls() == 0; }

  // The longest silence of each open stream since the last call, in seconds.
  std::vector<double> TakeSilences();
  // How long each stream took that ended whole since the last call, in seconds.
  std::vector<double> TakeDurations() { return std::exchange(durations_, {}); }
  // Characters of all streams so far.
  uint64_t received() const { return received_; }
  // Streams that have at least so many characters.
  size_t NumBeyond(size_t characters) const;
  const Totals& totals() const { return totals_; }
  // What became of the streams when the server was to die under them.
  uint64_t cut() const { return cut_; }

 private:
  struct Stream {
    std::string prompt;  // ids, separated by commas
    size_t prompt_size = 0;
    std::string expected;  // the text between the quotes of the JSON
    std::string got;
    protocol::EventSplitter events;
    bool runs = false;
    bool is_done = false;
    bool has_finish = false;
    std::string error;
    Clock::time_point began, last;
    double silence = 0;
  };

  void Begin(size_t index);
  void OnEvent(Stream& stream, std::string_view event, Clock::time_point at);
  void OnBody(uint64_t call, int status, std::string_view bytes, Clock::time_point at) override;
  void OnEnd(uint64_t call, int status, const absl::Status& result, Clock::time_point at) override;
  void Judge(Stream& stream, int status, const absl::Status& result, Clock::time_point at);

  const Options options_;
  std::unique_ptr<protocol::HttpClientPool> pool_;
  std::vector<Stream> streams_;
  Totals totals_;
  std::vector<double> durations_;
  uint64_t cut_ = 0;
  uint64_t received_ = 0;
  bool repeats_ = true;
  bool records_ = false;
};

}  // namespace skein::tests
