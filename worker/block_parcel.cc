#include "worker/block_parcel.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"

namespace skein::worker {
namespace {

constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t BlockBytes(const KvCache& cache) {
  size_t bytes = 0;
  for (const std::span<std::byte> page : cache.Pages(0)) bytes += page.size();
  return bytes;
}

// The checkpoint that the order names, as the worker counts them.
absl::StatusOr<int> CheckpointOf(LoadedModel& model, const protocol::MoveBlocks& move) {
  const auto first = static_cast<uint32_t>(model.slots().num_slots());
  const auto count = static_cast<uint32_t>(model.slots().num_checkpoints());
  if (move.checkpoint.value() < first || move.checkpoint.value() - first >= count) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint ", move.checkpoint.value(),
                                                   " does not exist; the worker has ", count,
                                                   ", numbered from ", first));
  }
  const auto blocks = static_cast<uint32_t>(model.cache().num_blocks());
  for (const protocol::BlockId block : move.blocks) {
    if (block.value() < blocks) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "block ", block.value(), " does not exist; the worker has ", blocks, ", numbered from 0"));
  }
  return static_cast<int>(move.checkpoint.value() - first);
}

// Whether a copy of slot state is that at the position of the order, and contradicts itself
// nowhere: it may have come from elsewhere.
absl::Status CheckState(const SavedSlot& saved, const protocol::MoveBlocks& move, int drafts) {
  const int64_t position = move.position;
  const int64_t end = std::max(saved.length, saved.written);
  const bool fits = saved.used == 1 && position <= saved.length && end <= position + drafts;
  const bool sound = saved.written >= 0 && saved.begin >= 0 && saved.begin <= position &&
                     saved.fed_from >= 0 && saved.fed_from <= saved.fed_to && saved.fed_to <= end;
  if (fits && !sound) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint ", move.checkpoint.value(), " contradicts itself: ", saved.written,
                     " tokens written, from ", saved.begin, " on, the draft head saw ",
                     saved.fed_from, " to ", saved.fed_to, " of ", saved.length));
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("checkpoint ", move.checkpoint.value(), " has ", saved.length,
                   " tokens, which are not the state at position ", position));
}

}  // namespace

ParcelShape ShapeOf(LoadedModel& model) {
  return {.block_bytes = BlockBytes(model.cache()),
          .checkpoint_bytes = sizeof(SavedSlot) + model.slots().checkpoint_bytes(),
          .num_blocks = static_cast<size_t>(model.cache().num_blocks())};
}

BlockParcel::BlockParcel(const ParcelShape& shape, size_t num_blocks)
    : shape_(shape),
      num_blocks_(num_blocks),
      memory_(std::make_unique_for_overwrite<std::byte[]>(BytesOf(shape, num_blocks))) {}

uint64_t BlockParcel::BytesOf(const ParcelShape& shape, size_t num_blocks) {
  return num_blocks * Aligned(shape.block_bytes) + shape.checkpoint_bytes;
}

std::vector<std::span<std::byte>> BlockParcel::pieces() {
  std::vector<std::span<std::byte>> out;
  const size_t each = Aligned(shape_.block_bytes);
  for (size_t i = 0; i < num_blocks_; ++i) {
    out.emplace_back(memory_.get() + i * each, shape_.block_bytes);
  }
  out.emplace_back(memory_.get() + num_blocks_ * each, shape_.checkpoint_bytes);
  return out;
}

absl::Status Pack(LoadedModel& model, const protocol::MoveBlocks& move, BlockRange range,
                  BlockParcel& parcel) {
  SKEIN_ASSIGN_OR_RETURN(const int checkpoint, CheckpointOf(model, move));
  const SavedSlot saved = model.input().saved(checkpoint);
  SKEIN_RETURN_IF_ERROR(CheckState(saved, move, model.spec().dspark.block));
  const std::vector<std::span<std::byte>> pieces = parcel.pieces();
  for (size_t i = range.first; i < range.end; ++i) {
    std::byte* to = pieces[i].data();
    for (const std::span<std::byte> page :
         model.cache().Pages(static_cast<int>(move.blocks[i].value()))) {
      SKEIN_RETURN_IF_ERROR(model.device().CopyOut(to, page.data(), page.size()));
      to += page.size();
    }
  }
  // Copies of checkpoints were queued before; they are in memory of the host after this.
  SKEIN_RETURN_IF_ERROR(model.device().Wait());
  if (range.end < move.blocks.size()) return absl::OkStatus();
  std::memcpy(pieces.back().data(), &saved, sizeof(saved));
  model.slots().ReadCheckpoint(checkpoint, pieces.back().subspan(sizeof(saved)));
  return absl::OkStatus();
}

absl::Status Unpack(LoadedModel& model, const protocol::MoveBlocks& move, BlockRange range,
                    BlockParcel& parcel) {
  SKEIN_ASSIGN_OR_RETURN(const int checkpoint, CheckpointOf(model, move));
  const std::vector<std::span<std::byte>> pieces = parcel.pieces();
  SavedSlot saved;
  std::memcpy(&saved, pieces.back().data(), sizeof(saved));
  SKEIN_RETURN_IF_ERROR(CheckState(saved, move, model.spec().dspark.block));
  for (size_t i = range.first; i < range.end; ++i) {
    const std::byte* from = pieces[i].data();
    for (const std::span<std::byte> page :
         model.cache().Pages(static_cast<int>(move.blocks[i].value()))) {
      SKEIN_RETURN_IF_ERROR(model.device().CopyIn(page.data(), from, page.size()));
      from += page.size();
    }
  }
  SKEIN_RETURN_IF_ERROR(model.device().Wait());
  if (range.end < move.blocks.size()) return absl::OkStatus();
  model.slots().WriteCheckpoint(checkpoint, pieces.back().subspan(sizeof(saved)));
  model.input().SetSaved(checkpoint, saved);
  return absl::OkStatus();
}

}  // namespace skein::worker
