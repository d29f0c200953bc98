// Mixture of experts: the gate decides in f64 with fixed polynomials, the layout is a counting
// sort, activation and combine are lane kernels over rows.
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu/family.h"
#include "kernels/exact_math.h"

namespace skein::kernels::cpu {
namespace {

// log(1 + e^x) without losing the small values.
double Softplus(double x) {
  if (x > 20) return x;
  const double e = ExactExp(x);
  const double sum = 1.0 + e;
  return sum == 1.0 ? e : e * (ExactLog(sum) / (sum - 1.0));
}

template <CpuIsa isa>
struct MoeGateKernel : WithoutWorkspace<MoeGate> {
  static constexpr int kMaxExperts = 1024;
  static constexpr int kMaxChosen = 64;

  static absl::Status Supports(const MoeGate::Problem& problem) {
    return Support()
        .Is("wide", problem.wide, DType::kF32)
        .Want(problem.num_experts > 0 && problem.num_experts <= kMaxExperts, "num_experts",
              std::to_string(problem.num_experts), "1 to 1024")
        .Want(problem.k > 0 && problem.k <= problem.num_experts && problem.k <= kMaxChosen, "k",
              std::to_string(problem.k), "1 to 64 and at most num_experts")
        .Take();
  }
  static absl::Status Run(const MoeGate::Problem& problem, const MoeGate::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t rows = args.logits.dim(0);
    for (int64_t t = 0; t < rows; ++t) {
      const float* logits = reinterpret_cast<const float*>(args.logits.row(t));
      for (int64_t e = 0; e < problem.num_experts; ++e) {
        if (!std::isfinite(logits[e])) {
          return absl::InternalError(
              absl::StrCat("moe_gate: row ", t, " has a non-finite logit; nothing was routed"));
        }
      }
    }
    ForEachTask(stream, rows, rows * problem.num_experts * 512,
                [&](int64_t t, int) { Row(problem, args, t); });
    return absl::OkStatus();
  }
  static void Row(const MoeGate::Problem& problem, const MoeGate::Args& args, int64_t t) {
    const float* logits = reinterpret_cast<const float*>(args.logits.row(t));
    const float* bias = args.bias.as<float>();
    double score[kMaxExperts];
    double key[kMaxExperts];
    for (int64_t e = 0; e < problem.num_experts; ++e) {
      score[e] = std::sqrt(Softplus(double{logits[e]} / double{args.gate_temp}));
      key[e] = score[e] + double{bias[e]};
    }
    int32_t* index = reinterpret_cast<int32_t*>(args.index.row(t));
    float* weight = reinterpret_cast<float*>(args.weight.row(t));
    double chosen[kMaxChosen];
    double sum = 0;
    for (int64_t j = 0; j < problem.k; ++j) {
      int64_t best = 0;
      for (int64_t e = 1; e < problem.num_experts; ++e) {
        if (key[e] > key[best]) best = e;
      }
      key[best] = -std::numeric_limits<double>::infinity();
      index[j] = static_cast<int32_t>(best);
      chosen[j] = score[best];
      sum += score[best];
    }
    const double scale = args.route_scale;
    for (int64_t j = 0; j < problem.k; ++j) {
      weight[j] = static_cast<float>(args.normalise ? chosen[j] / (sum + 1e-20) * scale
                                                    : chosen[j] * scale);
    }
  }
};

template <CpuIsa isa>
struct MoeLayoutKernel : WithoutWorkspace<MoeLayout> {
  static absl::Status Supports(const MoeLayout::Problem& problem) {
    return Support().Positive("num_experts", problem.num_experts).Positive("k", problem.k).Take();
  }
  static absl::Status Run(const MoeLayout::Problem& problem, const MoeLayout::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t rows = args.index.dim(0);
    const int64_t experts = problem.num_experts;
    int32_t* offset = args.expert_offset.as<int32_t>();
    int32_t* assignment = args.assignment.as<int32_t>();
    int32_t* source_row = args.source_row.as<int32_t>();
    for (int64_t e = 0; e <= experts; ++e) offset[e] = 0;
    const auto expert_of = [&](int64_t t, int64_t j) {
      const int32_t e = reinterpret_cast<const int32_t*>(args.index.row(t))[j];
      return e >= 0 && e < experts ? e : -1;
    };
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t j = 0; j < problem.k; ++j) {
        if (const int32_t e = expert_of(t, j); e >= 0) ++offset[e + 1];
      }
    }
    for (int64_t e = 0; e < experts; ++e) offset[e + 1] += offset[e];
    const int32_t used = offset[experts];
    // Each offset serves as its expert's cursor and is moved back afterwards.
    for (int64_t t = 0; t < rows; ++t) {
      int32_t* places = reinterpret_cast<int32_t*>(args.place.row(t));
      for (int64_t j = 0; j < problem.k; ++j) {
        const int32_t e = expert_of(t, j);
        places[j] = e < 0 ? -1 : offset[e]++;
        if (e < 0) continue;
        assignment[places[j]] = static_cast<int32_t>(t * problem.k + j);
        source_row[places[j]] = static_cast<int32_t>(t);
      }
    }
    for (int64_t e = experts; e > 0; --e) offset[e] = offset[e - 1];
    offset[0] = 0;
    for (int64_t place = used; place < rows * problem.k; ++place) {
      assignment[place] = -1;
      source_row[place] = -1;
    }
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct SwiGluKernel : WithoutWorkspace<SwiGlu> {
  static absl::Status Supports(const SwiGlu::Problem& problem) {
    return Support()
        .Is("gate", problem.dtype, DType::kBf16)
        .Is("wide", problem.wide, DType::kF32)
        .Positive("channels", problem.channels)
        .Take();
  }
  static absl::Status Run(const SwiGlu::Problem& problem, const SwiGlu::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t width = args.weight.rank == 2 ? args.weight.dim(1) : 1;
    ForEachTask(stream, args.y.dim(0), args.y.size() * 8, [&](int64_t i, int) {
      const int64_t place = args.assignment.absent() ? 0 : IndexAt(args.assignment, i);
      if (place < 0) return;
      float weight = 1;
      if (!args.weight.absent()) {
        weight = args.weight.as<float>()[place / width * args.weight.step(0) + place % width];
      }
      Lanes<isa>().swiglu(reinterpret_cast<const uint16_t*>(args.gate.row(i)),
                          reinterpret_cast<const uint16_t*>(args.up.row(i)), problem.channels,
                          args.limit, weight, reinterpret_cast<uint16_t*>(args.y.row(i)));
    });
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct MoeCombineKernel : WithoutWorkspace<MoeCombine> {
  static constexpr int kMaxRows = 65;

  static absl::Status Supports(const MoeCombine::Problem& problem) {
    return Support()
        .Is("routed", problem.dtype, DType::kBf16)
        .Positive("channels", problem.channels)
        .Want(problem.k > 0 && problem.k < kMaxRows, "k", std::to_string(problem.k), "1 to 64")
        .Take();
  }
  static absl::Status Run(const MoeCombine::Problem& problem, const MoeCombine::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    float ones[kMaxRows];
    for (float& value : ones) value = 1.0f;
    ForEachTask(stream, args.y.dim(0), args.y.size() * (problem.k + 1) * 3, [&](int64_t t, int) {
      const uint16_t* rows[kMaxRows];
      int64_t num_rows = 0;
      const int32_t* places = reinterpret_cast<const int32_t*>(args.place.row(t));
      for (int64_t j = 0; j < problem.k; ++j) {
        if (places[j] < 0) continue;
        rows[num_rows++] = reinterpret_cast<const uint16_t*>(args.routed.row(places[j]));
      }
      if (!args.shared.absent()) {
        rows[num_rows++] = reinterpret_cast<const uint16_t*>(args.shared.row(t));
      }
      Lanes<isa>().weighted_sum(rows, ones, num_rows, problem.channels,
                                reinterpret_cast<uint16_t*>(args.y.row(t)));
    });
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct MapExpertsKernel : WithoutWorkspace<MapExperts> {
  static absl::Status Supports(const MapExperts::Problem& problem) {
    return Support().Positive("num_experts", problem.num_experts).Positive("k", problem.k).Take();
  }
  static absl::Status Run(const MapExperts::Problem& problem, const MapExperts::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int32_t* table = args.table.as<int32_t>();
    for (int64_t t = 0; t < args.index.dim(0); ++t) {
      const int32_t* index = reinterpret_cast<const int32_t*>(args.index.row(t));
      int32_t* to = reinterpret_cast<int32_t*>(args.to.row(t));
      for (int64_t j = 0; j < problem.k; ++j) {
        const bool chosen = index[j] >= 0 && index[j] < problem.num_experts;
        const int32_t found = chosen ? table[index[j]] : -1;
        const auto number = static_cast<int32_t>(args.numbered ? t * problem.k + j : 0);
        to[j] = found < 0 ? -1 : found * args.stride + number;
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status RegisterMoe(KernelRegistry& registry, CpuIsa isa) {
  constexpr DeterminismClass kRows = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterFor<MoeGate, MoeGateKernel>(registry, isa, kRows);
  if (status.ok()) {
    status = RegisterFor<MoeLayout, MoeLayoutKernel>(registry, isa, DeterminismClass::kBitwise);
  }
  if (status.ok()) status = RegisterFor<SwiGlu, SwiGluKernel>(registry, isa, kRows);
  if (status.ok()) status = RegisterFor<MoeCombine, MoeCombineKernel>(registry, isa, kRows);
  if (status.ok()) {
    status = RegisterFor<MapExperts, MapExpertsKernel>(registry, isa, DeterminismClass::kBitwise);
  }
  return status;
}

}  // namespace skein::kernels::cpu
