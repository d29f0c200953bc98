// Cache blocks of one rank: which are free, how many references each has. Pure, single owner.
// Blocks are handed out lowest id first, so that equal histories give equal plans.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "protocol/base/ids.h"

namespace skein::scheduler {

using BlockTable = std::vector<protocol::BlockId>;

class BlockPool {
 public:
  explicit BlockPool(uint32_t num_blocks);

  // `count` blocks with one reference each, or nothing when fewer are free.
  std::optional<BlockTable> Allocate(uint32_t count);
  // Drops one reference of each block; the last one frees it. Releasing a free block is a bug.
  void Release(const BlockTable& blocks);

  uint32_t num_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t num_blocks() const { return static_cast<uint32_t>(references_.size()); }
  uint32_t references(protocol::BlockId block) const { return references_[block.value()]; }

 private:
  std::set<uint32_t> free_;
  std::vector<uint32_t> references_;
};

}  // namespace skein::scheduler
