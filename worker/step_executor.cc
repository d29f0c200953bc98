#include "worker/step_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "worker/step_agreement.h"

namespace skein::worker {

using protocol::StepPlan;
using protocol::StepResult;
using protocol::StepStatus;

namespace {

// Plans of both lanes, of this epoch and of those that ended while they waited.
constexpr size_t kPlansMax = 16;
// The same, copies of block transfers, resets and meetings of epoch changes and the end.
constexpr size_t kJobsMax = 2 * kPlansMax + 2 * kMovesMax;
// Meetings whose outcome nobody took.
constexpr size_t kFormedMax = kJobsMax;
// How long a rank waits for the plan of another one to begin: that one has a watchdog of its own.
constexpr absl::Duration kBeginTime = absl::Seconds(30);
// What another rank may need beyond its deadline until its end is noticed and told.
constexpr absl::Duration kEndTime = absl::Seconds(5);
// How long a call between steps may take, which copies a few blocks.
constexpr absl::Duration kCallTime = absl::Seconds(10);

uint64_t MicrosecondsSince(absl::Time begin) {
  return static_cast<uint64_t>(absl::ToInt64Microseconds(protocol::MonotonicNow() - begin));
}

// The request to draft for a sequence of the plan; of depth 0 if it wants none.
DraftRequest RequestOf(LoadedModel& model, const protocol::SequenceStep& step) {
  return {.slot = static_cast<int>(step.slot.value()),
          .position = int64_t{step.first_position} - 1,
          .token = step.tokens[0],
          .fed_from = model.input().FedFrom(step),
          .depth = static_cast<int>(step.draft_depth),
          .mode = step.mode,
          .sampling = step.sampling};
}

// Shares the time of a step out among its parts.
class Laps {
 public:
  // The time since the last lap belongs to `part`.
  void Lap(absl::Duration& part) {
    const absl::Time now = protocol::MonotonicNow();
    part += now - last_;
    last_ = now;
  }

