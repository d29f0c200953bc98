#include "scheduler/block_pool.h"

#include "protocol/base/log.h"

namespace skein::scheduler {

BlockPool::BlockPool(uint32_t num_blocks) : free_(num_blocks), references_(num_blocks, 0) {}

bool BlockPool::Allocate(uint32_t count, BlockTable& table) {
  if (count > free_.size()) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t block = free_.TakeLowest();
    references_[block] = 1;
    ++num_references_;
    ++num_held_;
    table.emplace_back(block);
  }
  return true;
}

void BlockPool::AddReference(protocol::BlockId block) {
  SKEIN_CHECK(block.value() < references_.size() && references_[block.value()] > 0)
      << "scheduler invariant 1: block " << block << " is shared while it is free";
  ++references_[block.value()];
  ++num_references_;
}

void BlockPool::Release(const BlockTable& blocks) {
  for (protocol::BlockId block : blocks) {
    SKEIN_CHECK(block.value() < references_.size() && references_[block.value()] > 0)
        << "scheduler invariant 1: block " << block << " is released without a reference";
    --num_references_;
    if (--references_[block.value()] > 0) continue;
    --num_held_;
    free_.Insert(block.value());
  }
}

}  // namespace skein::scheduler
