#include "scheduler/step_in_flight.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace skein::scheduler {

absl::Status CheckResult(const StepInFlight& step, protocol::Epoch epoch,
                         const protocol::StepResult& result) {
  if (step.step != result.step || epoch != result.epoch) {
    return absl::InvalidArgumentError(
        absl::StrCat("result of step ", result.step.value(), " epoch ", result.epoch.value(),
                     ", in flight is step ", step.step.value(), " epoch ", epoch.value()));
  }
  if (result.sequences.size() != step.parts.size()) {
    return absl::InvalidArgumentError(absl::StrCat("result has ", result.sequences.size(),
                                                   " sequences, the plan ", step.parts.size()));
  }
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const StepInFlight::Part& part = step.parts[i];
    const size_t rows = result.sequences[i].rows.size();
    const size_t least = part.sample ? 1 : 0;
    if (result.sequences[i].sequence != part.id || rows < least || rows > least + part.depth) {
      return absl::InvalidArgumentError(
          absl::StrCat("result ", i, " is of sequence ", result.sequences[i].sequence.value(),
                       " with ", rows, " rows, the plan has sequence ", part.id.value(), " with ",
                       least, part.depth > 0 ? absl::StrCat(" to ", least + part.depth) : ""));
    }
    if (result.sequences[i].scores.size() != part.scores) {
      return absl::InvalidArgumentError(
          absl::StrCat("result ", i, " scores ", result.sequences[i].scores.size(),
                       " tokens of sequence ", part.id.value(), ", the plan wants ", part.scores));
    }
  }
  return absl::OkStatus();
}

SpeculationPolicy::StepCost CostOf(const StepInFlight& step, const protocol::StepResult& result) {
  SpeculationPolicy::StepCost cost;
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const StepInFlight::Part& part = step.parts[i];
    const size_t drafts = std::max<size_t>(result.sequences[i].rows.size(), 1) - 1;
    cost.rows += part.chunk + static_cast<uint32_t>(drafts);
    cost.num_drafted += part.depth > 0 && !part.provided ? 1 : 0;
  }
  cost.device_time_us = result.device_time_us;
  cost.draft_time_us = result.draft_time_us;
  return cost;
}

void AddMasks(const Sequence& sequence, protocol::SequenceStep& step) {
  step.masks.push_back(sequence.constraint->Mask());
  if (step.provided_drafts.empty()) return;
  const std::unique_ptr<TokenConstraint> ahead = sequence.constraint->Clone();
  for (const int32_t draft : step.provided_drafts) {
    ahead->Advance(draft);
    step.masks.push_back(ahead->Mask());
  }
}

}  // namespace skein::scheduler
