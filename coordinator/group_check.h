// The check of a group: a fixed greedy prompt run through its own steps, whose tokens and
// log-probabilities must be the same bits before and after its worker was replaced. Owns what it
// collects. Control thread. Must never count as a client's request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/front_door.h"

namespace skein::coordinator {

struct CheckResult {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> logprob_bits;  // of each token
  friend bool operator==(const CheckResult&, const CheckResult&) = default;
};

// Where two results differ, for people; empty when they are equal.
std::string Difference(const CheckResult& expected, const CheckResult& got);

// Collects the answer to a check.
class CheckSink final : public TokenSink {
 public:
  void Deliver(TokenDelta delta) override;
  bool ended() const { return ended_; }
  // Why there is no answer.
  const absl::Status& error() const { return error_; }
  const CheckResult& result() const { return result_; }

 private:
  CheckResult result_;
  absl::Status error_;
  bool ended_ = false;
};

// The request of a check, number `n`, for models of `max_model_len` tokens.
SubmitRequest MakeCheck(uint64_t n, int64_t max_model_len, std::shared_ptr<CheckSink> sink);

}  // namespace skein::coordinator
