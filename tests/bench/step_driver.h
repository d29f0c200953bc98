// Drives a loaded model step by step as a coordinator would, without one: sequences with their
// slots and blocks, plans, results; and counts what a step must touch. Owns the sequences; borrows
// the model. Thread: the caller's. Must never: measure or print.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "protocol/messages/step.h"
#include "worker/loaded_model.h"

namespace skein::tests {

// Work of one step, counted from its shapes and the experts it chose.
struct StepCost {
  double weight_bytes = 0;  // each weight of the step once, experts that were chosen alone
  double cache_bytes = 0;   // rows of rings, histories and index keys that are read
  double flops = 0;         // two per multiply-add of products and attention
  double touched = 0;       // experts per layer, mean
};

class StepDriver {
 public:
  // Sequence i has slot i and `blocks_each` blocks of `block_tokens`.
  StepDriver(worker::LoadedModel& model, int block_tokens, int blocks_each)
      : model_(model), block_tokens_(block_tokens), blocks_each_(blocks_each) {}

  // Forgets all sequences.
  void Reset();
  // A sequence with this prompt, nothing computed; its number.
  int Add(std::vector<int32_t> prompt);
  // Computes up to `chunk` further prompt tokens of one sequence; samples at its end and appends.
  absl::Status Prefill(int sequence, int chunk);
  // One greedy token of every sequence in one step; appends them.
  absl::Status Decode();
  // `q` rows of one sequence from its last token on, each with its logits and its choice, as a
  // verification, of which one token is kept. Tokens after the last one are `drafts`.
  absl::Status Verify(int sequence, const std::vector<int32_t>& drafts);

  // As Decode without appending, layer by layer, counting.
  absl::StatusOr<StepCost> CountDecode();
  // As Prefill of a whole prompt, without appending, counting.
  absl::StatusOr<StepCost> CountPrefill(int sequence);

  const std::vector<int32_t>& tokens(int sequence) const {
    return sequences_[static_cast<size_t>(sequence)].tokens;
  }
  const std::vector<float>& logprobs(int sequence) const {
    return sequences_[static_cast<size_t>(sequence)].logprobs;
  }

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;  // of the generated ones
    size_t computed = 0;
    size_t announced = 0;  // blocks
    bool fresh = true;
  };

  protocol::SequenceStep Step(int sequence, const std::vector<int32_t>& tokens, bool sample);
  absl::Status Run(const protocol::StepPlan& plan, const std::vector<int>& order);
  absl::StatusOr<StepCost> Count(const protocol::StepPlan& plan);

  worker::LoadedModel& model_;
  int block_tokens_;
  int blocks_each_;
  std::vector<Sequence> sequences_;
};

}  // namespace skein::tests
