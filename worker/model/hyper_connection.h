// The residual streams around a sub-block: mix the streams into coefficients, collapse them into
// the sub-block's input, spread its output back (model section 3.3). Thread: the device thread.
#pragma once

#include "absl/status/status.h"
#include "kernels/ops/hyper_connection.h"
#include "kernels/ops/norm_rope.h"
#include "worker/model/activations.h"
#include "worker/model/kernel_set.h"
#include "worker/model/model_spec.h"
#include "worker/model/weight_loader.h"

namespace skein::worker {

// Coefficients of one site: pre [T, hc], post [T, hc], comb [T, hc, hc], wide.
struct HyperCoefficients {
  kernels::TensorView pre, post, comb;
};

class HyperConnection {
 public:
  HyperConnection() = default;
  HyperConnection(const HyperConnectionWeights& weights, const kernels::TensorView& norm,
                  const ModelSpec& spec, const Numerics& numerics, int max_rows,
                  KernelSet& kernels);

  // Coefficients of this site from the streams.
  absl::Status Mix(const kernels::TensorView& stream, const HyperCoefficients& out) const;
  // y = RMSNorm(collapse(stream, pre)): the sub-block's input.
  absl::Status Enter(const kernels::TensorView& stream, const kernels::TensorView& pre,
                     const kernels::TensorView& y) const;
  // Spreads the sub-block's output over the streams, in place.
  absl::Status Leave(const kernels::TensorView& out, const HyperCoefficients& coefficients,
                     const kernels::TensorView& stream) const;

 private:
  HyperConnectionWeights weights_;
  kernels::TensorView norm_;
  float norm_eps_ = 0;
  float hc_eps_ = 0;
  Kernel<kernels::HcMix> mix_;
  Kernel<kernels::HcCollapse> collapse_;
  Kernel<kernels::RmsNorm> rms_norm_;
  Kernel<kernels::HcPost> post_;
};

}  // namespace skein::worker
