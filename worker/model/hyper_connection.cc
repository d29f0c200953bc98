#include "worker/model/hyper_connection.h"

#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::TensorView;

HyperConnection::HyperConnection(const HyperConnectionWeights& weights, const TensorView& norm,
                                 const ModelSpec& spec, const Numerics& numerics, int max_rows,
                                 KernelSet& kernels)
    : weights_(weights), norm_(norm), norm_eps_(spec.norm_eps), hc_eps_(spec.hc_eps) {
  mix_ = kernels.Add<kernels::HcMix>({.hc = spec.hc,
                                      .channels = spec.hidden,
                                      .sinkhorn_iters = spec.sinkhorn_iters,
                                      .dtype = numerics.act,
                                      .wide = numerics.wide,
                                      .max_rows = max_rows});
  collapse_ = kernels.Add<kernels::HcCollapse>(
      {.hc = spec.hc, .channels = spec.hidden, .dtype = numerics.act, .wide = numerics.wide});
  rms_norm_ = kernels.Add<kernels::RmsNorm>({.channels = spec.hidden, .dtype = numerics.act});
  post_ = kernels.Add<kernels::HcPost>(
      {.hc = spec.hc, .channels = spec.hidden, .dtype = numerics.act, .wide = numerics.wide});
}

absl::Status HyperConnection::Mix(const TensorView& stream, const HyperCoefficients& out) const {
  return mix_({.stream = stream,
               .fn = weights_.fn,
               .base = weights_.base,
               .scale = weights_.scale,
               .pre = out.pre,
               .post = out.post,
               .comb = out.comb,
               .norm_eps = norm_eps_,
               .hc_eps = hc_eps_});
}

absl::Status HyperConnection::Enter(const TensorView& stream, const TensorView& pre,
                                    const TensorView& y) const {
  SKEIN_RETURN_IF_ERROR(collapse_({.stream = stream, .pre = pre, .y = y}));
  return rms_norm_({.x = y, .weight = norm_, .y = y, .eps = norm_eps_});
}

absl::Status HyperConnection::Leave(const TensorView& out, const HyperCoefficients& coefficients,
                                    const TensorView& stream) const {
  return post_({.x = out, .post = coefficients.post, .comb = coefficients.comb, .stream = stream});
}

}  // namespace skein::worker
