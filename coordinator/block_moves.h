// Transfers of cache blocks that are under way: tells both workers of each, takes their answers to
// the scheduler, and ends the wait of a sequence whose transfer takes too long. Acts on parts of
// the control loop. Control thread. Must never free what a worker may still read or write.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/metrics.h"
#include "coordinator/worker_table.h"
#include "protocol/actor/actor.h"
#include "protocol/messages/move.h"
#include "scheduler/cluster_scheduler.h"

namespace skein::coordinator {

class BlockMoves {
 public:
  // Whether a group takes sequences now, and answers.
  using Serves = std::function<bool(protocol::GroupId)>;

  // All outlive the object.
  BlockMoves(scheduler::ClusterScheduler& scheduler, const WorkerTable& workers,
             CoordinatorMetrics& metrics, absl::Duration timeout)
      : scheduler_(scheduler), workers_(workers), metrics_(metrics), timeout_(timeout) {}

  // Begins what the scheduler wants moved, to groups that serve. The workers that could not be
  // reached are lost.
  std::vector<protocol::ActorId> Plan(protocol::Context& context, const Serves& serves);
  // A worker says that its side of a transfer is over.
  void Handle(protocol::ActorId worker, const protocol::BlocksMoved& message, absl::Time now);
  // Sequences that waited for long enough wait no more.
  void Expire(absl::Time now);

 private:
  using Pair = std::pair<uint32_t, uint32_t>;  // engines: from, to
  using Epochs = std::pair<protocol::Epoch, protocol::Epoch>;
  // A transfer, and until when sequences wait for it.
  struct Transfer {
    uint64_t number = 0;  // in the order of their beginnings
    Pair pair;
    Epochs epochs;
    absl::Time until;
  };
  // Between two engines one transfer after the other was lost.
  struct Losses {
    Epochs epochs;  // in others all begins anew
    uint32_t count = 0;
    uint64_t begun = 0;  // transfers that had begun at the last one: theirs are of the same moment
    absl::Time until = absl::InfinitePast();  // nothing is moved before
  };
  // How a transfer ended, of which the first word of either side counts.
  enum class End : uint8_t { kArrived, kLost, kRefused };

  absl::Duration TimeFor(size_t blocks) const;
  bool MayMove(Pair pair, absl::Time now) const;
  Epochs EpochsOf(Pair pair) const;
  void NoteEnd(protocol::TransferId id, End end, absl::Time now);
  // The worker of an engine, whose epoch runs.
  const GroupRank& RankOf(uint32_t engine) const;
  bool Send(protocol::Context& context, uint32_t engine, protocol::MoveBlocks move,
            std::vector<protocol::ActorId>& lost);
  void Start(protocol::Context& context, const scheduler::MoveOrder& order,
             std::vector<protocol::ActorId>& lost);
  void Count();

  scheduler::ClusterScheduler& scheduler_;
  const WorkerTable& workers_;
  CoordinatorMetrics& metrics_;
  const absl::Duration timeout_;  // of a transfer, beside what its blocks take
  uint64_t num_begun_ = 0;
  std::map<protocol::TransferId, Transfer> moves_;
  std::map<Pair, Losses> losses_;
  scheduler::MoveCounters counted_{};
};

}  // namespace skein::coordinator
