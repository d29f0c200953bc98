// Reference mixture of experts: gate, layout, activation, combine. Plain code, calling thread;
// must never route a row with a non-finite logit.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

template <typename Acc>
struct MoeGateKernel {
  static absl::Status Run(const MoeGate::Problem& problem, const MoeGate::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t t = 0; t < args.logits.dim(0); ++t) {
      for (const Acc logit : LoadRow<Acc>(args.logits, t)) {
        if (!std::isfinite(logit)) {
          return absl::InternalError(
              absl::StrCat("moe_gate: row ", t, " has a non-finite logit; nothing was routed"));
        }
      }
    }
    const std::vector<Acc> bias = LoadVector<Acc>(args.bias);
    for (int64_t t = 0; t < args.logits.dim(0); ++t) Row(problem, args, bias, t);
    return absl::OkStatus();
  }
  static void Row(const MoeGate::Problem& problem, const MoeGate::Args& args,
                  const std::vector<Acc>& bias, int64_t t) {
    std::vector<Acc> score = LoadRow<Acc>(args.logits, t);
    std::vector<Acc> key(score.size());
    for (size_t e = 0; e < score.size(); ++e) {
      const Acc x = score[e] / static_cast<Acc>(args.gate_temp);
      score[e] = std::sqrt(x > Acc{20} ? x : std::log1p(std::exp(x)));
      key[e] = score[e] + bias[e];
    }
    std::vector<bool> taken(score.size());
    std::vector<size_t> chosen;
    Acc sum = 0;
    for (int64_t j = 0; j < problem.k; ++j) {
      size_t best = score.size();
      for (size_t e = 0; e < score.size(); ++e) {
        if (!taken[e] && (best == score.size() || key[e] > key[best])) best = e;
      }
      taken[best] = true;
      chosen.push_back(best);
      sum += score[best];
    }
    for (int64_t j = 0; j < problem.k; ++j) {
      const Acc u = score[chosen[static_cast<size_t>(j)]];
      const Acc scale = args.route_scale;
      const Acc w = args.normalise ? u / (sum + static_cast<Acc>(1e-20)) * scale : u * scale;
      args.index.as<int32_t>()[t * args.index.step(0) + j] =
          static_cast<int32_t>(chosen[static_cast<size_t>(j)]);
      StoreAt(args.weight.data, problem.wide, t * args.weight.step(0) + j, w);
    }
  }
};

absl::Status MoeGateSupports(const MoeGate::Problem& problem) {
  return Requirements()
      .Wide(problem.wide)
      .Positive("num_experts", problem.num_experts)
      .Positive("k", problem.k)
      .Want(problem.k <= problem.num_experts, "k", std::to_string(problem.k), "at most num_experts")
      .Take();
}

struct MoeLayoutKernel {
  static absl::Status Run(const MoeLayout::Problem& problem, const MoeLayout::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t rows = args.index.dim(0);
    int32_t next = 0;
    for (int32_t e = 0; e < problem.num_experts; ++e) {
      args.expert_offset.as<int32_t>()[e] = next;
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t j = 0; j < problem.k; ++j) {
          if (args.index.as<int32_t>()[t * args.index.step(0) + j] != e) continue;
          args.assignment.as<int32_t>()[next] = static_cast<int32_t>(t * problem.k + j);
          args.source_row.as<int32_t>()[next] = static_cast<int32_t>(t);
          args.place.as<int32_t>()[t * args.place.step(0) + j] = next++;
        }
      }
    }
    args.expert_offset.as<int32_t>()[problem.num_experts] = next;
    for (int64_t place = next; place < rows * problem.k; ++place) {
      args.assignment.as<int32_t>()[place] = -1;
      args.source_row.as<int32_t>()[place] = -1;
    }
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t j = 0; j < problem.k; ++j) {
        const int32_t e = args.index.as<int32_t>()[t * args.index.step(0) + j];
        if (e < 0 || e >= problem.num_experts) {
          args.place.as<int32_t>()[t * args.place.step(0) + j] = -1;
        }
      }
    }
    return absl::OkStatus();
  }
};

absl::Status MoeLayoutSupports(const MoeLayout::Problem& problem) {
  return Requirements()
      .Positive("num_experts", problem.num_experts)
      .Positive("k", problem.k)
      .Take();
}

