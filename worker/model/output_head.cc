#include "worker/model/output_head.h"

#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;

OutputHead::OutputHead(const ModelWeights& weights, const ModelSpec& spec, const Numerics& numerics,
                       int max_samples, int max_top, KernelSet& kernels, Arena& arena)
    : weights_(weights),
      hc_(spec.hc),
      hidden_(spec.hidden),
      max_top_(max_top),
      norm_eps_(spec.norm_eps),
      head_(weights.head, numerics.wide, max_samples, numerics, kernels) {
  const int width = spec.hc * spec.hidden;
  stream_ = arena.Allocate(numerics.act, {max_samples, width});
  pre_ = arena.Allocate(numerics.wide, {max_samples, spec.hc});
  y_ = arena.Allocate(numerics.act, {max_samples, spec.hidden});
  normed_ = arena.Allocate(numerics.act, {max_samples, spec.hidden});
  logits_ = arena.Allocate(numerics.wide, {max_samples, spec.vocab});
  edited_ = arena.Allocate(numerics.wide, {max_samples, spec.vocab});
  Staging counted;
  Layout(max_samples, counted);
  results_ = Staging(arena, counted.used());
  verify_ = kernels.Add<kernels::VerifyDrafts>(
      {.vocab = spec.vocab, .wide = numerics.wide, .max_rows = max_samples});
  gather_stream_ = kernels.Add<kernels::GatherRows>(
      {.channels = width, .table_dtype = numerics.act, .y_dtype = numerics.act});
  gather_pre_ = kernels.Add<kernels::GatherRows>(
      {.channels = spec.hc, .table_dtype = numerics.wide, .y_dtype = numerics.wide});
  collapse_ = kernels.Add<kernels::HcCollapse>(
      {.hc = spec.hc, .channels = spec.hidden, .dtype = numerics.act, .wide = numerics.wide});
  norm_ = kernels.Add<kernels::RmsNorm>({.channels = spec.hidden, .dtype = numerics.act});
  edit_ = kernels.Add<kernels::EditLogits>({.vocab = spec.vocab, .wide = numerics.wide});
  sample_ = kernels.Add<kernels::SampleTokens>(
      {.vocab = spec.vocab, .max_top = max_top, .wide = numerics.wide, .max_rows = max_samples});
}

OutputHead::Results OutputHead::Layout(int samples, Staging& staging) const {
  staging.Restart();
  Results results;
  results.record = staging.Next(DType::kU8, {samples, int64_t{sizeof(kernels::SampleRecord)}});
  results.top_id = staging.Next(DType::kI32, {samples, max_top_});
  results.top_logprob = staging.Next(DType::kF32, {samples, max_top_});
  for (size_t i = 0; i < results.verified.size(); ++i) {
    results.verified[i] = staging.Next(i < 5 ? DType::kF32 : DType::kI32, {samples});
  }
  return results;
}

absl::Status OutputHead::Logits(const TensorView& stream, const TensorView& pre,
                                const TensorView& sample_row) const {
  const int64_t samples = sample_row.dim(0);
  const int64_t rows = stream.dim(0);
  const TensorView y = Rows(y_, samples);
  const TensorView normed = Rows(normed_, samples);
  SKEIN_RETURN_IF_ERROR(gather_stream_({.table = Reshape(stream, {rows, hc_ * hidden_}),
                                        .index = sample_row,
                                        .y = Rows(stream_, samples)}));
  SKEIN_RETURN_IF_ERROR(gather_pre_({.table = pre, .index = sample_row, .y = Rows(pre_, samples)}));
  SKEIN_RETURN_IF_ERROR(collapse_(
      {.stream = Reshape(stream_, {samples, hc_, hidden_}), .pre = Rows(pre_, samples), .y = y}));
  SKEIN_RETURN_IF_ERROR(norm_({.x = y, .weight = weights_.norm, .y = normed, .eps = norm_eps_}));
  return head_({.x = normed, .codes = {}, .scale = {}}, Rows(logits_, samples));
}

absl::Status OutputHead::Sample(const TensorView& params, const EditBatch& edits) {
  const int samples = static_cast<int>(params.dim(0));
  Expect(samples);
  has_edits_ = !edits.edits.absent();
  if (has_edits_) {
    SKEIN_RETURN_IF_ERROR(edit_({.raw = logits(samples),
                                 .logits = Rows(edited_, samples),
                                 .edits = edits.edits,
                                 .entries = edits.entries,
                                 .drafts = edits.drafts,
                                 .mask = edits.mask}));
  }
  return sample_({.logits = drawn(samples),
                  .raw = has_edits_ ? logits(samples) : TensorView{},
                  .params = params,
                  .record = results_.OnDevice(fetched_.record),
                  .top_id = results_.OnDevice(fetched_.top_id),
                  .top_logprob = results_.OnDevice(fetched_.top_logprob),
                  .chosen = {}});
}

absl::Status OutputHead::Verify(const TensorView& params, const TensorView& draft_logits) {
  const int samples = static_cast<int>(params.dim(0));
  std::array<TensorView, 7> out;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = results_.OnDevice(Rows(fetched_.verified[i], samples));
  }
  return verify_({.logits = drawn(samples),
                  .raw = has_edits_ ? logits(samples) : TensorView{},
                  .draft_logits = draft_logits,
                  .params = params,
                  .target_probability = out[0],
                  .draft_probability = out[1],
                  .residual_mass = out[2],
                  .recovered = out[5],
                  .draft_logprob = out[3],
                  .recovered_logprob = out[4],
                  .flags = out[6]});
}

OutputHead::Verified OutputHead::verified(int i) const {
  const std::array<TensorView, 7>& of = fetched_.verified;
  return {.target_probability = of[0].as<float>()[i],
          .draft_probability = of[1].as<float>()[i],
          .residual_mass = of[2].as<float>()[i],
          .draft_logprob = of[3].as<float>()[i],
          .recovered_logprob = of[4].as<float>()[i],
          .recovered = of[5].as<int32_t>()[i],
          .flags = of[6].as<int32_t>()[i]};
}

std::span<const kernels::SampleRecord> OutputHead::records(int samples) const {
  return {fetched_.record.as<const kernels::SampleRecord>(), static_cast<size_t>(samples)};
}

}  // namespace skein::worker
