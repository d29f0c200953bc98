// Calls of the mixture of experts: gate, layout, grouped products, activation, combine. Some rows
// have fewer experts than k, some have none.
#include <algorithm>

#include "kernels/ops/gemm.h"
#include "kernels/ops/moe.h"
#include "tests/kernels/conformance.h"

namespace skein::kernels {
namespace {

constexpr DType kBf16 = DType::kBf16;
constexpr DType kF32 = DType::kF32;
constexpr int kExperts = 13;
constexpr int kChosen = 3;

Instance MoeGateCall(const Rows& rows, bool normalise, int experts = kExperts,
                     int chosen = kChosen) {
  CallBuilder call(rows);
  MoeGate::Args args;
  // A third of the rows has all logits equal, and large ones reach the linear part of softplus.
  args.logits = call.InBy(kF32, {experts}, [](uint32_t id, int64_t i) {
    if (id % 3 == 0) return 0.25;
    TestRandom random(41, id * 64 + static_cast<uint32_t>(i));
    return double{random.Bell()} * (id % 3 == 1 ? 3 : 15);
  });
  args.bias = call.SharedBy(kF32, {experts}, [&](int64_t i) { return i % 4 == 1 ? 0.125 : 0.0; });
  args.index = call.Out("index", DType::kI32, {chosen}, Tolerance::kBits);
  args.weight = call.Out("weight", kF32, {chosen}, Tolerance::kF32);
  args.gate_temp = 1;
  args.route_scale = 1.5f;
  args.normalise = normalise;
  return call.Finish<MoeGate>({experts, chosen, kF32}, args);
}

// Expert of (row id, j): -1 in places.
double ExpertOf(uint32_t id, int64_t j) {
  if (id % 5 == 4) return -1;
  if (id % 7 == 3 && j == 1) return -1;
  return static_cast<double>((id * 5 + static_cast<uint32_t>(j) * 3) % (kExperts - 1));
}

Instance MoeLayoutCall(const Rows& rows, int chosen) {
  CallBuilder call(rows);
  MoeLayout::Args args;
  args.index = call.InBy(DType::kI32, {chosen}, ExpertOf);
  args.expert_offset = call.WholeOut("expert_offset", DType::kI32, {kExperts + 1});
  args.assignment = call.WholeOut("assignment", DType::kI32, {rows.size() * chosen});
  args.source_row = call.WholeOut("source_row", DType::kI32, {rows.size() * chosen});
  args.place = call.Out("place", DType::kI32, {chosen}, Tolerance::kBits);
  return call.Finish<MoeLayout>({kExperts, chosen, static_cast<int>(rows.size())}, args);
}

Instance MapExpertsCall(const Rows& rows, bool numbered) {
  CallBuilder call(rows);
  MapExperts::Args args;
  args.index = call.InBy(DType::kI32, {kChosen}, ExpertOf);
  args.table = call.SharedBy(DType::kI32, {kExperts}, [](int64_t e) {
    return e % 3 == 1 ? -1.0 : static_cast<double>(e / 3);
  });
  args.to = numbered ? call.WholeOut("to", DType::kI32, {rows.size(), kChosen})
                     : call.Out("to", DType::kI32, {kChosen}, Tolerance::kBits);
  args.stride = numbered ? 100 : 1;
  args.numbered = numbered;
  return call.Finish<MapExperts>({kExperts, kChosen}, args);
}

// Assignment i is row i, of expert 2 * (place in sorted order / 4): experts are consecutive and
// every second one is empty. The expert depends on the id, so ids are grouped by it first.
Instance ExpertLinearCall(const Rows& rows, WeightFormat format, bool with_source, int n = 37,
                          int k = 160, int products = 1) {
  CallBuilder call(rows);
  const auto expert_of = [](uint32_t id) { return id / 16 * 2 % 8; };
  std::vector<int64_t> order;
  for (int64_t r = rows.size() - 1; r >= 0; --r) order.push_back(r);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return expert_of(rows.ids[static_cast<size_t>(a)]) <
           expert_of(rows.ids[static_cast<size_t>(b)]);
  });
  ExpertLinear::Args args;
  args.expert_offset = call.SharedBy(DType::kI32, {9}, [&](int64_t e) {
    return static_cast<double>(std::count_if(rows.ids.begin(), rows.ids.end(), [&](uint32_t id) {
      return static_cast<int64_t>(expert_of(id)) < e;
    }));
  });
  // Without source rows the ids of a call must be sorted by expert already.
  if (with_source) {
    args.source_row = call.SharedBy(DType::kI32, {rows.size()}, [&](int64_t i) {
      return static_cast<double>(order[static_cast<size_t>(i)]);
    });
  }
  args.x = call.In(DType::kE4m3, {k}, Draw::kE4m3);
  args.x_scale = call.In(DType::kE8m0, {k / 32}, Draw::kScale);
  auto weights = std::make_shared<std::vector<Weight>>();
  for (int e = 0; e < 8 * products; ++e) {
    const bool packed = format == WeightFormat::kE2m1Row32;
    weights->push_back(
        {call.Shared(packed ? DType::kE2m1x2 : DType::kE4m3, {n, packed ? k / 2 : k},
                     packed ? Draw::kE2m1 : Draw::kE4m3),
         call.Shared(DType::kE8m0, {packed ? n : (n + 31) / 32, k / 32}, Draw::kScale)});
  }
  args.w = std::span(*weights).first(8);
  args.y = call.Out("y", kBf16, {n}, Tolerance::kProduct);
  if (products == 2) {
    args.w_second = std::span(*weights).last(8);
    args.y_second = call.Out("y_second", kBf16, {n}, Tolerance::kProduct);
  }
  Instance instance = call.Finish<ExpertLinear>(
      {8, n, k, format, 32, DType::kE4m3, kBf16, static_cast<int>(rows.size())}, args);
  // The weights' vector lives as long as the call.
  instance.run = [weights, run = instance.run](const KernelRegistry& registry,
                                               std::string_view backend, DeviceStream stream) {
    return run(registry, backend, stream);
  };
  return instance;
}

