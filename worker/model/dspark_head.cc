#include "worker/model/dspark_head.h"

#include <algorithm>

#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;

namespace {

// Row `step` of each request's block: [R, width] of a [R*block, width] view.
TensorView BlockRow(const TensorView& view, int requests, int block, int step) {
  TensorView out = view;
  out.data = view.row(step);
  out.shape[0] = requests;
  out.stride[0] = view.step(0) * block;
  return out;
}

// The rows of `step` of a view that holds R rows for every step.
TensorView StepRows(const TensorView& view, int step, int requests) {
  TensorView out = view;
  out.data = view.row(int64_t{step} * requests);
  out.shape[0] = requests;
  return out;
}

// How token `step` of a proposal is drawn. A coupled draft shares the target's noise at its
// position.
kernels::SampleParams DrawOf(const DraftRequest& request, int step) {
  kernels::SampleParams params;
  params.seed = request.sampling.seed;
  params.position = static_cast<uint32_t>(request.position + 2 + step);
  params.top_k = request.sampling.top_k;
  params.temperature =
      request.mode == protocol::VerificationMode::kGreedy ? 0.0F : request.sampling.temperature;
  params.top_p = request.sampling.top_p;
  params.min_p = request.sampling.min_p;
  params.purpose = request.mode == protocol::VerificationMode::kRejection
                       ? kernels::RandomPurpose::kDraft
                       : kernels::RandomPurpose::kPlain;
  return params;
}

double Element(const TensorView& view, int64_t index) {
  return view.dtype == DType::kF64 ? view.as<double>()[index]
                                   : static_cast<double>(view.as<float>()[index]);
}

}  // namespace

DSparkHead::DSparkHead(Model& model, const ModelWeights& weights, const ModelLimits& limits,
                       int max_requests, const StateSlots& slots, KernelSet& kernels, Arena& arena)
    : spec_(model.spec()),
      weights_(weights),
      draft_(weights.draft),
      numerics_(model.numerics()),
      device_(arena.device()),
      slots_(slots),
      block_(spec_.dspark.block),
      max_requests_(max_requests),
      rope_table_(spec_.rope, spec_.rope_dim, false),
      streams_(spec_, numerics_, max_requests * spec_.dspark.block, arena),
      quantise_taps_(static_cast<int>(spec_.dspark.target_layers.size()) * spec_.hidden,
                     limits.max_rows, numerics_, kernels, arena),
      quantise_main_(spec_.hidden, limits.max_rows, numerics_, kernels, arena),
      main_proj_(draft_.main_proj, numerics_.act, limits.max_rows, numerics_, kernels) {
  const int rows = max_requests * block_;
  SKEIN_CHECK(rows <= limits.max_rows);
  Allocate(max_requests, limits.max_rows, arena);
  AddKernels(max_requests, kernels);
  blocks_.reserve(draft_.stages.size());
  for (size_t s = 0; s < draft_.stages.size(); ++s) {
    AttentionCaches caches;
    caches.ring = slots.draft_window(static_cast<int>(s));
    caches.ring_rows = slots.ring_rows();
    wkv_.emplace_back(draft_.stages[s].attn.wkv, numerics_.act, limits.max_rows, numerics_,
                      kernels);
    blocks_.emplace_back(draft_.stages[s], LayerSpec{}, spec_.window + block_,
                         spec_.dspark.experts_per_token, spec_, numerics_, rows, caches, kernels,
                         arena, model.attention_scratch(), model.moe_scratch());
  }
}

DSparkHead::Input DSparkHead::LayoutInput(int requests, Staging& staging) const {
  const int rows = requests * block_;
  staging.Restart();
  Input in;
  ModelBatch& batch = in.batch;
  batch.num_rows = rows;
  batch.num_sequences = requests;
  batch.rows.position = staging.Next(DType::kI32, {rows});
  batch.rows.sequence = staging.Next(DType::kI32, {rows});
  batch.rows.first_row = staging.Next(DType::kI32, {requests});
  batch.rows.first_position = staging.Next(DType::kI32, {requests});
  batch.rows.slot = staging.Next(DType::kI32, {requests});
  batch.rows.block_table = staging.Next(DType::kI32, {requests, 1});
  batch.rows.block_tokens = spec_.block_multiple();
  batch.ids = staging.Next(DType::kI32, {rows});
  batch.window_begin = staging.Next(DType::kI32, {rows});
  batch.window_end = staging.Next(DType::kI32, {rows});
  batch.rope_plain = staging.Next(DType::kF32, {rows, spec_.rope_dim});
  in.previous = staging.Next(DType::kI32, {requests});
  in.params = staging.Next(DType::kU8, {rows, int64_t{sizeof(kernels::SampleParams)}});
  return in;
}

