// Strong integer ids and counters of the cluster: one type per meaning, no implicit conversion.
// Value types without state of their own; any thread may use them.
// Must never gain arithmetic beyond Next(): an id is a name, not a number to compute with.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <utility>

namespace skein::protocol {

// An integer that only compares, hashes and prints. `Tag` names the meaning and makes the type.
template <typename Tag, typename Value>
class StrongId {
 public:
  using value_type = Value;

  constexpr StrongId() = default;
  explicit constexpr StrongId(Value value) : value_(value) {}

  constexpr Value value() const { return value_; }

  // The id after this one. The caller owns the question of wrapping (64-bit counters do not wrap).
  constexpr StrongId Next() const { return StrongId(static_cast<Value>(value_ + 1)); }

  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;

  // For absl hash containers.
  template <typename H>
  friend H AbslHashValue(H state, const StrongId& id) {
    return H::combine(std::move(state), id.value_);
  }

  friend std::ostream& operator<<(std::ostream& out, const StrongId& id) {
    return out << +id.value_;
  }

 private:
  Value value_ = 0;
};

using RequestId = StrongId<struct RequestIdTag, uint64_t>;    // made by the coordinator per request
using SequenceId = StrongId<struct SequenceIdTag, uint64_t>;  // one generation of a request
using StepId = StrongId<struct StepIdTag, uint64_t>;          // steps of a group, strictly in order
using BlockId = StrongId<struct BlockIdTag, uint32_t>;        // indexes every cache pool of a rank
using SlotId = StrongId<struct SlotIdTag, uint32_t>;          // per-sequence state of a rank
using GroupId = StrongId<struct GroupIdTag, uint32_t>;        // worker group, unit of lockstep
using RankId = StrongId<struct RankIdTag, uint32_t>;          // position of a worker in its group
using NodeId = StrongId<struct NodeIdTag, uint32_t>;          // process address of an actor

// Counters, each strictly increasing; receivers drop what is older than the newest they saw.
using Term = StrongId<struct TermTag, uint64_t>;                // coordinator process
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;  // worker process
using Epoch = StrongId<struct EpochTag, uint64_t>;              // worker group = communicator
using Attempt = StrongId<struct AttemptTag, uint64_t>;          // assignment of a request

// Attempt number `n` under `term`: the term is part of it, so it never repeats after a restart of
// the coordinator. Terms beyond 2^32 do not occur (one per start of a process).
constexpr Attempt MakeAttempt(Term term, uint32_t n) { return Attempt((term.value() << 32) | n); }

}  // namespace skein::protocol

template <typename Tag, typename Value>
struct std::hash<skein::protocol::StrongId<Tag, Value>> {
  size_t operator()(const skein::protocol::StrongId<Tag, Value>& id) const noexcept {
    return std::hash<Value>()(id.value());
  }
};
