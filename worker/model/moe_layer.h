// Mixture of experts: gate, grouped products over the routed assignments, shared expert, combine
// (model section 3.9). Thread: the device thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/moe.h"
#include "worker/model/activations.h"
#include "worker/model/kernel_set.h"
#include "worker/model/linear.h"
#include "worker/model/model_spec.h"
#include "worker/model/rank_exchange.h"
#include "worker/model/weight_loader.h"

namespace skein::worker {

// Buffers that one layer at a time uses, for the widest layer of the model.
struct MoeScratch {
  // `exchange`: null where this rank holds every expert.
  MoeScratch(const ModelSpec& spec, const Numerics& numerics, int max_rows, Arena& arena,
             RankExchange* exchange);
  kernels::TensorView logits, index, weight;                 // [T, E], [T, k], [T, k]
  kernels::TensorView offset, assignment, source, place;     // layout of the assignments
  kernels::TensorView gate, up, inner;                       // [T*k, I]
  kernels::TensorView routed;                                // [T*k, D]
  kernels::TensorView shared_gate, shared_up, shared_inner;  // [T, I]
  kernels::TensorView shared;                                // [T, D]
  // Of a group: rows of all ranks, R = ranks * T.
  RankExchange* const exchange;
  kernels::TensorView all_x, all_scale;       // [R, D] codes or activations, [R, D/32]
  kernels::TensorView all_index, all_weight;  // [R, k]
  kernels::TensorView local_index;            // [T, k]: experts counted from the first of the shard
  // Of a group on a GPU: products for the rows of all ranks, and all ranks' for this one's.
  kernels::TensorView for_ranks, from_ranks;  // [R*k, D]
};

class MoeLayer {
 public:
  MoeLayer(const MoeWeights& weights, int experts_per_token, const ModelSpec& spec,
           const Numerics& numerics, int max_rows, KernelSet& kernels, Arena& arena,
           MoeScratch& scratch);

  // x, y [T, D]. In a group all ranks call it in the same order, also with T = 0.
  absl::Status Run(const kernels::TensorView& x, const kernels::TensorView& y) const;

  // Experts of the last run's rows, [T, k] in order of selection. In a group they stay until the
  // next run, elsewhere until that of another layer.
  kernels::TensorView experts(int rows) const;
  int num_experts() const { return num_experts_; }
  int experts_per_token() const { return k_; }

  // In a group, between steps: the rank of each expert, as the weights are held now. Queues copies,
  // which are of memory of this layer.
  absl::Status Place(std::span<const uint16_t> ranks, kernels::Device& device);

 private:
  // Which entry of the weights each expert is.
  void NumberHeld();
  absl::Status Route(const kernels::TensorView& x, int rows) const;
  // The layout of the assignments to this rank's experts; `index` [T, k], -1: none of them.
  absl::Status Lay(const kernels::TensorView& index) const;
  absl::Status RunRouted(const LinearInput& in, int rows) const;
  // The same in a group: rows go to the owners of their experts and come home, where they are
  // added up in the order of selection as those of one rank are.
  absl::Status RunSharded(const LinearInput& in, int rows) const;
  // This rank's experts on rows of all ranks, of which x [n, D] begins at row `first`.
  absl::Status RunOwned(const kernels::TensorView& x, const kernels::TensorView& scale,
                        int64_t first) const;
  absl::Status PutHome(int64_t first, int64_t places) const;
  // The experts on the first `places` places of the layout; weight [T*k].
  absl::Status Products(const kernels::TensorView& x, const kernels::TensorView& scale,
                        const kernels::TensorView& weight, int64_t places) const;
  absl::Status RunShared(const LinearInput& in, int rows) const;

  const MoeWeights& weights_;
  MoeScratch& scratch_;
  int num_experts_;
  int owned_;                  // experts of this rank
  kernels::TensorView index_;  // [T, k]
  // Of a group, [E]: an expert's number on this rank or -1; its rank; -1 for all.
  kernels::TensorView local_, home_, nobody_;
  std::vector<int32_t> held_at_, rank_of_;  // the first two on the host
  int max_rows_;
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
  Kernel<kernels::MapExperts> map_;
  Kernel<kernels::GatherRows> lay_out_;
};

}  // namespace skein::worker