struct MapExpertsKernel {
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

absl::Status MapExpertsSupports(const MapExperts::Problem& problem) {
  return Requirements()
      .Positive("num_experts", problem.num_experts)
      .Positive("k", problem.k)
      .Take();
}

template <typename Acc>
struct SwiGluKernel {
  static absl::Status Run(const SwiGlu::Problem& problem, const SwiGlu::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const Acc limit = args.limit;
    const int64_t width = args.weight.rank == 2 ? args.weight.dim(1) : 1;
    for (int64_t i = 0; i < args.y.dim(0); ++i) {
      const int32_t place = args.assignment.absent() ? 0 : args.assignment.as<int32_t>()[i];
      if (place < 0) continue;
      const std::vector<Acc> gate = LoadRow<Acc>(args.gate, i);
      std::vector<Acc> up = LoadRow<Acc>(args.up, i);
      for (size_t c = 0; c < up.size(); ++c) {
        Acc g = gate[c];
        if (limit > 0 && g > limit) g = limit;
        if (limit > 0 && up[c] > limit) up[c] = limit;
        if (limit > 0 && up[c] < -limit) up[c] = -limit;
        up[c] = g / (Acc{1} + std::exp(-g)) * up[c];
        if (!args.weight.absent()) {
          const int64_t at = place / width * args.weight.step(0) + place % width;
          up[c] *= LoadAt<Acc>(args.weight.data, problem.wide, at);
        }
      }
      StoreSpan(args.y, i * args.y.step(0), problem.channels, up.data());
    }
    return absl::OkStatus();
  }
};

absl::Status SwiGluSupports(const SwiGlu::Problem& problem) {
  return Requirements()
      .Activation("gate", problem.dtype)
      .Wide(problem.wide)
      .Positive("channels", problem.channels)
      .Take();
}

template <typename Acc>
struct MoeCombineKernel {
  static absl::Status Run(const MoeCombine::Problem& problem, const MoeCombine::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t t = 0; t < args.y.dim(0); ++t) {
      std::vector<Acc> sum(static_cast<size_t>(problem.channels));
      for (int64_t j = 0; j < problem.k; ++j) {
        const int32_t place = args.place.as<int32_t>()[t * args.place.step(0) + j];
        if (place < 0) continue;
        const std::vector<Acc> routed = LoadRow<Acc>(args.routed, place);
        for (size_t c = 0; c < sum.size(); ++c) sum[c] += routed[c];
      }
      if (!args.shared.absent()) {
        const std::vector<Acc> shared = LoadRow<Acc>(args.shared, t);
        for (size_t c = 0; c < sum.size(); ++c) sum[c] += shared[c];
      }
      StoreSpan(args.y, t * args.y.step(0), problem.channels, sum.data());
    }
    return absl::OkStatus();
  }
};

absl::Status MoeCombineSupports(const MoeCombine::Problem& problem) {
  return Requirements()
      .Activation("routed", problem.dtype)
      .Positive("channels", problem.channels)
      .Positive("k", problem.k)
      .Take();
}

}  // namespace

absl::Status RegisterMoe(KernelRegistry& registry) {
  constexpr DeterminismClass kRows = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterBoth<MoeGate, MoeGateKernel<double>, MoeGateKernel<float>>(
      registry, kRows, &MoeGateSupports);
  if (status.ok()) {
    status = RegisterBoth<MoeLayout, MoeLayoutKernel, MoeLayoutKernel>(
        registry, DeterminismClass::kBitwise, &MoeLayoutSupports);
  }
  if (status.ok()) {
    status = RegisterBoth<SwiGlu, SwiGluKernel<double>, SwiGluKernel<float>>(registry, kRows,
                                                                             &SwiGluSupports);
  }
  if (status.ok()) {
    status = RegisterBoth<MoeCombine, MoeCombineKernel<double>, MoeCombineKernel<float>>(
        registry, kRows, &MoeCombineSupports);
  }
  if (status.ok()) {
    status = RegisterBoth<MapExperts, MapExpertsKernel, MapExpertsKernel>(
        registry, DeterminismClass::kBitwise, &MapExpertsSupports);
  }
  return status;
}

}  // namespace skein::kernels::reference
