#include "scheduler/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::scheduler {

namespace {

// Of a token at weight 1 in the tags of flows, so that shares of heavy flows do not round to
// nothing.
constexpr uint64_t kTagsPerToken = 1 << 16;

uint64_t CostOf(uint64_t tokens, uint32_t weight) { return tokens * kTagsPerToken / weight; }

// Who ran before has paid and keeps its place; the others start where their flow is.
uint64_t KeyOf(const Sequence& sequence, uint64_t tag) {
  return sequence.has_run ? sequence.start_tag : tag;
}

}  // namespace

absl::Status Admission::Check(uint64_t prompt_tokens) const {
  if (num_queued_ >= limits_.queued_requests_max) {
    return absl::ResourceExhaustedError(absl::StrCat("queue_requests: ", num_queued_,
                                                     " requests wait, at most ",
                                                     limits_.queued_requests_max, " may"));
  }
  // An empty line takes any request that can run at all.
  if (num_queued_ > 0 && tokens_ + prompt_tokens > limits_.queued_tokens_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("queue_tokens: ", tokens_, " prompt tokens wait, ", prompt_tokens,
                     " more exceed the limit of ", limits_.queued_tokens_max));
  }
  return absl::OkStatus();
}

void Admission::Join(Sequence* sequence, std::string_view flow, uint32_t weight) {
  auto found = flows_.find(flow);
  if (found == flows_.end()) {
    ForgetIdleFlows();
    found = flows_.emplace(std::string(flow), std::make_unique<Flow>()).first;
    found->second->name = flow;
  }
  Settle();  // what was served was served at the old weight
  found->second->weight = std::max(weight, 1u);
  ++found->second->members;
  sequence->flow = found->second.get();
}

void Admission::Leave(Sequence* sequence) { --std::exchange(sequence->flow, nullptr)->members; }

// A flow that nobody needs is dropped once its tag says no more than that of a new one.
void Admission::ForgetIdleFlows() {
  Settle();
  std::erase_if(flows_, [this](const auto& entry) {
    return entry.second->members == 0 && entry.second->tag <= virtual_time_;
  });
}

// Brings the tags up to date. Charging is done per step and sequence, so it only counts.
void Admission::Settle() {
  for (Flow* flow : unsettled_) {
    flow->tag += CostOf(std::exchange(flow->unsettled, 0), flow->weight);
    last_tag_ = std::max(last_tag_, flow->tag);
    if (!flow->queue.empty()) Reorder(*flow);
  }
  unsettled_.clear();
}

// A flow begins to wait. It has no claim to what it did not ask for before: it starts where those
// that wait are. When nobody waits there is no contention, and nothing to make up for.
void Admission::CatchUp(Flow& flow) {
  Settle();
  uint64_t base = virtual_time_;
  if (num_new_ == 0) {
    base = last_tag_;
  } else if (!order_.empty() && !(*(*order_.begin())->queue.begin())->has_run) {
    base = std::max(base, (*order_.begin())->key);
  }
  virtual_time_ = std::max(virtual_time_, base);
  flow.tag = std::max(flow.tag, base);
  last_tag_ = std::max(last_tag_, flow.tag);
}

// The flow's first sequence, or its tag, is another one.
void Admission::Reorder(Flow& flow) {
  order_.erase(&flow);
  if (flow.queue.empty()) return;
  flow.key = KeyOf(**flow.queue.begin(), flow.tag);
  order_.insert(&flow);
}

void Admission::Push(Sequence* sequence) {
  if (sequence->flow == nullptr) Join(sequence, "", 1);
  Flow& flow = *sequence->flow;
  if (!sequence->has_run) {
    if (flow.num_new == 0) CatchUp(flow);
    ++flow.num_new;
    ++num_new_;
  }
  order_.erase(&flow);
  SKEIN_CHECK(flow.queue.insert(sequence).second)
      << "scheduler invariant 4: sequence " << sequence->id << " is queued twice";
  ++num_queued_;
  tokens_ += sequence->length();
  Reorder(flow);
}