DSparkHead::Output DSparkHead::LayoutOutput(int requests, Staging& staging) const {
  const int rows = requests * block_;
  staging.Restart();
  Output out;
  out.record = staging.Next(DType::kU8, {rows, int64_t{sizeof(kernels::SampleRecord)}});
  out.confidence = staging.Next(numerics_.wide, {rows, 1});
  return out;
}

void DSparkHead::Allocate(int max_requests, int max_rows, Arena& arena) {
  const int rows = max_requests * block_;
  const DType act = numerics_.act;
  Staging counted;
  LayoutInput(max_requests, counted);
  input_ = Staging(arena, counted.used());
  LayoutOutput(max_requests, counted);
  output_ = Staging(arena, counted.used());
  main_x_ = arena.Allocate(act, {max_rows, spec_.hidden});
  window_ = arena.Allocate(act, {max_rows, spec_.head_dim});
  embedded_ = arena.Allocate(act, {rows, spec_.hidden});
  y_ = arena.Allocate(act, {rows, spec_.hidden});
  normed_ = arena.Allocate(act, {rows, spec_.hidden});
  logits_ = arena.Allocate(numerics_.wide, {rows, spec_.vocab});
  markov_ = arena.Allocate(act, {max_requests, spec_.dspark.markov_rank});
  previous_ = arena.Allocate(DType::kI32, {max_requests});
}

void DSparkHead::AddKernels(int max_requests, KernelSet& kernels) {
  const int rows = max_requests * block_;
  const DType act = numerics_.act;
  const DType wide = numerics_.wide;
  head_ = LinearLayer(weights_.head, wide, rows, numerics_, kernels);
  markov_head_ = LinearLayer(draft_.markov_head, wide, max_requests, numerics_, kernels, true);
  confidence_hidden_ =
      LinearLayer(draft_.confidence_hidden, wide, max_requests, numerics_, kernels);
  confidence_markov_ =
      LinearLayer(draft_.confidence_markov, wide, max_requests, numerics_, kernels, true);
  norm_ = kernels.Add<kernels::RmsNorm>({.channels = spec_.hidden, .dtype = act});
  kv_norm_ = kernels.Add<kernels::RmsNorm>({.channels = spec_.head_dim, .dtype = act});
  rope_ = kernels.Add<kernels::Rope>(
      {.head_dim = spec_.head_dim, .rope_dim = spec_.rope_dim, .dtype = act});
  store_ = kernels.Add<kernels::StoreKv>(
      {.format = numerics_.window, .dim = spec_.head_dim, .x_dtype = act});
  embed_ = kernels.Add<kernels::GatherRows>(
      {.channels = spec_.hidden, .table_dtype = DType::kBf16, .y_dtype = act});
  markov_embed_ = kernels.Add<kernels::GatherRows>(
      {.channels = spec_.dspark.markov_rank, .table_dtype = DType::kBf16, .y_dtype = act});
  expand_ =
      kernels.Add<kernels::HcExpand>({.hc = spec_.hc, .channels = spec_.hidden, .dtype = act});
  collapse_ = kernels.Add<kernels::HcCollapse>(
      {.hc = spec_.hc, .channels = spec_.hidden, .dtype = act, .wide = wide});
  sample_ = kernels.Add<kernels::SampleTokens>(
      {.vocab = spec_.vocab, .max_top = 0, .wide = wide, .max_rows = max_requests});
}

