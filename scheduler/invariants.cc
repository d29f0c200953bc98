#include "scheduler/invariants.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"
#include "scheduler/group_assignment.h"

namespace skein::scheduler {
namespace {

template <typename... Args>
absl::Status Broken(int number, const Args&... args) {
  return absl::InternalError(absl::StrCat("scheduler invariant ", number, ": ", args...));
}

// Running sequences of an engine, in no order that matters.
std::vector<const Sequence*> RunningOf(const ClusterScheduler& scheduler,
                                       const GroupScheduler& engine) {
  std::vector<const Sequence*> running;
  for (uint32_t lane = 0; lane < scheduler.limits().lanes; ++lane) {
    running.insert(running.end(), engine.running(lane).begin(), engine.running(lane).end());
  }
  return running;
}

// Chains, holds, idle blocks and checkpoints of the prefix cache.
absl::Status CheckCache(const ClusterScheduler& scheduler, const GroupScheduler& engine) {
  const PrefixCache* cache = engine.prefix_cache();
  if (cache == nullptr) return absl::OkStatus();
  uint64_t holds = 0;
  std::set<CacheNode> held;
  uint32_t saves = 0;
  for (const Sequence* sequence : RunningOf(scheduler, engine)) {
    const CacheChain& chain = sequence->cache.chain;
    holds += chain.nodes.size() + (chain.root != kNoNode ? 1 : 0);
    held.insert(chain.nodes.begin(), chain.nodes.end());
    const uint64_t listed = chain.nodes.size() * uint64_t{engine.geometry().block_tokens};
    if (sequence->cache.shared_length > listed ||
        listed > std::max(sequence->computed, sequence->cache.shared_length)) {
      return Broken(10, "sequence ", sequence->id.value(), " shares ",
                    sequence->cache.shared_length, " tokens, computed ", sequence->computed,
                    ", lists ", listed);
    }
  }
  for (uint32_t lane = 0; lane < scheduler.limits().lanes; ++lane) {
    for (const StepInFlight::Part& part : engine.in_flight(lane).parts) saves += part.saved ? 1 : 0;
  }
  const auto count = [&](const CacheChain& chain) {
    holds += chain.nodes.size() + (chain.root != kNoNode ? 1 : 0);
    held.insert(chain.nodes.begin(), chain.nodes.end());
  };
  for (const auto& [transfer, loan] : engine.loans()) {
    count(loan.chain);
    if (cache->checkpoint(loan.chain.nodes.back()) != loan.checkpoint) {
      return Broken(13, "checkpoint ", loan.checkpoint.value(), " is lent and is another's");
    }
  }
  for (const auto& [transfer, arrival] : engine.arrivals()) {
    count(arrival.chain);
    ++saves;
  }
  if (holds != cache->num_holds() || held.size() + cache->num_idle() != cache->num_blocks()) {
    return Broken(10, cache->num_holds(), " holds, sequences have ", holds, "; ",
                  cache->num_blocks(), " blocks, ", held.size(), " held and ", cache->num_idle(),
                  " idle");
  }
  if (saves != cache->num_reserved() ||
      saves + cache->num_checkpoints() + cache->num_free_checkpoints() !=
          engine.geometry().num_checkpoints) {
    return Broken(10, cache->num_checkpoints(), " checkpoints, ", saves, " being written, ",
                  cache->num_free_checkpoints(), " free of ", engine.geometry().num_checkpoints);
  }
  return absl::OkStatus();
}

absl::Status CheckBlocks(const ClusterScheduler& scheduler, const GroupScheduler& engine) {
  const BlockPool* pool = engine.block_pool();
  if (pool == nullptr) return absl::OkStatus();
  std::vector<uint32_t> held(pool->num_blocks(), 0);
  for (const auto& [id, sequence] : scheduler.sequences()) {
    if (sequence->engine != engine.index()) continue;
    for (protocol::BlockId block : sequence->blocks) ++held[block.value()];
  }
  for (const auto& [transfer, loan] : engine.loans()) {
    for (protocol::BlockId block : loan.blocks) ++held[block.value()];
  }
  for (const auto& [transfer, arrival] : engine.arrivals()) {
    for (protocol::BlockId block : arrival.blocks) {
      if (++held[block.value()] > 1) return Broken(13, "block ", block.value(), " has another use");
    }
  }
  std::vector<bool> listed(pool->num_blocks(), false);
  if (const PrefixCache* cache = engine.prefix_cache(); cache != nullptr) {
    for (protocol::BlockId block : cache->Blocks()) {
      if (listed[block.value()]) return Broken(10, "block ", block.value(), " is listed twice");
      listed[block.value()] = true;
      ++held[block.value()];
    }
  }
  uint32_t used = 0;
  for (uint32_t b = 0; b < held.size(); ++b) {
    if (held[b] != pool->references(protocol::BlockId(b))) {
      return Broken(1, "block ", b, " has ", pool->references(protocol::BlockId(b)),
                    " references, tables and the cache hold ", held[b]);
    }
    if (held[b] > 1 && !listed[b]) return Broken(1, "block ", b, " has ", held[b], " writers");
    used += held[b] > 0 ? 1 : 0;
  }
  if (used + pool->num_free() != pool->num_blocks()) {
    return Broken(1, pool->num_free(), " free and ", used, " held of ", pool->num_blocks());
  }
  return CheckCache(scheduler, engine);
}

absl::Status CheckSlots(const ClusterScheduler& scheduler, const GroupScheduler& engine) {
  std::set<uint32_t> slots;
  for (const Sequence* sequence : RunningOf(scheduler, engine)) {
    if (!sequence->slot) {
      return Broken(2, "running sequence ", sequence->id.value(), " has no slot");
    }
    if (!slots.insert(sequence->slot->value()).second) {
      return Broken(2, "slot ", sequence->slot->value(), " has two sequences");
    }
  }
  if (engine.has_epoch() && slots.size() + engine.num_free_slots() != engine.geometry().num_slots) {
    return Broken(2, slots.size(), " used and ", engine.num_free_slots(), " free slots of ",
                  engine.geometry().num_slots);
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const ClusterScheduler& scheduler, const Sequence& sequence) {
  const uint64_t id = sequence.id.value();
  const GroupScheduler& engine = scheduler.engine(sequence.engine);
  if (sequence.computed > sequence.planned || sequence.planned > sequence.length()) {
    return Broken(3, "sequence ", id, " computed ", sequence.computed, ", planned ",
                  sequence.planned, ", has ", sequence.length(), " tokens");
  }
  const bool scores = sequence.scores_prompt() && sequence.scored < sequence.prompt_length;
  if (scores && sequence.computed >= sequence.scored) {
    return Broken(11, "sequence ", id, " computed ", sequence.computed, " tokens, scored ",
                  sequence.scored, " of ", sequence.prompt_length);
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
  if (sequence.state == SequenceState::kEnded) return Broken(4, "ended sequence ", id, " is kept");
  const uint64_t room = sequence.blocks.size() * uint64_t{engine.geometry().block_tokens};
  if (room < sequence.planned) {
    return Broken(3, "sequence ", id, " planned ", sequence.planned, " tokens in ", room);
  }
  if (sequence.in_flight != (sequence.planned != sequence.computed)) {
    return Broken(6, "sequence ", id, " in flight ", sequence.in_flight, ", computed ",
                  sequence.computed, ", planned ", sequence.planned);
  }
  return absl::OkStatus();
}

absl::Status CheckInFlight(const ClusterScheduler& scheduler, const GroupScheduler& engine,
                           std::set<protocol::SequenceId>& planned) {
  for (uint32_t lane = 0; lane < scheduler.limits().lanes; ++lane) {
    for (const StepInFlight::Part& part : engine.in_flight(lane).parts) {
      const Sequence& sequence = *part.sequence;
      if (!sequence.in_flight || sequence.lane != lane || sequence.engine != engine.index() ||
          !planned.insert(sequence.id).second) {
        return Broken(6, "the step of lane ", lane, " names sequence ", sequence.id.value(),
                      ", which is not in flight there");
      }
    }
  }
  return absl::OkStatus();
}

// Rows of the steps in flight, drafts among them: within the budget and the blocks, and in no
// length.
absl::Status CheckRows(const ClusterScheduler& scheduler, const GroupScheduler& engine) {
  const protocol::CacheGeometry& geometry = engine.geometry();
  for (uint32_t lane = 0; lane < scheduler.limits().lanes; ++lane) {
    uint64_t rows = 0;
    for (const StepInFlight::Part& part : engine.in_flight(lane).parts) {
      const Sequence& sequence = *part.sequence;
      rows += uint64_t{part.chunk} + part.depth;
      if (sequence.planned - sequence.computed != part.chunk) {
        return Broken(8, "sequence ", part.id.value(), " computed ", sequence.computed,
                      ", planned ", sequence.planned, ", its step has ", part.chunk,
                      " rows without drafts");
      }
      const uint64_t room = sequence.blocks.size() * uint64_t{geometry.block_tokens};
      if (room < uint64_t{sequence.planned} + part.depth) {
        return Broken(8, "sequence ", part.id.value(), " planned ", sequence.planned,
                      " tokens and ", part.depth, " drafts in ", room);
      }
    }
    const uint32_t budget = std::min(scheduler.limits().max_num_batched_tokens, geometry.max_rows);
    if (rows > budget) {
      return Broken(8, "the step of lane ", lane, " has ", rows, " rows, its budget is ", budget);
    }
  }
  return absl::OkStatus();
}

// Which sequences run where: in one lane of their engine, in order of service.
absl::Status CheckLanes(const ClusterScheduler& scheduler, const GroupScheduler& engine) {
  uint64_t outstanding = 0;
  for (uint32_t lane = 0; lane < scheduler.limits().lanes; ++lane) {
    const std::vector<Sequence*>& running = engine.running(lane);
    if (!std::is_sorted(running.begin(), running.end(), ServiceOrder())) {
      return Broken(5, "lane ", lane, " of engine ", engine.index(), " is not in order of service");
    }
    for (const Sequence* sequence : running) outstanding += OutstandingTokens(*sequence);
    const Sequence* starved = engine.starved(lane);
    const bool runs = std::find(running.begin(), running.end(), starved) != running.end();
    if (starved != nullptr && (starved->in_flight || !runs)) {
      return Broken(4, "who waits for blocks in lane ", lane, " of engine ", engine.index(),
                    " does not run there, or is in flight");
    }
  }
  if (engine.num_running() > scheduler.limits().max_num_seqs) {
    return Broken(5, engine.num_running(), " sequences run, at most ",
                  scheduler.limits().max_num_seqs, " may");
  }
  if (outstanding != engine.outstanding_tokens()) {
    return Broken(7, "engine ", engine.index(), " counts ", engine.outstanding_tokens(),
                  " outstanding tokens, its sequences have ", outstanding);
  }
  return absl::OkStatus();
}

// Sequences in flight in a lane of a group; whether one of them is a suspect.
struct InFlightOf {
  size_t sequences = 0;
  bool alone = false;
};
InFlightOf CountInFlight(const ClusterScheduler& scheduler, uint32_t group, uint32_t lane) {
  InFlightOf count;
  for (uint32_t rank = 0; rank < scheduler.num_ranks(); ++rank) {
    const GroupScheduler& engine = scheduler.engine(group * scheduler.num_ranks() + rank);
    for (const StepInFlight::Part& part : engine.in_flight(lane).parts) {
      ++count.sequences;
      count.alone = count.alone || part.sequence->alone();
    }
  }
  return count;
}

// Ranks of a group have taken the same steps, and a suspect has its step for itself.
absl::Status CheckLockstep(const ClusterScheduler& scheduler, uint32_t group) {
  const GroupScheduler& first = scheduler.engine(group * scheduler.num_ranks());
  for (uint32_t lane = 0; lane < scheduler.limits().lanes; ++lane) {
    std::optional<protocol::StepId> step;
    for (uint32_t rank = 0; rank < scheduler.num_ranks(); ++rank) {
      const GroupScheduler& engine = scheduler.engine(first.index() + rank);
      const StepInFlight& flies = engine.in_flight(lane);
      if (engine.last_step() != first.last_step() || engine.has_epoch() != first.has_epoch() ||
          (flies.open && flies.step != step.value_or(flies.step))) {
        return Broken(6, "rank ", rank, " of group ", group, " is at step ", flies.step.value(),
                      " of ", engine.last_step().value(), ", others are not");
      }
      if (flies.open) step = flies.step;
      if (!flies.open && !flies.parts.empty()) return Broken(6, "lane ", lane, " keeps a step");
    }
    const InFlightOf count = CountInFlight(scheduler, group, lane);
    if (count.alone && count.sequences != 1) {
      return Broken(9, "a suspect of group ", group, " shares its step with ", count.sequences - 1);
    }
  }
  return absl::OkStatus();
}

// Who is on probation runs alone: once in the cluster, with nothing beside it in flight.
absl::Status CheckProbation(const ClusterScheduler& scheduler) {
  const Sequence* found = nullptr;
  for (uint32_t i = 0; i < scheduler.num_engines(); ++i) {
    const GroupScheduler& engine = scheduler.engine(i);
    size_t in_flight = 0;
    for (uint32_t lane = 0; lane < scheduler.limits().lanes; ++lane) {
      in_flight += CountInFlight(scheduler, i / scheduler.num_ranks(), lane).sequences;
    }
    for (const Sequence* sequence : RunningOf(scheduler, engine)) {
      if (!sequence->suspicion.on_probation()) continue;
      const uint64_t id = sequence->id.value();
      if (found != nullptr || engine.probation() != sequence) {
        return Broken(9, "sequence ", id, " is on probation beside another");
      }
      found = sequence;
      if (sequence->in_flight && in_flight != 1) {
        return Broken(9, "sequence ", id, " is on probation, ", in_flight, " are in flight");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckInvariants(const ClusterScheduler& scheduler) {
  std::set<protocol::SequenceId> planned;
  for (uint32_t i = 0; i < scheduler.num_engines(); ++i) {
    const GroupScheduler& engine = scheduler.engine(i);
    SKEIN_RETURN_IF_ERROR(CheckBlocks(scheduler, engine));
    SKEIN_RETURN_IF_ERROR(CheckSlots(scheduler, engine));
  }
  for (const auto& [id, sequence] : scheduler.sequences()) {
    SKEIN_RETURN_IF_ERROR(CheckSequence(scheduler, *sequence));
  }
  for (uint32_t i = 0; i < scheduler.num_engines(); ++i) {
    const GroupScheduler& engine = scheduler.engine(i);
    SKEIN_RETURN_IF_ERROR(CheckInFlight(scheduler, engine, planned));
    SKEIN_RETURN_IF_ERROR(CheckRows(scheduler, engine));
    SKEIN_RETURN_IF_ERROR(CheckLanes(scheduler, engine));
  }
  for (uint32_t i = 0; i < scheduler.num_groups(); ++i) {
    SKEIN_RETURN_IF_ERROR(CheckLockstep(scheduler, i));
  }
  SKEIN_RETURN_IF_ERROR(CheckProbation(scheduler));
  if (const absl::Status flows = scheduler.admission().CheckFlows(); !flows.ok()) {
    return Broken(12, flows.message());
  }
  for (const auto& [id, sequence] : scheduler.sequences()) {
    if (sequence->in_flight && !planned.contains(id)) {
      return Broken(6, "sequence ", id.value(), " is in flight in no step");
    }
  }
  return absl::OkStatus();
}

}  // namespace skein::scheduler
