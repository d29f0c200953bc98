#include "worker/model/attention_layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::DType;
using kernels::KvPool;
using kernels::TensorView;

AttentionScratch::AttentionScratch(const ModelSpec& spec, const Numerics& numerics, int max_rows,
                                   int columns, Arena& arena)
    : max_columns(columns) {
  const int width = spec.heads * spec.head_dim;
  query_low = arena.Allocate(numerics.act, {max_rows, spec.q_rank});
  query = arena.Allocate(numerics.act, {max_rows, width});
  window = arena.Allocate(numerics.act, {max_rows, spec.head_dim});
  fresh.format = numerics.window;
  fresh.dim = spec.head_dim;
  fresh.num_rows = max_rows;
  fresh.page_rows = max_rows;
  fresh.page_bytes = max_rows * (kernels::KvDataBytes(numerics.window, spec.head_dim) +
                                 kernels::KvScaleBytes(numerics.window, spec.head_dim));
  fresh.data = arena.Bytes(static_cast<size_t>(fresh.page_bytes));
  std::vector<int64_t> rows(static_cast<size_t>(max_rows));
  std::iota(rows.begin(), rows.end(), 0);
  identity = arena.Constant<int64_t>(DType::kI64, {max_rows}, std::span<const int64_t>(rows));
  open = arena.Allocate(numerics.wide, {max_rows, 2 * spec.head_dim});
  latent = arena.Allocate(numerics.act, {max_rows, spec.head_dim});
  index_key = arena.Allocate(numerics.act, {max_rows, spec.index_dim});
  index_query = arena.Allocate(numerics.act, {max_rows, spec.index_heads * spec.index_dim});
  index_weight = arena.Allocate(numerics.act, {max_rows, spec.index_heads});
  score = arena.Allocate(numerics.wide, {max_rows, columns});
  selected = arena.Allocate(DType::kI32, {max_rows, spec.index_topk});
  candidates = arena.Allocate(DType::kI32, {max_rows, spec.candidate_blocks});
  attended = arena.Allocate(numerics.act, {max_rows, width});
  output_low = arena.Allocate(numerics.act, {max_rows, spec.o_groups * spec.o_rank});
}

AttentionLayer::AttentionLayer(const AttentionWeights& weights, const LayerSpec& layer,
                               int window_entries, const ModelSpec& spec, const Numerics& numerics,
                               int max_rows, const AttentionCaches& caches, KernelSet& kernels,
                               Arena& arena, AttentionScratch& scratch)
    : weights_(weights),
      layer_(layer),
      spec_(spec),
      numerics_(numerics),
      caches_(caches),
      scratch_(scratch),
      index_weight_scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.index_dim)) /
                                             std::sqrt(static_cast<double>(spec.index_heads)))),
      quantise_x_(spec.hidden, max_rows, numerics, kernels, arena),
      quantise_q_(spec.q_rank, max_rows, numerics, kernels, arena),
      quantise_o_(spec.o_groups * spec.o_rank, max_rows, numerics, kernels, arena),
      wq_a_(weights.wq_a, numerics.act, max_rows, numerics, kernels),
      wq_b_(weights.wq_b, numerics.act, max_rows, numerics, kernels),
      wkv_(weights.wkv, numerics.act, max_rows, numerics, kernels),
      wo_b_(weights.wo_b, numerics.act, max_rows, numerics, kernels) {
  const DType act = numerics.act;
  wo_a_ = kernels.Add<kernels::GroupedLinear>({.groups = spec.o_groups,
                                               .n = spec.o_rank,
                                               .k = spec.heads * spec.head_dim / spec.o_groups,
                                               .format = weights.wo_a.format,
                                               .block = 32,
                                               .x_dtype = act,
                                               .y_dtype = act,
                                               .max_rows = max_rows});
  q_norm_ = kernels.Add<kernels::RmsNorm>({.channels = spec.q_rank, .dtype = act});
  kv_norm_ = kernels.Add<kernels::RmsNorm>({.channels = spec.head_dim, .dtype = act});
  rope_ = kernels.Add<kernels::Rope>(
      {.head_dim = spec.head_dim, .rope_dim = spec.rope_dim, .dtype = act});
  store_window_ = kernels.Add<kernels::StoreKv>(
      {.format = numerics.window, .dim = spec.head_dim, .x_dtype = act});
  copy_window_ =
      kernels.Add<kernels::CopyKvRows>({.format = numerics.window, .dim = spec.head_dim});
  attend_ =
      kernels.Add<kernels::SparseAttention>({.heads = spec.heads,
                                             .head_dim = spec.head_dim,
                                             .window = window_entries,
                                             .selected = layer.ratio > 0 ? spec.index_topk : 0,
                                             .ratio = std::max(layer.ratio, 1),
                                             .window_format = numerics.window,
                                             .history_format = numerics.history,
                                             .dtype = act,
                                             .max_rows = max_rows});
  if (layer.kv_source) AddCompressor(max_rows, kernels);
  if (layer.kv_source || layer.index_source) {
    rope_index_ = kernels.Add<kernels::Rope>(
        {.head_dim = spec.index_dim, .rope_dim = spec.rope_dim, .dtype = act});
  }
  if (layer.index_source) AddIndex(max_rows, kernels);
}

