#include "worker/model/model.h"

#include <algorithm>

#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;

namespace {

TensorView FirstPre(DType wide, int rows, int streams, Arena& arena) {
  std::vector<double> values(static_cast<size_t>(rows) * static_cast<size_t>(streams));
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(streams)) values[i] = 1;
  if (wide == DType::kF64) {
    return arena.Constant<double>(wide, {rows, streams}, std::span<const double>(values));
  }
  const std::vector<float> floats(values.begin(), values.end());
  return arena.Constant<float>(wide, {rows, streams}, std::span<const float>(floats));
}

}  // namespace

StreamScratch::StreamScratch(const ModelSpec& spec, const Numerics& numerics, int max_rows,
                             Arena& arena) {
  stream = arena.Allocate(numerics.act, {max_rows, spec.hc, spec.hidden});
  first_pre = FirstPre(numerics.wide, max_rows, spec.hc, arena);
  pre = first_pre;
  for (HyperCoefficients* site : {&attn, &ffn}) {
    site->pre = arena.Allocate(numerics.wide, {max_rows, spec.hc});
    site->post = arena.Allocate(numerics.wide, {max_rows, spec.hc});
    site->comb = arena.Allocate(numerics.wide, {max_rows, spec.hc, spec.hc});
  }
  input = arena.Allocate(numerics.act, {max_rows, spec.hidden});
  output = arena.Allocate(numerics.act, {max_rows, spec.hidden});
}

HyperCoefficients StreamScratch::Coefficients(const HyperCoefficients& from, int64_t rows) const {
  return {Rows(from.pre, rows), Rows(from.post, rows), Rows(from.comb, rows)};
}

Block::Block(const BlockWeights& weights, const LayerSpec& layer, int window_entries,
             int experts_per_token, const ModelSpec& spec, const Numerics& numerics, int max_rows,
             const AttentionCaches& caches, KernelSet& kernels, Arena& arena,
             AttentionScratch& attention_scratch, MoeScratch& moe_scratch)
    : attn_site_(weights.hc_attn, weights.attn_norm, spec, numerics, max_rows, kernels),
      ffn_site_(weights.hc_ffn, weights.ffn_norm, spec, numerics, max_rows, kernels),
      attention_(weights.attn, layer, window_entries, spec, numerics, max_rows, caches, kernels,
                 arena, attention_scratch),
      moe_(weights.moe, experts_per_token, spec, numerics, max_rows, kernels, arena, moe_scratch) {}

absl::Status Block::Run(const ModelBatch& batch, StreamScratch& scratch,
                        AttentionLayer::WindowRing ring) const {
  const int64_t rows = batch.num_rows;
  if (rows == 0) return moe_.Run(Rows(scratch.input, 0), Rows(scratch.output, 0));
  const TensorView stream = Rows(scratch.stream, rows);
  const TensorView pre_in = Rows(scratch.pre, rows);
  const TensorView x = Rows(scratch.input, rows);
  const TensorView y = Rows(scratch.output, rows);
  const HyperCoefficients attn = scratch.Coefficients(scratch.attn, rows);
  const HyperCoefficients ffn = scratch.Coefficients(scratch.ffn, rows);

  SKEIN_RETURN_IF_ERROR(attn_site_.Mix(stream, attn));
  SKEIN_RETURN_IF_ERROR(attn_site_.Enter(stream, pre_in, x));
  SKEIN_RETURN_IF_ERROR(attention_.Run(batch, x, y, ring));
  SKEIN_RETURN_IF_ERROR(attn_site_.Leave(y, attn, stream));

  SKEIN_RETURN_IF_ERROR(ffn_site_.Mix(stream, ffn));
  SKEIN_RETURN_IF_ERROR(ffn_site_.Enter(stream, attn.pre, x));
  SKEIN_RETURN_IF_ERROR(moe_.Run(x, y));
  SKEIN_RETURN_IF_ERROR(ffn_site_.Leave(y, ffn, stream));

  // The next site consumes what this one produced, before this one is run again.
  scratch.pre = scratch.ffn.pre;
  return absl::OkStatus();
}

namespace {

int MaxColumns(const ModelSpec& spec, const ModelLimits& limits) {
  int columns = 1;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.index_source) columns = std::max(columns, limits.max_model_len / layer.ratio);
  }
  return columns;
}

AttentionCaches LayerCaches(const ModelSpec& spec, int layer, const KvCache& cache,
                            const StateSlots& slots) {
  const LayerSpec& it = spec.layers[static_cast<size_t>(layer)];
  AttentionCaches caches;
  caches.ring = slots.window(layer);
  caches.ring_rows = slots.ring_rows();
  if (it.kv_layer >= 0) {
    caches.history = cache.history(it.kv_layer);
    caches.index = cache.index_keys(it.kv_layer);
  }
  if (it.kv_source && it.ratio > 1) {
    caches.open = slots.open_groups(layer);
    caches.open_rows = slots.open_rows(it.ratio);
  }
  return caches;
}

}  // namespace