absl::Status DSparkHead::Observe(const ModelBatch& batch, const TensorView& taps) {
  const int rows = batch.num_rows;
  const TensorView main_x = Rows(main_x_, rows);
  const TensorView window = Rows(window_, rows);
  SKEIN_ASSIGN_OR_RETURN(const LinearInput in, quantise_taps_(taps));
  SKEIN_RETURN_IF_ERROR(main_proj_(in, main_x));
  SKEIN_RETURN_IF_ERROR(
      norm_({.x = main_x, .weight = draft_.main_norm, .y = main_x, .eps = spec_.norm_eps}));
  SKEIN_ASSIGN_OR_RETURN(const LinearInput main_in, quantise_main_(main_x));
  for (size_t s = 0; s < wkv_.size(); ++s) {
    SKEIN_RETURN_IF_ERROR(wkv_[s](main_in, window));
    SKEIN_RETURN_IF_ERROR(kv_norm_({.x = window,
                                    .weight = draft_.stages[s].attn.kv_norm,
                                    .y = window,
                                    .eps = spec_.norm_eps}));
    SKEIN_RETURN_IF_ERROR(
        rope_({.x = Reshape(window, {rows, 1, spec_.head_dim}), .cos_sin = batch.rope_plain}));
    SKEIN_RETURN_IF_ERROR(store_({.x = window,
                                  .target = batch.ring_target,
                                  .pool = slots_.draft_window(static_cast<int>(s))}));
  }
  return absl::OkStatus();
}

void DSparkHead::FillRequest(const DraftRequest& request, size_t r) {
  ModelBatch& batch = in_.batch;
  const auto capacity = static_cast<size_t>(batch.num_sequences);
  const auto first = static_cast<int32_t>(request.position + 1);
  batch.rows.first_row.as<int32_t>()[r] = static_cast<int32_t>(r) * block_;
  batch.rows.first_position.as<int32_t>()[r] = first;
  batch.rows.slot.as<int32_t>()[r] = request.slot;
  batch.rows.block_table.as<int32_t>()[r] = 0;
  in_.previous.as<int32_t>()[r] = request.token;
  for (int i = 0; i < block_; ++i) {
    const size_t row = r * static_cast<size_t>(block_) + static_cast<size_t>(i);
    batch.rows.position.as<int32_t>()[row] = first + i;
    batch.rows.sequence.as<int32_t>()[row] = static_cast<int32_t>(r);
    batch.ids.as<int32_t>()[row] = i == 0 ? request.token : spec_.dspark.noise_token;
    batch.window_begin.as<int32_t>()[row] =
        std::max({0, first - spec_.window, static_cast<int32_t>(request.fed_from)});
    batch.window_end.as<int32_t>()[row] = first + block_;
    rope_table_.FillRow(first + i,
                        batch.rope_plain.as<float>() + row * static_cast<size_t>(spec_.rope_dim));
    in_.params.as<kernels::SampleParams>()[static_cast<size_t>(i) * capacity + r] =
        DrawOf(request, i);
  }
}

// A block that belongs to no sequence: operators skip its rows or compute what nobody reads.
void DSparkHead::FillPadding(size_t r) {
  FillRequest(DraftRequest{}, r);
  for (int i = 0; i < block_; ++i) {
    const size_t row = r * static_cast<size_t>(block_) + static_cast<size_t>(i);
    in_.batch.rows.sequence.as<int32_t>()[row] = -1;
    in_.batch.ids.as<int32_t>()[row] = -1;
  }
}

void DSparkHead::Fill(std::span<const DraftRequest> requests, int capacity) {
  SKEIN_CHECK(requests.size() <= static_cast<size_t>(capacity) && capacity <= max_requests_);
  in_ = LayoutInput(capacity, input_);
  out_ = LayoutOutput(capacity, output_);
  for (size_t r = 0; r < requests.size(); ++r) {
    if (requests[r].depth > 0) {
      FillRequest(requests[r], r);
    } else {
      FillPadding(r);
    }
  }
  for (auto r = requests.size(); r < static_cast<size_t>(capacity); ++r) FillPadding(r);
}

ModelBatch DSparkHead::BatchOnDevice() const {
  ModelBatch batch = in_.batch;
  for (TensorView* view : {&batch.rows.position, &batch.rows.sequence, &batch.rows.first_row,
                           &batch.rows.first_position, &batch.rows.slot, &batch.rows.block_table,
                           &batch.ids, &batch.window_begin, &batch.window_end, &batch.rope_plain}) {
    *view = input_.OnDevice(*view);
  }
  return batch;
}

absl::Status DSparkHead::RunStagesWithoutRows() {
  for (const Block& block : blocks_) {
    SKEIN_RETURN_IF_ERROR(
        block.Run(ModelBatch{}, streams_, AttentionLayer::WindowRing::kTransient));
  }
  return absl::OkStatus();
}

