#include "scheduler/batch_policy.h"

namespace skein::scheduler {

Sequence* ChooseVictim(std::span<Sequence* const> running, const Sequence& wanting) {
  for (size_t i = running.size(); i-- > 0;) {
    if (!ServiceOrder()(&wanting, running[i])) return nullptr;
    if (!running[i]->in_flight) return running[i];
  }
  return nullptr;
}

uint32_t DraftsMax(const Sequence& sequence, uint32_t max_model_len) {
  if (!sequence.speculation.enabled || sequence.alone()) return 0;
  const uint32_t length = sequence.length();
  const auto limit = static_cast<uint32_t>(sequence.stop.max_tokens);
  // The step appends at least one token, so one less than is left may be drafts.
  const uint32_t left = std::min(limit - sequence.num_generated(), max_model_len - length);
  return std::min(sequence.speculation.max_draft_tokens, left - 1);
}

}  // namespace skein::scheduler
