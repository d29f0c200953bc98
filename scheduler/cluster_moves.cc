// The part of ClusterScheduler that moves sequences with their cache: away from groups that are
// emptied, and from those that compute prompts to those that decode.
#include <algorithm>
#include <utility>

#include "protocol/base/log.h"
#include "scheduler/cluster_scheduler.h"

namespace skein::scheduler {

bool ClusterScheduler::Prefills(uint32_t engine) const {
  return engine / num_ranks_ < limits_.prefill_groups;
}

// Whose part it is to compute the next tokens of the sequence.
ClusterScheduler::Part ClusterScheduler::PartOf(const Sequence& sequence) const {
  return StandIn(WantsPrefill(sequence) ? Part::kPrefill : Part::kDecode, sequence);
}

// The part; anybody's, if none of those takes newcomers and can ever run the sequence.
ClusterScheduler::Part ClusterScheduler::StandIn(Part part, const Sequence& sequence) const {
  if (limits_.prefill_groups == 0) return Part::kAnybody;
  const bool some = std::any_of(engines_.begin(), engines_.end(), [&](const auto& engine) {
    return IsOf(part, engine->index()) && engine->has_epoch() && !engine->cordoned() &&
           engine->CheckFits(sequence).ok();
  });
  return some ? part : Part::kAnybody;
}

bool ClusterScheduler::IsOf(Part part, uint32_t engine) const {
  return part == Part::kAnybody || (part == Part::kPrefill) == Prefills(engine);
}

// Whole blocks of it are to be computed, which are worth handing over.
bool ClusterScheduler::WantsPrefill(const Sequence& sequence) const {
  return !sequence.handed_over && sequence.length() > block_tokens_;
}

void ClusterScheduler::NoteParts() {
  decode_ready_ = false;
  for (const auto& engine : engines_) {
    if (!engine->has_epoch()) continue;
    block_tokens_ = engine->geometry().block_tokens;
    if (engine->cordoned()) continue;
    if (!Prefills(engine->index())) decode_ready_ = true;
  }
}

// Sequences that are promised a place on each engine; those that are gone or started are forgotten.
std::vector<uint32_t> ClusterScheduler::CountPromised() {
  std::vector<uint32_t> promised(engines_.size());
  std::erase_if(promised_, [&](protocol::SequenceId id) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end() || !found->second->moved_to) return true;
    ++promised[*found->second->moved_to];
    return false;
  });
  return promised;
}

// The engine that takes the sequence over from `from`, and can start it soon. Looks at no token.
ClusterScheduler::Target ClusterScheduler::TargetOf(const Sequence& sequence, Part part,
                                                    const std::vector<uint32_t>& promised,
                                                    const MayMove& may_move) {
  const uint32_t from = sequence.engine;
  Target target;
  for (uint32_t i = 0; i < engines_.size(); ++i) {
    const GroupScheduler& engine = *engines_[i];
    const protocol::CacheGeometry& geometry = engine.geometry();
    loads_[i].outstanding_tokens = engine.outstanding_tokens();
    loads_[i].capacity_tokens = uint64_t{geometry.num_blocks} * geometry.block_tokens;
    loads_[i].marked = 0;
    loads_[i].own_tokens = 0;
    const bool takes = i / num_ranks_ != from / num_ranks_ && engine.has_epoch() &&
                       !engine.cordoned() && !engine.starved() && IsOf(part, i) &&
                       engine.FindRoom().sequences > promised[i] && engine.CheckFits(sequence).ok();
    const MoveAnswer answer = takes ? may_move(from, i) : MoveAnswer::kNo;
    const bool full = engine.arrivals().size() >= kLoansMax;
    loads_[i].can_take = answer == MoveAnswer::kYes && !full;
    target.later |= answer == MoveAnswer::kLater || (answer == MoveAnswer::kYes && full);
  }
  target.engine = ChooseEngine(loads_);
  return target;
}

// Whether a transfer that the engine lends for is under way.
bool ClusterScheduler::AnyAwaited(const GroupScheduler& from) const {
  return std::any_of(from.loans().begin(), from.loans().end(),
                     [this](const auto& loan) { return moves_.contains(loan.first); });
}