 private:
  absl::Time last_ = protocol::MonotonicNow();
};

// What is kept of a proposal: cut where the plan says.
SequenceDrafts Keep(const DraftProposal& proposal, const protocol::SequenceStep& step,
                    int draft_row) {
  SequenceDrafts out;
  out.draft_row = draft_row;
  const size_t kept = KeptDrafts(proposal.confidence, step.min_survival);
  for (size_t j = 0; j < kept; ++j) {
    out.tokens.push_back(proposal.tokens[j]);
    out.confidence.push_back(static_cast<float>(Confidence(proposal.confidence[j])));
  }
  return out;
}

// Whether another rank of the group drafts in this step, so that this one takes part.
bool DraftsInGroup(LoadedModel& model) {
  return model.ranks() != nullptr && model.draft() != nullptr && model.ranks()->rows() > 0;
}

// The drafts of each sequence of the plan: provided ones, or proposed now. Each is empty for a
// sequence without drafts.
absl::StatusOr<std::vector<SequenceDrafts>> ProposeDrafts(LoadedModel& model,
                                                          const StepPlan& plan) {
  std::vector<SequenceDrafts> drafts(plan.sequences.size());
  std::vector<DraftRequest> requests;
  std::vector<size_t> owner;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const protocol::SequenceStep& step = plan.sequences[i];
    drafts[i].tokens = step.provided_drafts;
    drafts[i].confidence.assign(step.provided_drafts.size(), 1.0F);
    if (step.draft_depth == 0) continue;
    owner.push_back(i);
    requests.push_back(RequestOf(model, step));
  }
  if (requests.empty()) {
    if (DraftsInGroup(model)) SKEIN_RETURN_IF_ERROR(model.draft()->RunStagesWithoutRows());
    return drafts;
  }
  std::vector<DraftProposal> proposals;
  SKEIN_RETURN_IF_ERROR(model.draft()->Propose(requests, proposals));
  for (size_t r = 0; r < requests.size(); ++r) {
    drafts[owner[r]] = Keep(proposals[r], plan.sequences[owner[r]],
                            static_cast<int>(r) * model.draft()->depth_max());
  }
  return drafts;
}

// Runs the batch to its end: its results can be read.
absl::Status RunBatch(LoadedModel& model, const ModelBatch& batch, size_t num_requests, Laps& laps,
                      StepAccount& account) {
  if (batch.num_rows == 0) {
    const bool others = model.ranks() != nullptr && model.ranks()->rows() > 0;
    absl::Status status = others ? model.model().Forward(batch) : absl::OkStatus();
    if (status.ok()) status = model.device().Wait();
    laps.Lap(account.forward);
    return status;
  }
  SKEIN_RETURN_IF_ERROR(model.input().Upload());
  laps.Lap(account.prepare);
  SKEIN_RETURN_IF_ERROR(model.model().Forward(batch));
  laps.Lap(account.forward);
  if (batch.num_verified > 0) {
    const kernels::TensorView draft_logits =
        num_requests > 0 ? model.draft()->draft_logits(static_cast<int>(num_requests))
                         : kernels::TensorView{};
    SKEIN_RETURN_IF_ERROR(model.model().head().Verify(batch.verify_params, draft_logits));
  }
  laps.Lap(account.sample);
  if (batch.feeds_drafter && model.draft() != nullptr) {
    SKEIN_RETURN_IF_ERROR(model.draft()->Observe(batch, model.model().taps(batch.num_rows)));
  }
  laps.Lap(account.draft);
  if (batch.num_samples > 0) SKEIN_RETURN_IF_ERROR(model.model().head().Fetch());
  laps.Lap(account.sample);
  // A host has done everything by now; a GPU has it queued.
  const absl::Status status = model.device().Wait();
  laps.Lap(account.forward);
  return status;
}

// The rows of n-gram tables that a pass of `rows` rows looks up on this rank: its share of the
// columns for the rows of all ranks.
void CountTableRows(LoadedModel& model, int rows, StepAccount& account) {
  const EngramSpec& engram = model.spec().engram;
  const bool in_group = model.ranks() != nullptr && model.ranks()->joined();
  const auto looked_up = static_cast<uint64_t>(in_group ? model.ranks()->rows() : rows) *
                         static_cast<uint64_t>(engram.columns()) * engram.layers.size();
  account.table_rows += looked_up;
  account.table_bytes += looked_up * static_cast<uint64_t>(engram.head_dim + engram.head_dim / 32);
}

void SummariseDraft(const OutputHead& head, int sample, const protocol::SequenceStep& step,
                    int32_t draft, float confidence, protocol::RowSummary& row) {
  row.draft_token = draft;
  row.confidence = confidence;
  if (step.mode != protocol::VerificationMode::kRejection) return;
  const OutputHead::Verified verified = head.verified(sample);
  row.draft_logprob = verified.draft_logprob;
  row.target_probability = verified.target_probability;
  row.draft_probability = verified.draft_probability;
  row.recovered_token = verified.recovered;
  row.recovered_logprob = verified.recovered_logprob;
  row.residual_mass = verified.residual_mass;
  if ((verified.flags & kernels::kVerifyDraftMissing) != 0) row.flags |= protocol::kRowDraftMissing;
}

protocol::RowSummary Summarise(const OutputHead& head, int sample, int samples,
                               const protocol::SequenceStep& step) {
  const kernels::SampleRecord& record = head.records(samples)[static_cast<size_t>(sample)];
  protocol::RowSummary row;
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

// What a step left on the host: drafts of each sequence, and where its rows begin among the
// samples.
struct StepOutcome {
  std::vector<SequenceDrafts> drafts;
  std::vector<int> first_sample;
  int num_samples = 0;
  int rows = 0;        // of the plan, first among those that were computed
  int draft_rows = 0;  // that the draft head computed
  uint64_t draft_time_us = 0;
};

// Call by call: drafts first, then the batch that has them. `most`: of any rank.
absl::StatusOr<StepOutcome> RunQueued(LoadedModel& model, const StepPlan& plan,
                                      const StepSize& most, Laps& laps, StepAccount& account) {
  const absl::Time begin = protocol::MonotonicNow();
  StepOutcome out;
  if (model.ranks() != nullptr) {
    model.ranks()->BeginPass(most.draft_requests * model.spec().dspark.block);
  }
  SKEIN_ASSIGN_OR_RETURN(out.drafts, ProposeDrafts(model, plan));
  const auto num_requests = static_cast<size_t>(
      std::count_if(plan.sequences.begin(), plan.sequences.end(),
                    [](const protocol::SequenceStep& step) { return step.draft_depth > 0; }));
  if (num_requests > 0) out.draft_time_us = MicrosecondsSince(begin);
  laps.Lap(account.draft);
  const ModelBatch& batch = model.input().Build(plan, out.drafts);
  if (model.ranks() != nullptr) model.ranks()->BeginPass(most.rows);
  CountTableRows(model, batch.num_rows, account);
  SKEIN_RETURN_IF_ERROR(RunBatch(model, batch, num_requests, laps, account));
  out.num_samples = batch.num_samples;
  out.rows = batch.num_rows;
  out.draft_rows = static_cast<int>(num_requests) * model.spec().dspark.block;
  int sample = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    out.first_sample.push_back(sample);
    if (plan.sequences[i].sample) sample += 1 + static_cast<int>(out.drafts[i].tokens.size());
  }
  return out;
}

// One launch: everything has its place in the recorded shape, drafts are cut after the fact.
absl::StatusOr<StepOutcome> RunRecorded(LoadedModel& model, const StepPlan& plan,
                                        const DecodeShape& shape, Laps& laps,
                                        StepAccount& account) {
  StepOutcome out;
  std::vector<DraftRequest> requests;
  for (const protocol::SequenceStep& step : plan.sequences) {
    requests.push_back(RequestOf(model, step));
  }
  model.input().BuildDecode(plan, shape);
  if (shape.depth > 0) model.draft()->Fill(requests, shape.sequences);
  model.model().head().Expect(shape.rows());
  CountTableRows(model, shape.rows(), account);
  account.recorded = true;
  laps.Lap(account.prepare);
  SKEIN_RETURN_IF_ERROR(model.graphs()->Launch(shape));
  SKEIN_RETURN_IF_ERROR(model.device().Wait());
  laps.Lap(account.forward);
  std::vector<DraftProposal> proposals(plan.sequences.size());
  if (shape.depth > 0) model.draft()->Read(requests, proposals);
  out.num_samples = shape.rows();
  const auto sequences = static_cast<int>(plan.sequences.size());
  out.rows = sequences * (1 + shape.depth);
  out.draft_rows = shape.depth > 0 ? sequences * model.spec().dspark.block : 0;
  out.draft_time_us = model.graphs()->draft_time_us(shape);
  // Of the one launch, what drafting took of it when it was recorded.
  const absl::Duration drafting =
      std::min(account.forward, absl::Microseconds(static_cast<int64_t>(out.draft_time_us)));
  account.draft += drafting;
  account.forward -= drafting;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    out.first_sample.push_back(static_cast<int>(i) * (1 + shape.depth));
    out.drafts.push_back(Keep(proposals[i], plan.sequences[i], -1));
    model.input().Settle(plan.sequences[i], out.drafts[i].tokens, shape.feeds_drafter);
  }
  return out;
}

