// RMS normalisation, a block per row, and the rotary embedding, a thread per pair.
#include <algorithm>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/bf16_eights.cuh"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;

constexpr unsigned kThreads = 256;

constexpr int kEight = 8;  // channels that a thread takes together
constexpr int kMostNormThreads = 1024;

struct RmsNormParameters {
  const uint16_t* x;
  int64_t x_step;
  const void* weight;
  uint16_t* y;
  int64_t y_step;
  int channels;
  float eps;
};

// Numbers [first, first + 8) of a row, which ends at `channels`; zeros from there on.
template <bool kAligned, typename T>
__device__ void LoadEight(const T* row, int first, int channels, float (&value)[kEight]) {
  if constexpr (kAligned && sizeof(T) == sizeof(float)) {
    const float4 low = *reinterpret_cast<const float4*>(row + first);
    const float4 high = *reinterpret_cast<const float4*>(row + first + 4);
    const float all[kEight] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kEight; ++i) value[i] = all[i];
  } else if constexpr (kAligned) {
    const Span<kEight> span = Span<kEight>::Load(row + first);
#pragma unroll
    for (int i = 0; i < kEight; ++i) value[i] = span.value[i];
  } else {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      value[i] = 0;
      if (first + i >= channels) continue;
      if constexpr (sizeof(T) == sizeof(float)) {
        value[i] = row[first + i];
      } else {
        value[i] = DecodeBf16(row[first + i]);
      }
    }
  }
}

template <bool kAligned>
__device__ void StoreEight(const float (&value)[kEight], uint16_t* row, int first, int channels) {
  if constexpr (kAligned) {
    Span<kEight> span;
#pragma unroll
    for (int i = 0; i < kEight; ++i) span.value[i] = value[i];
    span.Store(row + first);
  } else {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (first + i < channels) row[first + i] = EncodeBf16(value[i]);
    }
  }
}

// A block per row. A thread keeps its first eight channels between the passes, and reads the
// others, of rows with more than 8192, again. Order of the sum: the channels of a thread ascending,
// then BlockSum; the number of threads depends on the channels alone.
template <typename Weight, bool kAligned>
__global__ void __launch_bounds__(kMostNormThreads) RmsNormKernel(RmsNormParameters p) {
  cuda::BeginAfterLast();
  __shared__ float scratch[cuda::kWarp];
  const uint16_t* x = p.x + blockIdx.x * p.x_step;
  uint16_t* y = p.y + blockIdx.x * p.y_step;
  const auto* weight = static_cast<const Weight*>(p.weight);
  const int first = static_cast<int>(threadIdx.x) * kEight;
  const int step = static_cast<int>(blockDim.x) * kEight;
  float kept[kEight] = {}, kept_weight[kEight] = {};
  if (first < p.channels) {
    LoadEight<kAligned>(x, first, p.channels, kept);
    LoadEight<kAligned>(weight, first, p.channels, kept_weight);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEight; ++i) sum = fmaf(kept[i], kept[i], sum);
  for (int c = first + step; c < p.channels; c += step) {
    float value[kEight];
    LoadEight<kAligned>(x, c, p.channels, value);
#pragma unroll
    for (int i = 0; i < kEight; ++i) sum = fmaf(value[i], value[i], sum);
  }
  // The barriers inside come before any store: y may be x.
  const float mean = cuda::BlockSum(sum, scratch) / static_cast<float>(p.channels);
  const float reciprocal = 1.0f / sqrtf(mean + p.eps);
  if (first >= p.channels) return;
#pragma unroll
  for (int i = 0; i < kEight; ++i) kept[i] = kept_weight[i] * (kept[i] * reciprocal);
  StoreEight<kAligned>(kept, y, first, p.channels);
  for (int c = first + step; c < p.channels; c += step) {
    float value[kEight], factor[kEight];
    LoadEight<kAligned>(x, c, p.channels, value);
    LoadEight<kAligned>(weight, c, p.channels, factor);
#pragma unroll
    for (int i = 0; i < kEight; ++i) value[i] = factor[i] * (value[i] * reciprocal);
    StoreEight<kAligned>(value, y, c, p.channels);
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
    RmsNormParameters p;
    p.x = args.x.as<uint16_t>();
    p.x_step = args.x.step(0);
    p.weight = args.weight.data;
    p.y = args.y.as<uint16_t>();
    p.y_step = args.y.step(0);
    p.channels = problem.channels;
    p.eps = args.eps;
    const bool aligned = WidthOf(problem.channels, {args.x, args.weight, args.y}) == kEight;
    const auto kernel =
        problem.weight_dtype == DType::kBf16
            ? aligned ? RmsNormKernel<uint16_t, true> : RmsNormKernel<uint16_t, false>
        : aligned ? RmsNormKernel<float, true>
                  : RmsNormKernel<float, false>;
    const unsigned warps = BlocksFor(problem.channels, cuda::kWarp * kEight);
    const unsigned threads = std::min<unsigned>(warps * cuda::kWarp, kMostNormThreads);
    return cuda::Launch(RmsNorm::kId, kernel, dim3(static_cast<unsigned>(args.x.dim(0))), threads,
                        0, stream, p);
  }
};

__global__ void RopeKernel(uint16_t* x, int64_t row_step, int64_t head_step, int heads,
                           const float* cos_sin, int64_t table_step, int tail, int half,
                           bool inverse, int64_t count) {
  cuda::BeginAfterLast();
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
