// The continuous audit of a running service: do the accounts of cache blocks, slots and checkpoints
// agree with who holds them? Pure.
#pragma once

#include <cstdint>

#include "scheduler/group_scheduler.h"

namespace skein::scheduler {

// Blocks, slots and checkpoints of a group whose accounts are wrong.
struct AuditFindings {
  uint32_t leaks = 0;         // with more references than holders: they are never free again
  uint32_t double_frees = 0;  // with fewer, or listed twice: another may write them while they are
                              // read
  friend bool operator==(const AuditFindings&, const AuditFindings&) = default;
};

// Whether the sums agree: references on blocks against tables and cache, free and held against all
// there are. A look at each running sequence, so that it can follow every step. Any one mistake
// shows; only several that cancel out do not.
bool SumsAgree(const GroupScheduler& group);

// Every account by itself: a walk over all tables and blocks.
AuditFindings AuditBlocks(const GroupScheduler& group);

}  // namespace skein::scheduler
