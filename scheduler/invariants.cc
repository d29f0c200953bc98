#include "scheduler/invariants.h"

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"

namespace skein::scheduler {
namespace {

template <typename... Args>
absl::Status Broken(int number, const Args&... args) {
  return absl::InternalError(absl::StrCat("scheduler invariant ", number, ": ", args...));
}

absl::Status CheckBlocks(const GroupScheduler& scheduler) {
  const BlockPool* pool = scheduler.block_pool();
  if (pool == nullptr) return absl::OkStatus();
  std::vector<uint32_t> held(pool->num_blocks(), 0);
  for (const auto& [id, sequence] : scheduler.sequences()) {
    for (protocol::BlockId block : sequence->blocks) ++held[block.value()];
  }
  uint32_t used = 0;
  for (uint32_t b = 0; b < held.size(); ++b) {
    if (held[b] != pool->references(protocol::BlockId(b))) {
      return Broken(1, "block ", b, " has ", pool->references(protocol::BlockId(b)),
                    " references, tables hold ", held[b]);
    }
    if (held[b] > 1) return Broken(1, "block ", b, " has ", held[b], " writers");
    used += held[b];
  }
  if (used + pool->num_free() != pool->num_blocks()) {
    return Broken(1, pool->num_free(), " free and ", used, " held of ", pool->num_blocks());
  }
  return absl::OkStatus();
}

absl::Status CheckSlots(const GroupScheduler& scheduler) {
  std::set<uint32_t> slots;
  for (const Sequence* sequence : scheduler.running()) {
    if (!sequence->slot)
      return Broken(2, "running sequence ", sequence->id.value(), " has no slot");
    if (!slots.insert(sequence->slot->value()).second) {
      return Broken(2, "slot ", sequence->slot->value(), " has two sequences");
    }
  }
  if (scheduler.has_epoch() &&
      slots.size() + scheduler.num_free_slots() != scheduler.geometry().num_slots) {
    return Broken(2, slots.size(), " used and ", scheduler.num_free_slots(), " free slots of ",
                  scheduler.geometry().num_slots);
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const GroupScheduler& scheduler, const Sequence& sequence) {
  const uint64_t id = sequence.id.value();
  if (sequence.computed > sequence.planned || sequence.planned > sequence.length()) {
    return Broken(3, "sequence ", id, " computed ", sequence.computed, ", planned ",
                  sequence.planned, ", has ", sequence.length(), " tokens");
  }
  const bool queued = scheduler.admission().Contains(&sequence);
  if (sequence.state == SequenceState::kQueued) {
    if (!queued || sequence.slot || !sequence.blocks.empty() || sequence.in_flight ||
        sequence.planned != 0) {
      return Broken(4, "queued sequence ", id, " holds a slot, blocks or a step, or is not queued");
    }
    return absl::OkStatus();
  }
  if (queued) return Broken(4, "running sequence ", id, " is queued");
  const uint64_t room = sequence.blocks.size() * uint64_t{scheduler.geometry().block_tokens};
  if (room < sequence.planned) {
    return Broken(3, "sequence ", id, " planned ", sequence.planned, " tokens in ", room);
  }
  if (sequence.in_flight != (sequence.planned != sequence.computed)) {
    return Broken(6, "sequence ", id, " in flight ", sequence.in_flight, ", computed ",
                  sequence.computed, ", planned ", sequence.planned);
  }
  return absl::OkStatus();
}

absl::Status CheckInFlight(const GroupScheduler& scheduler) {
  std::set<protocol::SequenceId> planned;
  for (uint32_t lane = 0; lane < scheduler.limits().lanes; ++lane) {
    if (!scheduler.in_flight(lane)) continue;
    for (const protocol::SequenceStep& step : scheduler.in_flight(lane)->sequences) {
      auto found = scheduler.sequences().find(step.sequence);
      if (found == scheduler.sequences().end() || !found->second->in_flight ||
          found->second->lane != lane || !planned.insert(step.sequence).second) {
        return Broken(6, "the step of lane ", lane, " names sequence ", step.sequence.value(),
                      ", which is not in flight there");
      }
    }
  }
  for (const auto& [id, sequence] : scheduler.sequences()) {
    if (sequence->in_flight && !planned.contains(id)) {
      return Broken(6, "sequence ", id.value(), " is in flight in no step");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckInvariants(const GroupScheduler& scheduler) {
  SKEIN_RETURN_IF_ERROR(CheckBlocks(scheduler));
  SKEIN_RETURN_IF_ERROR(CheckSlots(scheduler));
  for (const auto& [id, sequence] : scheduler.sequences()) {
    SKEIN_RETURN_IF_ERROR(CheckSequence(scheduler, *sequence));
  }
  SKEIN_RETURN_IF_ERROR(CheckInFlight(scheduler));
  if (scheduler.num_running() > scheduler.limits().max_num_seqs) {
    return Broken(5, scheduler.num_running(), " sequences run, at most ",
                  scheduler.limits().max_num_seqs, " may");
  }
  return absl::OkStatus();
}

}  // namespace skein::scheduler
