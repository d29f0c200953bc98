// Cache blocks of one rank: which are free, how many references each has. Pure, single owner.
// Blocks are handed out lowest id first, so that equal histories give equal plans.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/base/ids.h"
#include "scheduler/free_ids.h"

namespace skein::scheduler {

using BlockTable = std::vector<protocol::BlockId>;

class BlockPool {
 public:
  explicit BlockPool(uint32_t num_blocks);

  // Appends `count` blocks with one reference each to `table`; false, and nothing appended, when
  // fewer are free.
  bool Allocate(uint32_t count, BlockTable& table);
  // One reference more of a block that has one.
  void AddReference(protocol::BlockId block);
  // Drops one reference of each block; the last one frees it. Releasing a free block is a bug.
  void Release(const BlockTable& blocks);

  uint32_t num_free() const { return free_.size(); }
  uint32_t num_blocks() const { return static_cast<uint32_t>(references_.size()); }
  uint32_t references(protocol::BlockId block) const { return references_[block.value()]; }
  // Of all blocks.
  uint64_t num_references() const { return num_references_; }
  // Blocks with a reference.
  uint32_t num_held() const { return num_held_; }

 private:
  FreeIds free_;
  std::vector<uint32_t> references_;
  uint64_t num_references_ = 0;
  uint32_t num_held_ = 0;
};

}  // namespace skein::scheduler
