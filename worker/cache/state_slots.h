// Fixed per-sequence state: window rings of every layer and draft stage, rows of open compressor
// groups, recent compressed ids. Rows are addressed by position, so going back is setting a length:
// nothing is copied or zeroed. Checkpoints are copies of whole slots in memory of the host, so they
// take nothing of a device. Thread: the device thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops/kv_cache.h"
#include "worker/model/activations.h"
#include "worker/model/model_spec.h"

namespace skein::worker {

class StateSlots {
 public:
  // `draft_stages`: stages of the draft head that get rings; 0 when nothing drafts.
  StateSlots(const ModelSpec& spec, const Numerics& numerics, int num_slots, int draft_stages,
             Arena& arena, int num_checkpoints = 0);

  // Queue a copy of the state of `slot` to a checkpoint, or back to a slot. In the order of the
  // device; ids of recent tokens, which the host has, at once.
  absl::Status Save(int slot, int checkpoint);
  absl::Status Restore(int checkpoint, int slot);

  // The bytes of a checkpoint with its ids, which are in memory of the host: those of copies that
  // were queued are there once the device has waited for them.
  size_t checkpoint_bytes() const;
  void ReadCheckpoint(int checkpoint, std::span<std::byte> to) const;
  void WriteCheckpoint(int checkpoint, std::span<const std::byte> from);

  // Window ring of a layer: row slot * ring_rows() + position % ring_rows().
  const kernels::KvPool& window(int layer) const { return window_[static_cast<size_t>(layer)]; }
  const kernels::KvPool& draft_window(int stage) const {
    return draft_[static_cast<size_t>(stage)];
  }
  int ring_rows() const { return ring_rows_; }

  // Rows [2*head_dim] of the open groups of a kv source with ratio > 1: row
  // slot * open_rows(ratio) + position % open_rows(ratio).
  const kernels::KvPool& open_groups(int layer) const { return open_[static_cast<size_t>(layer)]; }
  int open_rows(int ratio) const { return ratio + draft_rows_; }

  // Compressed id of an earlier token of the sequence in `slot`. Host memory.
  int32_t ngram_id(int slot, int64_t position) const { return ngram_[NgramIndex(slot, position)]; }
  void set_ngram_id(int slot, int64_t position, int32_t id) {
    ngram_[NgramIndex(slot, position)] = id;
  }

  int num_slots() const { return num_slots_; }
  int num_checkpoints() const { return num_checkpoints_; }
  // Bytes of the pools of all slots, checkpoints apart.
  uint64_t window_bytes() const { return BytesOf(window_); }
  uint64_t draft_bytes() const { return BytesOf(draft_); }
  uint64_t open_bytes() const { return BytesOf(open_); }
  // Bytes of one slot over all pools.
  static uint64_t SlotBytes(const ModelSpec& spec, const Numerics& numerics, int draft_stages);

 private:
  static uint64_t BytesOf(const std::vector<kernels::KvPool>& pools);
  size_t NgramIndex(int slot, int64_t position) const {
    return static_cast<size_t>(slot) * static_cast<size_t>(ngram_rows_) +
           static_cast<size_t>(position % ngram_rows_);
  }

  // A pool's share of one slot, and where it lies in a checkpoint.
  struct Part {
    std::byte* pool = nullptr;
    size_t bytes = 0;
    size_t offset = 0;
  };
  void AddPart(const kernels::KvPool& pool);

  kernels::Device& device_;
  int num_slots_;
  int num_checkpoints_;
  int ring_rows_;
  int draft_rows_;  // rows beyond need, so that refused drafts overwrite nothing that is wanted
  int ngram_rows_;
  std::vector<kernels::KvPool> window_, draft_, open_;
  std::vector<int32_t> ngram_;  // of the slots, then of the checkpoints
  std::vector<Part> parts_;
  size_t rows_bytes_ = 0;             // of a checkpoint, without its ids
  std::byte* checkpoints_ = nullptr;  // host memory
};

}  // namespace skein::worker
