// The weights of a model as named views, each checked against the model's
// shapes and formats. Every expected tensor must be there and every tensor must be expected (vision
// tensors are listed and left out). After Load only HoldExperts changes them, between steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/gemm.h"
#include "kernels/tensor_view.h"
#include "worker/model/activations.h"
#include "worker/model/checkpoint.h"
#include "worker/model/model_spec.h"
#include "worker/model/shard.h"

namespace skein::worker {

// A product's weight with what a kernel must know of its format.
struct LinearWeight {
  kernels::Weight weight;
  kernels::WeightFormat format = kernels::WeightFormat::kBf16;
  int n = 0;
  int k = 0;
};

struct HyperConnectionWeights {
  kernels::TensorView fn, base, scale;
};

struct AttentionWeights {
  kernels::TensorView sink, q_norm, kv_norm;
  LinearWeight wq_a, wq_b, wkv, wo_a, wo_b;
  // Layers that own compressed rows.
  LinearWeight compressor_wkv, compressor_wgate, index_wk;
  kernels::TensorView compressor_norm, index_k_norm;
  // Layers that select.
  LinearWeight index_wq_b, index_weights;
};

struct ExpertWeights {
  LinearWeight w1, w2, w3;
};

struct MoeWeights {
  LinearWeight gate;
  kernels::TensorView bias;
  ExpertWeights shared;
  // One entry per expert of the shard, as ExpertLinear takes them.
  std::vector<kernels::Weight> w1, w2, w3;
  std::vector<int> held;  // which expert an entry is; -1 while it is loaded
  std::string prefix;     // of the names of the layer's tensors
  kernels::WeightFormat expert_format = kernels::WeightFormat::kE2m1Row32;
};

struct EngramWeights {
  kernels::TensorView codes, scale, q_weight, k_weight;
  LinearWeight wkv;
};

struct BlockWeights {
  kernels::TensorView attn_norm, ffn_norm;
  HyperConnectionWeights hc_attn, hc_ffn;
  AttentionWeights attn;
  MoeWeights moe;
};

struct DraftWeights {
  std::vector<BlockWeights> stages;
  LinearWeight main_proj;
  kernels::TensorView main_norm, norm, markov_embed;
  LinearWeight markov_head, confidence_hidden, confidence_markov;
};

// Makes a tensor instead of reading it, in memory of the arena: for measurements of shapes that no
// checkpoint holds. Of a rank's part of a table it makes as many rows, not those of the whole. All
// experts of a layer are made alike, so that each is the same on whatever rank and in whatever
// entry.
using TensorMaker = std::function<kernels::TensorView(Arena& arena, const std::string& name,
                                                      const kernels::TensorView& wanted)>;

// Told while weights are placed: how many tensors are done, of how many (0: not known), and whether
// the last one is of an n-gram table.
using LoadProgress = std::function<void(uint64_t done, uint64_t total, bool engram)>;

struct ModelWeights {
  // Reads DIR and places its tensors where the kernels of the arena's device read them: on a host
  // that is the mapping itself. Errors name file and tensor and list every defect found, ten at
  // most; ResourceExhausted when the device does not hold them. `arena` outlives the weights. Of
  // experts and n-gram tables only those of the shard are placed; all are checked.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Load(const std::filesystem::path& dir,
                                                            const ModelSpec& spec, Arena& arena,
                                                            const TensorMaker& make = nullptr,
                                                            const Shard& shard = {},
                                                            const LoadProgress& progress = nullptr);

  // Makes the entries of every layer the experts that `placement`, which was checked, gives this
  // rank: those that it lacks are read into the entries of those that it has for nothing, in the
  // same memory. An error of `live`, which is asked before each expert, ends it; whatever the end,
  // `held` says what is there.
  absl::Status HoldExperts(const protocol::ExpertPlacement& placement, int rank,
                           kernels::Device& device, const std::function<absl::Status()>& live);
  // Those of the layers, then those of the draft head, as placements count them.
  std::vector<MoeWeights*> MoeLayers();

  kernels::TensorView embed, norm;
  LinearWeight head;
  std::vector<BlockWeights> layers;
  std::vector<EngramWeights> engram;
  DraftWeights draft;
  std::vector<int32_t> engram_token_map;  // [vocab]; empty without Engram
  uint64_t bytes = 0;                     // of all tensors in use
  uint64_t engram_bytes = 0;              // of them, the n-gram tables
  int skipped_tensors = 0;                // vision

 private:
  absl::Status ReadExpert(MoeWeights& layer, size_t entry, int expert, kernels::Device& device);

  std::unique_ptr<Checkpoint> checkpoint_;
};

}  // namespace skein::worker
