// Reference hyper-connections: mixes, Sinkhorn, collapse and expansion of the residual streams.
// Plain code in the calling thread; comb is indexed [old stream][new stream], never transposed.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

template <typename Acc>
Acc Sigmoid(Acc value) {
  return Acc{1} / (Acc{1} + std::exp(-value));
}

// Stream `index` of row t: offset of its first element.
int64_t StreamOffset(const TensorView& stream, int64_t t, int64_t index) {
  return t * stream.step(0) + index * stream.step(1);
}

template <typename Acc>
struct HcExpandKernel {
  static absl::Status Run(const HcExpand::Problem& problem, const HcExpand::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      const std::vector<double> x = LoadRow<double>(args.x, t);
      for (int64_t k = 0; k < problem.hc; ++k) {
        StoreSpan(args.stream, StreamOffset(args.stream, t, k), problem.channels, x.data());
      }
    }
    return absl::OkStatus();
  }
};

// Softmax over each row, then alternating column and row divisions.
template <typename Acc>
void Sinkhorn(std::vector<Acc>& comb, size_t hc, int iters, Acc eps) {
  const auto divide_columns = [&] {
    for (size_t k = 0; k < hc; ++k) {
      Acc sum = 0;
      for (size_t j = 0; j < hc; ++j) sum += comb[j * hc + k];
      for (size_t j = 0; j < hc; ++j) comb[j * hc + k] /= sum + eps;
    }
  };
  for (size_t j = 0; j < hc; ++j) {
    Acc* row = comb.data() + j * hc;
    const Acc largest = *std::max_element(row, row + hc);
    Acc sum = 0;
    for (size_t k = 0; k < hc; ++k) {
      row[k] = std::exp(row[k] - largest);
      sum += row[k];
    }
    for (size_t k = 0; k < hc; ++k) row[k] = row[k] / sum + eps;
  }
  divide_columns();
  for (int iter = 1; iter < iters; ++iter) {
    for (size_t j = 0; j < hc; ++j) {
      Acc sum = 0;
      for (size_t k = 0; k < hc; ++k) sum += comb[j * hc + k];
      for (size_t k = 0; k < hc; ++k) comb[j * hc + k] /= sum + eps;
    }
    divide_columns();
  }
}

template <typename Acc>
struct HcMixKernel {
  static absl::Status Run(const HcMix::Problem& problem, const HcMix::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t hc = problem.hc;
    const int64_t width = hc * problem.channels;
    std::vector<Acc> x(static_cast<size_t>(width));
    std::vector<Acc> mix(static_cast<size_t>((2 + hc) * hc));
    for (int64_t t = 0; t < args.stream.dim(0); ++t) {
      for (int64_t k = 0; k < hc; ++k) {
        LoadSpan(args.stream, StreamOffset(args.stream, t, k), problem.channels,
                 x.data() + k * problem.channels);
      }
      const Acc mean = Dot(x.data(), x.data(), width) / static_cast<Acc>(width);
      const Acc reciprocal = Acc{1} / std::sqrt(mean + static_cast<Acc>(args.norm_eps));
      for (int64_t i = 0; i < (2 + hc) * hc; ++i) {
        const std::vector<Acc> fn = LoadRow<Acc>(args.fn, i);
        mix[static_cast<size_t>(i)] = Dot(x.data(), fn.data(), width) * reciprocal;
      }
      Split(problem, args, t, mix);
    }
    return absl::OkStatus();
  }
  static void Split(const HcMix::Problem& problem, const HcMix::Args& args, int64_t t,
                    const std::vector<Acc>& mix) {
    const size_t hc = static_cast<size_t>(problem.hc);
    const Acc eps = args.hc_eps;
    const std::vector<Acc> base = LoadVector<Acc>(args.base);
    const std::vector<Acc> scale = LoadVector<Acc>(args.scale);
    std::vector<Acc> pre(hc), post(hc), comb(hc * hc);
    for (size_t k = 0; k < hc; ++k) {
      pre[k] = Sigmoid(mix[k] * scale[0] + base[k]) + eps;
      post[k] = Acc{2} * Sigmoid(mix[hc + k] * scale[1] + base[hc + k]);
    }
    for (size_t i = 0; i < hc * hc; ++i) comb[i] = mix[2 * hc + i] * scale[2] + base[2 * hc + i];
    Sinkhorn(comb, hc, problem.sinkhorn_iters, eps);
    StoreSpan(args.pre, t * args.pre.step(0), problem.hc, pre.data());
    StoreSpan(args.post, t * args.post.step(0), problem.hc, post.data());
    for (int64_t j = 0; j < problem.hc; ++j) {
      StoreSpan(args.comb, t * args.comb.step(0) + j * args.comb.step(1), problem.hc,
                comb.data() + j * problem.hc);
    }
  }
};

