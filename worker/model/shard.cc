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

uint64_t LeftOutBytes(const Shard& shard, const ModelSpec& spec) {
  const int64_t inputs = int64_t{3} * spec.expert_inner * spec.hidden;
  const bool packed = spec.expert_format == ExpertFormat::kFp4;
  const int64_t expert = packed ? inputs / 2 + inputs / 32 : inputs;
  int64_t experts =
      int64_t{spec.num_layers} * (spec.num_experts - shard.Of(spec.num_experts).count());
  const int drafts = spec.dspark.num_experts;
  experts += int64_t{spec.dspark.stages} * (drafts - shard.Of(drafts).count());
  int64_t rows = 0;
  for (size_t i = 0; i < spec.engram.layers.size(); ++i) {
    rows += spec.engram.rows[i] - TableRowsOf(shard, spec.engram, static_cast<int>(i)).count;
  }
  const int64_t row = spec.engram.head_dim + spec.engram.head_dim / 32;
  return static_cast<uint64_t>(experts * expert + rows * row);
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

protocol::ExpertPlacement FirstPlacement(const ModelSpec& spec, int num_ranks) {
  protocol::ExpertPlacement placement;
  for (int layer = 0; layer < spec.num_layers + spec.dspark.stages; ++layer) {
    const int experts = layer < spec.num_layers ? spec.num_experts : spec.dspark.num_experts;
    std::vector<uint16_t>& ranks = placement.emplace_back();
    for (int rank = 0; rank < num_ranks; ++rank) {
      ranks.resize(static_cast<size_t>(Shard{rank, num_ranks}.Of(experts).end),
                   static_cast<uint16_t>(rank));
    }
  }
  return placement;
}

absl::Status CheckPlacement(const protocol::ExpertPlacement& placement, const ModelSpec& spec,
                            int num_ranks) {
  const protocol::ExpertPlacement first = FirstPlacement(spec, num_ranks);
  if (placement.size() != first.size()) {
    return absl::InvalidArgumentError(absl::StrCat("FormGroup.placement has ", placement.size(),
                                                   " layers, this model has ", first.size()));
  }
  for (size_t i = 0; i < first.size(); ++i) {
    if (placement[i].size() != first[i].size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("FormGroup.placement: layer ", i, " has ", placement[i].size(),
                       " experts, that of this model ", first[i].size()));
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto placed = std::count(placement[i].begin(), placement[i].end(), rank);
      const auto held = std::count(first[i].begin(), first[i].end(), rank);
      if (placed == held) continue;
      return absl::InvalidArgumentError(absl::StrCat("FormGroup.placement: layer ", i, " has ",
                                                     placed, " experts on rank ", rank, " of ",
                                                     num_ranks, ", which holds ", held));
    }
  }
  return absl::OkStatus();
}

}  // namespace skein::worker
