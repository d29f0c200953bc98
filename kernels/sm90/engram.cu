// N-gram memory: hash, gather, fused weight, gate.
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::LoadBf16;

constexpr unsigned kThreads = 256;

__global__ void EngramHashKernel(const int32_t* ngram, int64_t ngram_step,
                                 const int64_t* multiplier, const int64_t* prime,
                                 const int64_t* offset, int32_t* rows, int64_t rows_step, int heads,
                                 int columns, int64_t count) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t t = item / columns;
  const int column = static_cast<int>(item % columns);
  uint64_t mixed = 0;
  for (int s = 0; s <= column / heads + 1; ++s) {
    mixed ^= static_cast<uint64_t>(int64_t{ngram[t * ngram_step + s]}) *
             static_cast<uint64_t>(multiplier[s]);
  }
  const uint64_t rest = mixed % static_cast<uint64_t>(prime[column]);
  rows[t * rows_step + column] = static_cast<int32_t>(static_cast<int64_t>(rest) + offset[column]);
}

struct EngramHashOp {
  static absl::Status Supports(const EngramHash::Problem& problem) {
    return Support()
        .Want(problem.ngram >= 2, "ngram", std::to_string(problem.ngram), "at least 2")
        .Positive("heads", problem.heads)
        .Take();
  }
  static size_t WorkspaceBytes(const EngramHash::Problem&) { return 0; }
  static absl::Status Run(const EngramHash::Problem& problem, const EngramHash::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int columns = (problem.ngram - 1) * problem.heads;
    const int64_t count = args.ngram.dim(0) * columns;
    return cuda::Launch(EngramHash::kId, EngramHashKernel, dim3(BlocksFor(count, kThreads)),
                        kThreads, 0, stream, args.ngram.as<int32_t>(), args.ngram.step(0),
                        args.multiplier.as<int64_t>(), args.prime.as<int64_t>(),
                        args.offset.as<int64_t>(), args.rows.as<int32_t>(), args.rows.step(0),
                        problem.heads, columns, count);
  }
};

__global__ void EngramGatherKernel(const uint8_t* codes, int64_t codes_step, const uint8_t* scale,
                                   int64_t scale_step, int64_t num_rows, const int32_t* rows,
                                   int64_t rows_step, void* y, DType y_dtype, int64_t y_step,
                                   int columns, int row_dim, int64_t count) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int i = static_cast<int>(item % row_dim);
  const int64_t cell = item / row_dim;
  const int64_t t = cell / columns;
  const int64_t c = cell % columns;
  const int64_t row = rows[t * rows_step + c];
  float value = 0;
  if (row >= 0 && row < num_rows) {
    value = DecodeE4m3(codes[row * codes_step + i]) * DecodeE8m0(scale[row * scale_step + i / 32]);
  }
  cuda::StoreFloat(y, y_dtype, t * y_step + c * row_dim + i, value);
}

struct EngramGatherOp {
  static absl::Status Supports(const EngramGather::Problem& problem) {
    const bool known = problem.y_dtype == DType::kBf16 || problem.y_dtype == DType::kF32;
    return Support()
        .Want(known, "y", DTypeName(problem.y_dtype), "bf16 or f32")
        .Positive("columns", problem.columns)
        .Positive("row_dim", problem.row_dim)
        .Take();
  }
  static size_t WorkspaceBytes(const EngramGather::Problem&) { return 0; }
  static absl::Status Run(const EngramGather::Problem& problem, const EngramGather::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t count = args.rows.dim(0) * problem.columns * problem.row_dim;
    return cuda::Launch(EngramGather::kId, EngramGatherKernel, dim3(BlocksFor(count, kThreads)),
                        kThreads, 0, stream, args.codes.as<uint8_t>(), args.codes.step(0),
                        args.scale.as<uint8_t>(), args.scale.step(0), args.codes.dim(0),
                        args.rows.as<int32_t>(), args.rows.step(0), args.y.data, problem.y_dtype,
                        args.y.step(0), problem.columns, problem.row_dim, count);
  }
};

__global__ void FusedWeightKernel(const uint16_t* q, int64_t q_step, const uint16_t* k,
                                  int64_t k_step, float* w, int64_t w_step, int channels,
                                  int64_t count) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t row = item / channels;
  const int64_t c = item % channels;
  w[row * w_step + c] = LoadBf16(q, row * q_step + c) * LoadBf16(k, row * k_step + c);
}