template <typename Acc>
struct HcCollapseKernel {
  static absl::Status Run(const HcCollapse::Problem& problem, const HcCollapse::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t t = 0; t < args.stream.dim(0); ++t) {
      const std::vector<Acc> pre = LoadRow<Acc>(args.pre, t);
      for (int64_t c = 0; c < problem.channels; ++c) {
        Acc sum = 0;
        for (int64_t k = 0; k < problem.hc; ++k) {
          sum += pre[static_cast<size_t>(k)] *
                 LoadAt<Acc>(args.stream.data, problem.dtype, StreamOffset(args.stream, t, k) + c);
        }
        StoreAt(args.y.data, problem.dtype, t * args.y.step(0) + c, sum);
      }
    }
    return absl::OkStatus();
  }
};

template <typename Acc>
struct HcPostKernel {
  static absl::Status Run(const HcPost::Problem& problem, const HcPost::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const size_t hc = static_cast<size_t>(problem.hc);
    const TensorView& stream = args.stream;
    std::vector<Acc> comb(hc * hc), old(hc);
    for (int64_t t = 0; t < stream.dim(0); ++t) {
      const std::vector<Acc> x = LoadRow<Acc>(args.x, t);
      const std::vector<Acc> post = LoadRow<Acc>(args.post, t);
      for (size_t j = 0; j < hc; ++j) {
        LoadSpan(args.comb, t * args.comb.step(0) + static_cast<int64_t>(j) * args.comb.step(1),
                 problem.hc, comb.data() + j * hc);
      }
      for (int64_t c = 0; c < problem.channels; ++c) {
        for (size_t j = 0; j < hc; ++j) {
          old[j] = LoadAt<Acc>(stream.data, problem.dtype,
                               StreamOffset(stream, t, static_cast<int64_t>(j)) + c);
        }
        for (size_t k = 0; k < hc; ++k) {
          Acc sum = post[k] * x[static_cast<size_t>(c)];
          for (size_t j = 0; j < hc; ++j) sum += comb[j * hc + k] * old[j];
          StoreAt(stream.data, problem.dtype, StreamOffset(stream, t, static_cast<int64_t>(k)) + c,
                  sum);
        }
      }
    }
    return absl::OkStatus();
  }
};

template <typename Acc>
struct HcMeanKernel {
  static absl::Status Run(const HcMean::Problem& problem, const HcMean::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t t = 0; t < args.stream.dim(0); ++t) {
      for (int64_t c = 0; c < problem.channels; ++c) {
        Acc sum = 0;
        for (int64_t k = 0; k < problem.hc; ++k) {
          sum += LoadAt<Acc>(args.stream.data, problem.dtype, StreamOffset(args.stream, t, k) + c);
        }
        StoreAt(args.y.data, problem.dtype, t * args.y.step(0) + c,
                sum / static_cast<Acc>(problem.hc));
      }
    }
    return absl::OkStatus();
  }
};

// What all problems of this family share.
template <typename Problem>
absl::Status SupportsStream(const Problem& problem) {
  Requirements want;
  want.Activation("stream", problem.dtype)
      .Positive("hc", problem.hc)
      .Positive("channels", problem.channels);
  if constexpr (requires { problem.wide; }) want.Wide(problem.wide);
  if constexpr (requires { problem.sinkhorn_iters; }) {
    want.Positive("sinkhorn_iters", problem.sinkhorn_iters);
  }
  return want.Take();
}

template <typename Op, template <typename> typename Kernel>
absl::Status RegisterStream(KernelRegistry& registry, DeterminismClass determinism) {
  return RegisterBoth<Op, Kernel<double>, Kernel<float>>(registry, determinism,
                                                         &SupportsStream<typename Op::Problem>);
}

}  // namespace

absl::Status RegisterHyperConnection(KernelRegistry& registry) {
  constexpr DeterminismClass kRows = DeterminismClass::kBatchInvariant;
  absl::Status status =
      RegisterStream<HcExpand, HcExpandKernel>(registry, DeterminismClass::kBitwise);
  if (status.ok()) status = RegisterStream<HcMix, HcMixKernel>(registry, kRows);
  if (status.ok()) status = RegisterStream<HcCollapse, HcCollapseKernel>(registry, kRows);
  if (status.ok()) status = RegisterStream<HcPost, HcPostKernel>(registry, kRows);
  if (status.ok()) status = RegisterStream<HcMean, HcMeanKernel>(registry, kRows);
  return status;
}

}  // namespace skein::kernels::reference
