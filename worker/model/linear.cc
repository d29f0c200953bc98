#include "worker/model/linear.h"

namespace skein::worker {

using kernels::DType;

ActivationQuantiser::ActivationQuantiser(int channels, int max_rows, const Numerics& numerics,
                                         KernelSet& kernels, Arena& arena)
    : on_(numerics.quantise) {
  if (!on_) return;
  cast_ = kernels.Add<kernels::PerTokenCast>(
      {.channels = channels, .group = 32, .x_dtype = numerics.act});
  codes_ = arena.Allocate(DType::kE4m3, {max_rows, channels});
  scale_ = arena.Allocate(DType::kE8m0, {max_rows, (channels + 31) / 32});
}

absl::StatusOr<LinearInput> ActivationQuantiser::operator()(const kernels::TensorView& x) const {
  LinearInput in{.x = x, .codes = {}, .scale = {}};
  if (!on_) return in;
  in.codes = Rows(codes_, x.dim(0));
  in.scale = Rows(scale_, x.dim(0));
  if (absl::Status status = cast_({.x = x, .codes = in.codes, .scale = in.scale}); !status.ok()) {
    return status;
  }
  return in;
}

LinearLayer::LinearLayer(const LinearWeight& weight, DType y_dtype, int max_rows,
                         const Numerics& numerics, KernelSet& kernels, bool accumulate)
    : weight_(weight.weight), quantised_(ReadsCodes(weight.format, numerics)) {
  run_ = kernels.Add<kernels::Linear>({.n = weight.n,
                                       .k = weight.k,
                                       .format = weight.format,
                                       .block = 32,
                                       .x_dtype = quantised_ ? DType::kE4m3 : numerics.act,
                                       .y_dtype = y_dtype,
                                       .accumulate = accumulate,
                                       .max_rows = max_rows});
}

absl::Status LinearLayer::operator()(const LinearInput& in, const kernels::TensorView& y) const {
  return run_({.x = quantised_ ? in.codes : in.x,
               .x_scale = quantised_ ? in.scale : kernels::TensorView{},
               .w = weight_,
               .y = y});
}

}  // namespace skein::worker
