// Hyper-connections: the mix is a small f32 product over the flattened streams, then a few scalars
// a row; collapse and expansion are lane kernels. Rows are shared over the threads.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/family.h"
#include "kernels/cpu/lanes.h"

namespace skein::kernels::cpu {
namespace {

constexpr int kMaxStreams = 8;

template <typename Problem>
Support SupportsStream(const Problem& problem) {
  Support support;
  support.Is("stream", problem.dtype, DType::kBf16)
      .Want(problem.hc > 0 && problem.hc <= kMaxStreams, "hc", std::to_string(problem.hc), "1 to 8")
      .Positive("channels", problem.channels);
  if constexpr (requires { problem.wide; }) support.Is("wide", problem.wide, DType::kF32);
  return support;
}

uint16_t* StreamAt(const TensorView& stream, int64_t t, int64_t k) {
  return stream.as<uint16_t>() + t * stream.step(0) + k * stream.step(1);
}

template <CpuIsa isa>
struct HcExpandKernel : WithoutWorkspace<HcExpand> {
  static absl::Status Supports(const HcExpand::Problem& problem) {
    return SupportsStream(problem).Take();
  }
  static absl::Status Run(const HcExpand::Problem& problem, const HcExpand::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t rows = args.x.dim(0);
    ForEachTask(stream, rows, rows * problem.channels, [&](int64_t t, int) {
      for (int64_t k = 0; k < problem.hc; ++k) {
        std::memcpy(StreamAt(args.stream, t, k), args.x.row(t),
                    static_cast<size_t>(problem.channels) * sizeof(uint16_t));
      }
    });
    return absl::OkStatus();
  }
};

// Four rows or columns of a 4 x 4 matrix, as the compiler's vectors of any instruction set.
using Four [[gnu::vector_size(16)]] = float;

void Transpose(Four* m) {
  const Four a = __builtin_shufflevector(m[0], m[1], 0, 4, 1, 5);
  const Four b = __builtin_shufflevector(m[2], m[3], 0, 4, 1, 5);
  const Four c = __builtin_shufflevector(m[0], m[1], 2, 6, 3, 7);
  const Four d = __builtin_shufflevector(m[2], m[3], 2, 6, 3, 7);
  m[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  m[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  m[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  m[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

// m[i] = m[i] / (first + m[0] + m[1] + m[2] + m[3]) + added, the sum from the left.
void DivideBySum(Four* m, float first, float added) {
  const Four sum = (((first + m[0]) + m[1]) + m[2]) + m[3];
  for (int i = 0; i < 4; ++i) m[i] = m[i] / sum + added;
}

// One round of SinkhornRounds for four streams: the same operations, side by side.
void SinkhornRoundOfFour(Four* m, int iter, float eps) {
  Transpose(m);
  DivideBySum(m, iter == 0 ? 0.0f : eps, iter == 0 ? eps : 0.0f);
  Transpose(m);
  DivideBySum(m, eps, 0.0f);
}

// Rows whose rounds take turns: a round of one alone waits for its own divisions.
constexpr int64_t kRoundsTogether = 4;

// All rounds of `rows` rows of four streams, a matrix each `step` floats from `comb` on.
void SinkhornRoundsOfFour(float* comb, int64_t rows, int64_t step, int iters, float eps) {
  for (int64_t t = 0; t < rows; t += kRoundsTogether) {
    const int64_t some = std::min(kRoundsTogether, rows - t);
    Four m[kRoundsTogether][4];
    for (int64_t i = 0; i < some; ++i) std::memcpy(m[i], comb + (t + i) * step, sizeof(m[i]));
    for (int iter = 0; iter < iters; ++iter) {
      for (int64_t i = 0; i < some; ++i) SinkhornRoundOfFour(m[i], iter, eps);
    }
    for (int64_t i = 0; i < some; ++i) std::memcpy(comb + (t + i) * step, m[i], sizeof(m[i]));
  }
}

// Divides rows, then columns by their sums, `iters` times.
void SinkhornRounds(float* comb, int64_t hc, int iters, float eps) {
  for (int iter = 0; iter < iters; ++iter) {
    for (int64_t j = 0; j < hc; ++j) {
      float* row = comb + j * hc;
      float sum = iter == 0 ? 0.0f : eps;
      for (int64_t k = 0; k < hc; ++k) sum += row[k];
      for (int64_t k = 0; k < hc; ++k) row[k] = row[k] / sum + (iter == 0 ? eps : 0.0f);
    }
    float column[kMaxStreams];
    for (int64_t k = 0; k < hc; ++k) column[k] = eps;
    for (int64_t j = 0; j < hc; ++j) {
      for (int64_t k = 0; k < hc; ++k) column[k] += comb[j * hc + k];
    }
    for (int64_t j = 0; j < hc; ++j) {
      for (int64_t k = 0; k < hc; ++k) comb[j * hc + k] /= column[k];
    }
  }
}

template <CpuIsa isa>
struct HcMixKernel {
  // Columns of the product that one task computes.
  static constexpr int64_t kTaskColumns = 4;
  // Most rows that one task takes through all of the operator.
  static constexpr int64_t kTaskRows = 64;

  static absl::Status Supports(const HcMix::Problem& problem) {
    return SupportsStream(problem).Positive("sinkhorn_iters", problem.sinkhorn_iters).Take();
  }
  static size_t WorkspaceBytes(const HcMix::Problem& problem) {
    const int64_t hc = problem.hc;
    const int64_t padded = RoundUpToUnit(hc * problem.channels);
    return Scratch::Bytes<float>(problem.max_rows * padded) +
           Scratch::Bytes<float>(problem.max_rows * (2 + hc) * hc) +
           Scratch::Bytes<float>(kPanelRows * padded * kMaxThreads);
  }
  static absl::Status Run(const HcMix::Problem& problem, const HcMix::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    const int64_t rows = args.stream.dim(0);
    if (rows == 0) return absl::OkStatus();
    const int64_t hc = problem.hc;
    const int64_t mixes = (2 + hc) * hc;
    const int64_t width = hc * problem.channels;
    const int64_t padded = RoundUpToUnit(width);
    Scratch scratch(workspace);
    float* x = scratch.Take<float>(rows * padded);
    float* mix = scratch.Take<float>(rows * mixes);
    float* panel = scratch.Take<float>(kPanelRows * padded * NumThreads(stream));
    if (absl::Status status = scratch.Check(HcMix::kId); !status.ok()) return status;
    GemmCall call;
    call.x = x;
    call.x_step = padded;
    call.k = width;
    call.format = WeightFormat::kF32;
    call.codes = args.fn.as<uint8_t>();
    call.codes_step = args.fn.step(0) * static_cast<int64_t>(sizeof(float));
    call.y_step = mixes * static_cast<int64_t>(sizeof(float));
    // A thread takes some rows from the streams to the coefficients: one meeting of threads.
    const int64_t threads = NumThreads(stream);
    const int64_t some = std::min(kTaskRows, (rows + threads - 1) / threads);
    const auto take = [&](int64_t task, int thread) {
      const int64_t begin = task * some;
      const int64_t end = std::min(rows, begin + some);
      for (int64_t t = begin; t < end; ++t) Widen(args.stream, problem, t, x + t * padded);
      GemmCall part = call;
      part.x_first = begin;
      part.rows = end - begin;
      part.y = reinterpret_cast<uint8_t*>(mix + begin * mixes);
      Lanes<isa>().gemm(part, 0, mixes, panel + kPanelRows * padded * thread);
      for (int64_t t = begin; t < end; ++t) {
        Split(problem, args, t, x + t * padded, mix + t * mixes);
      }
      Sinkhorn(problem, args, begin, end, mix);
    };
    if (rows > 1) {
      ForEachTask(stream, (rows + some - 1) / some, rows * mixes * width, take);
      return absl::OkStatus();
    }
    Widen(args.stream, problem, 0, x);
    call.rows = 1;
    call.y = reinterpret_cast<uint8_t*>(mix);
    ForEachTask(stream, (mixes + kTaskColumns - 1) / kTaskColumns, mixes * width,
                [&](int64_t task, int thread) {
                  const int64_t begin = task * kTaskColumns;
                  Lanes<isa>().gemm(call, begin, std::min(mixes, begin + kTaskColumns),
                                    panel + kPanelRows * padded * thread);
                });
    Split(problem, args, 0, x, mix);
    Sinkhorn(problem, args, 0, 1, mix);
    return absl::OkStatus();
  }

  // The streams of row t side by side, padded with zeros to kUnit.
  static void Widen(const TensorView& streams, const HcMix::Problem& problem, int64_t t,
                    float* row) {
    const int64_t width = problem.hc * problem.channels;
    for (int64_t k = 0; k < problem.hc; ++k) {
      Lanes<isa>().widen(StreamAt(streams, t, k), problem.channels, row + k * problem.channels);
    }
    std::memset(row + width, 0, static_cast<size_t>(RoundUpToUnit(width) - width) * sizeof(float));
  }

  // Coefficients of row t from its product `mix`; those of the streams' mixture stay there, as what
  // Sinkhorn begins with.
  static void Split(const HcMix::Problem& problem, const HcMix::Args& args, int64_t t,
                    const float* x, float* mix) {
    const int64_t hc = problem.hc;
    const int64_t width = hc * problem.channels;
    const float mean = Lanes<isa>().dot(x, x, width) / static_cast<float>(width);
    const float reciprocal = 1.0f / std::sqrt(mean + args.norm_eps);
    const float* base = args.base.as<float>();
    const float* scale = args.scale.as<float>();
    for (int64_t i = 0; i < (2 + hc) * hc; ++i) {
      const float factor = i < hc ? scale[0] : i < 2 * hc ? scale[1] : scale[2];
      mix[i] = mix[i] * reciprocal * factor + base[i];
    }
    float gate[2 * kMaxStreams];
    for (int64_t i = 0; i < 2 * hc; ++i) gate[i] = -mix[i];
    Lanes<isa>().exp(gate, 2 * hc, gate);
    float* pre = reinterpret_cast<float*>(args.pre.row(t));
    float* post = reinterpret_cast<float*>(args.post.row(t));
    for (int64_t k = 0; k < hc; ++k) {
      pre[k] = 1.0f / (1.0f + gate[k]) + args.hc_eps;
      post[k] = 2.0f * (1.0f / (1.0f + gate[hc + k]));
    }
    float* comb = mix + 2 * hc;
    for (int64_t j = 0; j < hc; ++j) {
      float* row = comb + j * hc;
      float largest = row[0];
      for (int64_t k = 1; k < hc; ++k) largest = row[k] > largest ? row[k] : largest;
      for (int64_t k = 0; k < hc; ++k) row[k] -= largest;
    }
    Lanes<isa>().exp(comb, hc * hc, comb);
  }

  // The mixtures of rows [begin, end), which Split left in `mix`.
  static void Sinkhorn(const HcMix::Problem& problem, const HcMix::Args& args, int64_t begin,
                       int64_t end, float* mix) {
    const int64_t hc = problem.hc;
    const int64_t step = (2 + hc) * hc;
    const auto comb_of = [&](int64_t t) { return mix + t * step + 2 * hc; };
    if (hc == 4) {
      SinkhornRoundsOfFour(comb_of(begin), end - begin, step, problem.sinkhorn_iters, args.hc_eps);
    }
    for (int64_t t = begin; t < end; ++t) {
      if (hc != 4) SinkhornRounds(comb_of(t), hc, problem.sinkhorn_iters, args.hc_eps);
      for (int64_t j = 0; j < hc; ++j) {
        float* row = reinterpret_cast<float*>(args.comb.row(t)) + j * args.comb.step(1);
        std::memcpy(row, comb_of(t) + j * hc, static_cast<size_t>(hc) * sizeof(float));
      }
    }
  }
};

// The weighted sum of a row's streams.
template <CpuIsa isa>
void SumStreams(const TensorView& stream, int64_t t, int64_t hc, int64_t channels,
                const float* factor, uint16_t* y) {
  const uint16_t* rows[kMaxStreams];
  for (int64_t k = 0; k < hc; ++k) rows[k] = StreamAt(stream, t, k);
  Lanes<isa>().weighted_sum(rows, factor, hc, channels, y);
}

template <CpuIsa isa>
struct HcCollapseKernel : WithoutWorkspace<HcCollapse> {
  static absl::Status Supports(const HcCollapse::Problem& problem) {
    return SupportsStream(problem).Take();
  }
  static absl::Status Run(const HcCollapse::Problem& problem, const HcCollapse::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    ForEachTask(stream, args.stream.dim(0), args.stream.size() * 3, [&](int64_t t, int) {
      SumStreams<isa>(args.stream, t, problem.hc, problem.channels,
                      reinterpret_cast<const float*>(args.pre.row(t)),
                      reinterpret_cast<uint16_t*>(args.y.row(t)));
    });
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct HcPostKernel : WithoutWorkspace<HcPost> {
  static absl::Status Supports(const HcPost::Problem& problem) {
    return SupportsStream(problem).Take();
  }
  static absl::Status Run(const HcPost::Problem& problem, const HcPost::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t hc = problem.hc;
    ForEachTask(stream, args.stream.dim(0), args.stream.size() * hc, [&](int64_t t, int) {
      float comb[kMaxStreams * kMaxStreams];
      for (int64_t j = 0; j < hc; ++j) {
        const float* row = reinterpret_cast<const float*>(args.comb.row(t)) + j * args.comb.step(1);
        std::memcpy(comb + j * hc, row, static_cast<size_t>(hc) * sizeof(float));
      }
      Lanes<isa>().hc_post(reinterpret_cast<const uint16_t*>(args.x.row(t)),
                           reinterpret_cast<const float*>(args.post.row(t)), comb, hc,
                           problem.channels, StreamAt(args.stream, t, 0), args.stream.step(1));
    });
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct HcMeanKernel : WithoutWorkspace<HcMean> {
  static absl::Status Supports(const HcMean::Problem& problem) {
    return SupportsStream(problem).Take();
  }
  static absl::Status Run(const HcMean::Problem& problem, const HcMean::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    float factor[kMaxStreams];
    for (float& value : factor) value = 1.0f / static_cast<float>(problem.hc);
    ForEachTask(stream, args.stream.dim(0), args.stream.size(), [&](int64_t t, int) {
      SumStreams<isa>(args.stream, t, problem.hc, problem.channels, factor,
                      reinterpret_cast<uint16_t*>(args.y.row(t)));
    });
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status RegisterHyperConnection(KernelRegistry& registry, CpuIsa isa) {
  constexpr DeterminismClass kRows = DeterminismClass::kBatchInvariant;
  absl::Status status =
      RegisterFor<HcExpand, HcExpandKernel>(registry, isa, DeterminismClass::kBitwise);
  if (status.ok()) status = RegisterFor<HcMix, HcMixKernel>(registry, isa, kRows);
  if (status.ok()) status = RegisterFor<HcCollapse, HcCollapseKernel>(registry, isa, kRows);
  if (status.ok()) status = RegisterFor<HcPost, HcPostKernel>(registry, isa, kRows);
  if (status.ok()) status = RegisterFor<HcMean, HcMeanKernel>(registry, isa, kRows);
  return status;
}

}  // namespace skein::kernels::cpu
