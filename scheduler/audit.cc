#include "scheduler/audit.h"

#include <vector>

namespace skein::scheduler {

AuditFindings AuditBlocks(const GroupScheduler& group) {
  AuditFindings findings;
  const BlockPool* pool = group.block_pool();
  if (pool == nullptr) return findings;
  std::vector<uint32_t> held(pool->num_blocks(), 0);
  for (uint32_t lane = 0; lane < group.num_lanes(); ++lane) {
    for (const Sequence* sequence : group.running(lane)) {
      for (const protocol::BlockId block : sequence->blocks) ++held[block.value()];
    }
  }
  if (const PrefixCache* cache = group.prefix_cache(); cache != nullptr) {
    std::vector<bool> listed(pool->num_blocks(), false);
    for (const protocol::BlockId block : cache->Blocks()) {
      findings.double_frees += listed[block.value()] ? 1 : 0;
      listed[block.value()] = true;
      ++held[block.value()];
    }
  }
  uint32_t used = 0;
  for (uint32_t b = 0; b < held.size(); ++b) {
    const uint32_t references = pool->references(protocol::BlockId(b));
    findings.leaks += references > held[b] ? 1 : 0;
    findings.double_frees += references < held[b] ? 1 : 0;
    used += references > 0 ? 1 : 0;
  }
  // A block that nobody has and that is not free either.
  if (used + pool->num_free() < pool->num_blocks()) {
    findings.leaks += pool->num_blocks() - used - pool->num_free();
  }
  return findings;
}

}  // namespace skein::scheduler