protocol::VerificationSummary SummariseSequence(const OutputHead& head, const StepOutcome& outcome,
                                                const protocol::SequenceStep& step, size_t index) {
  protocol::VerificationSummary summary;
  summary.sequence = step.sequence;
  const SequenceDrafts& drafts = outcome.drafts[index];
  const size_t rows = step.sample ? 1 + drafts.tokens.size() : 0;
  for (size_t j = 0; j < rows; ++j) {
    const int sample = outcome.first_sample[index] + static_cast<int>(j);
    protocol::RowSummary row = Summarise(head, sample, outcome.num_samples, step);
    row.position = step.first_position + static_cast<uint32_t>(step.tokens.size() + j);
    if (j + 1 < rows) {
      SummariseDraft(head, sample, step, drafts.tokens[j], drafts.confidence[j], row);
    }
    summary.rows.push_back(std::move(row));
  }
  return summary;
}

// The results of the step, then the scores of its prompts, which need the head once more.
absl::StatusOr<std::vector<protocol::VerificationSummary>> Summaries(LoadedModel& model,
                                                                     const StepPlan& plan,
                                                                     const StepOutcome& outcome) {
  std::vector<protocol::VerificationSummary> out;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    out.push_back(SummariseSequence(model.model().head(), outcome, plan.sequences[i], i));
  }
  if (!PromptScorer::Wants(plan)) return out;
  std::vector<int> num_drafts;
  for (const SequenceDrafts& drafts : outcome.drafts) {
    num_drafts.push_back(static_cast<int>(drafts.tokens.size()));
  }
  SKEIN_RETURN_IF_ERROR(model.scorer().Run(plan, num_drafts, model.model(), out));
  return out;
}

