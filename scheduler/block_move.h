// Cache blocks between two engines: what one lends, what another is to get, and what both are told.
// Plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/base/ids.h"
#include "protocol/base/transfer_id.h"
#include "scheduler/block_pool.h"
#include "scheduler/prefix_cache.h"

namespace skein::scheduler {

// Transfers that an engine lends for, and those that it waits for, at a time.
inline constexpr size_t kLoansMax = 6;

// Blocks from the beginning of a sequence on, and the checkpoint at their end. Nothing of it
// changes, and nothing of it is given to others, until the worker says that the loan is over.
struct Loan {
  CacheChain chain;
  BlockTable blocks;  // with a reference each
  protocol::SlotId checkpoint;
};

// Blocks and a checkpoint that a transfer writes. They are nobody's until the worker says that it
// is over.
struct Arrival {
  CacheChain chain;  // the front that the engine has
  BlockTable blocks;
  protocol::SlotId checkpoint;
  std::vector<int32_t> tokens;  // in all blocks, the front's included
};

// Why a sequence moves.
enum class MoveCause : uint8_t {
  kDrain,     // its group is emptied
  kHandOver,  // its prompt is computed, and others decode
};
inline constexpr size_t kNumMoveCauses = 2;

// What became of it.
enum class MoveResult : uint8_t {
  kMoved,     // its cache came with it
  kReplayed,  // it is computed again: no cache to take, no place for it, or the transfer was lost
};
inline constexpr size_t kNumMoveResults = 2;

using MoveCounters = std::array<std::array<uint64_t, kNumMoveResults>, kNumMoveCauses>;

// What the workers of two engines are told of a transfer.
struct MoveOrder {
  protocol::TransferId transfer;
  uint32_t from = 0, to = 0;  // engines
  BlockTable lent, wanted;    // one for one
  protocol::SlotId lent_checkpoint, wanted_checkpoint;
  uint32_t position = 0;  // tokens before the checkpoint
};

}  // namespace skein::scheduler
