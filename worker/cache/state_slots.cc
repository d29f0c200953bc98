#include "worker/cache/state_slots.h"

#include <algorithm>

#include "protocol/base/status_macros.h"
#include "worker/cache/kv_cache.h"

namespace skein::worker {

StateSlots::StateSlots(const ModelSpec& spec, const Numerics& numerics, int num_slots,
                       int draft_stages, Arena& arena, int num_checkpoints)
    : device_(arena.device()),
      num_slots_(num_slots),
      num_checkpoints_(num_checkpoints),
      ring_rows_(spec.ring_rows()),
      draft_rows_(spec.dspark.block + 1),
      ngram_rows_(spec.engram.ngram + spec.dspark.block + 1) {
  for (const LayerSpec& layer : spec.layers) {
    window_.push_back(MakePool(numerics.window, spec.head_dim, ring_rows_, num_slots, arena));
    kernels::KvPool open;
    if (layer.kv_source && layer.ratio > 1) {
      open = MakePool(numerics.open, 2 * spec.head_dim, open_rows(layer.ratio), num_slots, arena);
    }
    open_.push_back(open);
  }
  for (int s = 0; s < draft_stages; ++s) {
    draft_.push_back(MakePool(numerics.window, spec.head_dim, ring_rows_, num_slots, arena));
  }
  ngram_.assign(static_cast<size_t>(num_slots + num_checkpoints) * static_cast<size_t>(ngram_rows_),
                0);
  if (num_checkpoints == 0) return;
  for (const std::vector<kernels::KvPool>* pools : {&window_, &draft_, &open_}) {
    for (const kernels::KvPool& pool : *pools) AddPart(pool);
  }
  checkpoints_ = static_cast<std::byte*>(
      arena.HostBytes(rows_bytes_ * static_cast<size_t>(num_checkpoints)));
}

uint64_t StateSlots::BytesOf(const std::vector<kernels::KvPool>& pools) {
  uint64_t bytes = 0;
  for (const kernels::KvPool& pool : pools) bytes += PoolBytes(pool);
  return bytes;
}

void StateSlots::AddPart(const kernels::KvPool& pool) {
  if (pool.data == nullptr) return;
  const auto bytes = static_cast<size_t>(pool.page_bytes);
  parts_.push_back({static_cast<std::byte*>(pool.data), bytes, rows_bytes_});
  rows_bytes_ += bytes;
}

absl::Status StateSlots::Save(int slot, int checkpoint) {
  std::byte* to = checkpoints_ + static_cast<size_t>(checkpoint) * rows_bytes_;
  for (const Part& part : parts_) {
    SKEIN_RETURN_IF_ERROR(device_.CopyOut(
        to + part.offset, part.pool + static_cast<size_t>(slot) * part.bytes, part.bytes));
  }
  std::copy_n(ngram_.begin() + int64_t{slot} * ngram_rows_, ngram_rows_,
              ngram_.begin() + (int64_t{num_slots_} + checkpoint) * ngram_rows_);
  return absl::OkStatus();
}

absl::Status StateSlots::Restore(int checkpoint, int slot) {
  const std::byte* from = checkpoints_ + static_cast<size_t>(checkpoint) * rows_bytes_;
  for (const Part& part : parts_) {
    SKEIN_RETURN_IF_ERROR(device_.CopyIn(part.pool + static_cast<size_t>(slot) * part.bytes,
                                         from + part.offset, part.bytes));
  }
  std::copy_n(ngram_.begin() + (int64_t{num_slots_} + checkpoint) * ngram_rows_, ngram_rows_,
              ngram_.begin() + int64_t{slot} * ngram_rows_);
  return absl::OkStatus();
}

size_t StateSlots::checkpoint_bytes() const {
  return rows_bytes_ + static_cast<size_t>(ngram_rows_) * sizeof(int32_t);
}

void StateSlots::ReadCheckpoint(int checkpoint, std::span<std::byte> to) const {
  const auto rows = static_cast<size_t>(checkpoint) * rows_bytes_;
  std::copy_n(checkpoints_ + rows, rows_bytes_, to.begin());
  const auto ids = std::as_bytes(std::span(ngram_).subspan(
      static_cast<size_t>(num_slots_ + checkpoint) * static_cast<size_t>(ngram_rows_),
      static_cast<size_t>(ngram_rows_)));
  std::copy(ids.begin(), ids.end(), to.subspan(rows_bytes_).begin());
}

void StateSlots::WriteCheckpoint(int checkpoint, std::span<const std::byte> from) {
  const auto rows = static_cast<size_t>(checkpoint) * rows_bytes_;
  std::copy_n(from.begin(), rows_bytes_, checkpoints_ + rows);
  const auto ids = std::as_writable_bytes(std::span(ngram_).subspan(
      static_cast<size_t>(num_slots_ + checkpoint) * static_cast<size_t>(ngram_rows_),
      static_cast<size_t>(ngram_rows_)));
  std::copy_n(from.subspan(rows_bytes_).begin(), ids.size(), ids.begin());
}

uint64_t StateSlots::SlotBytes(const ModelSpec& spec, const Numerics& numerics, int draft_stages) {
  int64_t bytes = (spec.num_layers + draft_stages) *
                  PageBytes(numerics.window, spec.head_dim, spec.ring_rows());
  for (const LayerSpec& layer : spec.layers) {
    if (layer.kv_source && layer.ratio > 1) {
      bytes += PageBytes(numerics.open, 2 * spec.head_dim, layer.ratio + spec.dspark.block + 1);
    }
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace skein::worker
