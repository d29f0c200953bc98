// Hyper-connections. The mixes take a cluster for a tile of rows (hc_mix.cuh); the rest is
// elementwise.
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/bf16_eights.cuh"
#include "kernels/sm90/family.cuh"
#include "kernels/sm90/hc_mix.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::LoadBf16;

constexpr unsigned kThreads = 256;
constexpr unsigned kWideThreads = 128;  // of eight channels each

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
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t t = item / channels;
  const int64_t c = item % channels;
  const uint16_t value = x[t * x_step + c];
  for (int k = 0; k < kStreams; ++k) stream[t * row_step + k * stream_step + c] = value;
}

struct HcCollapseParameters {
  const uint16_t* stream;
  int64_t row_step, stream_step;
  const float* pre;
  int64_t pre_step;
  uint16_t* y;
  int64_t y_step;
  int channels;
  int64_t items;
};

template <int kStreams, int kWidth>
__global__ void HcCollapseKernel(HcCollapseParameters p) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= p.items) return;
  const auto [t, c] = PlaceOf<kWidth>(item, p.channels);
  Span<kWidth> old[kStreams];
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    old[k] = Span<kWidth>::Load(p.stream + t * p.row_step + k * p.stream_step + c);
  }
  Span<kWidth> sum = {};
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    const float pre = p.pre[t * p.pre_step + k];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum.value[i] = fmaf(pre, old[k].value[i], sum.value[i]);
  }
  sum.Store(p.y + t * p.y_step + c);
}

struct HcPostParameters {
  const uint16_t* x;
  int64_t x_step;
  const float* post;
  int64_t post_step;
  const float* comb;
  int64_t comb_step, comb_row_step;
  uint16_t* stream;
  int64_t row_step, stream_step;
  int channels;
  int64_t items;
};

template <int kStreams, int kWidth>
__global__ void HcPostKernel(HcPostParameters p) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= p.items) return;
  const auto [t, c] = PlaceOf<kWidth>(item, p.channels);
  uint16_t* stream = p.stream + t * p.row_step + c;
  Span<kWidth> old[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) old[j] = Span<kWidth>::Load(stream + j * p.stream_step);
  const Span<kWidth> x = Span<kWidth>::Load(p.x + t * p.x_step + c);
  float post[kStreams], comb[kStreams][kStreams];
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    post[k] = p.post[t * p.post_step + k];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      comb[j][k] = p.comb[t * p.comb_step + j * p.comb_row_step + k];
    }
  }
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    Span<kWidth> sum;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sum.value[i] = post[k] * x.value[i];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        sum.value[i] = fmaf(comb[j][k], old[j].value[i], sum.value[i]);
      }
    }
    sum.Store(stream + k * p.stream_step);
  }
}

template <int kStreams>
__global__ void HcMeanKernel(const uint16_t* stream, int64_t row_step, int64_t stream_step,
                             uint16_t* y, int64_t y_step, int channels, int64_t count) {
  cuda::BeginAfterLast();
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
    if (args.stream.dim(0) == 0) return absl::OkStatus();
    return WithStreams(problem.hc, [&](auto streams) {
      const int64_t rows = args.stream.dim(0);
      // A cluster reads all weights: few rows share them to be done sooner, many to read less.
      if (rows <= 4) return Launch<streams(), 1>(problem, args, stream);
      if (rows <= 32) return Launch<streams(), 4>(problem, args, stream);
      constexpr int kMost = streams() == 4 ? 8 : 4;  // as registers allow
      return Launch<streams(), kMost>(problem, args, stream);
    });
  }

 private:
  template <int kStreams, int kRows>
  static absl::Status Launch(const HcMix::Problem& problem, const HcMix::Args& args,
                             DeviceStream stream) {
    hc::Parameters p;
    p.stream = args.stream.as<uint16_t>();
    p.row_step = args.stream.step(0);
    p.stream_step = args.stream.step(1);
    p.rows = args.stream.dim(0);
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
    p.stream_aligned = problem.channels % hc::kQuad == 0 && RowsAligned(args.stream, sizeof(uint2));
    p.fn_aligned =
        kStreams * problem.channels % hc::kQuad == 0 && RowsAligned(args.fn, sizeof(float4));
    const unsigned tiles = BlocksFor(p.rows, kRows);
    return cuda::LaunchAs(HcMix::kId, hc::MixKernel<kStreams, kRows>,
                          {.grid = dim3(tiles * hc::kRanks),
                           .threads = hc::kThreads,
                           .shared_bytes = hc::SharedBytes(kRows),
                           .cluster = hc::kRanks},
                          stream, p);
  }
};

struct HcCollapseOp {
  static absl::Status Supports(const HcCollapse::Problem& p) { return SupportsStream(p); }
  static size_t WorkspaceBytes(const HcCollapse::Problem&) { return 0; }
  static absl::Status Run(const HcCollapse::Problem& problem, const HcCollapse::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    HcCollapseParameters p;
    p.stream = args.stream.as<uint16_t>();
    p.row_step = args.stream.step(0);
    p.stream_step = args.stream.step(1);
    p.pre = args.pre.as<float>();
    p.pre_step = args.pre.step(0);
    p.y = args.y.as<uint16_t>();
    p.y_step = args.y.step(0);
    p.channels = problem.channels;
    const int width = WidthOf(problem.channels, {args.stream, args.y});
    p.items = args.stream.dim(0) * (problem.channels / width);
    const unsigned threads = width == 8 ? kWideThreads : kThreads;
    return WithStreams(problem.hc, [&](auto streams) {
      const auto kernel =
          width == 8 ? HcCollapseKernel<streams(), 8> : HcCollapseKernel<streams(), 1>;
      return cuda::Launch(HcCollapse::kId, kernel, dim3(BlocksFor(p.items, threads)), threads, 0,
                          stream, p);
    });
  }
};

struct HcPostOp {
  static absl::Status Supports(const HcPost::Problem& p) { return SupportsStream(p); }
  static size_t WorkspaceBytes(const HcPost::Problem&) { return 0; }
  static absl::Status Run(const HcPost::Problem& problem, const HcPost::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    HcPostParameters p;
    p.x = args.x.as<uint16_t>();
    p.x_step = args.x.step(0);
    p.post = args.post.as<float>();
    p.post_step = args.post.step(0);
    p.comb = args.comb.as<float>();
    p.comb_step = args.comb.step(0);
    p.comb_row_step = args.comb.step(1);
    p.stream = args.stream.as<uint16_t>();
    p.row_step = args.stream.step(0);
    p.stream_step = args.stream.step(1);
    p.channels = problem.channels;
    const int width = WidthOf(problem.channels, {args.x, args.stream});
    p.items = args.stream.dim(0) * (problem.channels / width);
    const unsigned threads = width == 8 ? kWideThreads : kThreads;
    return WithStreams(problem.hc, [&](auto streams) {
      const auto kernel = width == 8 ? HcPostKernel<streams(), 8> : HcPostKernel<streams(), 1>;
      return cuda::Launch(HcPost::kId, kernel, dim3(BlocksFor(p.items, threads)), threads, 0,
                          stream, p);
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
