// Hyper-connections. The mixes take a block per row: all dot products in one pass over the streams,
// then one thread splits them and runs Sinkhorn; the rest is elementwise.
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::LoadBf16;

constexpr unsigned kThreads = 256;

// Runs `launch(number of streams)`, a compile-time number, for the numbers that Supports accepts.
template <typename Launcher>
absl::Status WithStreams(int hc, const Launcher& launch) {
  if (hc == 2) return launch(std::integral_constant<int, 2>());
  if (hc == 3) return launch(std::integral_constant<int, 3>());
  return launch(std::integral_constant<int, 4>());
}

template <int kStreams>
__global__ void HcExpandKernel(const uint16_t* x, int64_t x_step, uint16_t* stream,
                               int64_t row_step, int64_t stream_step, int channels, int64_t count) {
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t t = item / channels;
  const int64_t c = item % channels;
  const uint16_t value = x[t * x_step + c];
  for (int k = 0; k < kStreams; ++k) stream[t * row_step + k * stream_step + c] = value;
}

__device__ float Sigmoid(float value) { return 1.0f / (1.0f + expf(-value)); }

// Softmax over each row, then alternating column and row divisions; in registers.
template <int kStreams>
__device__ void Sinkhorn(float (&comb)[kStreams][kStreams], int iters, float eps) {
  for (int j = 0; j < kStreams; ++j) {
    float largest = comb[j][0];
    for (int k = 1; k < kStreams; ++k) largest = fmaxf(largest, comb[j][k]);
    float sum = 0;
    for (int k = 0; k < kStreams; ++k) {
      comb[j][k] = expf(comb[j][k] - largest);
      sum += comb[j][k];
    }
    for (int k = 0; k < kStreams; ++k) comb[j][k] = comb[j][k] / sum + eps;
  }
  for (int iter = 0; iter < iters; ++iter) {
    for (int j = 0; iter > 0 && j < kStreams; ++j) {
      float sum = 0;
      for (int k = 0; k < kStreams; ++k) sum += comb[j][k];
      for (int k = 0; k < kStreams; ++k) comb[j][k] /= sum + eps;
    }
    for (int k = 0; k < kStreams; ++k) {
      float sum = 0;
      for (int j = 0; j < kStreams; ++j) sum += comb[j][k];
      for (int j = 0; j < kStreams; ++j) comb[j][k] /= sum + eps;
    }
  }
}

struct HcMixParameters {
  const uint16_t* stream;
  int64_t row_step, stream_step;
  const float* fn;
  int64_t fn_step;
  const float* base;
  const float* scale;
  float* pre;
  int64_t pre_step;
  float* post;
  int64_t post_step;
  float* comb;
  int64_t comb_step, comb_row_step;
  int channels, iters;
  float norm_eps, hc_eps;
};

template <int kStreams>
__device__ void SplitMixes(const HcMixParameters& p, int64_t t, const float* mix) {
  for (int k = 0; k < kStreams; ++k) {
    p.pre[t * p.pre_step + k] = Sigmoid(mix[k] * p.scale[0] + p.base[k]) + p.hc_eps;
    p.post[t * p.post_step + k] =
        2.0f * Sigmoid(mix[kStreams + k] * p.scale[1] + p.base[kStreams + k]);
  }
  float comb[kStreams][kStreams];
  for (int j = 0; j < kStreams; ++j) {
    for (int k = 0; k < kStreams; ++k) {
      const int i = 2 * kStreams + j * kStreams + k;
      comb[j][k] = mix[i] * p.scale[2] + p.base[i];
    }
  }
  Sinkhorn<kStreams>(comb, p.iters, p.hc_eps);
  for (int j = 0; j < kStreams; ++j) {
    for (int k = 0; k < kStreams; ++k) {
      p.comb[t * p.comb_step + j * p.comb_row_step + k] = comb[j][k];
    }
  }
}

