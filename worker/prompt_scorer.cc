// A given token is verified as a provided draft is: its raw logprob is what the verification of a
// row says of it, on every backend.
#include "worker/prompt_scorer.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/ops/sampling.h"
#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;
using protocol::PromptScoring;
using protocol::SequenceStep;
using protocol::StepPlan;

namespace {

struct Inputs {
  TensorView row, sample, verify;
};

Inputs Layout(int rows, Staging& staging) {
  staging.Restart();
  return {staging.Next(DType::kI32, {rows}),
          staging.Next(DType::kU8, {rows, int64_t{sizeof(kernels::SampleParams)}}),
          staging.Next(DType::kU8, {rows, int64_t{sizeof(kernels::VerifyParams)}})};
}

size_t BytesFor(int rows) {
  Staging counted;
  Layout(rows, counted);
  return counted.used();
}

// The token behind the row of token `index`.
int32_t TokenAfter(const SequenceStep& step, size_t index) {
  return index + 1 < step.tokens.size() ? step.tokens[index + 1] : step.scoring.next_token;
}

}  // namespace

PromptScorer::PromptScorer(const ModelLimits& limits, Arena& arena)
    : rows_max_(limits.max_samples),
      device_(arena.device()),
      staging_(arena, BytesFor(limits.max_samples)) {}

bool PromptScorer::Wants(const StepPlan& plan) {
  return std::any_of(plan.sequences.begin(), plan.sequences.end(),
                     [](const SequenceStep& step) { return step.scoring.count > 0; });
}

absl::Status PromptScorer::Check(const SequenceStep& step, const ModelLimits& limits, int vocab) {
  const PromptScoring& scoring = step.scoring;
  if (scoring.count == 0) return absl::OkStatus();
  auto refuse = [&](std::string text) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", step.sequence.value(), ": ", text));
  };
  const uint64_t end = uint64_t{scoring.from} + scoring.count;
  if (end > step.tokens.size()) {
    return refuse(absl::StrCat("scores rows up to ", end, " of ", step.tokens.size()));
  }
  const int32_t last = TokenAfter(step, end - 1);
  if (last < 0 || last >= vocab) {
    return refuse(absl::StrCat("scores token ", last, ", the vocabulary has ", vocab));
  }
  if (scoring.num_top_logprobs < 0 || scoring.num_top_logprobs > limits.max_top) {
    return refuse(absl::StrCat("wants ", scoring.num_top_logprobs,
                               " alternatives of its prompt, at most ", limits.max_top));
  }
  return absl::OkStatus();
}

absl::Status PromptScorer::Run(const StepPlan& plan, std::span<const int> num_drafts, Model& model,
                               std::vector<protocol::VerificationSummary>& sequences) {
  targets_.clear();
  int num_rows = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceStep& step = plan.sequences[i];
    const PromptScoring& scoring = step.scoring;
    for (size_t at = scoring.from; at < size_t{scoring.from} + scoring.count; ++at) {
      targets_.push_back(
          {i, num_rows + static_cast<int>(at), TokenAfter(step, at), scoring.num_top_logprobs});
    }
    num_rows += static_cast<int>(step.tokens.size()) + num_drafts[i];
  }
  const std::span<const Target> all(targets_);
  for (size_t at = 0; at < all.size(); at += static_cast<size_t>(rows_max_)) {
    const size_t count = std::min(all.size() - at, static_cast<size_t>(rows_max_));
    SKEIN_RETURN_IF_ERROR(RunSome(all.subspan(at, count), num_rows, model, sequences));
  }
  return absl::OkStatus();
}

absl::Status PromptScorer::RunSome(std::span<const Target> targets, int num_rows, Model& model,
                                   std::vector<protocol::VerificationSummary>& sequences) {
  const int count = static_cast<int>(targets.size());
  const Inputs in = Layout(count, staging_);
  for (int i = 0; i < count; ++i) {
    const Target& target = targets[static_cast<size_t>(i)];
    in.row.as<int32_t>()[i] = target.row;
    kernels::SampleParams params;
    params.num_top = target.num_top;
    kernels::VerifyParams verify;
    verify.sampling = params;
    verify.draft_token = target.token;
    verify.form = kernels::DraftForm::kPoint;
    in.verify.as<kernels::VerifyParams>()[i] = verify;
    params.temperature = 0;
    in.sample.as<kernels::SampleParams>()[i] = params;
  }
  OutputHead& head = model.head();
  SKEIN_RETURN_IF_ERROR(staging_.CopyIn());
  SKEIN_RETURN_IF_ERROR(
      head.Logits(model.stream(num_rows), model.pre(num_rows), staging_.OnDevice(in.row)));
  SKEIN_RETURN_IF_ERROR(head.Sample(staging_.OnDevice(in.sample), EditBatch{}));
  SKEIN_RETURN_IF_ERROR(head.Verify(staging_.OnDevice(in.verify), TensorView{}));
  SKEIN_RETURN_IF_ERROR(head.Fetch());
  SKEIN_RETURN_IF_ERROR(device_.Wait());
  for (int i = 0; i < count; ++i) {
    const Target& target = targets[static_cast<size_t>(i)];
    const OutputHead::Verified verified = head.verified(i);
    protocol::TokenScore& score = sequences[target.sequence].scores.emplace_back();
    score.logprob = (verified.flags & kernels::kVerifyNonFinite) != 0
                        ? std::numeric_limits<float>::quiet_NaN()
                        : verified.draft_logprob;
    const auto* id = reinterpret_cast<const int32_t*>(head.top_id(count).row(i));
    const auto* logprob = reinterpret_cast<const float*>(head.top_logprob(count).row(i));
    for (int k = 0; k < target.num_top && id[k] >= 0; ++k) {
      score.top.push_back({id[k], logprob[k]});
    }
  }
  return absl::OkStatus();
}

}  // namespace skein::worker
