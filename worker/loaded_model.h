// A model ready to run: specification, weights, caches, slots, kernels and activations, assembled
// in the one order that works. Owns all of them. Thread: built on one thread, then the device
// thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/kernel_registry.h"
#include "protocol/tensor/collective_group.h"
#include "protocol/tensor/nccl_group.h"
#include "worker/batch_input.h"
#include "worker/cache/kv_cache.h"
#include "worker/cache/state_slots.h"
#include "worker/expert_meter.h"
#include "worker/graph_cache.h"
#include "worker/metrics.h"
#include "worker/model/activations.h"
#include "worker/model/dspark_head.h"
#include "worker/model/kernel_set.h"
#include "worker/model/model.h"
#include "worker/model/model_spec.h"
#include "worker/model/rank_exchange.h"
#include "worker/model/shard.h"
#include "worker/model/weight_loader.h"
#include "worker/prompt_scorer.h"

namespace skein::worker {

struct LoadOptions {
  std::filesystem::path model_dir;
  Numerics numerics;
  ModelLimits limits;
  int block_tokens = 0;  // multiple of the model's block_multiple()
  int num_blocks = 0;
  int num_slots = 0;
  int num_checkpoints = 0;     // copies of slot state for the prefix cache
  int recompute_tokens = 0;    // that the prefix cache may count on; 0: only on checkpoints
  int max_draft_requests = 0;  // 0: no draft head
  TapSide tap_side = TapSide::kEntering;
  Shard shard;  // the part of the model that this rank of its group loads
  // Of a GPU in a group.
  std::shared_ptr<const protocol::NcclLibrary> nccl;
  bool record_steps = false;  // decode steps as graphs of the device
  // Null: the host, with kernels on the calling thread alone.
  std::shared_ptr<kernels::Device> device;
  std::shared_ptr<const RecordedRope> recorded_rope;  // null in production
  TensorMaker make_tensor;                            // null: tensors are those in model_dir
  StartProgress* progress = nullptr;                  // told of the load; null: nobody is
};

class LoadedModel {
 public:
  // Errors name file, tensor, operator or option; nothing is kept of a failed load.
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const kernels::KernelRegistry& registry,
                                                           const kernels::KernelManifest& manifest,
                                                           const LoadOptions& options);

  const ModelSpec& spec() const { return spec_; }
  const ModelWeights& weights() const { return *weights_; }
  Model& model() { return *model_; }
  const KvCache& cache() const { return *cache_; }
  StateSlots& slots() { return *slots_; }
  BatchInput& input() { return *input_; }
  PromptScorer& scorer() { return *scorer_; }
  DSparkHead* draft() { return draft_.get(); }    // null without draft head
  GraphCache* graphs() { return graphs_.get(); }  // null: every step is queued call by call
  RankExchange* ranks() { return ranks_.get(); }  // null: this rank holds the whole model
  ExpertMeter* meter() { return meter_.get(); }   // null: this rank holds the whole model
  // Before a group is entered: loads the experts that this rank has in its epoch and tells the
  // layers where the others are. Empty: those that were loaded first. InvalidArgument when the
  // placement is not one of this model. An error of `live` ends it; the next call goes on from what
  // is there.
  absl::Status PlaceExperts(const protocol::ExpertPlacement& placement,
                            const std::function<absl::Status()>& live);
  // Enters a group that was joined; the epoch ends with LeaveGroup. Errors as of RankExchange. Only
  // with ranks().
  absl::Status EnterGroup(protocol::CollectiveGroup& group, const std::string& label,
                          absl::Time deadline);
  // Records the steps that are recorded, with the ranks of the group. Errors of GraphCache end the
  // group and leave it; Aborted: another rank ended it.
  absl::Status RecordInGroup(absl::Time deadline);
  void LeaveGroup();
  kernels::Device& device() { return arena_->device(); }
  uint64_t arena_bytes() const { return arena_->total_bytes(); }
  // What is where in the memory of the device; `free`: what was left.
  MemoryUse Memory(uint64_t free) const;

 private:
  LoadedModel() = default;
  absl::Status LoadWeights(const LoadOptions& options);
  absl::Status Build(const kernels::KernelRegistry& registry,
                     const kernels::KernelManifest& manifest, const LoadOptions& options);

  ModelSpec spec_;
  std::unique_ptr<Arena> arena_;  // outlives all that has views of it
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<KernelSet> kernels_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<StateSlots> slots_;
  std::unique_ptr<RankExchange> ranks_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<DSparkHead> draft_;
  std::unique_ptr<BatchInput> input_;
  std::unique_ptr<PromptScorer> scorer_;
  std::unique_ptr<GraphCache> graphs_;
  std::unique_ptr<ExpertMeter> meter_;
  protocol::ExpertPlacement placement_;  // that the layers know; empty: none to the end
};

// The numerics of a backend: the reference computes in double, others in the model's own formats.
Numerics BackendNumerics(std::string_view backend);

}  // namespace skein::worker
