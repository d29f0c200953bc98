#include "coordinator/block_moves.h"

#include <algorithm>
#include <utility>

#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::coordinator {

using protocol::MoveSide;
using protocol::MoveStatus;

namespace {

// What the word of its end may take beyond.
constexpr absl::Duration kWordTime = absl::Seconds(1);

// Labels of skein_request_migrations_total, by scheduler::MoveCause and MoveResult.
constexpr std::string_view kCauses[] = {"drain", "handover"};
constexpr std::string_view kResults[] = {"moved", "replayed"};

}  // namespace

const GroupRank& BlockMoves::RankOf(uint32_t engine) const {
  const uint32_t ranks = scheduler_.num_ranks();
  return workers_.group(protocol::GroupId(engine / ranks))->ranks[engine % ranks];
}

// Both workers have channels, and their blocks are the same bytes and lead to the same bits.
bool BlockMoves::MayMove(uint32_t from, uint32_t to) const {
  const protocol::RegisterWorker& lender = workers_.registration(RankOf(from).worker);
  const protocol::RegisterWorker& fetcher = workers_.registration(RankOf(to).worker);
  return !lender.block_address.empty() && !fetcher.block_address.empty() &&
         lender.cache_layout == fetcher.cache_layout && lender.numerics == fetcher.numerics &&
         lender.geometry.block_tokens == fetcher.geometry.block_tokens;
}

bool BlockMoves::Send(protocol::Context& context, uint32_t engine, protocol::MoveBlocks move,
                      std::vector<protocol::ActorId>& lost) {
  const protocol::ActorId worker = RankOf(engine).worker;
  const WorkerGroup& group = *workers_.Find(worker);
  move.group = group.group;
  move.epoch = group.epoch;
  move.timeout_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(timeout_));
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
    moves_[order.transfer] = context.Now() + timeout_ + kWordTime;
    return;
  }
  scheduler_.EndArrival(order.to, order.transfer, false);
}

std::vector<protocol::ActorId> BlockMoves::Plan(protocol::Context& context) {
  std::vector<protocol::ActorId> lost;
  const scheduler::MoveInputs inputs{
      [this](uint32_t from, uint32_t to) { return MayMove(from, to); },
      [&context] { return protocol::TransferId(context.RandomUint64()); }};
  for (const scheduler::MoveOrder& order : scheduler_.PlanMoves(inputs)) {
    Start(context, order, lost);
  }
  Count();
  return lost;
}

void BlockMoves::Handle(protocol::ActorId worker, const protocol::BlocksMoved& message) {
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
  if (message.side == MoveSide::kLend) {
    scheduler_.EndLoan(engine, message.transfer);
  } else {
    moves_.erase(message.transfer);
    scheduler_.EndArrival(engine, message.transfer, message.status == MoveStatus::kOk);
  }
  Count();
}

void BlockMoves::Expire(absl::Time now) {
  std::erase_if(moves_, [&](const auto& entry) {
    if (now < entry.second) return false;
    scheduler_.GiveUpMove(entry.first);
    return true;
  });
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
