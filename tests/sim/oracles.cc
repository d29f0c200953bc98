#include "tests/sim/oracles.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/audit.h"
#include "scheduler/invariants.h"

namespace skein::tests {

void Oracles::Violate(int oracle, std::string what) {
  if (what_.empty()) what_ = absl::StrCat("oracle ", oracle, ": ", what);
}

void Oracles::CheckScheduler(const scheduler::ClusterScheduler& scheduler) {
  if (const absl::Status status = scheduler::CheckInvariants(scheduler); !status.ok()) {
    Violate(3, std::string(status.message()));
  }
  for (const auto& [id, sequence] : scheduler.sequences()) {
    const bool runs = sequence->state == scheduler::SequenceState::kRunning;
    if (runs && sequence->alone() && sequence->cache.chain.root != scheduler::kNoNode) {
      Violate(3, absl::StrCat("sequence ", id.value(), " is a suspect and shares blocks"));
    }
  }
  for (uint32_t i = 0; i < scheduler.num_engines(); ++i) {
    const scheduler::GroupScheduler& engine = scheduler.engine(i);
    const scheduler::AuditFindings found = scheduler::AuditBlocks(engine);
    if (!(found == scheduler::AuditFindings{}) || !scheduler::SumsAgree(engine)) {
      Violate(3, absl::StrCat("the audit of engine ", i, " finds ", found.leaks, " leaks, ",
                              found.double_frees, " double frees"));
    }
  }
}

void Oracles::CheckDoor(const coordinator::FrontDoorQueue& door,
                        const coordinator::FrontDoorLimits& limits) {
  // The bound in tokens holds for all but one request.
  if (door.waiting_requests() > limits.queued_requests_max) {
    Violate(5, absl::StrCat(door.waiting_requests(), " requests wait, at most ",
                            limits.queued_requests_max, " may"));
  }
}

void Oracles::CheckIdle(const scheduler::ClusterScheduler& scheduler,
                        const coordinator::FrontDoorQueue& door) {
  if (!scheduler.empty() || scheduler.num_queued() > 0 || scheduler.num_running() > 0) {
    Violate(7, absl::StrCat(scheduler.sequences().size(), " sequences are left, the first of them ",
                            scheduler.sequences().begin()->first.value()));
  }
  if (door.waiting_requests() != 0 || door.waiting_tokens() != 0) {
    Violate(7, absl::StrCat("the front door counts ", door.waiting_requests(), " requests and ",
                            door.waiting_tokens(), " tokens that nobody waits with"));
  }
  for (uint32_t i = 0; i < scheduler.num_engines(); ++i) {
    const scheduler::GroupScheduler& engine = scheduler.engine(i);
    if (!engine.has_epoch()) continue;
    if (engine.num_free_blocks() != engine.block_pool()->num_blocks() ||
        engine.num_free_slots() != engine.geometry().num_slots ||
        engine.outstanding_tokens() != 0) {
      Violate(7, absl::StrCat("engine ", i, " is idle and has ", engine.num_free_blocks(), " of ",
                              engine.block_pool()->num_blocks(), " blocks, ",
                              engine.num_free_slots(), " of ", engine.geometry().num_slots,
                              " slots, ", engine.outstanding_tokens(), " outstanding tokens"));
    }
  }
}

}  // namespace skein::tests