absl::Status DSparkHead::RunStages() {
  SKEIN_RETURN_IF_ERROR(input_.CopyIn());
  const ModelBatch batch = BatchOnDevice();
  const int rows = batch.num_rows;
  const TensorView embedded = Rows(embedded_, rows);
  SKEIN_RETURN_IF_ERROR(embed_({.table = weights_.embed, .index = batch.ids, .y = embedded}));
  streams_.Begin();
  SKEIN_RETURN_IF_ERROR(expand_({.x = embedded, .stream = Rows(streams_.stream, rows)}));
  for (const Block& block : blocks_) {
    SKEIN_RETURN_IF_ERROR(block.Run(batch, streams_, AttentionLayer::WindowRing::kTransient));
  }
  const TensorView y = Rows(y_, rows);
  const TensorView normed = Rows(normed_, rows);
  SKEIN_RETURN_IF_ERROR(
      collapse_({.stream = Rows(streams_.stream, rows), .pre = Rows(streams_.pre, rows), .y = y}));
  SKEIN_RETURN_IF_ERROR(norm_({.x = y, .weight = draft_.norm, .y = normed, .eps = spec_.norm_eps}));
  return head_({.x = normed, .codes = {}, .scale = {}}, Rows(logits_, rows));
}

// Markov bias from the previous token, then the choice of token `step`; confidence beside it. The
// token stays on the device for the next step.
absl::Status DSparkHead::DraftStep(int step, int requests) {
  const TensorView markov = Rows(markov_, requests);
  const TensorView logits = BlockRow(logits_, requests, block_, step);
  const TensorView confidence = BlockRow(output_.OnDevice(out_.confidence), requests, block_, step);
  const TensorView previous = Rows(previous_, requests);
  const LinearInput markov_in{.x = markov, .codes = {}, .scale = {}};
  const LinearInput hidden_in{.x = BlockRow(y_, requests, block_, step), .codes = {}, .scale = {}};
  SKEIN_RETURN_IF_ERROR(
      markov_embed_({.table = draft_.markov_embed,
                     .index = step == 0 ? input_.OnDevice(in_.previous) : previous,
                     .y = markov}));
  SKEIN_RETURN_IF_ERROR(markov_head_(markov_in, logits));
  SKEIN_RETURN_IF_ERROR(confidence_hidden_(hidden_in, confidence));
  SKEIN_RETURN_IF_ERROR(confidence_markov_(markov_in, confidence));
  return sample_({.logits = logits,
                  .params = StepRows(input_.OnDevice(in_.params), step, requests),
                  .record = BlockRow(output_.OnDevice(out_.record), requests, block_, step),
                  .top_id = {},
                  .top_logprob = {},
                  .chosen = previous});
}

absl::Status DSparkHead::Queue(int depth) {
  SKEIN_RETURN_IF_ERROR(RunStages());
  for (int step = 0; step < depth; ++step) {
    SKEIN_RETURN_IF_ERROR(DraftStep(step, in_.batch.num_sequences));
  }
  return output_.CopyOut();
}

void DSparkHead::Read(std::span<const DraftRequest> requests,
                      std::vector<DraftProposal>& proposals) const {
  proposals.assign(requests.size(), {});
  const auto* records = out_.record.as<const kernels::SampleRecord>();
  for (size_t r = 0; r < requests.size(); ++r) {
    for (int step = 0; step < requests[r].depth; ++step) {
      const int64_t row = static_cast<int64_t>(r) * block_ + step;
      if (records[row].token < 0) break;  // not finite: nothing follows
      proposals[r].tokens.push_back(records[row].token);
      proposals[r].confidence.push_back(Element(out_.confidence, row));
    }
  }
}

absl::Status DSparkHead::Propose(std::span<const DraftRequest> requests,
                                 std::vector<DraftProposal>& proposals) {
  int depth = 0;
  for (const DraftRequest& request : requests) depth = std::max(depth, request.depth);
  Fill(requests, static_cast<int>(requests.size()));
  SKEIN_RETURN_IF_ERROR(Queue(depth));
  SKEIN_RETURN_IF_ERROR(device_.Wait());
  Read(requests, proposals);
  return absl::OkStatus();
}

TensorView DSparkHead::records() const {
  return Reshape(output_.OnDevice(out_.record),
                 {in_.batch.num_sequences, block_ * int64_t{sizeof(kernels::SampleRecord)}});
}

TensorView DSparkHead::collapsed(int requests) const {
  return Rows(y_, int64_t{requests} * block_);
}

TensorView DSparkHead::draft_logits(int requests) const {
  return Rows(logits_, int64_t{requests} * block_);
}

}  // namespace skein::worker
