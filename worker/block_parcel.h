// The bytes of a block transfer: whole cache blocks and a checkpoint of slot state, between the
// pools of a model and memory that a channel may read or write. Copies run on the device thread, in
// the order of its steps, so that no step sees half of one and no peer ever writes a pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  // Of all parcels that a worker holds at a time: host memory that nothing else counts.
  uint64_t bytes_max = uint64_t{8} << 30;
  // What one call of the device thread copies at most, unless a block is larger: a step waits for
  // no more.
  size_t call_bytes = size_t{32} << 20;
};
ParcelShape ShapeOf(LoadedModel& model);

class BlockParcel {
 public:
  // What it holds is undefined; its pages are taken when they are written.
  BlockParcel(const ParcelShape& shape, size_t num_blocks);
  static uint64_t BytesOf(const ParcelShape& shape, size_t num_blocks);

  // A piece for each block, then one for the checkpoint.
  std::vector<std::span<std::byte>> pieces();
  uint64_t bytes() const { return BytesOf(shape_, num_blocks_); }

 private:
  const ParcelShape shape_;
  const size_t num_blocks_;
  const std::unique_ptr<std::byte[]> memory_;
};

// Those of the blocks of an order that one call copies. The last one of them brings the checkpoint.
struct BlockRange {
  size_t first = 0;
  size_t end = 0;
};

// Fills a parcel of move.blocks.size() blocks with what the order names, range by range.
// InvalidArgument: the order contradicts what the worker has. Device thread, between steps.
absl::Status Pack(LoadedModel& model, const protocol::MoveBlocks& move, BlockRange range,
                  BlockParcel& parcel);
// Puts what came into the blocks and the checkpoint of the order. As Pack; nothing has changed on
// InvalidArgument, also where what came contradicts itself.
absl::Status Unpack(LoadedModel& model, const protocol::MoveBlocks& move, BlockRange range,
                    BlockParcel& parcel);

}  // namespace skein::worker
