// The bytes of a block transfer: whole cache blocks and a checkpoint of slot state, between the
// pools of a model and memory that a channel may read or write. Copies run on the device thread, in
// the order of its steps, so that no step sees half of one and no peer ever writes a pool.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "protocol/messages/move.h"
#include "worker/loaded_model.h"

namespace skein::worker {

// What the parcels of a model are made of; equal on both sides where the cache layouts are.
struct ParcelShape {
  size_t block_bytes = 0;
  size_t checkpoint_bytes = 0;
  size_t num_blocks = 0;  // that the worker has
};
ParcelShape ShapeOf(LoadedModel& model);

class BlockParcel {
 public:
  BlockParcel(const ParcelShape& shape, size_t num_blocks);

  // A piece for each block, then one for the checkpoint.
  std::vector<std::span<std::byte>> pieces();
  uint64_t bytes() const { return memory_.size(); }

 private:
  const ParcelShape shape_;
  const size_t num_blocks_;
  std::vector<std::byte> memory_;
};

// Fills a parcel of move.blocks.size() blocks with what the order names. InvalidArgument: the order
// contradicts what the worker has. Device thread, between steps.
absl::Status Pack(LoadedModel& model, const protocol::MoveBlocks& move, BlockParcel& parcel);
// Puts what came into the blocks and the checkpoint of the order. As Pack; nothing has changed on
// InvalidArgument.
absl::Status Unpack(LoadedModel& model, const protocol::MoveBlocks& move, BlockParcel& parcel);

}  // namespace skein::worker
