// Reference n-gram memory: hash, table gather, fused weight, gate. Plain code, calling thread.
#include <cmath>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

struct EngramHashKernel {
  static absl::Status Run(const EngramHash::Problem& problem, const EngramHash::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t* prime = args.prime.as<int64_t>();
    const int64_t* offset = args.offset.as<int64_t>();
    for (int64_t t = 0; t < args.ngram.dim(0); ++t) {
      const int32_t* ids = args.ngram.as<int32_t>() + t * args.ngram.step(0);
      int32_t* rows = args.rows.as<int32_t>() + t * args.rows.step(0);
      uint64_t mixed = 0;
      for (int64_t s = 0; s < problem.ngram; ++s) {
        mixed ^= static_cast<uint64_t>(int64_t{ids[s]}) *
                 static_cast<uint64_t>(args.multiplier.as<int64_t>()[s]);
        for (int64_t h = 0; s > 0 && h < problem.heads; ++h) {
          const int64_t column = (s - 1) * problem.heads + h;
          rows[column] = static_cast<int32_t>(
              static_cast<int64_t>(mixed % static_cast<uint64_t>(prime[column])) + offset[column]);
        }
      }
    }
    return absl::OkStatus();
  }
};

absl::Status EngramHashSupports(const EngramHash::Problem& problem) {
  return Requirements()
      .Want(problem.ngram >= 2, "ngram", std::to_string(problem.ngram), "at least 2")
      .Positive("heads", problem.heads)
      .Take();
}

struct EngramGatherKernel {
  static absl::Status Run(const EngramGather::Problem& problem, const EngramGather::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t d = problem.row_dim;
    for (int64_t t = 0; t < args.rows.dim(0); ++t) {
      for (int64_t c = 0; c < problem.columns; ++c) {
        const int64_t row = args.rows.as<int32_t>()[t * args.rows.step(0) + c];
        const bool present = row >= 0 && row < args.codes.dim(0);
        for (int64_t i = 0; i < d; ++i) {
          double value = 0;
          if (present) {
            const uint8_t code = args.codes.as<uint8_t>()[row * args.codes.step(0) + i];
            const uint8_t scale = args.scale.as<uint8_t>()[row * args.scale.step(0) + i / 32];
            value = double{DecodeE4m3(code)} * double{DecodeE8m0(scale)};
          }
          StoreAt(args.y.data, problem.y_dtype, t * args.y.step(0) + c * d + i, value);
        }
      }
    }
    return absl::OkStatus();
  }
};

absl::Status EngramGatherSupports(const EngramGather::Problem& problem) {
  return Requirements()
      .Activation("y", problem.y_dtype)
      .Positive("columns", problem.columns)
      .Positive("row_dim", problem.row_dim)
      .Take();
}

struct EngramFusedWeightKernel {
  static absl::Status Run(const EngramFusedWeight::Problem& problem,
                          const EngramFusedWeight::Args& args, Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t k = 0; k < problem.hc; ++k) {
      for (int64_t c = 0; c < problem.channels; ++c) {
        const float q = LoadAt<float>(args.q.data, DType::kBf16, k * args.q.step(0) + c);
        const float key = LoadAt<float>(args.k.data, DType::kBf16, k * args.k.step(0) + c);
        StoreAt(args.w.data, DType::kF32, k * args.w.step(0) + c, q * key);
      }
    }
    return absl::OkStatus();
  }
};

absl::Status EngramFusedWeightSupports(const EngramFusedWeight::Problem& problem) {
  return Requirements().Positive("hc", problem.hc).Positive("channels", problem.channels).Take();
}

template <typename Acc>
struct EngramGateKernel {
  static absl::Status Run(const EngramGate::Problem& problem, const EngramGate::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t width = problem.channels;
    std::vector<Acc> x(static_cast<size_t>(width)), key(x.size()), value(x.size());
    for (int64_t t = 0; t < args.stream.dim(0); ++t) {
      LoadSpan(args.kv, t * args.kv.step(0) + problem.hc * width, width, value.data());
      for (int64_t k = 0; k < problem.hc; ++k) {
        const int64_t offset = t * args.stream.step(0) + k * args.stream.step(1);
        LoadSpan(args.stream, offset, width, x.data());
        LoadSpan(args.kv, t * args.kv.step(0) + k * width, width, key.data());
        const std::vector<Acc> w = LoadRow<Acc>(args.w, k);
        const Acc gate = Gate(x, w, key, static_cast<Acc>(args.eps));
        for (size_t c = 0; c < x.size(); ++c) x[c] += gate * value[c];
        StoreSpan(args.stream, offset, width, x.data());
      }
    }
    return absl::OkStatus();
  }
  static Acc Gate(const std::vector<Acc>& x, const std::vector<Acc>& w, const std::vector<Acc>& key,
                  Acc eps) {
    const Acc count = static_cast<Acc>(x.size());
    const int64_t width = static_cast<int64_t>(x.size());
    std::vector<Acc> weighted(x.size());
    for (size_t c = 0; c < x.size(); ++c) weighted[c] = x[c] * w[c];
    const Acc rx = Acc{1} / std::sqrt(Dot(x.data(), x.data(), width) / count + eps);
    const Acc rk = Acc{1} / std::sqrt(Dot(key.data(), key.data(), width) / count + eps);
    const Acc dot = Dot(weighted.data(), key.data(), width) * rx * rk / std::sqrt(count);
    const Acc root = std::sqrt(std::max(std::fabs(dot), static_cast<Acc>(1e-6)));
    return Acc{1} / (Acc{1} + std::exp(-std::copysign(root, dot)));
  }
};

absl::Status EngramGateSupports(const EngramGate::Problem& problem) {
  return Requirements()
      .Activation("stream", problem.dtype)
      .Positive("hc", problem.hc)
      .Positive("channels", problem.channels)
      .Take();
}

}  // namespace

absl::Status RegisterEngram(KernelRegistry& registry) {
  constexpr DeterminismClass kBits = DeterminismClass::kBitwise;
  absl::Status status = RegisterBoth<EngramHash, EngramHashKernel, EngramHashKernel>(
      registry, kBits, &EngramHashSupports);
  if (status.ok()) {
    status = RegisterBoth<EngramGather, EngramGatherKernel, EngramGatherKernel>(
        registry, kBits, &EngramGatherSupports);
  }
  if (status.ok()) {
    status = RegisterBoth<EngramFusedWeight, EngramFusedWeightKernel, EngramFusedWeightKernel>(
        registry, kBits, &EngramFusedWeightSupports);
  }
  if (status.ok()) {
    status = RegisterBoth<EngramGate, EngramGateKernel<double>, EngramGateKernel<float>>(
        registry, DeterminismClass::kBatchInvariant, &EngramGateSupports);
  }
  return status;
}

}  // namespace skein::kernels::reference