// Runs a plan that passed its checks, and puts what the step took to draft into the result.
absl::StatusOr<std::vector<protocol::VerificationSummary>> RunChecked(LoadedModel& model,
                                                                      const StepPlan& plan,
                                                                      const StepSize& most,
                                                                      StepResult& result,
                                                                      StepAccount& account) {
  Laps laps;
  SKEIN_RETURN_IF_ERROR(model.input().MoveState(plan));
  const std::optional<DecodeShape> shape =
      most.shape ? model.graphs()->Fit(*most.shape) : std::nullopt;
  laps.Lap(account.prepare);
  SKEIN_ASSIGN_OR_RETURN(const StepOutcome outcome,
                         shape ? RunRecorded(model, plan, *shape, laps, account)
                               : RunQueued(model, plan, most, laps, account));
  result.draft_time_us = outcome.draft_time_us;
  if (model.meter() != nullptr && model.meter()->Due()) {
    SKEIN_ASSIGN_OR_RETURN(result.expert_load,
                           model.meter()->Read(outcome.rows, outcome.draft_rows));
  }
  auto summaries = Summaries(model, plan, outcome);
  laps.Lap(account.sample);
  return summaries;
}

// What kind of step it was, and what it says of the logits.
void DescribeStep(const StepPlan& plan, const StepResult& result, StepAccount& account) {
  for (const protocol::SequenceStep& step : plan.sequences) {
    const bool decodes = step.tokens.size() == 1 && step.sample && step.scoring.count == 0;
    (decodes ? account.decodes : account.prefills) = true;
  }
  for (const protocol::VerificationSummary& sequence : result.sequences) {
    account.nonfinite_logits += static_cast<uint64_t>(
        std::count_if(sequence.rows.begin(), sequence.rows.end(),
                      [](const auto& row) { return (row.flags & protocol::kRowNonFinite) != 0; }));
  }
}

// The status of a step that did not run to its end.
StepStatus StatusOf(const absl::Status& why) {
  return OfAnotherRank(why) ? StepStatus::kAborted : StepStatus::kFailed;
}

// Ends the step here and, in a group, for all ranks.
void EndStep(LoadedModel& model, StepStatus status, const absl::Status& why, StepResult& result) {
  result.status = status;
  result.message = std::string(why.message());
  if (model.ranks() != nullptr) model.ranks()->Abort(result.message);
}

// The largest size of any rank; of the plan alone where there are no others.
absl::StatusOr<StepSize> Agree(LoadedModel& model, const StepPlan& plan,
                               const absl::Status& checked, const StepAgreed& agreed) {
  RankExchange* ranks = model.ranks();
  const bool records = checked.ok() && model.graphs() != nullptr && !model.input().Edits(plan);
  if (ranks == nullptr || !ranks->joined()) {
    SKEIN_RETURN_IF_ERROR(checked);
    return SizeOf(plan, records);
  }
  SKEIN_ASSIGN_OR_RETURN(const StepSize most, AgreeOnStep(*ranks, plan, records, checked));
  if (agreed) agreed(most.rows);
  return most;
}

}  // namespace