template <int kStreams>
__global__ void HcMixKernel(HcMixParameters p) {
  constexpr int kMixes = (2 + kStreams) * kStreams;
  __shared__ float scratch[cuda::kWarp + 1];
  __shared__ float mix[kMixes];
  const int64_t t = blockIdx.x;
  float sum[kMixes] = {};
  float square = 0;
  for (int k = 0; k < kStreams; ++k) {
    const uint16_t* row = p.stream + t * p.row_step + k * p.stream_step;
    for (int c = static_cast<int>(threadIdx.x); c < p.channels; c += static_cast<int>(kThreads)) {
      const float value = LoadBf16(row, c);
      square = fmaf(value, value, square);
      const float* fn = p.fn + int64_t{k} * p.channels + c;
#pragma unroll
      for (int i = 0; i < kMixes; ++i) sum[i] = fmaf(value, fn[i * p.fn_step], sum[i]);
    }
  }
  const float width = static_cast<float>(kStreams) * static_cast<float>(p.channels);
  const float mean = cuda::BlockSum(square, scratch) / width;
  const float reciprocal = 1.0f / sqrtf(mean + p.norm_eps);
#pragma unroll
  for (int i = 0; i < kMixes; ++i) {
    const float total = cuda::BlockSum(sum[i], scratch);
    if (threadIdx.x == 0) mix[i] = total * reciprocal;
  }
  if (threadIdx.x == 0) SplitMixes<kStreams>(p, t, mix);
}

template <int kStreams>
__global__ void HcCollapseKernel(const uint16_t* stream, int64_t row_step, int64_t stream_step,
                                 const float* pre, int64_t pre_step, uint16_t* y, int64_t y_step,
                                 int channels, int64_t count) {
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t t = item / channels;
  const int64_t c = item % channels;
  float sum = 0;
  for (int k = 0; k < kStreams; ++k) {
    sum = fmaf(pre[t * pre_step + k], LoadBf16(stream, t * row_step + k * stream_step + c), sum);
  }
  y[t * y_step + c] = EncodeBf16(sum);
}

template <int kStreams>
__global__ void HcPostKernel(const uint16_t* x, int64_t x_step, const float* post,
                             int64_t post_step, const float* comb, int64_t comb_step,
                             int64_t comb_row_step, uint16_t* stream, int64_t row_step,
                             int64_t stream_step, int channels, int64_t count) {
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t t = item / channels;
  const int64_t c = item % channels;
  float old[kStreams];
  for (int j = 0; j < kStreams; ++j) {
    old[j] = LoadBf16(stream, t * row_step + j * stream_step + c);
  }
  const float value = LoadBf16(x, t * x_step + c);
  for (int k = 0; k < kStreams; ++k) {
    float sum = post[t * post_step + k] * value;
    for (int j = 0; j < kStreams; ++j) {
      sum = fmaf(comb[t * comb_step + j * comb_row_step + k], old[j], sum);
    }
    stream[t * row_step + k * stream_step + c] = EncodeBf16(sum);
  }
}

template <int kStreams>
__global__ void HcMeanKernel(const uint16_t* stream, int64_t row_step, int64_t stream_step,
                             uint16_t* y, int64_t y_step, int channels, int64_t count) {
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t t = item / channels;
  const int64_t c = item % channels;
  float sum = 0;
  for (int k = 0; k < kStreams; ++k) sum += LoadBf16(stream, t * row_step + k * stream_step + c);
  y[t * y_step + c] = EncodeBf16(sum / static_cast<float>(kStreams));
}

// What all problems of this family share.
template <typename Problem>
absl::Status SupportsStream(const Problem& problem) {
  Support want;
  want.Is("stream", problem.dtype, DType::kBf16)
      .Want(problem.hc >= 2 && problem.hc <= 4, "hc", std::to_string(problem.hc), "2 to 4")
      .Positive("channels", problem.channels);
  if constexpr (requires { problem.wide; }) want.Is("wide", problem.wide, DType::kF32);
  if constexpr (requires { problem.sinkhorn_iters; }) {
    want.Positive("sinkhorn_iters", problem.sinkhorn_iters);
  }
  return want.Take();
}

struct HcExpandOp {
  static absl::Status Supports(const HcExpand::Problem& p) { return SupportsStream(p); }
  static size_t WorkspaceBytes(const HcExpand::Problem&) { return 0; }
  static absl::Status Run(const HcExpand::Problem& problem, const HcExpand::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t count = args.x.dim(0) * problem.channels;
    return WithStreams(problem.hc, [&](auto streams) {
      return cuda::Launch(HcExpand::kId, HcExpandKernel<streams()>,
                          dim3(BlocksFor(count, kThreads)), kThreads, 0, stream,
                          args.x.as<uint16_t>(), args.x.step(0), args.stream.as<uint16_t>(),
                          args.stream.step(0), args.stream.step(1), problem.channels, count);
    });
  }
};

