// The waiting line of all groups: bounded in requests and tokens, served by weighted fair queueing
// over flows (the keys of clients), in tokens; within a flow by rank: priority, of which waiting
// gains a level every ten seconds, then arrival.
// Pure. Holds pointers to sequences that ClusterScheduler owns and outlives it with.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/sequence.h"

namespace skein::scheduler {

struct AdmissionLimits {
  uint32_t queued_requests_max = 0;
  uint64_t queued_tokens_max = 0;
};

// Whose sequences share a part of the service. Its tag is its virtual time: tokens that were
// computed for it, divided by its weight. The flow with the lowest tag is served next.
struct Flow {
  std::string name;
  uint32_t weight = 1;
  uint64_t tag = 0;        // where its next new sequence starts
  uint64_t unsettled = 0;  // tokens that are not in the tag yet
  uint64_t key = 0;        // by which it stands in the order of flows
  uint32_t members = 0;    // sequences that wait or run
  uint32_t num_new = 0;    // of those that wait, how many never ran
  std::set<Sequence*, ServiceOrder> queue;
};

class Admission {
 public:
  explicit Admission(const AdmissionLimits& limits) : limits_(limits) {}

  // OK, or ResourceExhausted naming the bound that a prompt of `prompt_tokens` would break.
  absl::Status Check(uint64_t prompt_tokens) const;

  // The sequence belongs to the flow of this name, from now on of this weight, until it leaves.
  // Without a flow it belongs to the one without a name, of weight 1.
  void Join(Sequence* sequence, std::string_view flow, uint32_t weight);
  void Leave(Sequence* sequence);

  // Appends without a check: sequences that were admitted before and return keep their place.
  void Push(Sequence* sequence);
  // It waits no more and does not run.
  void Remove(Sequence* sequence);
  // It runs: its flow is charged with `tokens` to compute, the first time.
  void Start(Sequence* sequence, uint64_t tokens);
  // Tokens were generated for it.
  void Charge(const Sequence& sequence, uint64_t tokens);

  // Those that wait, in order of service, as if each were started when it is given out. Nothing may
  // change meanwhile. One walk at a time.
  void BeginWalk();
  Sequence* Next();
  // The first of them, or null.
  Sequence* Front() {
    BeginWalk();
    return Next();
  }

  uint32_t num_queued() const { return num_queued_; }
  uint64_t num_tokens() const { return tokens_; }
  bool Contains(const Sequence* sequence) const;
  // OK, or what of the flows does not agree with their sequences.
  absl::Status CheckFlows() const;
  size_t num_flows() const { return flows_.size(); }

 private:
  struct FlowOrder {
    bool operator()(const Flow* a, const Flow* b) const {
      return a->key != b->key ? a->key < b->key : a->name < b->name;
    }
  };
  using Order = std::set<Flow*, FlowOrder>;
  // Where a walk stands in a flow of which it gave out sequences.
  struct Cursor {
    uint64_t key = 0;
    uint64_t tag = 0;
    const Flow* flow = nullptr;
    std::set<Sequence*, ServiceOrder>::const_iterator next;
  };

  void Take(Sequence* sequence);
  void Settle();
  void CatchUp(Flow& flow);
  void Reorder(Flow& flow);
  void ForgetIdleFlows();
  static bool Later(const Cursor& a, const Cursor& b);

  const AdmissionLimits limits_;
  std::map<std::string, std::unique_ptr<Flow>, std::less<>> flows_;
  Order order_;                   // flows with sequences that wait
  std::vector<Flow*> unsettled_;  // flows with unsettled tokens
  uint64_t virtual_time_ = 0;     // of the newest start of a new sequence
  uint64_t last_tag_ = 0;         // the highest tag there was
  uint32_t num_queued_ = 0;
  uint32_t num_new_ = 0;
  uint64_t tokens_ = 0;
  // Of the walk; kept for their memory.
  Order::const_iterator walk_;
  std::vector<Cursor> cursors_;  // a heap, the earliest first
};

}  // namespace skein::scheduler
