// How much each key may use: requests a second, prompt and output tokens a minute, sequences at a
// time. Owns: what each key has used, by id.
// Thread: the listener's. Time comes in as an argument.
// Must never: limit a key by what another one did.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "coordinator/api/api_error.h"
#include "coordinator/api/api_keys.h"

namespace skein::coordinator {

// An amount that refills at a constant rate up to a most. It may be overdrawn: what costs more
// than there can ever be, and what is known only afterwards, has to be made up for.
class RefillingAmount {
 public:
  using Clock = std::chrono::steady_clock;

  // Full at first. At a rate of 0 there is no limit.
  void SetRate(double per_second, double most, Clock::time_point now);
  // Seconds until `amount`, or all that there can be, is there; 0: it is.
  double WaitFor(double amount, Clock::time_point now) const;
  void Take(double amount, Clock::time_point now);

 private:
  double Level(Clock::time_point now) const;

  double per_second_ = 0;
  double most_ = 0;
  double level_ = 0;
  Clock::time_point at_;
};

// What a request is about to use.
struct KeyDemand {
  uint64_t prompt_tokens = 0;  // of all its sequences
  uint32_t sequences = 1;
};

class KeyLimiter {
 public:
  using Clock = std::chrono::steady_clock;

  // Counts a request of the key. 429: it sends too many a second; this one is not counted.
  std::optional<ApiError> CountRequest(const ApiKey& key, Clock::time_point now);
  // 429: the request would use more than the key may now. Changes nothing.
  std::optional<ApiError> Check(const ApiKey& key, const KeyDemand& demand, Clock::time_point now);
  // The request runs.
  void Begin(const ApiKey& key, const KeyDemand& demand, Clock::time_point now);
  // It ended, and so many tokens were generated.
  void End(const ApiKey& key, const KeyDemand& demand, uint64_t output_tokens,
           Clock::time_point now);

 private:
  struct Use {
    KeyLimits limits;  // of the amounts
    RefillingAmount requests, prompt_tokens, output_tokens;
    int64_t sequences = 0;
  };

  // What runs is counted of every key: it may get its first limit meanwhile.
  Use& UseOf(const ApiKey& key, Clock::time_point now);

  std::map<std::string, Use> uses_;  // by id
};

}  // namespace skein::coordinator
