#include "worker/step_executor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"

namespace skein::worker {

using protocol::StepPlan;
using protocol::StepResult;
using protocol::StepStatus;

namespace {

// Plans of both lanes, of this epoch and of those that ended while they waited.
constexpr size_t kPlansMax = 16;
// The same, resets of epoch changes and the end.
constexpr size_t kJobsMax = 2 * kPlansMax;

protocol::RowSummary Summarise(const OutputHead& head, int sample, int samples,
                               const protocol::SequenceStep& step) {
  const kernels::SampleRecord& record = head.records(samples)[static_cast<size_t>(sample)];
  protocol::RowSummary row;
  row.position = step.first_position + static_cast<uint32_t>(step.tokens.size());
  row.plain_token = record.token;
  row.argmax_token = record.argmax;
  row.plain_logprob = record.logprob;
  row.argmax_logprob = record.argmax_logprob;
  if ((record.flags & kernels::kSampleNonFinite) != 0) row.flags |= protocol::kRowNonFinite;
  if ((record.flags & kernels::kSampleAllMasked) != 0) row.flags |= protocol::kRowAllMasked;
  const auto* id = reinterpret_cast<const int32_t*>(head.top_id(samples).row(sample));
  const auto* logprob = reinterpret_cast<const float*>(head.top_logprob(samples).row(sample));
  for (int i = 0; i < step.sampling.num_top_logprobs && id[i] >= 0; ++i) {
    row.top.push_back({id[i], logprob[i]});
  }
  return row;
}

}  // namespace

StepResult RunPlan(LoadedModel& model, const StepPlan& plan) {
  const absl::Time begin = protocol::MonotonicNow();
  StepResult result;
  result.group = plan.group;
  result.rank = plan.rank;
  result.epoch = plan.epoch;
  result.step = plan.step;
  result.lane = plan.lane;
  const absl::StatusOr<const ModelBatch*> batch = model.input().Build(plan);
  if (!batch.ok()) {
    result.status = StepStatus::kRefused;
    result.message = std::string(batch.status().message());
    return result;
  }
  if ((*batch)->num_rows > 0) {
    if (const absl::Status status = model.model().Forward(**batch); !status.ok()) {
      result.status = StepStatus::kFailed;
      result.message = std::string(status.message());
      return result;
    }
  }
  int sample = 0;
  for (const protocol::SequenceStep& step : plan.sequences) {
    protocol::VerificationSummary summary;
    summary.sequence = step.sequence;
    if (step.sample) {
      summary.rows.push_back(
          Summarise(model.model().head(), sample++, (*batch)->num_samples, step));
    }
    result.sequences.push_back(std::move(summary));
  }
  result.device_time_us =
      static_cast<uint64_t>(absl::ToInt64Microseconds(protocol::MonotonicNow() - begin));
  return result;
}

StepExecutor::StepExecutor(std::unique_ptr<LoadedModel> model, protocol::Waker& actor)
    : model_(std::move(model)), jobs_(kJobsMax, doorbell_), results_(kPlansMax, actor) {
  thread_ = std::thread([this] { Loop(); });
}

StepExecutor::~StepExecutor() {
  ending_ = true;
  // The mailbox may be full of plans that nobody waits for; each Wait below empties it.
  while (!jobs_.TryPush(End{}).ok()) std::this_thread::yield();
  thread_.join();
}

absl::Status StepExecutor::Submit(StepPlan plan) {
  // Room for every result is reserved here, so the device thread never waits for the actor.
  if (unanswered_ >= kPlansMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(unanswered_, " plans wait for their results, at most ", kPlansMax));
  }
  SKEIN_RETURN_IF_ERROR(jobs_.TryPush(std::move(plan)));
  ++unanswered_;
  return absl::OkStatus();
}

std::vector<StepResult> StepExecutor::TakeResults() {
  std::vector<StepResult> results = results_.TakeAll();
  unanswered_ -= results.size();
  return results;
}

absl::Status StepExecutor::Reset() { return jobs_.TryPush(ForgetAll{}); }

bool StepExecutor::Run(Job& job) {
  if (ending_ || std::holds_alternative<End>(job)) return false;
  if (std::holds_alternative<ForgetAll>(job)) {
    model_->input().Reset();
    return true;
  }
  const absl::Status pushed = results_.TryPush(RunPlan(*model_, std::get<StepPlan>(job)));
  // At most one result per submitted plan waits, so there is always room.
  SKEIN_CHECK(pushed.ok()) << "worker invariant 3: " << pushed.message();
  return true;
}

void StepExecutor::Loop() {
  while (true) {
    doorbell_.Wait();
    for (Job& job : jobs_.TakeAll()) {
      if (!Run(job)) return;
    }
  }
}

}  // namespace skein::worker
