// The requests that live in the control loop: their clients, deadlines and what they were told.
// Owns the sink of each until its last delta. Control thread. Must never wait for a client, or
// deliver anything after the last delta.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/front_door_queue.h"
#include "coordinator/metrics.h"
#include "protocol/base/ids.h"
#include "scheduler/group_scheduler.h"
#include "scheduler/quarantine.h"

namespace skein::coordinator {

// A request is one sequence: the ids are the same number. Those of checks, which no client sent,
// are from kFirstCheck on.
inline constexpr uint64_t kFirstCheck = uint64_t{1} << 63;
inline protocol::SequenceId SequenceOf(protocol::RequestId id) {
  return protocol::SequenceId(id.value());
}
inline protocol::RequestId RequestOf(protocol::SequenceId id) {
  return protocol::RequestId(id.value());
}

class RequestTable {
 public:
  // Both outlive the table.
  RequestTable(FrontDoorQueue& door, CoordinatorMetrics& metrics)
      : door_(door), metrics_(metrics) {}

  // Takes the request's sink. False, and the request is dropped, when its id is in use.
  bool Open(SubmitRequest& request, absl::Time now);
  bool Contains(protocol::RequestId id) const { return requests_.contains(id); }
  // Its end is wanted; when the step it takes part in ended, `reason` is what it is told.
  void Doom(protocol::RequestId id, const absl::Status& reason);
  // Ends a request with an error. Unknown ids are ignored.
  void Fail(protocol::RequestId id, const absl::Status& error);
  // Counts a client that left, by how far its request was.
  void CountLeft(protocol::RequestId id);
  // The last delta of a request that no token ended.
  void DeliverEnd(const scheduler::SequenceDelta& delta);
  // What a step of `engine` did to a request, with the tokens it added and the prompt tokens that
  // it scored.
  void Deliver(uint32_t engine, const scheduler::SequenceDelta& delta,
               std::span<scheduler::CommittedToken> tokens, std::span<protocol::TokenScore> scores,
               absl::Time now);
  // Its first step was planned; `cached` tokens of its prompt are not computed.
  void Begin(protocol::RequestId id, uint32_t number, uint32_t cached, absl::Time now);
  void Prefetch(protocol::RequestId id) { requests_.prefetch(id); }

  // In the order of their ids: the map has none.
  std::vector<protocol::RequestId> Sorted() const;
  // Takes out those whose deadline has passed, the earliest first; each is given once.
  std::vector<protocol::RequestId> TakeExpired();
  size_t size() const { return requests_.size(); }
  // Requests of clients that ended, and those of them that the server failed.
  uint64_t num_ended() const { return num_ended_; }
  uint64_t num_failed() const { return num_failed_; }
  // Prompts that are refused, as the front door sees them.
  size_t num_quarantined() const { return quarantine_.size(); }

 private:
  struct Request {
    std::shared_ptr<TokenSink> sink;
    uint64_t prompt_tokens = 0;
    std::string flow;
    uint64_t generated = 0;
    bool waiting = true;  // counted by the front door
    std::optional<std::chrono::steady_clock::time_point> deadline;
    absl::Time arrived, began, first_token, last_token;  // began: its first step was planned
    std::optional<uint32_t> engine;                      // that computed it last
    scheduler::PromptHash prompt;
  };

  void Finish(protocol::RequestId id, TokenDelta delta);
  // Where its time went, for its flight record.
  static void AddTimes(const Request& request, TokenDelta& to);
  void StopWaiting(Request& request);
  void Condemn(const Request& request);
  void Measure(Request& request, uint32_t number, const scheduler::SequenceDelta& delta,
               absl::Time now);

  FrontDoorQueue& door_;
  CoordinatorMetrics& metrics_;
  absl::flat_hash_map<protocol::RequestId, Request> requests_;
  // Of those that have a deadline and did not reach it.
  std::set<std::pair<std::chrono::steady_clock::time_point, protocol::RequestId>> deadlines_;
  absl::flat_hash_map<protocol::RequestId, absl::Status> doomed_;
  scheduler::Quarantine quarantine_;
  uint64_t num_ended_ = 0;
  uint64_t num_failed_ = 0;
};

}  // namespace skein::coordinator