Model::Model(const ModelSpec& spec, const ModelWeights& weights, const Numerics& numerics,
             const ModelLimits& limits, const KvCache& cache, const StateSlots& slots,
             KernelSet& kernels, Arena& arena, RankExchange* exchange)
    : spec_(spec),
      weights_(weights),
      numerics_(numerics),
      device_(arena.device()),
      zeros_(arena.HostBytes(kZeroBytes)),
      attention_scratch_(spec, numerics, limits.max_rows, MaxColumns(spec, limits), arena),
      moe_scratch_(spec, numerics, limits.max_rows, arena, exchange),
      streams_(spec, numerics, limits.max_rows, arena),
      head_(weights, spec, numerics, limits.max_samples, limits.max_top, kernels, arena) {
  embedded_ = arena.Allocate(numerics.act, {limits.max_rows, spec.hidden});
  embed_ = kernels.Add<kernels::GatherRows>(
      {.channels = spec.hidden, .table_dtype = DType::kBf16, .y_dtype = numerics.act});
  expand_ = kernels.Add<kernels::HcExpand>(
      {.hc = spec.hc, .channels = spec.hidden, .dtype = numerics.act});
  const auto targets = static_cast<int64_t>(spec.dspark.target_layers.size());
  if (targets > 0) {
    taps_ = arena.Allocate(numerics.act, {limits.max_rows, targets * spec.hidden});
    mean_ = kernels.Add<kernels::HcMean>(
        {.hc = spec.hc, .channels = spec.hidden, .dtype = numerics.act});
  }
  for (size_t i = 0; i < weights.engram.size(); ++i) {
    engrams_.emplace_back(weights.engram[i], static_cast<int>(i), spec, numerics, limits.max_rows,
                          kernels, arena, exchange);
  }
  blocks_.reserve(weights.layers.size());
  for (int i = 0; i < spec.num_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    blocks_.emplace_back(weights.layers[at], spec.layers[at], spec.window, spec.experts_per_token,
                         spec, numerics, limits.max_rows, LayerCaches(spec, i, cache, slots),
                         kernels, arena, attention_scratch_, moe_scratch_);
  }
}

absl::Status Model::Prepare() {
  for (EngramLayer& engram : engrams_) SKEIN_RETURN_IF_ERROR(engram.Prepare());
  return absl::OkStatus();
}

absl::Status Model::Recover() {
  // What it says is of the step that failed, and is known.
  device_.Wait().IgnoreError();
  // Attention skips rows of nobody: all else is computed from what it left in them.
  const TensorView& attended = attention_scratch_.attended;
  const auto bytes = static_cast<size_t>(attended.size()) * kernels::DTypeBytes(attended.dtype);
  for (size_t at = 0; at < bytes; at += kZeroBytes) {
    SKEIN_RETURN_IF_ERROR(
        device_.CopyIn(attended.as<std::byte>() + at, zeros_, std::min(kZeroBytes, bytes - at)));
  }
  return device_.Wait();
}

absl::Status Model::Embed(const ModelBatch& batch) {
  if (batch.num_rows == 0) return absl::OkStatus();
  const TensorView embedded = Rows(embedded_, batch.num_rows);
  SKEIN_RETURN_IF_ERROR(embed_({.table = weights_.embed, .index = batch.ids, .y = embedded}));
  streams_.Begin();
  return expand_({.x = embedded, .stream = stream(batch.num_rows)});
}

absl::Status Model::RunLayer(int layer, const ModelBatch& batch) {
  const LayerSpec& it = spec_.layers[static_cast<size_t>(layer)];
  const TensorView h = stream(batch.num_rows);
  if (it.engram_index >= 0) {
    SKEIN_RETURN_IF_ERROR(engrams_[static_cast<size_t>(it.engram_index)].Run(batch.ngram, h));
  }
  if (spec_.dspark.tap_side == TapSide::kEntering) SKEIN_RETURN_IF_ERROR(Tap(it, batch));
  SKEIN_RETURN_IF_ERROR(
      blocks_[static_cast<size_t>(layer)].Run(batch, streams_, AttentionLayer::WindowRing::kKeep));
  if (spec_.dspark.tap_side == TapSide::kLeaving) SKEIN_RETURN_IF_ERROR(Tap(it, batch));
  return absl::OkStatus();
}

absl::Status Model::Tap(const LayerSpec& layer, const ModelBatch& batch) {
  if (layer.tap_index < 0 || !batch.feeds_drafter || batch.num_rows == 0) return absl::OkStatus();
  const TensorView tap =
      Columns(taps(batch.num_rows), int64_t{layer.tap_index} * spec_.hidden, spec_.hidden);
  return mean_({.stream = stream(batch.num_rows), .y = tap});
}

absl::Status Model::Logits(const ModelBatch& batch) {
  return head_.Logits(stream(batch.num_rows), pre(batch.num_rows), batch.sample_row);
}

absl::Status Model::Forward(const ModelBatch& batch) {
  SKEIN_RETURN_IF_ERROR(Embed(batch));
  for (int i = 0; i < spec_.num_layers; ++i) SKEIN_RETURN_IF_ERROR(RunLayer(i, batch));
  if (batch.num_samples == 0) return absl::OkStatus();
  SKEIN_RETURN_IF_ERROR(Logits(batch));
  return head_.Sample(batch.sample_params, batch.edits);
}

}  // namespace skein::worker