void Admission::Take(Sequence* sequence) {
  Flow* flow = sequence->flow;
  if (flow != nullptr) order_.erase(flow);
  SKEIN_CHECK(flow != nullptr && flow->queue.erase(sequence) == 1)
      << "scheduler invariant 4: sequence " << sequence->id << " is not queued";
  --num_queued_;
  tokens_ -= sequence->length();
  if (!sequence->has_run) {
    --flow->num_new;
    --num_new_;
  }
}

void Admission::Remove(Sequence* sequence) {
  Take(sequence);
  Reorder(*sequence->flow);
}

void Admission::Start(Sequence* sequence, uint64_t tokens) {
  Settle();
  Take(sequence);
  Flow& flow = *sequence->flow;
  if (!std::exchange(sequence->has_run, true)) {
    sequence->start_tag = flow.tag;
    virtual_time_ = std::max(virtual_time_, flow.tag);
    flow.tag += CostOf(tokens, flow.weight);
    last_tag_ = std::max(last_tag_, flow.tag);
  }
  Reorder(flow);
}

void Admission::Charge(const Sequence& sequence, uint64_t tokens) {
  if (tokens == 0) return;
  if (sequence.flow->unsettled == 0) unsettled_.push_back(sequence.flow);
  sequence.flow->unsettled += tokens;
}

bool Admission::Later(const Cursor& a, const Cursor& b) {
  return a.key != b.key ? a.key > b.key : a.flow->name > b.flow->name;
}

void Admission::BeginWalk() {
  Settle();
  walk_ = order_.begin();
  cursors_.clear();
}

Sequence* Admission::Next() {
  Cursor at;
  const bool fresh = walk_ != order_.end();
  if (fresh) at = {(*walk_)->key, (*walk_)->tag, *walk_, (*walk_)->queue.begin()};
  if (fresh && (cursors_.empty() || Later(cursors_.front(), at))) {
    ++walk_;
  } else if (!cursors_.empty()) {
    std::pop_heap(cursors_.begin(), cursors_.end(), &Later);
    at = cursors_.back();
    cursors_.pop_back();
  } else {
    return nullptr;
  }
  Sequence* const sequence = *at.next;
  if (!sequence->has_run) at.tag += CostOf(sequence->length(), at.flow->weight);
  if (++at.next != at.flow->queue.end()) {
    at.key = KeyOf(**at.next, at.tag);
    cursors_.push_back(at);
    std::push_heap(cursors_.begin(), cursors_.end(), &Later);
  }
  return sequence;
}

bool Admission::Contains(const Sequence* sequence) const {
  return sequence->flow != nullptr &&
         sequence->flow->queue.contains(const_cast<Sequence*>(sequence));
}

absl::Status Admission::CheckFlows() const {
  uint32_t queued = 0;
  uint32_t fresh = 0;
  uint64_t tokens = 0;
  for (const auto& [name, flow] : flows_) {
    uint32_t fresh_here = 0;
    for (const Sequence* sequence : flow->queue) {
      fresh_here += sequence->has_run ? 0 : 1;
      tokens += sequence->length();
    }
    queued += static_cast<uint32_t>(flow->queue.size());
    fresh += fresh_here;
    const bool listed = order_.contains(flow.get());
    const bool current =
        flow->queue.empty() || flow->key == KeyOf(**flow->queue.begin(), flow->tag);
    if (fresh_here != flow->num_new || listed == flow->queue.empty() || !current ||
        flow->members < flow->queue.size()) {
      return absl::InternalError(
          absl::StrCat("flow \"", name, "\" has ", flow->queue.size(), " of ", flow->members,
                       " sequences in its line, ", fresh_here, " new ones, counts ", flow->num_new,
                       listed ? " and is" : " and is not", " in the order of flows"));
    }
  }
  if (queued != num_queued_ || fresh != num_new_ || tokens != tokens_) {
    return absl::InternalError(absl::StrCat("flows have ", queued, " sequences, ", fresh,
                                            " of them new, with ", tokens, " tokens; counted are ",
                                            num_queued_, ", ", num_new_, ", ", tokens_));
  }
  return absl::OkStatus();
}

}  // namespace skein::scheduler