void AttentionLayer::AddCompressor(int max_rows, KernelSet& kernels) {
  const DType act = numerics_.act;
  const DType latent = layer_.ratio > 1 ? numerics_.wide : act;
  compressor_wkv_ = LinearLayer(weights_.compressor_wkv, latent, max_rows, numerics_, kernels);
  if (layer_.ratio > 1) {
    compressor_wgate_ =
        LinearLayer(weights_.compressor_wgate, latent, max_rows, numerics_, kernels);
    compress_ = kernels.Add<kernels::Compress>(
        {.dim = spec_.head_dim, .ratio = layer_.ratio, .wide = numerics_.wide, .dtype = act});
    store_open_ = kernels.Add<kernels::StoreKv>(
        {.format = numerics_.open, .dim = 2 * spec_.head_dim, .x_dtype = numerics_.wide});
  }
  index_wk_ = LinearLayer(weights_.index_wk, act, max_rows, numerics_, kernels);
  index_norm_ = kernels.Add<kernels::RmsNorm>({.channels = spec_.index_dim, .dtype = act});
  store_history_ = kernels.Add<kernels::StoreKv>(
      {.format = numerics_.history, .dim = spec_.head_dim, .x_dtype = act});
  store_index_ = kernels.Add<kernels::StoreKv>(
      {.format = numerics_.index, .dim = spec_.index_dim, .x_dtype = act});
}

void AttentionLayer::AddIndex(int max_rows, KernelSet& kernels) {
  const DType act = numerics_.act;
  index_wq_b_ = LinearLayer(weights_.index_wq_b, act, max_rows, numerics_, kernels);
  index_weights_ = LinearLayer(weights_.index_weights, act, max_rows, numerics_, kernels);
  if (numerics_.quantise) {
    quantise_index_ = kernels.Add<kernels::FakeQuant>({.channels = spec_.index_dim,
                                                       .group = 32,
                                                       .format = kernels::CodeFormat::kE2m1Ue8m0,
                                                       .dtype = act});
  }
  index_scores_ = kernels.Add<kernels::IndexScores>({.heads = spec_.index_heads,
                                                     .head_dim = spec_.index_dim,
                                                     .format = numerics_.index,
                                                     .ratio = layer_.ratio,
                                                     .dtype = act,
                                                     .wide = numerics_.wide});
  if (layer_.candidate_source) {
    candidate_blocks_ = kernels.Add<kernels::CandidateBlocks>({.block = spec_.candidate_block,
                                                               .count = spec_.candidate_blocks,
                                                               .ratio = layer_.ratio,
                                                               .wide = numerics_.wide});
  }
  top_k_ = kernels.Add<kernels::TopK>(
      {.k = spec_.index_topk, .ratio = layer_.ratio, .wide = numerics_.wide});
}

