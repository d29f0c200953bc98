// The last requests that took long, each with where its time went: what an operator looks for when
// a client complains with an x-request-id. No text of prompts or answers, no key. Thread: any.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace skein::coordinator {

// One request, all its choices together. Durations are zero for what it did not reach.
struct FlightRecord {
  std::string request_id = {};  // as its answer's header has it
  std::string_view route = {};  // a literal
  std::string_view end = {};    // a literal: stop, length, tool_calls, abort, error, timeout
  int status = 200;             // of the answer; 499 when the client went away
  int64_t created = 0;          // when it arrived, Unix seconds
  absl::Duration total = {};    // from its arrival to its end
  absl::Duration queued = {};   // until its first step was planned
  absl::Duration prefill = {};  // from there to its first token; of the choice that had it first
  absl::Duration decode = {};   // from there to its end
  std::optional<uint32_t> engine = std::nullopt;  // that computed it last; nothing: none did
  uint32_t choices = 1;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  uint64_t steps = 0;
  uint64_t draft_tokens = 0;
  uint64_t accepted_tokens = 0;
};

class FlightLog {
 public:
  static constexpr size_t kRecordsMax = 128;

  // Keeps what took at least `threshold`; zero: everything.
  explicit FlightLog(absl::Duration threshold) : threshold_(threshold) {}

  // Keeps the record if it took long, in the place of the oldest when there are too many, and says
  // it in the log.
  void Add(FlightRecord record);

  // The records, the newest first, as JSON: {"threshold_s":..,"requests":[..]}.
  std::string Json() const;

 private:
  const absl::Duration threshold_;
  mutable std::mutex mutex_;
  std::deque<FlightRecord> records_;  // the oldest first
};

}  // namespace skein::coordinator
