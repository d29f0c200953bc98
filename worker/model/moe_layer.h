// Mixture of experts: gate, grouped products over the routed assignments, shared expert, combine
// (model section 3.9). Thread: the device thread.
#pragma once

#include "absl/status/status.h"
#include "kernels/ops/moe.h"
#include "worker/model/activations.h"
#include "worker/model/kernel_set.h"
#include "worker/model/linear.h"
#include "worker/model/model_spec.h"
#include "worker/model/weight_loader.h"

namespace skein::worker {

// Buffers that one layer at a time uses, for the widest layer of the model.
struct MoeScratch {
  MoeScratch(const ModelSpec& spec, const Numerics& numerics, int max_rows, Arena& arena);
  kernels::TensorView logits, index, weight;                 // [T, E], [T, k], [T, k]
  kernels::TensorView offset, assignment, source, place;     // layout of the assignments
  kernels::TensorView gate, up, inner;                       // [T*k, I]
  kernels::TensorView routed;                                // [T*k, D]
  kernels::TensorView shared_gate, shared_up, shared_inner;  // [T, I]
  kernels::TensorView shared;                                // [T, D]
};

class MoeLayer {
 public:
  MoeLayer(const MoeWeights& weights, int experts_per_token, const ModelSpec& spec,
           const Numerics& numerics, int max_rows, KernelSet& kernels, Arena& arena,
           MoeScratch& scratch);

  // x, y [T, D].
  absl::Status Run(const kernels::TensorView& x, const kernels::TensorView& y) const;

  // Experts of the last run's rows, [T, k] in order of selection.
  kernels::TensorView experts(int rows) const;

 private:
  absl::Status Route(const kernels::TensorView& x, int rows) const;
  absl::Status RunRouted(const LinearInput& in, int rows) const;
  absl::Status RunShared(const LinearInput& in, int rows) const;

  const MoeWeights& weights_;
  MoeScratch& scratch_;
  int num_experts_;
  int k_;
  float gate_temp_, route_scale_, limit_;
  bool normalise_;
  bool codes_ = false;  // experts read quantised activations
  ActivationQuantiser quantise_in_, quantise_inner_, quantise_shared_;
  LinearLayer gate_, shared_w1_, shared_w2_, shared_w3_;
  Kernel<kernels::MoeGate> select_;
  Kernel<kernels::MoeLayout> layout_;
  Kernel<kernels::ExpertLinear> up_, down_;
  Kernel<kernels::SwiGlu> activate_;
  Kernel<kernels::MoeCombine> combine_;
};

}  // namespace skein::worker
