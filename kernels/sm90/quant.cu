// Casts: a warp per group of channels, every rounding from formats.h.
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::kWarp;
using cuda::LoadFloat;

constexpr unsigned kThreads = 256;
constexpr int64_t kWarpsPerBlock = kThreads / kWarp;

// Largest magnitude of count elements from `at`, the same in every lane; NaN if one is.
__device__ float GroupMagnitude(const void* x, DType dtype, int64_t at, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float largest = 0;
  for (int i = lane; i < count; i += kWarp) {
    largest = cuda::LargerOrNan()(largest, fabsf(LoadFloat(x, dtype, at + i)));
  }
  return cuda::WarpReduce(largest, cuda::LargerOrNan());
}

__global__ void PerTokenCastKernel(const void* x, DType dtype, int64_t x_step, uint8_t* codes,
                                   int64_t codes_step, uint8_t* scale, int64_t scale_step,
                                   int channels, int group, int64_t num_groups) {
  cuda::BeginAfterLast();
  const int64_t item = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp;
  if (item >= num_groups) return;
  const int per_row = (channels + group - 1) / group;
  const int64_t t = item / per_row;
  const int begin = static_cast<int>(item % per_row) * group;
  const int count = min(group, channels - begin);
  const float amax = GroupMagnitude(x, dtype, t * x_step + begin, count);
  const GroupScale s = ScaleOfGroup(CodeFormat::kE4m3Ue8m0, amax);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) scale[t * scale_step + begin / group] = s.byte;
  for (int i = begin + lane; i < begin + count; i += kWarp) {
    const float value = LoadFloat(x, dtype, t * x_step + i);
    codes[t * codes_step + i] = EncodeInGroup(CodeFormat::kE4m3Ue8m0, value, s.value);
  }
}

struct PerTokenCastOp {
  static absl::Status Supports(const PerTokenCast::Problem& problem) {
    const bool known = problem.x_dtype == DType::kBf16 || problem.x_dtype == DType::kF32;
    return Support()
        .Want(known, "x", DTypeName(problem.x_dtype), "bf16 or f32")
        .Positive("channels", problem.channels)
        .Positive("group", problem.group)
        .Take();
  }
  static size_t WorkspaceBytes(const PerTokenCast::Problem&) { return 0; }
  static absl::Status Run(const PerTokenCast::Problem& problem, const PerTokenCast::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t per_row = (problem.channels + problem.group - 1) / problem.group;
    const int64_t groups = args.x.dim(0) * per_row;
    return cuda::Launch(PerTokenCast::kId, PerTokenCastKernel,
                        dim3(BlocksFor(groups, kWarpsPerBlock)), kThreads, 0, stream, args.x.data,
                        problem.x_dtype, args.x.step(0), args.codes.as<uint8_t>(),
                        args.codes.step(0), args.scale.as<uint8_t>(), args.scale.step(0),
                        problem.channels, problem.group, groups);
  }
};

__global__ void CastBackKernel(const uint8_t* codes, int64_t codes_step, bool packed,
                               const uint8_t* scale, int64_t scale_step, void* y, DType y_dtype,
                               int64_t y_step, int channels, int group, int64_t count) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t t = item / channels;
  const int i = static_cast<int>(item % channels);
  const uint8_t* row = codes + t * codes_step;
  const float value = packed ? DecodeE2m1(row[i / 2] >> (i % 2 * 4) & 15) : DecodeE4m3(row[i]);
  const float s = DecodeE8m0(scale[t * scale_step + i / group]);
  // f64 as the contract's one rounding: a subnormal product must not round twice.
  const double product = double{value} * double{s};
  cuda::StoreFloat(y, y_dtype, t * y_step + i, static_cast<float>(product));
}

struct CastBackOp {
  static absl::Status Supports(const CastBack::Problem& problem) {
    const bool codes = problem.codes_dtype == DType::kE4m3 || problem.codes_dtype == DType::kE2m1x2;
    const bool y = problem.y_dtype == DType::kBf16 || problem.y_dtype == DType::kF32;
    return Support()
        .Want(codes, "codes", DTypeName(problem.codes_dtype), "e4m3 or e2m1x2")
        .Want(y, "y", DTypeName(problem.y_dtype), "bf16 or f32")
        .Positive("channels", problem.channels)
        .Positive("group", problem.group)
        .Take();
  }
  static size_t WorkspaceBytes(const CastBack::Problem&) { return 0; }
  static absl::Status Run(const CastBack::Problem& problem, const CastBack::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t count = args.y.dim(0) * problem.channels;
    return cuda::Launch(CastBack::kId, CastBackKernel, dim3(BlocksFor(count, kThreads)), kThreads,
                        0, stream, args.codes.as<uint8_t>(), args.codes.step(0),
                        problem.codes_dtype == DType::kE2m1x2, args.scale.as<uint8_t>(),
                        args.scale.step(0), args.y.data, problem.y_dtype, args.y.step(0),
                        problem.channels, problem.group, count);
  }
};

__global__ void FakeQuantKernel(void* x, DType dtype, CodeFormat format, int64_t row_step,
                                int64_t head_step, int heads, int channels, int group,
                                int64_t num_groups) {
  cuda::BeginAfterLast();
  const int64_t item = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp;
  if (item >= num_groups) return;
  const int per_head = channels / group;
  const int64_t head = item / per_head;
  const int64_t at = head / heads * row_step + head % heads * head_step + item % per_head * group;
  const GroupScale s = ScaleOfGroup(format, GroupMagnitude(x, dtype, at, group));
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < group; i += kWarp) {
    const uint8_t code = EncodeInGroup(format, LoadFloat(x, dtype, at + i), s.value);
    const double value = double{DecodeCode(format, code)} * double{s.value};
    cuda::StoreFloat(x, dtype, at + i, static_cast<float>(value));
  }
}

struct FakeQuantOp {
  static absl::Status Supports(const FakeQuant::Problem& problem) {
    return Support()
        .Is("x", problem.dtype, DType::kBf16)
        .Positive("channels", problem.channels)
        .Positive("group", problem.group)
        .Want(problem.group <= 0 || problem.channels % problem.group == 0, "channels",
              std::to_string(problem.channels), "multiples of the group")
        .Take();
  }
  static size_t WorkspaceBytes(const FakeQuant::Problem&) { return 0; }
  static absl::Status Run(const FakeQuant::Problem& problem, const FakeQuant::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t heads = args.x.rank == 3 ? args.x.dim(1) : 1;
    const int64_t head_step = args.x.rank == 3 ? args.x.step(1) : 0;
    const int64_t groups = args.x.dim(0) * heads * (problem.channels / problem.group);
    return cuda::Launch(FakeQuant::kId, FakeQuantKernel, dim3(BlocksFor(groups, kWarpsPerBlock)),
                        kThreads, 0, stream, args.x.data, problem.dtype, problem.format,
                        args.x.step(0), head_step, static_cast<int>(heads), problem.channels,
                        problem.group, groups);
  }
};

}  // namespace

absl::Status RegisterQuant(KernelRegistry& registry) {
  constexpr DeterminismClass kBits = DeterminismClass::kBitwise;
  absl::Status status = RegisterKernel<PerTokenCast, PerTokenCastOp>(registry, kBits);
  if (status.ok()) status = RegisterKernel<CastBack, CastBackOp>(registry, kBits);
  if (status.ok()) status = RegisterKernel<FakeQuant, FakeQuantOp>(registry, kBits);
  return status;
}

}  // namespace skein::kernels::sm90
