#include "tests/sim/sim_step_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace skein::tests {
namespace {

constexpr size_t kPlansMax = 16;  // as StepExecutor
// The watchdog's grace after the deadline of a step.
constexpr absl::Duration kGrace = absl::Seconds(2);
constexpr int64_t kSlow = 20;

uint32_t RowsOf(const protocol::StepPlan& plan) {
  size_t rows = 0;
  for (const protocol::SequenceStep& step : plan.sequences) rows += step.tokens.size();
  return static_cast<uint32_t>(rows);
}

}  // namespace

SimStepRunner::SimStepRunner(SimSystem& system, const DeviceOptions& options, bool wrong_model,
                             DeviceEvents events, protocol::Waker& actor)
    : system_(system),
      options_(options),
      wrong_model_(wrong_model),
      events_(std::move(events)),
      actor_(actor) {
  memory_.Restart(options_.geometry);
  memory_.SetWrongDrafts(options_.wrong_drafts_one_in);
  deadline_.Observe(1, options_.step_max);
}

void SimStepRunner::After(absl::Duration delay, void (SimStepRunner::*what)()) {
  system_.After(delay, [this, what, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) (this->*what)();
  });
}

absl::Status SimStepRunner::Submit(protocol::StepPlan plan) {
  if (plan.epoch <= finished_ || plan.epoch < newest_) {
    events_.on_violation(
        4, absl::StrCat("a plan of epoch ", plan.epoch.value(), " is run after its end"));
  }
  if (plan.epoch == newest_ && plan.step <= last_step_) {
    events_.on_violation(
        4, absl::StrCat("step ", plan.step.value(), " is run after step ", last_step_.value()));
  }
  newest_ = plan.epoch;
  last_step_ = plan.step;
  if (unanswered_ >= kPlansMax) {
    return absl::ResourceExhaustedError(absl::StrCat(unanswered_, " plans wait"));
  }
  ++unanswered_;
  jobs_.emplace_back(std::move(plan));
  if (!began_) Next();
  return absl::OkStatus();
}

absl::Status SimStepRunner::Reset() {
  finished_ = newest_;
  jobs_.emplace_back(std::nullopt);
  if (!began_) Next();
  return absl::OkStatus();
}

absl::Duration SimStepRunner::RunningFor() const {
  return began_ ? system_.Now() - *began_ : absl::ZeroDuration();
}

std::vector<protocol::StepResult> SimStepRunner::TakeResults() {
  unanswered_ -= results_.size();
  return std::exchange(results_, {});
}

void SimStepRunner::Next() {
  while (!jobs_.empty() && !jobs_.front()) {
    memory_.Restart(options_.geometry);
    jobs_.pop_front();
  }
  if (jobs_.empty()) return;
  began_ = system_.Now();
  SimRandom& random = system_.random();
  if (random.OneIn(options_.hang_one_in)) {
    return After(deadline_.For(RowsOf(*jobs_.front())) + kGrace, &SimStepRunner::Stuck);
  }
  absl::Duration took = random.Between(options_.step_min, options_.step_max);
  if (random.OneIn(options_.slow_one_in)) took *= kSlow;
  After(took, &SimStepRunner::Finish);
}

void SimStepRunner::Stuck() { events_.on_death("a step ran past its deadline"); }

bool SimStepRunner::Has(const protocol::StepPlan& plan, int32_t token) const {
  return std::any_of(
      plan.sequences.begin(), plan.sequences.end(), [token](const protocol::SequenceStep& step) {
        return std::find(step.tokens.begin(), step.tokens.end(), token) != step.tokens.end();
      });
}

void SimStepRunner::Finish() {
  const protocol::StepPlan plan = *std::move(jobs_.front());
  jobs_.pop_front();
  // Last, since it drops this object.
  if (Has(plan, kPoisonToken) || system_.random().OneIn(options_.death_one_in)) {
    return events_.on_death("a step ended the process");
  }
  deadline_.Observe(RowsOf(plan), system_.Now() - *began_);
  results_.push_back(Run(plan));
  began_.reset();
  actor_.Wake();
  Next();
}

protocol::StepResult SimStepRunner::Run(const protocol::StepPlan& plan) {
  if (Has(plan, kFailingToken) || system_.random().OneIn(options_.fail_one_in)) {
    protocol::StepResult failed;
    failed.group = plan.group;
    failed.rank = plan.rank;
    failed.epoch = plan.epoch;
    failed.step = plan.step;
    failed.lane = plan.lane;
    failed.status = protocol::StepStatus::kFailed;
    failed.message = "planned";
    return failed;
  }
  protocol::StepResult result = memory_.Run(plan);
  if (!memory_.defect().empty()) events_.on_violation(1, memory_.defect());
  if (!wrong_model_) return result;
  for (protocol::VerificationSummary& summary : result.sequences) {
    for (protocol::RowSummary& row : summary.rows) {
      row.argmax_token = (row.argmax_token + 1) % 50;
      row.plain_token = (row.plain_token + 1) % 50;
    }
  }
  return result;
}

}  // namespace skein::tests