StepResult RunPlan(LoadedModel& model, const StepPlan& plan, const StepAgreed& agreed,
                   StepAccount* account) {
  const absl::Time begin = protocol::MonotonicNow();
  StepResult result;
  result.group = plan.group;
  result.rank = plan.rank;
  result.epoch = plan.epoch;
  result.step = plan.step;
  result.lane = plan.lane;
  const absl::Status checked = model.input().Check(plan);
  const absl::StatusOr<StepSize> most = Agree(model, plan, checked, agreed);
  if (!checked.ok()) {
    EndStep(model, StepStatus::kRefused, checked, result);
    return result;
  }
  if (!most.ok()) {
    EndStep(model, StatusOf(most.status()), most.status(), result);
    return result;
  }
  StepAccount own;
  StepAccount& told = account != nullptr ? *account : own;
  auto sequences = RunChecked(model, plan, *most, result, told);
  if (!sequences.ok()) {
    EndStep(model, StatusOf(sequences.status()), sequences.status(), result);
    if (const absl::Status recovered = model.model().Recover(); !recovered.ok()) {
      SKEIN_LOG(kError, "the device does not recover from a failed step")
          .Field("reason", std::string(recovered.message()));
    }
    return result;
  }
  result.sequences = *std::move(sequences);
  result.device_time_us = MicrosecondsSince(begin);
  DescribeStep(plan, result, told);
  result.expert_load.prefill = told.prefills && !result.expert_load.counts.empty();
  return result;
}

StepExecutor::StepExecutor(std::unique_ptr<LoadedModel> model, protocol::Waker& actor,
                           StepHook before_step, std::unique_ptr<StepWatchdog> watchdog,
                           WorkerMetrics* metrics, std::optional<ExecutorChannel> channel,
                           std::unique_ptr<protocol::UcxGroupPort> ranks)
    : ranks_(std::move(ranks)),
      model_(std::move(model)),
      before_step_(std::move(before_step)),
      watchdog_(std::move(watchdog)),
      metrics_(metrics),
      capacity_(model_->ranks() == nullptr ? 0 : model_->ranks()->capacity()),
      jobs_(kJobsMax, doorbell_),
      results_(kPlansMax, actor),
      formed_(kFormedMax, actor),
      mover_(MakeMover(std::move(channel), actor)) {
  thread_ = std::thread([this] { Loop(); });
  warm_.acquire();
}

// A step that nobody asked for: it reads every weight once, and what it took bounds the first step
// of a client. It belongs to the load, which may take its time.
void StepExecutor::WarmUp() {
  StepPlan plan;
  protocol::SequenceStep& step = plan.sequences.emplace_back();
  step.fresh_slot = true;
  step.tokens.push_back(0);
  step.new_blocks.emplace_back(0);
  step.sample = true;
  step.sampling.temperature = 0;
  const absl::Time begin = protocol::MonotonicNow();
  // In a group this rank runs it alone, with its own experts and tables only.
  const StepResult result = RunPlan(*model_, plan);
  model_->input().Reset();
  if (result.status == StepStatus::kOk) {
    deadline_.Observe(1, protocol::MonotonicNow() - begin);
  } else {
    SKEIN_LOG(kError, "the step of the start failed").Field("reason", result.message);
  }
}