absl::Status AttentionLayer::Project(const ModelBatch& batch, const TensorView& x) const {
  const int rows = batch.num_rows;
  const TensorView query_low = Rows(scratch_.query_low, rows);
  const TensorView query = Rows(scratch_.query, rows);
  const TensorView window = Rows(scratch_.window, rows);
  SKEIN_ASSIGN_OR_RETURN(const LinearInput in, quantise_x_(x));
  SKEIN_RETURN_IF_ERROR(wq_a_(in, query_low));
  SKEIN_RETURN_IF_ERROR(wkv_(in, window));
  SKEIN_RETURN_IF_ERROR(
      q_norm_({.x = query_low, .weight = weights_.q_norm, .y = query_low, .eps = spec_.norm_eps}));
  SKEIN_ASSIGN_OR_RETURN(query_low_in_, quantise_q_(query_low));
  SKEIN_RETURN_IF_ERROR(wq_b_(query_low_in_, query));
  SKEIN_RETURN_IF_ERROR(
      rope_({.x = Reshape(query, {rows, spec_.heads, spec_.head_dim}), .cos_sin = CosSin(batch)}));
  SKEIN_RETURN_IF_ERROR(
      kv_norm_({.x = window, .weight = weights_.kv_norm, .y = window, .eps = spec_.norm_eps}));
  SKEIN_RETURN_IF_ERROR(
      rope_({.x = Reshape(window, {rows, 1, spec_.head_dim}), .cos_sin = CosSin(batch)}));
  return store_window_(
      {.x = window, .target = Rows(scratch_.identity, rows), .pool = scratch_.fresh});
}

absl::Status AttentionLayer::Latents(const CompletedGroups& groups, const ModelBatch& batch,
                                     const TensorView& x) const {
  const TensorView latent = Rows(scratch_.latent, groups.count);
  const LinearInput in{.x = x, .codes = {}, .scale = {}};
  if (layer_.ratio == 1) {
    SKEIN_RETURN_IF_ERROR(compressor_wkv_(in, latent));
  } else {
    const TensorView open = Rows(scratch_.open, batch.num_rows);
    const int dim = spec_.head_dim;
    SKEIN_RETURN_IF_ERROR(compressor_wkv_(in, Columns(open, 0, dim)));
    SKEIN_RETURN_IF_ERROR(compressor_wgate_(in, Columns(open, dim, dim)));
    SKEIN_RETURN_IF_ERROR(compress_({.rows = batch.rows,
                                     .fresh = open,
                                     .ring = caches_.open,
                                     .ring_rows = caches_.open_rows,
                                     .group_row = groups.row,
                                     .latent = latent}));
    SKEIN_RETURN_IF_ERROR(
        store_open_({.x = open, .target = groups.ring_target, .pool = caches_.open}));
  }
  return kv_norm_(
      {.x = latent, .weight = weights_.compressor_norm, .y = latent, .eps = spec_.norm_eps});
}

// Completed groups: latent -> index key (before rotation), then the rotated latent itself.
absl::Status AttentionLayer::Compress(const ModelBatch& batch, const TensorView& x) const {
  const CompletedGroups& groups = *batch.FindGroups(layer_.ratio);
  SKEIN_RETURN_IF_ERROR(Latents(groups, batch, x));
  if (groups.count == 0) return absl::OkStatus();
  const TensorView latent = Rows(scratch_.latent, groups.count);
  const TensorView key = Rows(scratch_.index_key, groups.count);
  SKEIN_RETURN_IF_ERROR(index_wk_({.x = latent, .codes = {}, .scale = {}}, key));
  SKEIN_RETURN_IF_ERROR(
      index_norm_({.x = key, .weight = weights_.index_k_norm, .y = key, .eps = spec_.norm_eps}));
  SKEIN_RETURN_IF_ERROR(rope_index_(
      {.x = Reshape(key, {groups.count, 1, spec_.index_dim}), .cos_sin = groups.cos_sin}));
  SKEIN_RETURN_IF_ERROR(store_index_({.x = key, .target = groups.target, .pool = caches_.index}));
  SKEIN_RETURN_IF_ERROR(
      rope_({.x = Reshape(latent, {groups.count, 1, spec_.head_dim}), .cos_sin = groups.cos_sin}));
  return store_history_({.x = latent, .target = groups.target, .pool = caches_.history});
}