struct HcMixOp {
  static absl::Status Supports(const HcMix::Problem& p) { return SupportsStream(p); }
  static size_t WorkspaceBytes(const HcMix::Problem&) { return 0; }
  static absl::Status Run(const HcMix::Problem& problem, const HcMix::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    HcMixParameters p;
    p.stream = args.stream.as<uint16_t>();
    p.row_step = args.stream.step(0);
    p.stream_step = args.stream.step(1);
    p.fn = args.fn.as<float>();
    p.fn_step = args.fn.step(0);
    p.base = args.base.as<float>();
    p.scale = args.scale.as<float>();
    p.pre = args.pre.as<float>();
    p.pre_step = args.pre.step(0);
    p.post = args.post.as<float>();
    p.post_step = args.post.step(0);
    p.comb = args.comb.as<float>();
    p.comb_step = args.comb.step(0);
    p.comb_row_step = args.comb.step(1);
    p.channels = problem.channels;
    p.iters = problem.sinkhorn_iters;
    p.norm_eps = args.norm_eps;
    p.hc_eps = args.hc_eps;
    return WithStreams(problem.hc, [&](auto streams) {
      return cuda::Launch(HcMix::kId, HcMixKernel<streams()>,
                          dim3(static_cast<unsigned>(args.stream.dim(0))), kThreads, 0, stream, p);
    });
  }
};

struct HcCollapseOp {
  static absl::Status Supports(const HcCollapse::Problem& p) { return SupportsStream(p); }
  static size_t WorkspaceBytes(const HcCollapse::Problem&) { return 0; }
  static absl::Status Run(const HcCollapse::Problem& problem, const HcCollapse::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t count = args.stream.dim(0) * problem.channels;
    return WithStreams(problem.hc, [&](auto streams) {
      return cuda::Launch(HcCollapse::kId, HcCollapseKernel<streams()>,
                          dim3(BlocksFor(count, kThreads)), kThreads, 0, stream,
                          args.stream.as<uint16_t>(), args.stream.step(0), args.stream.step(1),
                          args.pre.as<float>(), args.pre.step(0), args.y.as<uint16_t>(),
                          args.y.step(0), problem.channels, count);
    });
  }
};

struct HcPostOp {
  static absl::Status Supports(const HcPost::Problem& p) { return SupportsStream(p); }
  static size_t WorkspaceBytes(const HcPost::Problem&) { return 0; }
  static absl::Status Run(const HcPost::Problem& problem, const HcPost::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t count = args.stream.dim(0) * problem.channels;
    return WithStreams(problem.hc, [&](auto streams) {
      return cuda::Launch(HcPost::kId, HcPostKernel<streams()>, dim3(BlocksFor(count, kThreads)),
                          kThreads, 0, stream, args.x.as<uint16_t>(), args.x.step(0),
                          args.post.as<float>(), args.post.step(0), args.comb.as<float>(),
                          args.comb.step(0), args.comb.step(1), args.stream.as<uint16_t>(),
                          args.stream.step(0), args.stream.step(1), problem.channels, count);
    });
  }
};

struct HcMeanOp {
  static absl::Status Supports(const HcMean::Problem& p) { return SupportsStream(p); }
  static size_t WorkspaceBytes(const HcMean::Problem&) { return 0; }
  static absl::Status Run(const HcMean::Problem& problem, const HcMean::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t count = args.stream.dim(0) * problem.channels;
    return WithStreams(problem.hc, [&](auto streams) {
      return cuda::Launch(HcMean::kId, HcMeanKernel<streams()>, dim3(BlocksFor(count, kThreads)),
                          kThreads, 0, stream, args.stream.as<uint16_t>(), args.stream.step(0),
                          args.stream.step(1), args.y.as<uint16_t>(), args.y.step(0),
                          problem.channels, count);
    });
  }
};

}  // namespace

absl::Status RegisterHyperConnection(KernelRegistry& registry) {
  constexpr DeterminismClass kRows = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterKernel<HcExpand, HcExpandOp>(registry, DeterminismClass::kBitwise);
  if (status.ok()) status = RegisterKernel<HcMix, HcMixOp>(registry, kRows);
  if (status.ok()) status = RegisterKernel<HcCollapse, HcCollapseOp>(registry, kRows);
  if (status.ok()) status = RegisterKernel<HcPost, HcPostOp>(registry, kRows);
  if (status.ok()) status = RegisterKernel<HcMean, HcMeanOp>(registry, kRows);
  return status;
}

}  // namespace skein::kernels::sm90
