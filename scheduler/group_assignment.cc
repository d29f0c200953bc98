#include "scheduler/group_assignment.h"

#include <algorithm>

namespace skein::scheduler {

uint64_t OutstandingTokens(const Sequence& sequence) {
  const auto limit = static_cast<uint32_t>(std::max(sequence.stop.max_tokens, 0));
  const uint32_t generated = std::min(sequence.num_generated(), limit);
  return uint64_t{sequence.length() - sequence.computed} +
         std::min(limit - generated, kDecodeHorizon);
}

std::optional<uint32_t> ChooseEngine(std::span<const EngineLoad> engines) {
  std::optional<uint32_t> best;
  double least = 0;
  for (uint32_t i = 0; i < engines.size(); ++i) {
    const EngineLoad& engine = engines[i];
    if (!engine.can_take || engine.capacity_tokens == 0) continue;
    const double load = static_cast<double>(engine.outstanding_tokens + engine.own_tokens) /
                        static_cast<double>(engine.capacity_tokens);
    if (!best || engine.marked < engines[*best].marked ||
        (engine.marked == engines[*best].marked && load < least)) {
      best = i;
      least = load;
    }
  }
  return best;
}

}  // namespace skein::scheduler
