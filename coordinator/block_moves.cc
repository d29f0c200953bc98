#include "coordinator/block_moves.h"

#include <algorithm>
#include <utility>

#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::coordinator {

using protocol::MoveSide;
using protocol::MoveStatus;

namespace {

// What a transfer may take beside the timeout for each of its blocks: what takes longer is computed
// again as fast.
constexpr absl::Duration kBlockTime = absl::Milliseconds(10);
// What the word of its end may take beyond.
constexpr absl::Duration kWordTime = absl::Seconds(1);

// How long nothing is moved between two engines after transfers were lost at a second moment in a
// row; twice as long after each further one. One says little: a worker may have died beside it.
constexpr absl::Duration kPauseMin = absl::Seconds(1);
constexpr absl::Duration kPauseMax = absl::Minutes(1);

// Labels of skein_request_migrations_total, by scheduler::MoveCause and MoveResult.
constexpr std::string_view kCauses[] = {"drain", "handover"};
constexpr std::string_view kResults[] = {"moved", "replayed"};

}  // namespace

const GroupRank& BlockMoves::RankOf(uint32_t engine) const {
  const uint32_t ranks = scheduler_.num_ranks();
  return workers_.group(protocol::GroupId(engine / ranks))->ranks[engine % ranks];
}

absl::Duration BlockMoves::TimeFor(size_t blocks) const {
  return timeout_ + static_cast<int64_t>(blocks) * kBlockTime;
}

// 0 for a group without an epoch.
BlockMoves::Epochs BlockMoves::EpochsOf(Pair pair) const {
  const auto of = [this](uint32_t engine) {
    const auto& group = workers_.group(protocol::GroupId(engine / scheduler_.num_ranks()));
    return group ? group->epoch : protocol::Epoch(0);
  };
  return {of(pair.first), of(pair.second)};
}

// Both workers have channels, and their blocks are the same bytes and lead to the same bits; and
// what was moved between them lately arrived.
bool BlockMoves::MayMove(Pair pair, absl::Time now) const {
  const auto lost = losses_.find(pair);
  if (lost != losses_.end() && now < lost->second.until && lost->second.epochs == EpochsOf(pair)) {
    return false;
  }
  const protocol::RegisterWorker& lender = workers_.registration(RankOf(pair.first).worker);
  const protocol::RegisterWorker& fetcher = workers_.registration(RankOf(pair.second).worker);
  return !lender.block_address.empty() && !fetcher.block_address.empty() &&
         lender.cache_layout == fetcher.cache_layout && lender.numerics == fetcher.numerics &&
         lender.geometry.block_tokens == fetcher.geometry.block_tokens;
}

void BlockMoves::NoteEnd(protocol::TransferId id, End end, absl::Time now) {
  const auto ended = moves_.extract(id);
  if (!ended) return;
  const Transfer& transfer = ended.mapped();
  if (end == End::kArrived) losses_.erase(transfer.pair);
  if (end != End::kLost) return;
  if (transfer.epochs != EpochsOf(transfer.pair)) return;  // it went with one of its sides
  Losses& lost = losses_[transfer.pair];
  if (lost.epochs != transfer.epochs) lost = {.epochs = transfer.epochs};
  if (transfer.number <= lost.begun) return;
  lost.begun = num_begun_;
  if (++lost.count < 2) return;
  const absl::Duration pause =
      std::min(kPauseMax, kPauseMin * (uint64_t{1} << std::min(lost.count - 2, 10U)));
  lost.until = now + pause;
  SKEIN_LOG(kWarn, "no cache blocks are moved for a while")
      .Field("from_engine", transfer.pair.first)
      .Field("to_engine", transfer.pair.second)
      .Field("lost_in_a_row", lost.count)
      .Field("seconds", absl::ToInt64Seconds(pause));
}

bool BlockMoves::Send(protocol::Context& context, uint32_t engine, protocol::MoveBlocks move,
                      std::vector<protocol::ActorId>& lost) {
  const protocol::ActorId worker = RankOf(engine).worker;
  const WorkerGroup& group = *workers_.Find(worker);
  move.group = group.group;
  move.epoch = group.epoch;
  move.timeout_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(TimeFor(move.blocks.size())));
  const absl::Status sent = context.Send(worker, group.epoch, std::move(move));
  if (!sent.ok()) lost.push_back(worker);
  return sent.ok();
}

