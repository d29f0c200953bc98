// The continuous audit of a running service: are the references on cache blocks those of the tables
// and of the prefix cache? Pure; costs a walk over tables and blocks, far below a step.
#pragma once

#include <cstdint>

#include "scheduler/group_scheduler.h"

namespace skein::scheduler {

// Blocks of a group whose accounts are wrong.
struct AuditFindings {
  uint32_t leaks = 0;         // with more references than holders: they are never free again
  uint32_t double_frees = 0;  // with fewer, or listed twice: another may write them while they are
                              // read
  friend bool operator==(const AuditFindings&, const AuditFindings&) = default;
};

AuditFindings AuditBlocks(const GroupScheduler& group);

}  // namespace skein::scheduler
