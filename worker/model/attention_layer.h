// Attention of one layer: projections, window vector, compressor, index selection, sparse attention
// and output projection (model sections 3.5, 3.8). Thread: the device thread.
#pragma once

#include "absl/status/status.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/compressor.h"
#include "kernels/ops/indexer.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/norm_rope.h"
#include "worker/model/activations.h"
#include "worker/model/kernel_set.h"
#include "worker/model/linear.h"
#include "worker/model/model_batch.h"
#include "worker/model/model_spec.h"
#include "worker/model/weight_loader.h"

namespace skein::worker {

// Buffers that one layer at a time uses. `selected` and `candidates` outlive their layer: the
// layers that follow reuse the lists.
struct AttentionScratch {
  AttentionScratch(const ModelSpec& spec, const Numerics& numerics, int max_rows, int max_columns,
                   Arena& arena);
  kernels::TensorView query_low;     // [T, Q]
  kernels::TensorView query;         // [T, H*d]
  kernels::TensorView window;        // [T, d]
  kernels::KvPool fresh;             // T rows: the window vectors as cached
  kernels::TensorView identity;      // [T] i64: 0..T-1
  kernels::TensorView open;          // [T, 2d] wide
  kernels::TensorView latent;        // [G, d]
  kernels::TensorView index_key;     // [G, di]
  kernels::TensorView index_query;   // [T, Hi*di]
  kernels::TensorView index_weight;  // [T, Hi]
  kernels::TensorView score;         // [T, columns] wide
  kernels::TensorView selected;      // [T, k] i32
  kernels::TensorView candidates;    // [T, C] i32
  kernels::TensorView attended;      // [T, H*d]
  kernels::TensorView output_low;    // [T, G*R]
  int max_columns = 0;
};

// The caches a layer touches. Absent pools have no data.
struct AttentionCaches {
  kernels::KvPool ring;  // window ring of the layer
  int ring_rows = 0;
  kernels::KvPool history;  // compressed rows that the layer reads
  kernels::KvPool index;    // index keys that it scores
  kernels::KvPool open;     // its own open groups
  int open_rows = 0;
};

class AttentionLayer {
 public:
  // `window_entries`: most window positions a row attends to.
  AttentionLayer(const AttentionWeights& weights, const LayerSpec& layer, int window_entries,
                 const ModelSpec& spec, const Numerics& numerics, int max_rows,
                 const AttentionCaches& caches, KernelSet& kernels, Arena& arena,
                 AttentionScratch& scratch);

  // x, y [T, D]; x is the normalised input. Writes the layer's caches, except the window ring
  // when `keep` is false (draft blocks are transient).
  enum class WindowRing : uint8_t { kKeep, kTransient };
  absl::Status Run(const ModelBatch& batch, const kernels::TensorView& x,
                   const kernels::TensorView& y, WindowRing ring = WindowRing::kKeep) const;

 private:
  void AddCompressor(int max_rows, KernelSet& kernels);
  void AddIndex(int max_rows, KernelSet& kernels);
  absl::Status Project(const ModelBatch& batch, const kernels::TensorView& x) const;
  absl::Status Compress(const ModelBatch& batch, const kernels::TensorView& x) const;
  absl::Status Latents(const CompletedGroups& groups, const ModelBatch& batch,
                       const kernels::TensorView& x) const;
  absl::Status Select(const ModelBatch& batch, const kernels::TensorView& x) const;
  absl::Status Attend(const ModelBatch& batch) const;
  absl::Status ProjectOut(const ModelBatch& batch, const kernels::TensorView& y) const;
  const kernels::TensorView& CosSin(const ModelBatch& batch) const {
    return layer_.ratio > 0 ? batch.rope_compress : batch.rope_plain;
  }

  const AttentionWeights& weights_;
  const LayerSpec layer_;
  const ModelSpec& spec_;
  const Numerics numerics_;
  const AttentionCaches caches_;
  AttentionScratch& scratch_;
  float index_weight_scale_ = 1;

  ActivationQuantiser quantise_x_, quantise_q_, quantise_o_;
  LinearLayer wq_a_, wq_b_, wkv_, wo_b_;
  LinearLayer compressor_wkv_, compressor_wgate_, index_wk_, index_wq_b_, index_weights_;
  Kernel<kernels::GroupedLinear> wo_a_;
  Kernel<kernels::RmsNorm> q_norm_, kv_norm_, index_norm_;
  Kernel<kernels::Rope> rope_, rope_index_;
  Kernel<kernels::StoreKv> store_window_, store_history_, store_index_, store_open_;
  Kernel<kernels::CopyKvRows> copy_window_;
  Kernel<kernels::Compress> compress_;
  Kernel<kernels::FakeQuant> quantise_index_;
  Kernel<kernels::IndexScores> index_scores_;
  Kernel<kernels::CandidateBlocks> candidate_blocks_;
  Kernel<kernels::TopK> top_k_;
  Kernel<kernels::SparseAttention> attend_;
  // Input codes of the current run, set by Project.
  mutable LinearInput query_low_in_;
};

}  // namespace skein::worker
