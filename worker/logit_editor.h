// Edits of logits on their way to the device: what each slot's sequence asked for and the tokens
// that its penalties count, turned into the rows of EditLogits. What row j of a block to verify
// counts includes the drafts before it, so drafts change no output. Thread: the device thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops/logit_edits.h"
#include "protocol/messages/step.h"
#include "worker/model/activations.h"
#include "worker/model/model.h"
#include "worker/model/model_batch.h"

namespace skein::worker {

class LogitEditor {
 public:
  // Takes room for every slot's edits from `arena`.
  LogitEditor(int vocab, const ModelLimits& limits, int num_slots, Arena& arena);

  // Whether the sequence's logits are edited, with the plan's step as its next one.
  bool Edits(const protocol::SequenceStep& step) const;
  // InvalidArgument names sequence, field and value of what the plan gets wrong.
  absl::Status Check(const protocol::SequenceStep& step) const;
  // The sequence computes the step's tokens: call once per sequence of every step, in any order.
  void Take(const protocol::SequenceStep& step);

  // The rows of a step with edits: Begin, then Edit for each sampled sequence, then Finish.
  void Begin(int samples);
  // Rows first_sample and following: one, and one for each draft.
  void Edit(const protocol::SequenceStep& step, std::span<const int32_t> drafts, int first_sample);
  // The rows as the device sees them after Upload.
  EditBatch Finish();
  absl::Status Upload() const { return staging_.CopyIn(); }

  // Forgets every slot.
  void Reset();

 private:
  struct Slot {
    std::shared_ptr<const protocol::SequenceEdits> edits;  // null: none
    std::vector<int32_t> tokens;  // from position edits->history_begin on, drafts behind them
  };
  struct Layout {
    kernels::TensorView edits, mask, entries, drafts;
  };

  Layout Lay(int samples, Staging& staging) const;
  const Slot& SlotOf(const protocol::SequenceStep& step) const;
  absl::Status CheckTokens(const protocol::SequenceEdits& edits) const;
  kernels::TokenEdit& EntryOf(int32_t token);
  // Fills the entries of a sequence: what its tokens so far, drafts and biases ask for.
  void AddEntries(const Slot& slot, std::span<const int32_t> drafts);
  // The mask of a row before which the sequence has `tokens`; -1: all are allowed.
  int32_t AddMask(const protocol::SequenceStep& step, const Slot& slot, size_t row,
                  std::span<const int32_t> tokens);

  const int vocab_;
  const int64_t entries_max_, drafts_max_;  // of one step
  std::vector<Slot> slots_;
  std::vector<int32_t> entry_of_;  // by token, -1: none; of the sequence being filled
  Layout full_;                    // on the host's side
  int32_t num_entries_ = 0, num_drafts_ = 0, num_masks_ = 0;
  Staging staging_;
};

}  // namespace skein::worker
