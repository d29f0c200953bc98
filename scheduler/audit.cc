#include "scheduler/audit.h"

#include <vector>

namespace skein::scheduler {
namespace {

// Of `all` things those that are held and free too often or not at all.
void Compare(uint64_t held, uint64_t free, uint64_t all, AuditFindings& findings) {
  if (held + free < all) findings.leaks += static_cast<uint32_t>(all - held - free);
  if (held + free > all) findings.double_frees += static_cast<uint32_t>(held + free - all);
}

// Checkpoints that a step in flight writes.
uint32_t NumSaving(const GroupScheduler& group) {
  uint32_t saving = 0;
  for (uint32_t lane = 0; lane < group.num_lanes(); ++lane) {
    for (const StepInFlight::Part& part : group.in_flight(lane).parts) saving += part.saved ? 1 : 0;
  }
  return saving;
}

void AuditSlots(const GroupScheduler& group, AuditFindings& findings) {
  if (!group.has_epoch()) return;
  Compare(group.num_running(), group.num_free_slots(), group.geometry().num_slots, findings);
  const PrefixCache* cache = group.prefix_cache();
  if (cache == nullptr) return;
  const uint64_t written = NumSaving(group) + group.arrivals().size();
  Compare(cache->num_checkpoints() + written, cache->num_free_checkpoints(),
          group.geometry().num_checkpoints, findings);
}

}  // namespace

bool SumsAgree(const GroupScheduler& group) {
  const BlockPool* pool = group.block_pool();
  if (pool == nullptr) return true;
  uint64_t held = 0;
  for (uint32_t lane = 0; lane < group.num_lanes(); ++lane) {
    for (const Sequence* sequence : group.running(lane)) held += sequence->blocks.size();
  }
  for (const auto& [transfer, loan] : group.loans()) held += loan.blocks.size();
  for (const auto& [transfer, arrival] : group.arrivals()) held += arrival.blocks.size();
  AuditFindings findings;
  AuditSlots(group, findings);
  const PrefixCache* cache = group.prefix_cache();
  if (cache != nullptr) held += cache->num_blocks();
  return findings == AuditFindings{} && held == pool->num_references() &&
         pool->num_held() + pool->num_free() == pool->num_blocks() &&
         (cache == nullptr || cache->num_doubled() == 0);
}

AuditFindings AuditBlocks(const GroupScheduler& group) {
  AuditFindings findings;
  const BlockPool* pool = group.block_pool();
  if (pool == nullptr) return findings;
  AuditSlots(group, findings);
  std::vector<uint32_t> held(pool->num_blocks(), 0);
  for (uint32_t lane = 0; lane < group.num_lanes(); ++lane) {
    for (const Sequence* sequence : group.running(lane)) {
      for (const protocol::BlockId block : sequence->blocks) ++held[block.value()];
    }
  }
  // Lent to others, and kept for what others lend.
  for (const auto& [transfer, loan] : group.loans()) {
    for (const protocol::BlockId block : loan.blocks) ++held[block.value()];
  }
  for (const auto& [transfer, arrival] : group.arrivals()) {
    for (const protocol::BlockId block : arrival.blocks) ++held[block.value()];
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
  Compare(used, pool->num_free(), pool->num_blocks(), findings);
  return findings;
}

}  // namespace skein::scheduler
