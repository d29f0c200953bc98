#include "scheduler/batch_policy.h"

namespace skein::scheduler {

Sequence* ChooseVictim(std::span<Sequence* const> running, const Sequence& wanting) {
  Sequence* victim = nullptr;
  for (Sequence* candidate : running) {
    if (candidate->in_flight || candidate == &wanting) continue;
    if (!ServiceOrder()(&wanting, candidate)) continue;
    if (victim == nullptr || ServiceOrder()(victim, candidate)) victim = candidate;
  }
  return victim;
}

}  // namespace skein::scheduler
