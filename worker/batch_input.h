// StepPlan -> the step's metadata, in one place. Checks a plan against what the slots hold and
// refuses what contradicts it: a wrong plan is the sender's bug and must not corrupt a cache.
// Owns the block table and length of every slot. Thread: the device thread.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "protocol/messages/step.h"
#include "worker/cache/kv_cache.h"
#include "worker/cache/state_slots.h"
#include "worker/logit_editor.h"
#include "worker/model/activations.h"
#include "worker/model/model.h"
#include "worker/model/model_batch.h"
#include "worker/model/model_spec.h"

namespace skein::worker {

// Tokens to verify after a sequence's own in one step.
struct SequenceDrafts {
  std::vector<int32_t> tokens;
  std::vector<float> confidence;  // 0 to 1, one per token
  int draft_row = -1;  // of the first token among the draft head's logits; -1: provided by the plan
};

// What the worker knows of the state in a slot or a checkpoint beside its rows.
struct SavedSlot {
  int64_t used = 0;                  // 1: there is some
  int64_t length = 0;                // tokens computed
  int64_t written = 0;               // end of the positions that the last step wrote
  int64_t fed_from = 0, fed_to = 0;  // positions that the draft head saw
  int64_t begin = 0;                 // nothing is known of positions before it; rows are skipped
};

class BatchInput {
 public:
  // `token_map`: raw token -> compressed id, empty without Engram; outlives the object.
  BatchInput(const ModelSpec& spec, const ModelLimits& limits, const KvCache& cache,
             StateSlots& slots, std::span<const int32_t> token_map, Arena& arena);

  // Whether the plan agrees with what the slots hold. InvalidArgument names sequence, field,
  // values.
  absl::Status Check(const protocol::StepPlan& plan) const;
  // Queues the copies between slots and checkpoints of a plan that passed Check: those that begin a
  // slot, then those that a slot leaves. Before Build, outside of a recorded step.
  absl::Status MoveState(const protocol::StepPlan& plan);
  // First position from which on the draft head saw the sequence without a gap; first_position of
  // the step if it saw nothing.
  int64_t FedFrom(const protocol::SequenceStep& step) const;
  // The batch of a plan that passed Check, with one entry of `drafts` per sequence, as the device
  // will see it once Upload has run; valid until the next call.
  const ModelBatch& Build(const protocol::StepPlan& plan, std::span<const SequenceDrafts> drafts);
  // The batch of a decode step whose drafts are not known yet: PlaceDrafts puts them in. Every
  // sequence of the plan has one token and is sampled. A plan without sequences gives padding
  // alone.
  const ModelBatch& BuildDecode(const protocol::StepPlan& plan, const DecodeShape& shape);
  // What became of a sequence of the last step: its drafts that were kept.
  void Settle(const protocol::SequenceStep& step, std::span<const int32_t> drafts, bool feeds);
  // Whether a sequence of the plan has edits of its logits. Such a step is not recorded.
  bool Edits(const protocol::StepPlan& plan) const;
  // Compressed ids by token, as the device has them; absent without Engram.
  const kernels::TensorView& token_map() const { return device_token_map_; }
  // Queues the copy that brings the batch to the device, and that of its edits.
  absl::Status Upload() const;

  // Of a checkpoint, counted from 0, that leaves for another worker or came from one.
  const SavedSlot& saved(int checkpoint) const { return saved_[static_cast<size_t>(checkpoint)]; }
  void SetSaved(int checkpoint, const SavedSlot& state) {
    saved_[static_cast<size_t>(checkpoint)] = state;
  }

  // Forgets every slot: the epoch is over.
  void Reset();

 private:
  struct Slot : SavedSlot {
    protocol::SequenceId sequence;
    int64_t shared = 0;  // compressed rows of positions before it are not written
    std::vector<int32_t> blocks;
  };
  // What a step's metadata is laid out for.
  struct Shape {
    int rows = 0, sequences = 0, samples = 0;
  };

  // The views of a step of that shape, one after the other.
  ModelBatch Layout(const Shape& shape, Staging& staging) const;
  absl::Status CheckSequence(const protocol::SequenceStep& step) const;
  absl::Status CheckState(const protocol::SequenceStep& step, bool holds) const;
  absl::Status CheckFresh(const protocol::SequenceStep& step) const;
  absl::Status CheckIds(const protocol::SequenceStep& step) const;
  absl::Status CheckDrafts(const protocol::SequenceStep& step) const;
  void OpenSlot(const protocol::SequenceStep& step, int index, int first_row);
  void FillSequence(const protocol::SequenceStep& step, const SequenceDrafts& drafts, int index);
  void FillDecode(const protocol::SequenceStep& step, const DecodeShape& shape, int index);
  void FillPadding();
  void FillRow(const protocol::SequenceStep& step, int index, size_t offset, int row);
  void FillNgram(const protocol::SequenceStep& step, size_t offset, int row);
  void FillGroups(const protocol::SequenceStep& step, size_t offset, int row);
  void FillSample(const protocol::SequenceStep& step, const SequenceDrafts& drafts, int row,
                  int sample);
  static void Feed(Slot& slot, int64_t first, int64_t end, bool feeds);
  void Narrow();
  // The batch as the device sees it.
  void MoveToDevice();

  const ModelSpec& spec_;
  const ModelLimits limits_;
  const int block_tokens_;
  const int num_blocks_;
  const int max_blocks_;  // of one sequence
  StateSlots& slots_;
  std::span<const int32_t> token_map_;
  RopeTable plain_, compress_;
  std::vector<Slot> table_;
  std::vector<SavedSlot> saved_;  // by checkpoint
  std::vector<int> ratios_;  // of the model, ascending
  kernels::TensorView ring_source_;
  kernels::TensorView device_token_map_;
  LogitEditor editor_;
  Staging staging_;
  ModelBatch full_;   // of the current plan, on the host's side, at capacity
  ModelBatch batch_;  // narrowed; in the end on the device's side
};

}  // namespace skein::worker