void BlockMoves::Start(protocol::Context& context, const scheduler::MoveOrder& order,
                       std::vector<protocol::ActorId>& lost) {
  const protocol::RegisterWorker& lender = workers_.registration(RankOf(order.from).worker);
  protocol::MoveBlocks lend;
  lend.transfer = order.transfer;
  lend.side = MoveSide::kLend;
  lend.blocks = order.lent;
  lend.checkpoint = order.lent_checkpoint;
  lend.position = order.position;
  protocol::MoveBlocks fetch = lend;
  fetch.side = MoveSide::kFetch;
  fetch.blocks = order.wanted;
  fetch.checkpoint = order.wanted_checkpoint;
  fetch.address = lender.block_address;
  fetch.cache_layout = lender.cache_layout;
  fetch.numerics = lender.numerics;
  // A loan that nobody fetches ends by itself; a fetch that was not begun has no end to wait for.
  if (Send(context, order.from, std::move(lend), lost) &&
      Send(context, order.to, std::move(fetch), lost)) {
    const Pair pair(order.from, order.to);
    moves_[order.transfer] = {++num_begun_, pair, EpochsOf(pair),
                              context.Now() + TimeFor(order.wanted.size()) + kWordTime};
    return;
  }
  scheduler_.EndArrival(order.to, order.transfer, false);
}

std::vector<protocol::ActorId> BlockMoves::Plan(protocol::Context& context, const Serves& serves) {
  std::vector<protocol::ActorId> lost;
  const scheduler::MoveInputs inputs{
      [&, now = context.Now()](uint32_t from, uint32_t to) {
        if (!MayMove({from, to}, now)) return scheduler::MoveAnswer::kNo;
        // A group that is suspect comes back, or its epoch ends.
        return serves(protocol::GroupId(to / scheduler_.num_ranks()))
                   ? scheduler::MoveAnswer::kYes
                   : scheduler::MoveAnswer::kLater;
      },
      [&context] { return protocol::TransferId(context.RandomUint64()); }};
  for (const scheduler::MoveOrder& order : scheduler_.PlanMoves(inputs)) {
    Start(context, order, lost);
  }
  Count();
  return lost;
}

void BlockMoves::Handle(protocol::ActorId worker, const protocol::BlocksMoved& message,
                        absl::Time now) {
  const WorkerGroup* group = workers_.Find(worker);
  if (group == nullptr || group->epoch != message.epoch || group->group != message.group) {
    metrics_.stale_results.Increment();
    return;
  }
  if (message.status != MoveStatus::kOk) {
    SKEIN_LOG(kWarn, "cache blocks not moved")
        .Field("worker", worker.node)
        .Field("side", message.side == MoveSide::kLend ? "lend" : "fetch")
        .Field("reason", message.message);
  }
  const uint32_t engine = scheduler_.EngineOf(group->group, group->RankOf(worker)->rank);
  const bool arrived = message.status == MoveStatus::kOk;
  const bool lends = message.side == MoveSide::kLend;
  // A lender that has given everything does not know whether it arrived.
  if (!lends || !arrived) {
    const bool refused = message.status == MoveStatus::kRefused;
    NoteEnd(message.transfer, arrived ? End::kArrived : refused ? End::kRefused : End::kLost, now);
  }
  if (!lends) {
    scheduler_.EndArrival(engine, message.transfer, arrived);
  } else {
    scheduler_.EndLoan(engine, message.transfer);
    // The fetcher, whose places stay kept, may wait in vain until its time is over.
    if (!arrived) scheduler_.GiveUpMove(message.transfer);
  }
  Count();
}

void BlockMoves::Expire(absl::Time now) {
  for (auto next = moves_.begin(); next != moves_.end();) {
    const auto [id, transfer] = *next++;
    if (now < transfer.until) continue;
    NoteEnd(id, End::kLost, now);
    scheduler_.GiveUpMove(id);
  }
  Count();
}

// What became of sequences since the last count.
void BlockMoves::Count() {
  const scheduler::MoveCounters& now = scheduler_.move_counters();
  for (size_t cause = 0; cause < now.size(); ++cause) {
    for (size_t result = 0; result < now[cause].size(); ++result) {
      metrics_.migrations.At({kCauses[cause], kResults[result]})
          .Increment(static_cast<double>(now[cause][result] - counted_[cause][result]));
    }
  }
  counted_ = now;
}

}  // namespace skein::coordinator
