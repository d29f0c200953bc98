#include "scheduler/group_step.h"

#include <cstdint>

namespace skein::scheduler {
namespace {

// The finalizer of MurmurHash3 by Austin Appleby, which is in the public domain.
uint64_t Mix(uint64_t value) {
  value ^= value >> 33;
  value *= 0xFF51AFD7ED558CCDULL;
  value ^= value >> 33;
  value *= 0xC4CEB9FE1A85EC53ULL;
  return value ^ (value >> 33);
}

}  // namespace

void SealStep(std::span<protocol::StepPlan> plans) {
  if (plans.size() < 2) return;
  const protocol::StepPlan& first = plans.front();
  uint64_t hash = 0;
  const auto add = [&hash](uint64_t value) { hash = Mix(hash + value + 1); };
  add(first.epoch.value());
  add(first.step.value());
  add(first.lane);
  for (const protocol::StepPlan& plan : plans) {
    add(plan.sequences.size());
    for (const protocol::SequenceStep& step : plan.sequences) {
      add(step.sequence.value());
      add(step.tokens.size() + step.draft_depth + step.provided_drafts.size());
    }
  }
  for (protocol::StepPlan& plan : plans) plan.plan_hash = hash;
}

}  // namespace skein::scheduler
