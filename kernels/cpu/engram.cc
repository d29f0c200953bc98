// N-gram memory: integer hash, exact table gather, fused weight, and the gate as a lane kernel.
#include <cstring>

#include "kernels/cpu/family.h"

namespace skein::kernels::cpu {
namespace {

template <CpuIsa isa>
struct EngramHashKernel : WithoutWorkspace<EngramHash> {
  static absl::Status Supports(const EngramHash::Problem& problem) {
    return Support()
        .Want(problem.ngram >= 2, "ngram", std::to_string(problem.ngram), "at least 2")
        .Positive("heads", problem.heads)
        .Take();
  }
  static absl::Status Run(const EngramHash::Problem& problem, const EngramHash::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t* multiplier = args.multiplier.as<int64_t>();
    const int64_t* prime = args.prime.as<int64_t>();
    const int64_t* offset = args.offset.as<int64_t>();
    ForEachTask(stream, args.ngram.dim(0), args.rows.size() * 32, [&](int64_t t, int) {
      const int32_t* ids = reinterpret_cast<const int32_t*>(args.ngram.row(t));
      int32_t* rows = reinterpret_cast<int32_t*>(args.rows.row(t));
      uint64_t mixed =
          static_cast<uint64_t>(int64_t{ids[0]}) * static_cast<uint64_t>(multiplier[0]);
      int64_t column = 0;
      for (int64_t s = 1; s < problem.ngram; ++s) {
        mixed ^= static_cast<uint64_t>(int64_t{ids[s]}) * static_cast<uint64_t>(multiplier[s]);
        for (int64_t h = 0; h < problem.heads; ++h, ++column) {
          const uint64_t rest = mixed % static_cast<uint64_t>(prime[column]);
          rows[column] = static_cast<int32_t>(static_cast<int64_t>(rest) + offset[column]);
        }
      }
    });
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct EngramGatherKernel : WithoutWorkspace<EngramGather> {
  static absl::Status Supports(const EngramGather::Problem& problem) {
    return Support()
        .Float("y", problem.y_dtype)
        .Positive("columns", problem.columns)
        .Positive("row_dim", problem.row_dim)
        .Take();
  }
  static absl::Status Run(const EngramGather::Problem& problem, const EngramGather::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t dim = problem.row_dim;
    const int64_t width = static_cast<int64_t>(DTypeBytes(problem.y_dtype));
    ForEachTask(stream, args.rows.dim(0), args.y.size() * 24, [&](int64_t t, int) {
      const int32_t* rows = reinterpret_cast<const int32_t*>(args.rows.row(t));
      for (int64_t c = 0; c < problem.columns; ++c) {
        std::byte* y = args.y.row(t) + c * dim * width;
        if (rows[c] < 0 || rows[c] >= args.codes.dim(0)) {
          std::memset(y, 0, static_cast<size_t>(dim * width));
          continue;
        }
        const uint8_t* codes = reinterpret_cast<const uint8_t*>(args.codes.row(rows[c]));
        const uint8_t* scale = reinterpret_cast<const uint8_t*>(args.scale.row(rows[c]));
        for (int64_t i = 0; i < dim; ++i) {
          const float value = kE4m3Values[codes[i]] * DecodeE8m0(scale[i / 32]);
          if (problem.y_dtype == DType::kBf16) {
            reinterpret_cast<uint16_t*>(y)[i] = EncodeBf16(value);
          } else {
            reinterpret_cast<float*>(y)[i] = value;
          }
        }
      }
    });
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct EngramFusedWeightKernel : WithoutWorkspace<EngramFusedWeight> {
  static absl::Status Supports(const EngramFusedWeight::Problem& problem) {
    return Support().Positive("hc", problem.hc).Positive("channels", problem.channels).Take();
  }
  static absl::Status Run(const EngramFusedWeight::Problem& problem,
                          const EngramFusedWeight::Args& args, Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t k = 0; k < problem.hc; ++k) {
      const uint16_t* q = reinterpret_cast<const uint16_t*>(args.q.row(k));
      const uint16_t* key = reinterpret_cast<const uint16_t*>(args.k.row(k));
      float* w = reinterpret_cast<float*>(args.w.row(k));
      for (int64_t c = 0; c < problem.channels; ++c) w[c] = DecodeBf16(q[c]) * DecodeBf16(key[c]);
    }
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct EngramGateKernel : WithoutWorkspace<EngramGate> {
  static absl::Status Supports(const EngramGate::Problem& problem) {
    return Support()
        .Is("stream", problem.dtype, DType::kBf16)
        .Positive("hc", problem.hc)
        .Positive("channels", problem.channels)
        .Take();
  }
  static absl::Status Run(const EngramGate::Problem& problem, const EngramGate::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t width = problem.channels;
    ForEachTask(stream, args.stream.dim(0), args.stream.size() * 4, [&](int64_t t, int) {
      const uint16_t* kv = reinterpret_cast<const uint16_t*>(args.kv.row(t));
      uint16_t* x = reinterpret_cast<uint16_t*>(args.stream.row(t));
      for (int64_t k = 0; k < problem.hc; ++k) {
        Lanes<isa>().engram_gate(x + k * args.stream.step(1), kv + k * width,
                                 kv + problem.hc * width,
                                 reinterpret_cast<const float*>(args.w.row(k)), width, args.eps);
      }
    });
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status RegisterEngram(KernelRegistry& registry, CpuIsa isa) {
  constexpr DeterminismClass kBits = DeterminismClass::kBitwise;
  absl::Status status = RegisterFor<EngramHash, EngramHashKernel>(registry, isa, kBits);
  if (status.ok()) status = RegisterFor<EngramGather, EngramGatherKernel>(registry, isa, kBits);
  if (status.ok()) {
    status = RegisterFor<EngramFusedWeight, EngramFusedWeightKernel>(registry, isa, kBits);
  }
  if (status.ok()) {
    status =
        RegisterFor<EngramGate, EngramGateKernel>(registry, isa, DeterminismClass::kBatchInvariant);
  }
  return status;
}

}  // namespace skein::kernels::cpu
