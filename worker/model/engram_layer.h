// N-gram memory in front of a layer: hash, table rows, projection, gate (model section 3.10).
// Thread: the device thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops/engram.h"
#include "worker/model/activations.h"
#include "worker/model/kernel_set.h"
#include "worker/model/linear.h"
#include "worker/model/model_spec.h"
#include "worker/model/weight_loader.h"

namespace skein::worker {

class EngramLayer {
 public:
  EngramLayer(const EngramWeights& weights, int index, const ModelSpec& spec,
              const Numerics& numerics, int max_rows, KernelSet& kernels, Arena& arena);
  // Load-time products; once, after the kernels are resolved.
  absl::Status Prepare();

  // stream [T, hc, D] in place; ngram [T, n] i32.
  absl::Status Run(const kernels::TensorView& ngram, const kernels::TensorView& stream) const;

  // Table rows of the last run, [T, columns] i32.
  kernels::TensorView table_rows(int rows) const { return Rows(rows_, rows); }

 private:
  const EngramWeights& weights_;
  float norm_eps_;
  kernels::TensorView multiplier_, prime_, offset_;
  kernels::TensorView rows_, gathered_, kv_, fused_;
  ActivationQuantiser quantise_;
  LinearLayer wkv_;
  Kernel<kernels::EngramHash> hash_;
  Kernel<kernels::EngramGather> gather_;
  Kernel<kernels::EngramFusedWeight> fuse_;
  Kernel<kernels::EngramGate> gate_;
};

}  // namespace skein::worker