StepExecutor::~StepExecutor() {
  ending_ = true;
  if (forming_ != nullptr) {
    forming_->Abort("the worker ends");
    if (metrics_ != nullptr) metrics_->CountAbort("end");
  }
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

absl::Duration StepExecutor::RunningFor() const {
  const std::optional<absl::Time> since =
      watchdog_ != nullptr ? watchdog_->running_since() : std::nullopt;
  return since ? protocol::MonotonicNow() - *since : absl::ZeroDuration();
}

StepResult StepExecutor::RunWatched(const StepPlan& plan) {
  uint32_t rows = 0;
  for (const protocol::SequenceStep& step : plan.sequences) {
    rows += static_cast<uint32_t>(step.tokens.size());
  }
  RankExchange* ranks = model_->ranks();
  if (ranks != nullptr) ranks->SetDeadline(protocol::MonotonicNow() + kBeginTime);
  // A rank works on the rows of others, too: its step is of the size of the largest.
  const StepAgreed agreed = [&](int most) {
    rows = static_cast<uint32_t>(most);
    const absl::Duration allowed = deadline_.For(rows);
    // A GPU waits for other ranks inside its step: their lateness is told by the exchange.
    const absl::Duration waits = ranks->on_device() ? 2 * kEndTime : absl::ZeroDuration();
    if (watchdog_ != nullptr) watchdog_->End();
    if (watchdog_ != nullptr) watchdog_->Begin(plan.step.value(), allowed + waits);
    ranks->SetDeadline(protocol::MonotonicNow() + allowed + kEndTime);
  };
  excuse_.TakeWaited();  // while the ranks met
  const absl::Time begin = protocol::MonotonicNow();
  if (watchdog_ != nullptr) watchdog_->Begin(plan.step.value(), deadline_.For(rows));
  if (before_step_) before_step_(plan);
  StepAccount account;
  StepResult result = RunPlan(*model_, plan, agreed, &account);
  if (watchdog_ != nullptr) watchdog_->End();
  if (ranks != nullptr) ranks->SetDeadline(absl::InfiniteFuture());
  deadline_.Observe(rows, protocol::MonotonicNow() - begin - excuse_.TakeWaited());
  if (metrics_ != nullptr) Count(result, account);
  return result;
}

void StepExecutor::Count(const StepResult& result, const StepAccount& account) {
  metrics_->Count(account);
  // Of a group, the one whose own error ended the step of all.
  if (capacity_ > 0 &&
      (result.status == StepStatus::kFailed || result.status == StepStatus::kRefused)) {
    metrics_->CountAbort("step_failed");
  }
}

// A part of a model computes nothing without the others.
StepResult StepExecutor::RunInGroup(const StepPlan& plan) {
  if (capacity_ == 0 || group_ != nullptr) return RunWatched(plan);
  StepResult result;
  result.group = plan.group;
  result.rank = plan.rank;
  result.epoch = plan.epoch;
  result.step = plan.step;
  result.lane = plan.lane;
  result.status = StepStatus::kAborted;
  result.message = "the ranks of the epoch have not met";
  return result;
}

bool StepExecutor::Run(Job& job) {
  if (ending_ || std::holds_alternative<End>(job)) return false;
  if (std::holds_alternative<ForgetAll>(job)) {
    if (model_->ranks() != nullptr) model_->LeaveGroup();
    group_.reset();
    model_->input().Reset();
    return true;
  }
  if (auto* call = std::get_if<DeviceCall>(&job); call != nullptr) {
    if (watchdog_ != nullptr) watchdog_->Begin(last_step_, kCallTime);
    (*call)(*model_);
    if (watchdog_ != nullptr) watchdog_->End();
    return true;
  }
  if (auto* meet = std::get_if<Meet>(&job); meet != nullptr) {
    Join(*meet);
    return true;
  }
  const StepPlan& plan = std::get<StepPlan>(job);
  last_step_ = plan.step.value();
  const absl::Status pushed = results_.TryPush(RunInGroup(plan));
  // At most one result per submitted plan waits, so there is always room.
  SKEIN_CHECK(pushed.ok()) << "worker invariant 3: " << pushed.message();
  return true;
}

void StepExecutor::Loop() {
  WarmUp();
  warm_.release();
  while (true) {
    doorbell_.Wait();
    for (Job& job : jobs_.TakeAll()) {
      if (!Run(job)) return;
    }
  }
}

}  // namespace skein::worker
