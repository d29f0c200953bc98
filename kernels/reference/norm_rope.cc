// Reference RMS normalisation and rotary embedding. Plain code in the calling thread; must never
// compute an angle.
#include <cmath>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

template <typename Acc>
struct RmsNormKernel {
  static absl::Status Run(const RmsNorm::Problem& problem, const RmsNorm::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const std::vector<Acc> weight = LoadVector<Acc>(args.weight);
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      std::vector<Acc> x = LoadRow<Acc>(args.x, t);
      const Acc mean =
          Dot(x.data(), x.data(), problem.channels) / static_cast<Acc>(problem.channels);
      const Acc reciprocal = Acc{1} / std::sqrt(mean + static_cast<Acc>(args.eps));
      for (size_t i = 0; i < x.size(); ++i) x[i] = weight[i] * (x[i] * reciprocal);
      StoreSpan(args.y, t * args.y.step(0), problem.channels, x.data());
    }
    return absl::OkStatus();
  }
};

absl::Status RmsNormSupports(const RmsNorm::Problem& problem) {
  const bool known = problem.weight_dtype == DType::kBf16 || problem.weight_dtype == DType::kF32;
  return Requirements()
      .Activation("x", problem.dtype)
      .Want(known, "weight", DTypeName(problem.weight_dtype), "bf16 or f32")
      .Positive("channels", problem.channels)
      .Take();
}

template <typename Acc>
struct RopeKernel {
  static absl::Status Run(const Rope::Problem& problem, const Rope::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t half = problem.rope_dim / 2;
    const TensorView& x = args.x;
    for (int64_t t = 0; t < x.dim(0); ++t) {
      const float* cosine = args.cos_sin.as<float>() + t * args.cos_sin.step(0);
      const float* sine = cosine + half;
      for (int64_t h = 0; h < x.dim(1); ++h) {
        const int64_t tail = t * x.step(0) + h * x.step(1) + problem.head_dim - problem.rope_dim;
        for (int64_t pair = 0; pair < half; ++pair) {
          const Acc c = cosine[pair];
          const Acc s = args.direction == RopeDirection::kForward ? sine[pair] : -sine[pair];
          const int64_t at = tail + 2 * pair;
          const Acc a = LoadAt<Acc>(x.data, x.dtype, at);
          const Acc b = LoadAt<Acc>(x.data, x.dtype, at + 1);
          StoreAt(x.data, x.dtype, at, std::fma(a, c, -(b * s)));
          StoreAt(x.data, x.dtype, at + 1, std::fma(a, s, b * c));
        }
      }
    }
    return absl::OkStatus();
  }
};

absl::Status RopeSupports(const Rope::Problem& problem) {
  return Requirements()
      .Activation("x", problem.dtype)
      .Positive("rope_dim", problem.rope_dim)
      .Want(problem.rope_dim % 2 == 0 && problem.rope_dim <= problem.head_dim, "rope_dim",
            std::to_string(problem.rope_dim), "even numbers up to head_dim")
      .Take();
}

}  // namespace

absl::Status RegisterNormRope(KernelRegistry& registry) {
  constexpr DeterminismClass kClass = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterBoth<RmsNorm, RmsNormKernel<double>, RmsNormKernel<float>>(
      registry, kClass, &RmsNormSupports);
  if (status.ok()) {
    status =
        RegisterBoth<Rope, RopeKernel<double>, RopeKernel<float>>(registry, kClass, &RopeSupports);
  }
  return status;
}

}  // namespace skein::kernels::reference
