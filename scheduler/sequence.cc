#include "scheduler/sequence.h"

#include <algorithm>

namespace skein::scheduler {

std::optional<EndReason> EndOf(const Sequence& sequence, uint32_t max_model_len) {
  const uint32_t generated = sequence.num_generated();
  if (generated == 0) return std::nullopt;
  const auto& stops = sequence.stop.stop_token_ids;
  const bool stop = std::find(stops.begin(), stops.end(), sequence.tokens.back()) != stops.end();
  if (stop && generated >= static_cast<uint32_t>(std::max(sequence.stop.min_tokens, 0))) {
    return EndReason::kStopToken;
  }
  if (generated >= static_cast<uint32_t>(sequence.stop.max_tokens)) return EndReason::kLength;
  if (sequence.length() >= max_model_len) return EndReason::kLength;
  return std::nullopt;
}

}  // namespace skein::scheduler
