// N-gram memory in front of a layer: hash, table rows, projection, gate (model section 3.10).
// Thread: the device thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops/engram.h"
#include "kernels/ops/kv_cache.h"
#include "worker/model/activations.h"
#include "worker/model/kernel_set.h"
#include "worker/model/linear.h"
#include "worker/model/model_spec.h"
#include "worker/model/rank_exchange.h"
#include "worker/model/weight_loader.h"

namespace skein::worker {

class EngramLayer {
 public:
  // `exchange`: null where this rank holds the whole table.
  EngramLayer(const EngramWeights& weights, int index, const ModelSpec& spec,
              const Numerics& numerics, int max_rows, KernelSet& kernels, Arena& arena,
              RankExchange* exchange);
  // Load-time products; once, after the kernels are resolved.
  absl::Status Prepare();

  // stream [T, hc, D] in place; ngram [T, n] i32. In a group all ranks call it in the same order,
  // also with T = 0.
  absl::Status Run(const kernels::TensorView& ngram, const kernels::TensorView& stream) const;

  // Table rows of the last run, [T, columns] i32.
  kernels::TensorView table_rows(int rows) const { return Rows(rows_, rows); }

 private:
  // Rows of the table for `ngram`, [T, columns * head_dim] in gathered_.
  absl::Status Look(const kernels::TensorView& ngram) const;
  // The same in a group: each owner hashes the n-grams of all ranks and looks up its own columns.
  absl::Status LookSharded(const kernels::TensorView& ngram) const;
  // Brings what was looked up to the rows it is for, on a GPU.
  absl::Status BringHome(int64_t each) const;

  const EngramWeights& weights_;
  RankExchange* const exchange_;
  ShardRange columns_;  // of this rank
  int head_dim_;
  float norm_eps_;
  kernels::TensorView multiplier_, prime_, offset_;
  kernels::TensorView rows_, gathered_, kv_, fused_;
  // Of a group, R = ranks * T: [R, n], [R, columns of all ranks], [R, own columns * head_dim].
  kernels::TensorView all_ngram_, all_rows_, looked_up_;
  // Of a group on a GPU: looked up for this rank, as looked_up_; the numbers from 0 to T.
  kernels::TensorView found_, in_order_;
  ActivationQuantiser quantise_;
  LinearLayer wkv_;
  Kernel<kernels::EngramHash> hash_;
  Kernel<kernels::EngramGather> gather_;
  Kernel<kernels::GatherRows> sort_;
  Kernel<kernels::EngramFusedWeight> fuse_;
  Kernel<kernels::EngramGate> gate_;
};

}  // namespace skein::worker