Instance SwiGluCall(const Rows& rows, bool routed, float limit, Gaps gaps) {
  CallBuilder call(rows, gaps);
  const int channels = gaps == Gaps::kOdd ? 301 : 1048;
  SwiGlu::Args args;
  args.gate = call.In(kBf16, {channels}, Draw::kBell);
  args.up = call.In(kBf16, {channels}, Draw::kBell);
  if (routed) {
    args.assignment = call.InBy(DType::kI32, {}, [](uint32_t id, int64_t) {
      return id % 5 == 4 ? -1.0 : static_cast<double>(id * 7 % 30);
    });
    args.weight = call.Shared(kF32, {10, 3}, Draw::kAround1);
  }
  args.y = call.Out("y", kBf16, {channels}, Tolerance::kBf16);
  if (routed) {
    std::set<int64_t> skipped;
    for (int64_t r = 0; r < rows.size(); ++r) {
      if (rows.ids[static_cast<size_t>(r)] % 5 == 4) skipped.insert(r);
    }
    call.Skip(skipped);
  }
  args.limit = limit;
  return call.Finish<SwiGlu>({channels, kBf16, kF32}, args);
}

Instance MoeCombineCall(const Rows& rows, bool with_shared, Gaps gaps) {
  CallBuilder call(rows, gaps);
  const int channels = gaps == Gaps::kOdd ? 523 : 1032;
  MoeCombine::Args args;
  args.routed = call.Shared(kBf16, {41, channels}, Draw::kBell);
  args.place = call.InBy(DType::kI32, {kChosen}, [](uint32_t id, int64_t j) {
    return ExpertOf(id, j) < 0
               ? -1.0
               : static_cast<double>((id * 11 + 17 * static_cast<uint32_t>(j)) % 41);
  });
  if (with_shared) args.shared = call.In(kBf16, {channels}, Draw::kBell);
  args.y = call.Out("y", kBf16, {channels}, Tolerance::kBf16);
  return call.Finish<MoeCombine>({channels, kChosen, kBf16}, args);
}

}  // namespace

void AddExpertCases(std::vector<Case>& cases) {
  for (const bool on : {false, true}) {
    cases.push_back({OpId::kMoeGate, on ? "normalised" : "raw",
                     [on](const Rows& rows) { return MoeGateCall(rows, on); }, true, true});
    // Where a backend may take eight channels at once.
    for (const Gaps gaps : {Gaps::kOdd, Gaps::kWhole}) {
      const std::string end = gaps == Gaps::kOdd ? "" : " whole";
      cases.push_back({OpId::kSwiGlu, (on ? "routed" : "plain") + end, [=](const Rows& rows) {
                         return SwiGluCall(rows, on, on ? 0.75f : 0, gaps);
                       }});
      cases.push_back({OpId::kMoeCombine, (on ? "with shared" : "routed alone") + end,
                       [=](const Rows& rows) { return MoeCombineCall(rows, on, gaps); }});
    }
  }
  // As many experts as models have, and as many as no number of lanes divides.
  cases.push_back({OpId::kMoeGate, "of 384",
                   [](const Rows& rows) { return MoeGateCall(rows, true, 384, 6); }, true, true});
  cases.push_back({OpId::kMoeGate, "of 709",
                   [](const Rows& rows) { return MoeGateCall(rows, true, 709, 8); }, true, true});
  cases.push_back({OpId::kMoeLayout, "with gaps",
                   [](const Rows& rows) { return MoeLayoutCall(rows, kChosen); }, false});
  cases.push_back(
      {OpId::kMapExperts, "alone", [](const Rows& rows) { return MapExpertsCall(rows, false); }});
  cases.push_back({OpId::kMapExperts, "numbered",
                   [](const Rows& rows) { return MapExpertsCall(rows, true); }, false});
  // More than a warp's worth for each of 32 warps.
  cases.push_back(
      {OpId::kMoeLayout, "many", [](const Rows& rows) { return MoeLayoutCall(rows, 20); }, false});
  for (const WeightFormat format : {WeightFormat::kE2m1Row32, WeightFormat::kE4m3Block}) {
    const std::string name = "format " + std::to_string(static_cast<int>(format));
    cases.push_back({OpId::kExpertLinear, name + " by source",
                     [format](const Rows& rows) { return ExpertLinearCall(rows, format, true); },
                     false});
    cases.push_back({OpId::kExpertLinear, name,
                     [format](const Rows& rows) { return ExpertLinearCall(rows, format, false); }});
    // Whole steps of inputs and several blocks of outputs: where backends are quick.
    cases.push_back({OpId::kExpertLinear, name + " wide", [format](const Rows& rows) {
                       return ExpertLinearCall(rows, format, false, 150, 1152);
                     }});
    for (const auto& [end, n, k] : {std::tuple(" two", 37, 160), {" two wide", 300, 1152}}) {
      cases.push_back({OpId::kExpertLinear, name + end, [=](const Rows& rows) {
                         return ExpertLinearCall(rows, format, false, n, k, 2);
                       }});
    }
  }
}

}  // namespace skein::kernels
