// Which part of a model a rank of a group holds: a range of every layer's experts and a range of
// whole hash columns of every n-gram table; all else is whole on every rank. A plain value.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
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

}  // namespace skein::worker
