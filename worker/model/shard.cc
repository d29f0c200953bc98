#include "worker/model/shard.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"

namespace skein::worker {

TableRows TableRowsOf(const Shard& shard, const EngramSpec& engram, int index) {
  const auto at = static_cast<size_t>(index);
  if (shard.whole()) return {0, engram.rows[at]};
  const ShardRange columns = shard.Of(engram.columns());
  const auto primes = engram.primes[at].begin();
  return {std::accumulate(primes, primes + columns.begin, int64_t{0}),
          std::accumulate(primes + columns.begin, primes + columns.end, int64_t{0})};
}

absl::Status CheckShard(const Shard& shard, const ModelSpec& spec) {
  if (shard.num_ranks < 1 || shard.rank < 0 || shard.rank >= shard.num_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", shard.rank, " of a group of ", shard.num_ranks));
  }
  const int experts = spec.dspark.stages > 0 ? std::min(spec.num_experts, spec.dspark.num_experts)
                                             : spec.num_experts;
  if (shard.num_ranks > experts) {
    return absl::InvalidArgumentError(absl::StrCat("scheduler.expert_parallel_size is ",
                                                   shard.num_ranks, ", the model has ", experts,
                                                   " experts in a layer: at most one rank each"));
  }
  // A table is split where its columns meet, and every rank gives every other equally many rows.
  const int columns = spec.engram.columns();
  if (spec.engram.layers.empty() || columns % shard.num_ranks == 0) return absl::OkStatus();
  std::string sizes;
  for (int ranks = 1; ranks <= std::min(columns, experts); ++ranks) {
    if (columns % ranks == 0) absl::StrAppend(&sizes, sizes.empty() ? "" : ", ", ranks);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("scheduler.expert_parallel_size is ", shard.num_ranks,
                   ", the n-gram tables of the model have ", columns,
                   " hash columns, which are split whole: use one of ", sizes));
}

}  // namespace skein::worker
