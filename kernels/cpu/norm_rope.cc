// RMS normalisation and rotary embedding over rows, shared over the threads. Statistics are f32
// sums in eight lanes whose order depends on the channels alone.
#include "kernels/cpu/family.h"

namespace skein::kernels::cpu {
namespace {

template <CpuIsa isa>
struct RmsNormKernel : WithoutWorkspace<RmsNorm> {
  static absl::Status Supports(const RmsNorm::Problem& problem) {
    return Support()
        .Is("x", problem.dtype, DType::kBf16)
        .Float("weight", problem.weight_dtype)
        .Positive("channels", problem.channels)
        .Take();
  }
  static absl::Status Run(const RmsNorm::Problem& problem, const RmsNorm::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t rows = args.x.dim(0);
    ForEachTask(stream, rows, rows * problem.channels, [&](int64_t t, int) {
      const uint16_t* x = reinterpret_cast<const uint16_t*>(args.x.row(t));
      uint16_t* y = reinterpret_cast<uint16_t*>(args.y.row(t));
      if (problem.weight_dtype == DType::kBf16) {
        Lanes<isa>().rms_norm_bf16(x, args.weight.as<uint16_t>(), problem.channels, args.eps, y);
      } else {
        Lanes<isa>().rms_norm_f32(x, args.weight.as<float>(), problem.channels, args.eps, y);
      }
    });
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct RopeKernel : WithoutWorkspace<Rope> {
  static constexpr int kMaxRopeDim = 256;

  static absl::Status Supports(const Rope::Problem& problem) {
    return Support()
        .Is("x", problem.dtype, DType::kBf16)
        .Want(problem.rope_dim > 0 && problem.rope_dim % 2 == 0 &&
                  problem.rope_dim <= problem.head_dim && problem.rope_dim <= kMaxRopeDim,
              "rope_dim", std::to_string(problem.rope_dim), "even numbers up to head_dim and 256")
        .Take();
  }
  static absl::Status Run(const Rope::Problem& problem, const Rope::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const TensorView& x = args.x;
    const int64_t half = problem.rope_dim / 2;
    const float direction = args.direction == RopeDirection::kForward ? 1.0f : -1.0f;
    ForEachTask(stream, x.dim(0), x.dim(0) * x.dim(1) * problem.rope_dim, [&](int64_t t, int) {
      const float* cosine = args.cos_sin.as<float>() + t * args.cos_sin.step(0);
      float even[kMaxRopeDim];
      float odd[kMaxRopeDim];
      for (int64_t pair = 0; pair < half; ++pair) {
        const float c = cosine[pair];
        const float s = cosine[half + pair] * direction;
        even[2 * pair] = c;
        even[2 * pair + 1] = s;
        odd[2 * pair] = -s;
        odd[2 * pair + 1] = c;
      }
      uint16_t* tail = x.as<uint16_t>() + t * x.step(0) + problem.head_dim - problem.rope_dim;
      for (int64_t h = 0; h < x.dim(1); ++h) {
        Lanes<isa>().rotate(tail + h * x.step(1), even, odd, problem.rope_dim);
      }
    });
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status RegisterNormRope(KernelRegistry& registry, CpuIsa isa) {
  constexpr DeterminismClass kClass = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterFor<RmsNorm, RmsNormKernel>(registry, isa, kClass);
  if (status.ok()) status = RegisterFor<Rope, RopeKernel>(registry, isa, kClass);
  return status;
}

}  // namespace skein::kernels::cpu
