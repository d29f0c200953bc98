#include "coordinator/step_watch.h"

#include <algorithm>

namespace skein::coordinator {

StepWatch::StepWatch(const scheduler::SchedulerLimits& limits, uint32_t num_groups,
                     CoordinatorMetrics& metrics)
    : rows_max_(limits.max_num_batched_tokens), metrics_(metrics), groups_(num_groups) {
  for (Group& group : groups_) group.steps.resize(limits.lanes);
}

void StepWatch::Planned(std::span<const protocol::StepPlan> plans, absl::Time now) {
  Step& step = groups_[plans.front().group.value()].steps[plans.front().lane];
  step.in_flight = plans.size();
  step.planned = now;
  step.tokens = 0;
  step.parts.clear();
  for (const protocol::StepPlan& plan : plans) {
    Part& part = step.parts.emplace_back();
    part.sequences = static_cast<uint32_t>(plan.sequences.size());
    for (const protocol::SequenceStep& sequence : plan.sequences) {
      part.tokens += static_cast<uint32_t>(sequence.tokens.size());
      if (sequence.tokens.size() > 1) ++part.prefills;
    }
    step.tokens = std::max(step.tokens, part.tokens);
  }
}

void StepWatch::Committed(const protocol::StepResult& result, absl::Time now) {
  Group& group = groups_[result.group.value()];
  Step& step = group.steps[result.lane];
  if (--step.in_flight == 0) group.deadline.Observe(step.tokens, now - step.planned);
  const Part& part = step.parts[result.rank.value()];
  if (part.sequences == 0) return;
  const char* phase = part.prefills == 0                ? "decode"
                      : part.prefills == part.sequences ? "prefill"
                                                        : "mixed";
  uint32_t rows = part.tokens;
  for (const protocol::VerificationSummary& summary : result.sequences) {
    rows += static_cast<uint32_t>(std::max<size_t>(summary.rows.size(), 1) - 1);
  }
  metrics_.step_tokens.At({phase}).Observe(rows);
  metrics_.step_batch_size.At({phase}).Observe(part.sequences);
  metrics_.step_duration.At({phase}).Observe(absl::ToDoubleSeconds(now - step.planned));
  // Capacity is learned from steps that are mostly prompt: large ones, or full ones of a small
  // budget.
  const uint32_t rows_min = std::min<uint32_t>(64, rows_max_);
  if (part.prefills == 0 || rows < rows_min || result.device_time_us == 0) return;
  const double rate = rows * 1e6 / static_cast<double>(result.device_time_us);
  prefill_rate_ = prefill_rate_ == 0 ? rate : 0.8 * prefill_rate_ + 0.2 * rate;
}

void StepWatch::Forget(protocol::GroupId group) {
  for (Step& step : groups_[group.value()].steps) step.in_flight = 0;
}

std::optional<absl::Duration> StepWatch::Age(protocol::GroupId group, absl::Time now) const {
  std::optional<absl::Duration> age;
  for (const Step& step : groups_[group.value()].steps) {
    if (step.in_flight == 0) continue;
    age = std::max(age.value_or(absl::ZeroDuration()), now - step.planned);
  }
  return age;
}

// With two lanes a step may wait for the other one: each has the time of both.
bool StepWatch::Overdue(protocol::GroupId group, absl::Time now) const {
  const Group& watched = groups_[group.value()];
  const auto lanes = static_cast<int64_t>(watched.steps.size());
  return std::any_of(watched.steps.begin(), watched.steps.end(), [&](const Step& step) {
    return step.in_flight > 0 && now - step.planned > lanes * watched.deadline.For(step.tokens);
  });
}

}  // namespace skein::coordinator
