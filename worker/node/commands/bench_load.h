// Runs the requests of a workload against a target and keeps what happened to each. The target
// owns time, so that tests drive it with a clock of their own.
// Owns: one record per request, one reader per request in progress.
// Main thread, no other. Must never let a slow answer delay an arrival that was due.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "protocol/http/event_splitter.h"
#include "worker/node/commands/bench_workload.h"

namespace skein::worker {

// What happened to one request. Times are seconds after the begin of the run.
struct BenchRecord {
  double scheduled_s = 0;  // latencies count from here
  double sent_s = 0;
  double first_s = -1;         // first event with text; -1: none
  double last_s = -1;          // last event with text
  double end_s = 0;            // the answer was whole, or failed
  std::vector<double> gaps_s;  // between events with text
  int64_t input_tokens = 0;    // of usage
  int64_t output_tokens = 0;
  int64_t steps = 0;  // of usage.skein; 0: not said
  int64_t draft_tokens = 0;
  int64_t accepted_draft_tokens = 0;
  std::string error;  // empty: the answer is whole. Else its kind: "http_503 not_ready", "cut", ...
  std::string message;  // what the server or the connection said

  bool ok() const { return error.empty(); }
};

// Where requests go, and whose clock counts.
class BenchTarget {
 public:
  class Receiver {
   public:
    virtual ~Receiver() = default;
    virtual void OnBody(uint64_t request, int status, std::string_view bytes, double at_s) = 0;
    virtual void OnEnd(uint64_t request, int status, const absl::Status& result, double at_s) = 0;
  };
  virtual ~BenchTarget() = default;
  virtual double NowSeconds() = 0;
  virtual void Start(uint64_t request, const std::string& body) = 0;
  // Waits until something came or the clock says `until_s`; tells the receiver.
  virtual void Poll(double until_s, Receiver& receiver) = 0;
};

class BenchLoad final : private BenchTarget::Receiver {
 public:
  // All outlive the load. `concurrency_max` 0: no bound. `stop`: set by any thread, or null.
  BenchLoad(const BenchWorkload& workload, int64_t concurrency_max, BenchTarget& target,
            const std::atomic<bool>* stop = nullptr);

  // To the end of the last request, or until it is stopped: then without the requests that had not
  // ended. Records in the order of the workload.
  std::vector<BenchRecord> Run();

 private:
  struct Progress {
    protocol::EventSplitter events;
    std::string refusal;  // body of an answer that is no stream
    bool is_done = false;
  };

  bool HasRoom() const;
  bool IsStopped() const { return stop_ != nullptr && *stop_; }
  std::vector<BenchRecord> Ended() const;
  void StartDue();
  void OnBody(uint64_t request, int status, std::string_view bytes, double at_s) override;
  void OnEnd(uint64_t request, int status, const absl::Status& result, double at_s) override;

  const BenchWorkload& workload_;
  const int64_t concurrency_max_;
  BenchTarget& target_;
  const std::atomic<bool>* const stop_;
  std::vector<BenchRecord> records_;
  std::map<uint64_t, Progress> in_progress_;
  size_t next_ = 0;
};

}  // namespace skein::worker
