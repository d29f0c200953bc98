// Matrix products of the model with the activation quantiser in front of them where the weight is
// scaled (model section 2.2). Shared by all layers. Thread: the device thread.
#pragma once

#include "absl/status/status.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/quant.h"
#include "worker/model/activations.h"
#include "worker/model/kernel_set.h"
#include "worker/model/weight_loader.h"

namespace skein::worker {

// An activation and, when the quantisers are on, its codes: what a product reads.
struct LinearInput {
  kernels::TensorView x;
  kernels::TensorView codes, scale;
};

// Quantises rows of one width. Owns the code buffers of its last result.
class ActivationQuantiser {
 public:
  ActivationQuantiser() = default;
  ActivationQuantiser(int channels, int max_rows, const Numerics& numerics, KernelSet& kernels,
                      Arena& arena);
  // The input stays valid until the next call. Without quantisers it is x alone.
  absl::StatusOr<LinearInput> operator()(const kernels::TensorView& x) const;

 private:
  bool on_ = false;
  Kernel<kernels::PerTokenCast> cast_;
  kernels::TensorView codes_, scale_;
};

// y = x * W^T for one weight.
class LinearLayer {
 public:
  LinearLayer() = default;
  // `y_dtype`: numerics.act or numerics.wide.
  LinearLayer(const LinearWeight& weight, kernels::DType y_dtype, int max_rows,
              const Numerics& numerics, KernelSet& kernels, bool accumulate = false);
  absl::Status operator()(const LinearInput& in, const kernels::TensorView& y) const;

 private:
  kernels::Weight weight_;
  bool quantised_ = false;
  Kernel<kernels::Linear> run_;
};

// True if products with this weight read quantised activations.
inline bool ReadsCodes(kernels::WeightFormat format, const Numerics& numerics) {
  return numerics.quantise && (format == kernels::WeightFormat::kE4m3Block ||
                               format == kernels::WeightFormat::kE2m1Row32);
}

}  // namespace skein::worker
