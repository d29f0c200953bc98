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
  record_ = arena.Allocate(DType::kU8, {max_samples, int64_t{sizeof(kernels::SampleRecord)}});
  top_id_ = arena.Allocate(DType::kI32, {max_samples, max_top});
  top_logprob_ = arena.Allocate(DType::kF32, {max_samples, max_top});
  for (size_t i = 0; i < verified_.size(); ++i) {
    verified_[i] = arena.Allocate(i < 5 ? DType::kF32 : DType::kI32, {max_samples});
  }
  verify_ = kernels.Add<kernels::VerifyDrafts>(
      {.vocab = spec.vocab, .wide = numerics.wide, .max_rows = max_samples});
  gather_stream_ = kernels.Add<kernels::GatherRows>(
      {.channels = width, .table_dtype = numerics.act, .y_dtype = numerics.act});
  gather_pre_ = kernels.Add<kernels::GatherRows>(
      {.channels = spec.hc, .table_dtype = numerics.wide, .y_dtype = numerics.wide});
  collapse_ = kernels.Add<kernels::HcCollapse>(
      {.hc = spec.hc, .channels = spec.hidden, .dtype = numerics.act, .wide = numerics.wide});
  norm_ = kernels.Add<kernels::RmsNorm>({.channels = spec.hidden, .dtype = numerics.act});
  sample_ = kernels.Add<kernels::SampleTokens>(
      {.vocab = spec.vocab, .max_top = max_top, .wide = numerics.wide, .max_rows = max_samples});
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

absl::Status OutputHead::Sample(const TensorView& params) const {
  const int samples = static_cast<int>(params.dim(0));
  return sample_({.logits = logits(samples),
                  .params = params,
                  .record = Rows(record_, samples),
                  .top_id = top_id(samples),
                  .top_logprob = top_logprob(samples)});
}

absl::Status OutputHead::Verify(const TensorView& params, const TensorView& draft_logits) const {
  const int samples = static_cast<int>(params.dim(0));
  return verify_({.logits = logits(samples),
                  .draft_logits = draft_logits,
                  .params = params,
                  .target_probability = Rows(verified_[0], samples),
                  .draft_probability = Rows(verified_[1], samples),
                  .residual_mass = Rows(verified_[2], samples),
                  .recovered = Rows(verified_[5], samples),
                  .draft_logprob = Rows(verified_[3], samples),
                  .recovered_logprob = Rows(verified_[4], samples),
                  .flags = Rows(verified_[6], samples)});
}

OutputHead::Verified OutputHead::verified(int i) const {
  return {.target_probability = verified_[0].as<float>()[i],
          .draft_probability = verified_[1].as<float>()[i],
          .residual_mass = verified_[2].as<float>()[i],
          .draft_logprob = verified_[3].as<float>()[i],
          .recovered_logprob = verified_[4].as<float>()[i],
          .recovered = verified_[5].as<int32_t>()[i],
          .flags = verified_[6].as<int32_t>()[i]};
}

std::span<const kernels::SampleRecord> OutputHead::records(int samples) const {
  return {record_.as<const kernels::SampleRecord>(), static_cast<size_t>(samples)};
}

}  // namespace skein::worker
