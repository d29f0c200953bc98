// Thread: the listener's.
// Must never: read a clock.
#include "coordinator/api/key_limits.h"

#include <algorithm>

#include "protocol/base/strings.h"

namespace skein::coordinator {

using protocol::Concat;

namespace {

constexpr double kMinute = 60;  // seconds
// Nobody knows when a sequence ends.
constexpr double kConcurrencyWait = 1;

ApiError Exceeded(const ApiKey& key, const std::string& limit, double wait_s) {
  return RateLimitExceeded(Concat("the API key ", key.id, " may have ", limit, "; retry later"),
                           wait_s);
}

}  // namespace

void RefillingAmount::SetRate(double per_second, double most, Clock::time_point now) {
  const bool is_new = per_second_ == 0;
  level_ = is_new ? most : std::min(Level(now), most);
  at_ = now;
  per_second_ = per_second;
  most_ = most;
}

double RefillingAmount::Level(Clock::time_point now) const {
  return std::min(most_, level_ + std::chrono::duration<double>(now - at_).count() * per_second_);
}

double RefillingAmount::WaitFor(double amount, Clock::time_point now) const {
  if (per_second_ == 0) return 0;
  return std::max(0.0, (std::min(amount, most_) - Level(now)) / per_second_);
}

void RefillingAmount::Take(double amount, Clock::time_point now) {
  level_ = Level(now) - amount;
  at_ = now;
}

KeyLimiter::Use& KeyLimiter::UseOf(const ApiKey& key, Clock::time_point now) {
  Use& use = uses_[key.id];
  if (use.limits == key.limits) return use;
  use.limits = key.limits;
  const KeyLimits& limits = key.limits;
  use.requests.SetRate(limits.requests_per_second, std::max(1.0, limits.requests_per_second), now);
  const auto prompt = static_cast<double>(limits.prompt_tokens_per_minute);
  const auto output = static_cast<double>(limits.output_tokens_per_minute);
  use.prompt_tokens.SetRate(prompt / kMinute, prompt, now);
  use.output_tokens.SetRate(output / kMinute, output, now);
  return use;
}

std::optional<ApiError> KeyLimiter::CountRequest(const ApiKey& key, Clock::time_point now) {
  Use& use = UseOf(key, now);
  if (const double wait = use.requests.WaitFor(1, now); wait > 0) {
    return Exceeded(key, Concat(key.limits.requests_per_second, " requests a second"), wait);
  }
  use.requests.Take(1, now);
  return std::nullopt;
}

std::optional<ApiError> KeyLimiter::Check(const ApiKey& key, const KeyDemand& demand,
                                          Clock::time_point now) {
  Use& use = UseOf(key, now);
  const int64_t most = key.limits.concurrency;
  if (most > 0 && use.sequences + demand.sequences > most) {
    // Each choice is a sequence: a request of more than there may be never gets in.
    ApiError error = Exceeded(key, Concat(most, " sequences at a time"), kConcurrencyWait);
    if (demand.sequences > most) error.is_final = true;
    return error;
  }
  // What an answer takes is known when it ended: more begins when that is made up for.
  if (const double wait = use.output_tokens.WaitFor(1, now); wait > 0) {
    return Exceeded(key, Concat(key.limits.output_tokens_per_minute, " generated tokens a minute"),
                    wait);
  }
  const auto prompt = static_cast<double>(demand.prompt_tokens);
  if (const double wait = use.prompt_tokens.WaitFor(prompt, now); wait > 0) {
    return Exceeded(key, Concat(key.limits.prompt_tokens_per_minute, " prompt tokens a minute"),
                    wait);
  }
  return std::nullopt;
}

void KeyLimiter::Begin(const ApiKey& key, const KeyDemand& demand, Clock::time_point now) {
  Use& use = UseOf(key, now);
  use.prompt_tokens.Take(static_cast<double>(demand.prompt_tokens), now);
  use.sequences += demand.sequences;
}

void KeyLimiter::End(const ApiKey& key, const KeyDemand& demand, uint64_t output_tokens,
                     Clock::time_point now) {
  Use& use = uses_[key.id];  // its limits may be others by now
  use.output_tokens.Take(static_cast<double>(output_tokens), now);
  use.sequences -= demand.sequences;
}

}  // namespace skein::coordinator