absl::Status AttentionLayer::Select(const ModelBatch& batch, const TensorView& x) const {
  const int rows = batch.num_rows;
  const TensorView query = Rows(scratch_.index_query, rows);
  const TensorView heads = Reshape(query, {rows, spec_.index_heads, spec_.index_dim});
  const TensorView weight = Rows(scratch_.index_weight, rows);
  SKEIN_RETURN_IF_ERROR(index_wq_b_(query_low_in_, query));
  SKEIN_RETURN_IF_ERROR(rope_index_({.x = heads, .cos_sin = CosSin(batch)}));
  if (numerics_.quantise) SKEIN_RETURN_IF_ERROR(quantise_index_({.x = heads}));
  SKEIN_RETURN_IF_ERROR(index_weights_({.x = x, .codes = {}, .scale = {}}, weight));
  const int columns = batch.FindGroups(layer_.ratio)->max_columns;
  const TensorView score = Reshape(scratch_.score, {rows, columns});
  const TensorView candidates = Rows(scratch_.candidates, rows);
  SKEIN_RETURN_IF_ERROR(
      index_scores_({.rows = batch.rows,
                     .q = heads,
                     .weight = weight,
                     .keys = caches_.index,
                     .weight_scale = index_weight_scale_,
                     .candidates = layer_.uses_candidates ? candidates : TensorView{},
                     .candidate_block = spec_.candidate_block,
                     .score = score}));
  if (layer_.candidate_source) {
    SKEIN_RETURN_IF_ERROR(
        candidate_blocks_({.rows = batch.rows, .score = score, .candidates = candidates}));
  }
  return top_k_({.rows = batch.rows, .score = score, .selected = Rows(scratch_.selected, rows)});
}

absl::Status AttentionLayer::Attend(const ModelBatch& batch) const {
  const int rows = batch.num_rows;
  const TensorView out = Reshape(scratch_.attended, {rows, spec_.heads, spec_.head_dim});
  SKEIN_RETURN_IF_ERROR(
      attend_({.rows = batch.rows,
               .q = Reshape(scratch_.query, {rows, spec_.heads, spec_.head_dim}),
               .window_begin = batch.window_begin,
               .window_end = batch.window_end,
               .fresh = scratch_.fresh,
               .ring = caches_.ring,
               .ring_rows = caches_.ring_rows,
               .selected = layer_.ratio > 0 ? Rows(scratch_.selected, rows) : TensorView{},
               .history = caches_.history,
               .sink = weights_.sink,
               .out = out,
               .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec_.head_dim)))}));
  return rope_({.x = out, .cos_sin = CosSin(batch), .direction = kernels::RopeDirection::kInverse});
}

absl::Status AttentionLayer::ProjectOut(const ModelBatch& batch, const TensorView& y) const {
  const int rows = batch.num_rows;
  const int inputs = spec_.heads * spec_.head_dim / spec_.o_groups;
  const TensorView low = Rows(scratch_.output_low, rows);
  SKEIN_RETURN_IF_ERROR(wo_a_({.x = Reshape(scratch_.attended, {rows, spec_.o_groups, inputs}),
                               .w = weights_.wo_a.weight,
                               .y = Reshape(low, {rows, spec_.o_groups, spec_.o_rank})}));
  SKEIN_ASSIGN_OR_RETURN(const LinearInput in, quantise_o_(low));
  return wo_b_(in, y);
}

absl::Status AttentionLayer::Run(const ModelBatch& batch, const TensorView& x, const TensorView& y,
                                 WindowRing ring) const {
  SKEIN_RETURN_IF_ERROR(Project(batch, x));
  if (layer_.kv_source) SKEIN_RETURN_IF_ERROR(Compress(batch, x));
  if (layer_.index_source) SKEIN_RETURN_IF_ERROR(Select(batch, x));
  SKEIN_RETURN_IF_ERROR(Attend(batch));
  SKEIN_RETURN_IF_ERROR(ProjectOut(batch, y));
  if (ring == WindowRing::kTransient) return absl::OkStatus();
  return copy_window_({.from = scratch_.fresh,
                       .to = caches_.ring,
                       .source = batch.ring_source,
                       .target = batch.ring_target});
}

}  // namespace skein::worker
