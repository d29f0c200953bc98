// Which engine, that is which rank of which worker group, takes a sequence: the one that would have
// the least to compute with it, of those that can start it. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "scheduler/sequence.h"

namespace skein::scheduler {

// Generated tokens that count as work of a sequence: what lies beyond is too far to plan for, and
// limits are often given far above what is generated.
inline constexpr uint32_t kDecodeHorizon = 256;

// Tokens that an engine has still to compute for a sequence: its prompt (or replay) as far as it
// was not computed, and what it may generate within the horizon.
uint64_t OutstandingTokens(const Sequence& sequence);

struct EngineLoad {
  bool can_take = false;  // an epoch runs, a slot and the blocks of the first chunk are free
  uint64_t outstanding_tokens = 0;  // of its running sequences and those just assigned to it
  uint64_t capacity_tokens = 0;     // that its cache holds
  // That the sequence would add: those of OutstandingTokens without what the engine has cached.
  uint64_t own_tokens = 0;
  // Sequences with marks in its group, when one more of them is to be placed; else 0.
  uint32_t marked = 0;
};

// The index of the engine with the fewest marked sequences among those that can take one more; of
// these the one with the least tokens to compute, outstanding ones and those of the sequence,
// relative to its capacity; of equals the lowest. Nothing when none can.
std::optional<uint32_t> ChooseEngine(std::span<const EngineLoad> engines);

}  // namespace skein::scheduler
