// A step between its plan and its result: what was planned, what the result must answer, and what
// constraints add to a sequence's share. Plain values and pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "protocol/base/ids.h"
#include "protocol/messages/step.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/sequence.h"
#include "scheduler/speculation_policy.h"

namespace skein::scheduler {

// A step that was planned and not yet committed. Its sequences are neither freed nor preempted.
struct StepInFlight {
  struct Part {
    Sequence* sequence = nullptr;
    protocol::SequenceId id;
    bool sample = false;
    uint32_t chunk = 0;     // rows without drafts
    uint32_t depth = 0;     // drafts at most
    uint32_t scores = 0;    // prompt tokens that are scored
    bool provided = false;  // by a constraint, not by the head
    // A checkpoint that the step writes, and the block of the cache at whose end it is.
    std::optional<protocol::SlotId> saved = std::nullopt;
    CacheNode node = kNoNode;
    // The block whose checkpoint the step begins with.
    CacheNode restored = kNoNode;
  };
  protocol::StepId step;
  bool open = false;        // planned and not committed
  std::vector<Part> parts;  // in plan order; none when only other ranks of the group have some
};

// Drafts that a plan being made wants for a sequence: so many of the head's, or these.
struct DraftWish {
  uint32_t depth = 0;
  std::span<const int32_t> provided = {};

  uint32_t size() const { return depth + static_cast<uint32_t>(provided.size()); }
  void Limit(uint32_t most) {
    depth = std::min(depth, most);
    provided = provided.first(std::min<size_t>(provided.size(), most));
  }
};

// OK, or InvalidArgument: the result does not answer the step.
absl::Status CheckResult(const StepInFlight& step, protocol::Epoch epoch,
                         const protocol::StepResult& result);

// What the step cost, for the policy. Provided drafts are rows that nobody drafted.
SpeculationPolicy::StepCost CostOf(const StepInFlight& step, const protocol::StepResult& result);

// Masks of the rows of a bound sequence: of the one behind its tokens and those of the step's
// provided drafts.
void AddMasks(const Sequence& sequence, protocol::SequenceStep& step);

}  // namespace skein::scheduler
