// Who may come in: looks at the head of each request for its key and right, and refuses addresses
// that try wrong keys again and again.
// Owns: the count of failures by address; borrows the keys.
// Thread: the listener's.
// Must never: tell what is wrong with a key, or look at a body.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/api/api_error.h"
#include "coordinator/api/api_keys.h"
#include "protocol/http/http_message.h"

namespace skein::coordinator {

// Routes that need no key: what probes ask, and the page, in which a person gives a key.
bool IsOpenRoute(std::string_view path);

// The key of a request that the gate admitted. While no keys are configured all requests have one
// that may do everything.
const ApiKey& KeyOf(const protocol::HttpRequest& request);

class KeyGate {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kAddressesMax = 4096;

  // `keys` outlive the gate; null: none are configured, everybody may come in. An address may fail
  // `failures_per_minute_max` times at once, and again as the minute goes by.
  KeyGate(ApiKeys* keys, int64_t failures_per_minute_max)
      : keys_(keys), failures_max_(static_cast<double>(failures_per_minute_max)) {}

  // Nothing: admitted, and the key is attached to the head. Else 401, the same for every wrong or
  // missing key; 403, a right is missing; 429, the address failed too often and was not heard.
  std::optional<ApiError> Admit(protocol::HttpRequest& head, int64_t unix_seconds,
                                Clock::time_point now);

  size_t num_addresses() const { return failures_.size(); }

 private:
  // Failures of an address that count still; they fade with time.
  struct Failures {
    double count = 0;
    Clock::time_point at;
  };

  double Fade(const Failures& failures, Clock::time_point now) const;
  std::optional<double> WaitOf(const std::string& address, Clock::time_point now) const;
  void CountFailure(const std::string& address, Clock::time_point now);

  ApiKeys* const keys_;
  const double failures_max_;
  std::map<std::string, Failures, std::less<>> failures_;  // by address
};

}  // namespace skein::coordinator
