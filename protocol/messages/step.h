// The data plane: what a step is told to do and what it answers. Plain value types, copied and
// compared by value. Prefill chunk and decode are the same SequenceStep with different lengths.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "protocol/base/ids.h"
#include "protocol/messages/sampling_params.h"

namespace skein::protocol {

// What a worker offers the scheduler.
struct CacheGeometry {
  uint32_t block_tokens = 0;  // tokens per cache block, a multiple of every compression ratio
  uint32_t num_blocks = 0;
  uint32_t num_slots = 0;         // sequences that can hold state at a time
  uint32_t max_rows = 0;          // tokens of one step
  uint32_t max_model_len = 0;     // tokens of one sequence
  uint32_t max_draft_tokens = 0;  // that its draft head proposes in one step; 0: it has none
  bool edits_logits = false;      // it knows SequenceStep::edits and masks
  uint32_t num_checkpoints = 0;   // slots beyond num_slots that hold copies of slot state
  // Tokens before a position whose computation gives its whole slot state; 0: not offered.
  uint32_t recompute_tokens = 0;
  bool scores_prompts = false;      // it knows SequenceStep::scoring
  bool processes_logprobs = false;  // it knows RowSampling::processed_logprobs
  friend bool operator==(const CacheGeometry&, const CacheGeometry&) = default;
};

// Sampling of the rows of one sequence in one step.
struct RowSampling {
  float temperature = 1.0F;
  float top_p = 1.0F;
  float min_p = 0.0F;
  int32_t top_k = 0;
  uint64_t seed = 0;
  int32_t num_top_logprobs = 0;
  // Logprobs of the rows are of the distribution that tokens are drawn from, after edits,
  // temperature and truncation, and list nothing that cannot be drawn; else raw.
  bool processed_logprobs = false;
  friend bool operator==(const RowSampling&, const RowSampling&) = default;
};

// The edits of a sequence's logits, told to a worker with its slot.
struct SequenceEdits {
  LogitEdits edits;
  uint32_t prompt_length = 0;
  // Tokens from position history_begin up to the first of the step: what the worker does not
  // compute itself. Those before it are not counted.
  uint32_t history_begin = 0;
  std::vector<int32_t> history = {};
  friend bool operator==(const SequenceEdits&, const SequenceEdits&) = default;
};

// A value that several hold and nobody changes, or none; compared by value.
struct SharedEdits {
  std::shared_ptr<const SequenceEdits> value = nullptr;
  friend bool operator==(const SharedEdits& a, const SharedEdits& b) {
    return a.value == b.value || (a.value && b.value && *a.value == *b.value);
  }
};

// Tokens of one sequence in one step; without memory of their own while they are few, as in
// decoding.
using StepTokens = absl::InlinedVector<int32_t, 4>;

// Given tokens whose raw logprobs are wanted: those that follow the rows [from, from + count) of a
// sequence's own tokens in a step.
struct PromptScoring {
  uint32_t from = 0;
  uint32_t count = 0;       // 0: none
  int32_t next_token = -1;  // the one behind the last of the tokens, if that row is among them
  int32_t num_top_logprobs = 0;
  friend bool operator==(const PromptScoring&, const PromptScoring&) = default;
};

// Rows of one step, of all its sequences, that may be scored: with their alternatives they fit a
// message beside everything else.
inline constexpr uint32_t kStepScoresMax = 1024;

// One sequence's share of a step: `tokens` at positions first_position, first_position + 1, ...
// Sender: coordinator.
struct SequenceStep {
  SequenceId sequence;
  SlotId slot;
  // The slot held another sequence (or an earlier attempt): forget it. first_position is then 0,
  // or where a prefix hit resumes: the state comes from `restore_from`, or, without it, from
  // computing recompute_tokens or more before `shared_length`.
  bool fresh_slot = false;
  uint32_t first_position = 0;
  StepTokens tokens;                // at least one
  uint32_t table_size_before = 0;   // entries of the sequence's block table that the worker has
  std::vector<BlockId> new_blocks;  // appended to it before the step runs
  bool sample = false;              // choose the token after the last row
  RowSampling sampling;             // meaningful when `sample`
  // Speculation, meaningful when `sample`. Drafts are rows after `tokens`, verified by this step.
  VerificationMode mode = VerificationMode::kCoupled;
  uint32_t draft_depth = 0;  // tokens that the draft head proposes; needs exactly one token above
  // The worker drops the head's drafts from the first one whose chance to be reached and accepted,
  // the product of the head's confidences up to it, is smaller.
  float min_survival = 0;
  std::vector<int32_t> provided_drafts;  // verified as they are; draft_depth is then 0
  bool feed_drafter = false;             // keep the draft head's state of this sequence up to date
  // With fresh_slot alone: the edits of the sequence for as long as it has the slot.
  SharedEdits edits = {};
  // Masks of this step's sampled rows, none or one for each: the row after `tokens` and those of
  // provided drafts; draft_depth is then 0. Bit v % 32 of word v / 32: token v is allowed; those
  // behind the last word are not. A mask of zeros gives kRowAllMasked.
  std::vector<std::vector<uint32_t>> masks = {};
  // Prefix cache. Tokens at the front whose blocks are shared, of a fresh slot: whole blocks, which
  // the sequence reads and never writes.
  uint32_t shared_length = 0;
  std::optional<SlotId> restore_from;  // a checkpoint that the fresh slot begins as a copy of
  std::optional<SlotId> save_to;       // a checkpoint that the slot is copied to before the step
  PromptScoring scoring = {};
  friend bool operator==(const SequenceStep&, const SequenceStep&) = default;
};

// One step of one rank. Every rank of a group gets a plan with the same step and lane; a rank
// without sequences gets an empty one. Steps of a group run strictly in StepId order. Sender:
// coordinator.
struct StepPlan {
  GroupId group;
  RankId rank;
  Epoch epoch;
  StepId step;
  uint32_t lane = 0;
  std::vector<SequenceStep> sequences;
  // A number over the plans of all ranks of the step, equal in each of them: ranks compare it
  // before they compute anything, and plans that do not belong together fail the step. 0 in a group
  // of one rank.
  uint64_t plan_hash = 0;
  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

// One of the most likely tokens of a row.
struct TopLogprob {
  int32_t token = -1;
  float logprob = 0;
  friend bool operator==(const TopLogprob&, const TopLogprob&) = default;
};

// What the model thinks of a given token: always raw, and independent of edits and drafts. NaN: the
// logits are not finite.
struct TokenScore {
  float logprob = 0;
  std::vector<TopLogprob> top;  // num_top_logprobs entries, most likely first
  friend bool operator==(const TokenScore&, const TokenScore&) = default;
};

// One verified row: what the coordinator needs to decide the token after it.
struct RowSummary {
  uint32_t position = 0;     // of the token being chosen
  int32_t plain_token = -1;  // drawn from the target distribution; argmax when greedy
  int32_t argmax_token = -1;
  // Raw, the log-softmax of the logits before any transform, or processed: as the plan says. So are
  // the others of the row.
  float plain_logprob = 0;
  float argmax_logprob = 0;
  uint32_t flags = 0;           // kRowNonFinite, kRowAllMasked
  std::vector<TopLogprob> top;  // num_top_logprobs entries, most likely first
  // The draft that this row verifies. Without one, in the last row, draft_token is -1.
  int32_t draft_token = -1;
  float draft_logprob = 0;
  float confidence = 0;  // of the head, 0 to 1; 1 for provided drafts
  // kRejection only. Probabilities of the draft after temperature and truncation, the very bits
  // that the acceptance rule uses; the token drawn from the residual, its logprob, the residual
  // mass.
  float target_probability = 0;
  float draft_probability = 0;
  int32_t recovered_token = -1;
  float recovered_logprob = 0;
  float residual_mass = 0;
  friend bool operator==(const RowSummary&, const RowSummary&) = default;
};
inline constexpr uint32_t kRowNonFinite = 1;     // a NaN among the logits; no token
inline constexpr uint32_t kRowAllMasked = 2;     // no allowed token
inline constexpr uint32_t kRowDraftMissing = 4;  // the draft's own probability is 0 or not finite

// The summary of one sequence in one step. The last row is the bonus row; without drafts it is the
// only one. There may be fewer drafts than the plan allowed. Empty when the plan did not ask to
// sample.
struct VerificationSummary {
  SequenceId sequence;
  std::vector<RowSummary> rows;
  std::vector<TokenScore> scores = {};  // one for each row of the plan's `scoring`
  friend bool operator==(const VerificationSummary&, const VerificationSummary&) = default;
};

enum class StepStatus : uint8_t {
  kOk = 0,
  kFailed = 1,   // the step did not run to its end; the epoch is over
  kRefused = 2,  // the plan contradicts what the worker holds; a bug of the sender
  // Another rank of the group is gone, failed or did not answer; says nothing about the sequences
  // of this one. The epoch is over. Since 1.2, of groups alone.
  kAborted = 3,
};

// Which experts the rows of one step chose on one rank, by layer, those of the draft head last.
struct ExpertLoad {
  bool prefill = false;                       // some of the rows were of prompts
  std::vector<std::vector<uint32_t>> counts;  // empty: not counted in this step
  friend bool operator==(const ExpertLoad&, const ExpertLoad&) = default;
};

// Answer to one StepPlan. Sender: worker.
struct StepResult {
  GroupId group;
  RankId rank;
  Epoch epoch;
  StepId step;
  uint32_t lane = 0;
  StepStatus status = StepStatus::kOk;
  std::string message;                         // why, when not kOk
  std::vector<VerificationSummary> sequences;  // in plan order
  uint64_t device_time_us = 0;                 // of the whole step
  uint64_t draft_time_us = 0;                  // of it, spent proposing drafts
  ExpertLoad expert_load = {};                 // since 1.6, of a few steps of a group of ranks
  friend bool operator==(const StepResult&, const StepResult&) = default;
};

}  // namespace skein::protocol