// Lets the sequence go, or leaves it where it runs for now. Its tokens are looked up last: a prompt
// is long, and rounds are many.
void ClusterScheduler::StartMove(Sequence& sequence, MoveCause cause, const MoveInputs& inputs,
                                 std::vector<uint32_t>& promised, std::vector<MoveOrder>& orders) {
  GroupScheduler& from = *engines_[sequence.engine];
  const auto replay = [&] {
    if (cause == MoveCause::kHandOver) return;
    from.Depart(sequence, cause);
    CountMove(cause, MoveResult::kReplayed);
  };
  if (from.loans().size() >= kLoansMax) {
    // Those whose fetch has ended have only their own time, which may be long.
    if (AnyAwaited(from)) return;
    return replay();
  }
  const bool prefilling = sequence.prefilling();
  const Part part = cause == MoveCause::kHandOver
                        ? Part::kDecode
                        : StandIn(prefilling ? Part::kPrefill : Part::kDecode, sequence);
  const Target target = TargetOf(sequence, part, promised, inputs.may_move);
  const std::optional<uint32_t> to = target.engine;
  if (!to && target.later) return;
  if (!to) return replay();
  const uint32_t position = from.Lendable(sequence);
  const uint32_t block = from.geometry().block_tokens;
  // What would be computed again there is better kept, until a block more has a checkpoint.
  const bool far = cause == MoveCause::kHandOver && sequence.length() > position + 2 * block;
  const protocol::TransferId transfer = inputs.draw();
  const Expectation expected = position == 0 || far
                                   ? Expectation::kNoRoom
                                   : engines_[*to]->Expect(transfer, sequence, position);
  if (expected == Expectation::kNoRoom) {
    // The step behind the next block end leaves a checkpoint there.
    if (cause == MoveCause::kHandOver) {
      sequence.moves_from_length = BlocksFor(sequence.length() - 1, block) * block + 2;
    }
    return replay();
  }
  if (expected == Expectation::kComes) {
    orders.push_back(OrderOf(transfer, sequence, *to, position));
    moves_[transfer] = {sequence.id, cause};
  } else {
    CountMove(cause, MoveResult::kMoved);
  }
  from.Depart(sequence, cause);
  sequence.handed_over = !prefilling;
  sequence.moved_to = *to;
  if (expected == Expectation::kComes) sequence.awaits = transfer;
  promised_.insert(sequence.id);
  ++promised[*to];
}

// What both sides are told of a transfer that `to` expects.
MoveOrder ClusterScheduler::OrderOf(protocol::TransferId transfer, const Sequence& sequence,
                                    uint32_t to, uint32_t position) {
  const Loan& loan = engines_[sequence.engine]->Lend(transfer, sequence);
  const Arrival& arrival = engines_[to]->arrivals().at(transfer);
  MoveOrder order;
  order.transfer = transfer;
  order.from = sequence.engine;
  order.to = to;
  const auto front = static_cast<std::ptrdiff_t>(arrival.chain.nodes.size());
  order.lent.assign(loan.blocks.begin() + front, loan.blocks.end());
  order.wanted = arrival.blocks;
  order.lent_checkpoint = loan.checkpoint;
  order.wanted_checkpoint = arrival.checkpoint;
  order.position = position;
  return order;
}

std::vector<MoveOrder> ClusterScheduler::PlanMoves(const MoveInputs& inputs) {
  std::vector<MoveOrder> orders;
  if (!limits_.moves_blocks) return orders;
  NoteParts();
  std::vector<uint32_t> promised = CountPromised();
  for (const auto& engine : engines_) {
    const bool hands_over = decode_ready_ && Prefills(engine->index());
    if (!engine->has_epoch() || (!engine->evicting() && !hands_over)) continue;
    for (uint32_t lane = 0; lane < limits_.lanes; ++lane) {
      for (Sequence* sequence : std::vector<Sequence*>(engine->running(lane))) {
        if (sequence->in_flight || sequence->pinned || sequence->cancelled) continue;
        const MoveCause cause = engine->evicting() ? MoveCause::kDrain : MoveCause::kHandOver;
        if (cause == MoveCause::kHandOver &&
            (sequence->prefilling() || sequence->length() < sequence->moves_from_length)) {
          continue;
        }
        StartMove(*sequence, cause, inputs, promised, orders);
      }
    }
  }
  return orders;
}

void ClusterScheduler::CountMove(MoveCause cause, MoveResult result) {
  ++move_counters_[static_cast<size_t>(cause)][static_cast<size_t>(result)];
}

// Whoever waited for the transfer waits no more.
void ClusterScheduler::EndMove(protocol::TransferId transfer, MoveResult result) {
  const auto found = moves_.find(transfer);
  if (found == moves_.end()) return;
  const Move move = found->second;
  moves_.erase(found);
  CountMove(move.cause, result);
  const auto sequence = sequences_.find(move.sequence);
  if (sequence == sequences_.end() || sequence->second->awaits != transfer) return;
  sequence->second->awaits.reset();
  // Without its cache no place is better than another.
  if (result == MoveResult::kReplayed) sequence->second->moved_to.reset();
}

// What the group lends goes with its epoch: nobody waits for it any more.
void ClusterScheduler::ForgetLoans(protocol::GroupId group) {
  for (const auto& rank : RanksOf(group)) {
    for (const auto& [transfer, loan] : rank->loans()) EndMove(transfer, MoveResult::kReplayed);
  }
}

void ClusterScheduler::EndLoan(uint32_t engine, protocol::TransferId transfer) {
  engines_[engine]->EndLoan(transfer);
}

void ClusterScheduler::EndArrival(uint32_t engine, protocol::TransferId transfer, bool arrived) {
  engines_[engine]->EndArrival(transfer, arrived);
  EndMove(transfer, arrived ? MoveResult::kMoved : MoveResult::kReplayed);
}

void ClusterScheduler::GiveUpMove(protocol::TransferId transfer) {
  EndMove(transfer, MoveResult::kReplayed);
}

// Nobody starts in the group any more: who was to do so is as free as any other.
void ClusterScheduler::ForgetPromises(protocol::GroupId group) {
  for (const protocol::SequenceId id : promised_) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end() || !found->second->moved_to) continue;
    Sequence& sequence = *found->second;
    if (*sequence.moved_to / num_ranks_ != group.value()) continue;
    if (sequence.awaits) {
      EndMove(*sequence.awaits, MoveResult::kReplayed);
    } else {
      sequence.moved_to.reset();
    }
  }
}

}  // namespace skein::scheduler
