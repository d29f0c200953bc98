#include "scheduler/block_pool.h"

#include "protocol/base/log.h"

namespace skein::scheduler {

BlockPool::BlockPool(uint32_t num_blocks) : references_(num_blocks, 0) {
  for (uint32_t i = 0; i < num_blocks; ++i) free_.insert(free_.end(), i);
}

std::optional<BlockTable> BlockPool::Allocate(uint32_t count) {
  if (count > free_.size()) return std::nullopt;
  BlockTable blocks;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t block = *free_.begin();
    free_.erase(free_.begin());
    references_[block] = 1;
    blocks.emplace_back(block);
  }
  return blocks;
}

void BlockPool::Release(const BlockTable& blocks) {
  for (protocol::BlockId block : blocks) {
    SKEIN_CHECK(block.value() < references_.size() && references_[block.value()] > 0)
        << "scheduler invariant 1: block " << block << " is released without a reference";
    if (--references_[block.value()] == 0) free_.insert(block.value());
  }
}

}  // namespace skein::scheduler
