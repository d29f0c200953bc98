// Raw logprobs of given prompt tokens: of the rows of a step that was run, some at a time, so that
// a prompt of any length needs the memory of the sampled rows alone. Owns what crosses to the
// device for it. Thread: the device thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "protocol/messages/step.h"
#include "worker/model/activations.h"
#include "worker/model/model.h"

namespace skein::worker {

class PromptScorer {
 public:
  PromptScorer(const ModelLimits& limits, Arena& arena);

  // Whether the plan asks for any.
  static bool Wants(const protocol::StepPlan& plan);
  // Whether what a sequence asks for can be scored. InvalidArgument names it.
  static absl::Status Check(const protocol::SequenceStep& step, const ModelLimits& limits,
                            int vocab);

  // Scores the rows that the plan asks for, into `sequences`, one for each of the plan. The step
  // has run to its end and its results were read: this overwrites what the head holds of them.
  // `num_drafts`: rows that each sequence has beyond its own.
  absl::Status Run(const protocol::StepPlan& plan, std::span<const int> num_drafts, Model& model,
                   std::vector<protocol::VerificationSummary>& sequences);

 private:
  // One row to score.
  struct Target {
    size_t sequence = 0;
    int row = 0;  // of the step
    int32_t token = -1;
    int32_t num_top = 0;
  };
  absl::Status RunSome(std::span<const Target> targets, int num_rows, Model& model,
                       std::vector<protocol::VerificationSummary>& sequences);

  const int rows_max_;  // at a time
  kernels::Device& device_;
  Staging staging_;
  std::vector<Target> targets_;
};

}  // namespace skein::worker