struct EngramFusedWeightOp {
  static absl::Status Supports(const EngramFusedWeight::Problem& problem) {
    return Support().Positive("hc", problem.hc).Positive("channels", problem.channels).Take();
  }
  static size_t WorkspaceBytes(const EngramFusedWeight::Problem&) { return 0; }
  static absl::Status Run(const EngramFusedWeight::Problem& problem,
                          const EngramFusedWeight::Args& args, Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t count = int64_t{problem.hc} * problem.channels;
    return cuda::Launch(EngramFusedWeight::kId, FusedWeightKernel, dim3(BlocksFor(count, kThreads)),
                        kThreads, 0, stream, args.q.as<uint16_t>(), args.q.step(0),
                        args.k.as<uint16_t>(), args.k.step(0), args.w.as<float>(), args.w.step(0),
                        problem.channels, count);
  }
};

// A block per (row, stream): the statistics, then the update of the same elements.
__global__ void EngramGateKernel(uint16_t* stream, int64_t row_step, int64_t stream_step,
                                 const uint16_t* kv, int64_t kv_step, const float* w,
                                 int64_t w_step, int hc, int channels, float eps) {
  cuda::BeginAfterLast();
  __shared__ float scratch[cuda::kWarp + 1];
  const int64_t t = blockIdx.x / hc;
  const int64_t k = blockIdx.x % hc;
  uint16_t* x = stream + t * row_step + k * stream_step;
  const uint16_t* key = kv + t * kv_step + k * channels;
  const uint16_t* value = kv + t * kv_step + int64_t{hc} * channels;
  float xx = 0, kk = 0, xk = 0;
  for (int c = static_cast<int>(threadIdx.x); c < channels; c += static_cast<int>(kThreads)) {
    const float a = LoadBf16(x, c);
    const float b = LoadBf16(key, c);
    xx = fmaf(a, a, xx);
    kk = fmaf(b, b, kk);
    xk = fmaf(a * w[k * w_step + c], b, xk);
  }
  const float count = static_cast<float>(channels);
  const float rx = 1.0f / sqrtf(cuda::BlockSum(xx, scratch) / count + eps);
  const float rk = 1.0f / sqrtf(cuda::BlockSum(kk, scratch) / count + eps);
  const float dot = cuda::BlockSum(xk, scratch) * rx * rk / sqrtf(count);
  const float magnitude = fabsf(dot);
  // A NaN stays one: the comparison is false for it.
  const float root = sqrtf(magnitude < 1e-6f ? 1e-6f : magnitude);
  const float gate = 1.0f / (1.0f + expf(-copysignf(root, dot)));
  for (int c = static_cast<int>(threadIdx.x); c < channels; c += static_cast<int>(kThreads)) {
    x[c] = EncodeBf16(fmaf(gate, LoadBf16(value, c), LoadBf16(x, c)));
  }
}

struct EngramGateOp {
  static absl::Status Supports(const EngramGate::Problem& problem) {
    return Support()
        .Is("stream", problem.dtype, DType::kBf16)
        .Positive("hc", problem.hc)
        .Positive("channels", problem.channels)
        .Take();
  }
  static size_t WorkspaceBytes(const EngramGate::Problem&) { return 0; }
  static absl::Status Run(const EngramGate::Problem& problem, const EngramGate::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t blocks = args.stream.dim(0) * problem.hc;
    return cuda::Launch(EngramGate::kId, EngramGateKernel, dim3(static_cast<unsigned>(blocks)),
                        kThreads, 0, stream, args.stream.as<uint16_t>(), args.stream.step(0),
                        args.stream.step(1), args.kv.as<uint16_t>(), args.kv.step(0),
                        args.w.as<float>(), args.w.step(0), problem.hc, problem.channels, args.eps);
  }
};

}  // namespace

absl::Status RegisterEngram(KernelRegistry& registry) {
  constexpr DeterminismClass kBits = DeterminismClass::kBitwise;
  absl::Status status = RegisterKernel<EngramHash, EngramHashOp>(registry, kBits);
  if (status.ok()) status = RegisterKernel<EngramGather, EngramGatherOp>(registry, kBits);
  if (status.ok()) status = RegisterKernel<EngramFusedWeight, EngramFusedWeightOp>(registry, kBits);
  if (status.ok()) {
    status = RegisterKernel<EngramGate, EngramGateOp>(registry, DeterminismClass::kBatchInvariant);
  }
  return status;
}

}  // namespace skein::kernels::sm90
