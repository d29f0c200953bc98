// The V4.1 text backbone: embedding, the layer sequence, the head; written to be read top to
// bottom. Owns the activations. Thread: the device thread. Layers can be run one by one, which is
// how recorded activations are checked; Forward is that loop.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/kv_cache.h"
#include "worker/cache/kv_cache.h"
#include "worker/cache/state_slots.h"
#include "worker/model/activations.h"
#include "worker/model/attention_layer.h"
#include "worker/model/engram_layer.h"
#include "worker/model/hyper_connection.h"
#include "worker/model/kernel_set.h"
#include "worker/model/model_batch.h"
#include "worker/model/model_spec.h"
#include "worker/model/moe_layer.h"
#include "worker/model/output_head.h"
#include "worker/model/weight_loader.h"

namespace skein::worker {

struct ModelLimits {
  int max_rows = 0;       // tokens of one step
  int max_samples = 0;    // rows of one step whose next token is wanted
  int max_model_len = 0;  // tokens of one sequence
  int max_top = 20;       // alternatives per sampled row
  int max_drafts = 0;     // rows beyond a sequence's own that a step may verify
};

// Buffers of a residual stream with its coefficients.
struct StreamScratch {
  StreamScratch(const ModelSpec& spec, const Numerics& numerics, int max_rows, Arena& arena);
  HyperCoefficients Coefficients(const HyperCoefficients& from, int64_t rows) const;
  // Before the first site, which consumes stream 0 alone.
  void Begin() { pre = first_pre; }

  kernels::TensorView stream;         // [T, hc, D]
  kernels::TensorView first_pre;      // [T, hc]: one-hot of stream 0, constant
  kernels::TensorView pre;            // [T, hc]: what the next site consumes
  HyperCoefficients attn, ffn;        // of the current layer
  kernels::TensorView input, output;  // [T, D] of the sub-block
};

// One transformer block with delayed hyper-connection coefficients (model section 3.3).
class Block {
 public:
  Block(const BlockWeights& weights, const LayerSpec& layer, int window_entries,
        int experts_per_token, const ModelSpec& spec, const Numerics& numerics, int max_rows,
        const AttentionCaches& caches, KernelSet& kernels, Arena& arena,
        AttentionScratch& attention_scratch, MoeScratch& moe_scratch);
  // Advances scratch.stream and scratch.pre by this block. Without rows its experts alone run, on
  // rows of other ranks.
  absl::Status Run(const ModelBatch& batch, StreamScratch& scratch,
                   AttentionLayer::WindowRing ring) const;
  const MoeLayer& moe() const { return moe_; }
  MoeLayer& moe() { return moe_; }

 private:
  HyperConnection attn_site_, ffn_site_;
  AttentionLayer attention_;
  MoeLayer moe_;
};

class Model {
 public:
  // `spec`, `weights`, `cache`, `slots` and `exchange`, which is null where the rank holds the
  // whole model, outlive the model. The caller finishes `kernels` and then calls Prepare.
  Model(const ModelSpec& spec, const ModelWeights& weights, const Numerics& numerics,
        const ModelLimits& limits, const KvCache& cache, const StateSlots& slots,
        KernelSet& kernels, Arena& arena, RankExchange* exchange = nullptr);
  absl::Status Prepare();

  // After a step that failed: waits for what it queued and forgets what it left where rows of
  // nobody find it, so that its NaN stays its own.
  absl::Status Recover();

  // Whole step: layers, logits of the sampled rows, their tokens. A rank without rows takes part in
  // what the layers exchange.
  absl::Status Forward(const ModelBatch& batch);

  // The parts of Forward.
  absl::Status Embed(const ModelBatch& batch);
  absl::Status RunLayer(int layer, const ModelBatch& batch);
  absl::Status Logits(const ModelBatch& batch);

  std::vector<Block>& blocks() { return blocks_; }
  OutputHead& head() { return head_; }
  const ModelSpec& spec() const { return spec_; }
  const Numerics& numerics() const { return numerics_; }
  AttentionScratch& attention_scratch() { return attention_scratch_; }
  MoeScratch& moe_scratch() { return moe_scratch_; }

  // State of the last rows run.
  kernels::TensorView stream(int rows) const { return Rows(streams_.stream, rows); }
  kernels::TensorView pre(int rows) const { return Rows(streams_.pre, rows); }
  kernels::TensorView taps(int rows) const { return Rows(taps_, rows); }
  kernels::TensorView experts(int layer, int rows) const {
    return blocks_[static_cast<size_t>(layer)].moe().experts(rows);
  }
  kernels::TensorView selected(int rows) const { return Rows(attention_scratch_.selected, rows); }
  kernels::TensorView candidates(int rows) const {
    return Rows(attention_scratch_.candidates, rows);
  }
  kernels::TensorView engram_rows(int engram_index, int rows) const {
    return engrams_[static_cast<size_t>(engram_index)].table_rows(rows);
  }

 private:
  // What the draft head sees of the stream at a target layer; nothing at another.
  absl::Status Tap(const LayerSpec& layer, const ModelBatch& batch);

  static constexpr size_t kZeroBytes = size_t{1} << 20;

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const Numerics numerics_;
  kernels::Device& device_;
  const void* zeros_;  // kZeroBytes on the host
  AttentionScratch attention_scratch_;
  MoeScratch moe_scratch_;
  StreamScratch streams_;
  kernels::TensorView embedded_;  // [T, D]
  kernels::TensorView taps_;      // [T, targets * D]
  Kernel<kernels::GatherRows> embed_;
  Kernel<kernels::HcExpand> expand_;
  Kernel<kernels::HcMean> mean_;
  std::vector<EngramLayer> engrams_;
  std::vector<Block> blocks_;
  OutputHead head_;
};

}  // namespace skein::worker
