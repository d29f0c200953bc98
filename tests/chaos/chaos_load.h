// Streams and whole answers that run against a server whose processes are harmed, each judged by
// the mock model: what came must be the begin of what should come, and an answer that looks whole
// must be whole. An answer that fails begins anew, with another prompt, a moment later. Meanwhile
// the server is asked again and again whether it is ready: while it is, it may refuse nobody.
// Owns: the connections and what was received. One thread; Poll alone waits.
// Must never: excuse an answer that is wrong.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/http/event_splitter.h"
#include "protocol/http/http_client_pool.h"

namespace skein::tests {

class ChaosLoad final : private protocol::HttpClientPool::Receiver {
 public:
  using Clock = protocol::HttpClientPool::Clock;

  struct Options {
    uint16_t port = 0;
    size_t streams = 32;
    uint64_t seed = 1;
  };
  struct Totals {
    uint64_t started = 0, whole = 0;
    uint64_t mismatches = 0;  // something else came than should, or less looked whole
    uint64_t cut = 0;         // failed, and the coordinator was harmed meanwhile
    uint64_t refused = 0;     // 503 not_ready before anything came, and it was seen not to be
    uint64_t failed = 0;      // failed otherwise
    std::string failure;      // the first mismatch or failure
  };

  explicit ChaosLoad(const Options& options);

  void Start();
  // Handles what came within `timeout`.
  void Poll(std::chrono::milliseconds timeout);
  // Answers that end are not begun anew.
  void Finish() { repeats_ = false; }
  bool idle() const { return pool_->num_calls() == (is_asking_ ? 1 : 0); }
  // The coordinator cannot serve: answers that began until now may fail.
  void Excuse() { excused_ = Clock::now(); }
  // Closes what is left of the connections, and judges the refusals. Once, when it is idle.
  const Totals& Close();

 private:
  struct Stream {
    std::string expected, got;
    std::string body;  // of an answer that is no stream, or of a refusal
    protocol::EventSplitter events;
    bool streams = true;
    bool is_done = false, has_finish = false;
    std::string error;
    Clock::time_point began;
    std::optional<Clock::time_point> waits;  // to begin
  };

  void Begin(size_t index);
  void AskWhetherReady();
  void CountRefusals();
  uint64_t Draw(uint64_t bound);
  void OnEvent(Stream& stream, std::string_view event);
  void OnBody(uint64_t call, int status, std::string_view bytes, Clock::time_point at) override;
  void OnEnd(uint64_t call, int status, const absl::Status& result, Clock::time_point at) override;
  void Judge(Stream& stream, int status, const absl::Status& result);
  void Note(std::string_view what, const Stream& stream, int status, const absl::Status& result);

  const Options options_;
  std::unique_ptr<protocol::HttpClientPool> pool_;
  std::vector<Stream> streams_;
  std::vector<int32_t> shared_prefix_;
  uint64_t random_;
  Clock::time_point excused_;
  Totals totals_;
  bool repeats_ = true;
  bool is_asking_ = false;  // whether the server is ready
  Clock::time_point next_question_;
  std::vector<Clock::time_point> unready_;  // when it was not
  std::vector<Clock::time_point> refused_;  // when a stream was told so
};

}  // namespace skein::tests
