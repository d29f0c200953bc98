#include "scheduler/batch_policy.h"

namespace skein::scheduler {

Sequence* ChooseVictim(std::span<Sequence* const> running, const Sequence& wanting) {
  for (size_t i = running.size(); i-- > 0;) {
    if (!ServiceOrder()(&wanting, running[i])) return nullptr;
    if (!running[i]->in_flight) return running[i];
  }
  return nullptr;
}

}  // namespace skein::scheduler
