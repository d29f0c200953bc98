// Which part of a model a rank of a group holds: equally many of every layer's experts, at first a
// range of them, and a range of whole hash columns of every n-gram table; all else is whole on
// every rank. Plain values.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "protocol/messages/control.h"
#include "worker/model/model_spec.h"

namespace skein::worker {

struct ShardRange {
  int begin = 0;
  int end = 0;
  int count() const { return end - begin; }
};

struct Shard {
  int rank = 0;
  int num_ranks = 1;

  bool whole() const { return num_ranks == 1; }
  // Of `count` things in a row, those that this rank holds: ranges differ by one at most.
  ShardRange Of(int count) const {
    return {static_cast<int>(int64_t{count} * rank / num_ranks),
            static_cast<int>(int64_t{count} * (rank + 1) / num_ranks)};
  }
};

// Rows of an Engram layer's table that belong to this rank's columns.
struct TableRows {
  int64_t begin = 0;
  int64_t count = 0;
};
TableRows TableRowsOf(const Shard& shard, const EngramSpec& engram, int index);

// Bytes of the codes of experts and tables that other ranks hold instead of this one.
uint64_t LeftOutBytes(const Shard& shard, const ModelSpec& spec);

// InvalidArgument when a model cannot be split so, with the numbers of ranks that do.
absl::Status CheckShard(const Shard& shard, const ModelSpec& spec);

// Where the experts are that every rank loads at first: those of Shard::Of.
protocol::ExpertPlacement FirstPlacement(const ModelSpec& spec, int num_ranks);

// InvalidArgument names layer and numbers unless the placement is one of this model on so many
// ranks, each with as many experts of a layer as it has memory for.
absl::Status CheckPlacement(const protocol::ExpertPlacement& placement, const ModelSpec& spec,
                            int num_ranks);

}  // namespace skein::worker
