// RMS normalisation, a block per row, and the rotary embedding, a thread per pair.
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::LoadBf16;
using cuda::LoadFloat;

constexpr unsigned kThreads = 256;

__global__ void RmsNormKernel(const uint16_t* x, int64_t x_step, const void* weight,
                              DType weight_dtype, uint16_t* y, int64_t y_step, int channels,
                              float eps) {
  __shared__ float scratch[cuda::kWarp + 1];
  const uint16_t* row = x + blockIdx.x * x_step;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < channels; i += static_cast<int>(kThreads)) {
    const float value = LoadBf16(row, i);
    sum = fmaf(value, value, sum);
  }
  // The barriers inside come before any store: y may be x.
  const float mean = cuda::BlockSum(sum, scratch) / static_cast<float>(channels);
  const float reciprocal = 1.0f / sqrtf(mean + eps);
  for (int i = static_cast<int>(threadIdx.x); i < channels; i += static_cast<int>(kThreads)) {
    const float scaled = LoadBf16(row, i) * reciprocal;
    y[blockIdx.x * y_step + i] = EncodeBf16(LoadFloat(weight, weight_dtype, i) * scaled);
  }
}

struct RmsNormOp {
  static absl::Status Supports(const RmsNorm::Problem& problem) {
    const bool known = problem.weight_dtype == DType::kBf16 || problem.weight_dtype == DType::kF32;
    return Support()
        .Is("x", problem.dtype, DType::kBf16)
        .Want(known, "weight", DTypeName(problem.weight_dtype), "bf16 or f32")
        .Positive("channels", problem.channels)
        .Take();
  }
  static size_t WorkspaceBytes(const RmsNorm::Problem&) { return 0; }
  static absl::Status Run(const RmsNorm::Problem& problem, const RmsNorm::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    return cuda::Launch(RmsNorm::kId, RmsNormKernel, dim3(static_cast<unsigned>(args.x.dim(0))),
                        kThreads, 0, stream, args.x.as<uint16_t>(), args.x.step(0),
                        args.weight.data, problem.weight_dtype, args.y.as<uint16_t>(),
                        args.y.step(0), problem.channels, args.eps);
  }
};

__global__ void RopeKernel(uint16_t* x, int64_t row_step, int64_t head_step, int heads,
                           const float* cos_sin, int64_t table_step, int tail, int half,
                           bool inverse, int64_t count) {
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int pair = static_cast<int>(item % half);
  const int64_t head = item / half;
  const int64_t t = head / heads;
  const float c = cos_sin[t * table_step + pair];
  const float sine = cos_sin[t * table_step + half + pair];
  const float s = inverse ? -sine : sine;
  uint16_t* at = x + t * row_step + head % heads * head_step + tail + 2 * pair;
  const float a = DecodeBf16(at[0]);
  const float b = DecodeBf16(at[1]);
  at[0] = EncodeBf16(fmaf(a, c, -(b * s)));
  at[1] = EncodeBf16(fmaf(a, s, b * c));
}

struct RopeOp {
  static absl::Status Supports(const Rope::Problem& problem) {
    return Support()
        .Is("x", problem.dtype, DType::kBf16)
        .Positive("rope_dim", problem.rope_dim)
        .Want(problem.rope_dim % 2 == 0 && problem.rope_dim <= problem.head_dim, "rope_dim",
              std::to_string(problem.rope_dim), "even numbers up to head_dim")
        .Take();
  }
  static size_t WorkspaceBytes(const Rope::Problem&) { return 0; }
  static absl::Status Run(const Rope::Problem& problem, const Rope::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t heads = args.x.dim(1);
    const int half = problem.rope_dim / 2;
    const int64_t count = args.x.dim(0) * heads * half;
    return cuda::Launch(Rope::kId, RopeKernel, dim3(BlocksFor(count, kThreads)), kThreads, 0,
                        stream, args.x.as<uint16_t>(), args.x.step(0), args.x.step(1),
                        static_cast<int>(heads), args.cos_sin.as<float>(), args.cos_sin.step(0),
                        problem.head_dim - problem.rope_dim, half,
                        args.direction == RopeDirection::kInverse, count);
  }
};

}  // namespace

absl::Status RegisterNormRope(KernelRegistry& registry) {
  constexpr DeterminismClass kRows = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterKernel<RmsNorm, RmsNormOp>(registry, kRows);
  if (status.ok()) status = RegisterKernel<Rope, RopeOp>(registry, kRows);
  return status;
}

}  // namespace skein::kernels::sm90
