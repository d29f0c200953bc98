// The waiting line of all groups: bounded in requests and tokens, served by priority and arrival.
// Pure. Holds pointers to sequences that ClusterScheduler owns and outlives it with.
#pragma once

#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "scheduler/sequence.h"

namespace skein::scheduler {

struct AdmissionLimits {
  uint32_t queued_requests_max = 0;
  uint64_t queued_tokens_max = 0;
};

class Admission {
 public:
  explicit Admission(const AdmissionLimits& limits) : limits_(limits) {}

  // OK, or ResourceExhausted naming the bound that a prompt of `prompt_tokens` would break.
  absl::Status Check(uint64_t prompt_tokens) const;
  // Appends without a check: sequences that were admitted before and return keep their place.
  void Push(Sequence* sequence);
  void Remove(Sequence* sequence);
  // The next to serve, or null.
  Sequence* Front() const { return queue_.empty() ? nullptr : *queue_.begin(); }
  // In order of service.
  const std::set<Sequence*, ServiceOrder>& queue() const { return queue_; }

  uint32_t num_queued() const { return static_cast<uint32_t>(queue_.size()); }
  uint64_t num_tokens() const { return tokens_; }
  bool Contains(const Sequence* sequence) const {
    return queue_.contains(const_cast<Sequence*>(sequence));
  }

 private:
  const AdmissionLimits limits_;
  std::set<Sequence*, ServiceOrder> queue_;
  uint64_t tokens_ = 0;
};

}  // namespace skein::scheduler
