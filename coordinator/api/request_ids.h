// Ids, seeds and jitter of requests, all derived from one random number of the process.
// Thread: any; const.
// Must never: repeat an id within a process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "coordinator/api/generation_params.h"

namespace skein::coordinator {

class RequestIds {
 public:
  explicit RequestIds(uint64_t seed) : seed_(seed) {}

  // "chatcmpl-", "cmpl-" or "msg_" and 32 hexadecimal digits; `number` is the request's number.
  std::string AnswerId(RequestForm form, uint64_t number) const;
  // The x-request-id of the client if it is 1 to 128 visible ASCII characters, else a new one.
  std::string HeaderId(std::string_view given, uint64_t number) const;
  // "call_" and 24 letters and digits, of the call with that index in the request's answer.
  std::string CallId(uint64_t number, size_t index) const;
  // The sampling seed of a request that brings none.
  uint64_t SamplingSeed(uint64_t number) const;
  // A number in [0, 1) that differs from request to request.
  double Spread(uint64_t number) const;

 private:
  const uint64_t seed_;
};

}  // namespace skein::coordinator
