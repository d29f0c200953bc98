// Calls of casts, products, norms, rotation, hyper-connections and the n-gram memory. Extents are
// odd on purpose, and large enough in some cases that the threads share the work.
#include <cmath>

#include "kernels/ops/engram.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/hyper_connection.h"
#include "kernels/ops/norm_rope.h"
#include "kernels/ops/quant.h"
#include "tests/kernels/conformance.h"

namespace skein::kernels {
namespace {

constexpr DType kBf16 = DType::kBf16;
constexpr DType kF32 = DType::kF32;

Instance PerTokenCastCall(const Rows& rows, DType dtype, int channels, int group) {
  CallBuilder call(rows);
  PerTokenCast::Problem problem{channels, group, dtype};
  PerTokenCast::Args args;
  args.x = call.In(dtype, {channels}, Draw::kBell);
  args.codes = call.Out("codes", DType::kE4m3, {channels}, Tolerance::kBits);
  args.scale = call.Out("scale", DType::kE8m0, {(channels + group - 1) / group}, Tolerance::kBits);
  return call.Finish<PerTokenCast>(problem, args);
}

Instance CastBackCall(const Rows& rows, DType codes_dtype, DType y_dtype, int channels) {
  CallBuilder call(rows);
  const bool packed = codes_dtype == DType::kE2m1x2;
  CastBack::Problem problem{channels, 32, codes_dtype, y_dtype};
  CastBack::Args args;
  args.codes = call.In(codes_dtype, {packed ? (channels + 1) / 2 : channels},
                       packed ? Draw::kE2m1 : Draw::kE4m3);
  args.scale = call.In(DType::kE8m0, {(channels + 31) / 32}, Draw::kScale);
  args.y = call.Out("y", y_dtype, {channels}, Tolerance::kBits);
  return call.Finish<CastBack>(problem, args);
}

Instance FakeQuantCall(const Rows& rows, CodeFormat format, int group, bool heads) {
  CallBuilder call(rows);
  FakeQuant::Problem problem{96, group, format, kBf16};
  FakeQuant::Args args;
  const std::vector<int64_t> extents =
      heads ? std::vector<int64_t>{5, 96} : std::vector<int64_t>{96};
  args.x = call.InOut("x", kBf16, extents, Draw::kBell, Tolerance::kBits);
  return call.Finish<FakeQuant>(problem, args);
}

Weight SharedWeight(CallBuilder& call, WeightFormat format, int64_t n, int64_t k) {
  const int64_t units = (k + 31) / 32;
  switch (format) {
    case WeightFormat::kBf16:
      return {call.Shared(kBf16, {n, k}, Draw::kBell), {}};
    case WeightFormat::kF32:
      return {call.Shared(kF32, {n, k}, Draw::kBell), {}};
    case WeightFormat::kE4m3Block:
      return {call.Shared(DType::kE4m3, {n, k}, Draw::kE4m3),
              call.Shared(DType::kE8m0, {(n + 31) / 32, units}, Draw::kScale)};
    case WeightFormat::kE2m1Row32:
      return {call.Shared(DType::kE2m1x2, {n, (k + 1) / 2}, Draw::kE2m1),
              call.Shared(DType::kE8m0, {n, units}, Draw::kScale)};
  }
  return {};
}

Instance LinearCall(const Rows& rows, WeightFormat format, DType x_dtype, DType y_dtype,
                    bool accumulate, int n, int k, Gaps gaps = Gaps::kOdd) {
  CallBuilder call(rows, gaps);
  const Linear::Problem problem{n,       k,       format,     32,
                                x_dtype, y_dtype, accumulate, static_cast<int>(rows.size())};
  Linear::Args args;
  const bool codes = x_dtype == DType::kE4m3;
  args.x = call.In(x_dtype, {k}, codes ? Draw::kE4m3 : Draw::kBell);
  if (codes) args.x_scale = call.In(DType::kE8m0, {(k + 31) / 32}, Draw::kScale);
  args.w = SharedWeight(call, format, n, k);
  if (accumulate) {
    args.y = call.InOut("y", y_dtype, {n}, Draw::kBell, Tolerance::kF32);
  } else {
    args.y =
        call.Out("y", y_dtype, {n}, y_dtype == kF32 ? Tolerance::kF32 : Tolerance::kProduct, 64);
  }
  return call.Finish<Linear>(problem, args);
}

Instance GroupedLinearCall(const Rows& rows, WeightFormat format, DType y_dtype, int k = 75,
                           Gaps gaps = Gaps::kOdd) {
  CallBuilder call(rows, gaps);
  GroupedLinear::Problem problem{3,  64,    k,       format,
                                 32, kBf16, y_dtype, static_cast<int>(rows.size())};
  GroupedLinear::Args args;
  args.x = call.In(kBf16, {3, k}, Draw::kBell);
  args.w = SharedWeight(call, format, 3 * 64, k);
  args.y =
      call.Out("y", y_dtype, {3, 64}, y_dtype == kF32 ? Tolerance::kF32 : Tolerance::kProduct, 64);
  return call.Finish<GroupedLinear>(problem, args);
}

Instance RmsNormCall(const Rows& rows, DType weight_dtype, int channels, Gaps gaps = Gaps::kOdd) {
  CallBuilder call(rows, gaps);
  RmsNorm::Args args;
  args.x = call.In(kBf16, {channels}, Draw::kBell);
  args.weight = call.Shared(weight_dtype, {channels}, Draw::kAround1);
  args.y = call.Out("y", kBf16, {channels}, Tolerance::kBf16);
  args.eps = 1e-20f;
  return call.Finish<RmsNorm>({channels, kBf16, weight_dtype}, args);
}

Instance RopeCall(const Rows& rows, RopeDirection direction) {
  CallBuilder call(rows);
  Rope::Args args;
  args.x = call.InOut("x", kBf16, {9, 61}, Draw::kBell, Tolerance::kBf16);
  args.cos_sin = call.In(kF32, {34}, Draw::kUnit);
  args.direction = direction;
  return call.Finish<Rope>({61, 34, kBf16}, args);
}

Instance HcMixCall(const Rows& rows, int hc, int channels, Gaps gaps = Gaps::kOdd) {
  CallBuilder call(rows, gaps);
  HcMix::Args args;
  args.stream = call.In(kBf16, {hc, channels}, Draw::kBell);
  TestRandom random(3, 0);
  const int mixes = (2 + hc) * hc;
  // Mixes are of one size whatever the channels.
  const double size = 0.4 / std::sqrt(channels);
  args.fn =
      call.SharedBy(kF32, {mixes, hc * channels}, [&](int64_t) { return size * random.Bell(); });
  args.base = call.Shared(kF32, {mixes}, Draw::kBell);
  args.scale = call.Shared(kF32, {3}, Draw::kAround1);
  args.pre = call.Out("pre", kF32, {hc}, Tolerance::kF32, 64);
  args.post = call.Out("post", kF32, {hc}, Tolerance::kF32, 64);
  args.comb = call.Out("comb", kF32, {hc, hc}, Tolerance::kF32, 64);
  args.norm_eps = 1e-20f;
  args.hc_eps = 1e-6f;
  return call.Finish<HcMix>({hc, channels, 20, kBf16, kF32, static_cast<int>(rows.size())}, args);
}

Instance HcExpandCall(const Rows& rows) {
  CallBuilder call(rows);
  HcExpand::Args args;
  args.x = call.In(kBf16, {2083}, Draw::kBell);
  args.stream = call.Out("stream", kBf16, {4, 2083}, Tolerance::kBits);
  return call.Finish<HcExpand>({4, 2083, kBf16}, args);
}

Instance HcCollapseCall(const Rows& rows, int channels, Gaps gaps) {
  CallBuilder call(rows, gaps);
  HcCollapse::Args args;
  args.stream = call.In(kBf16, {4, channels}, Draw::kBell);
  args.pre = call.In(kF32, {4}, Draw::kAround1);
  args.y = call.Out("y", kBf16, {channels}, Tolerance::kBf16);
  return call.Finish<HcCollapse>({4, channels, kBf16, kF32}, args);
}

Instance HcPostCall(const Rows& rows, int channels, Gaps gaps) {
  CallBuilder call(rows, gaps);
  HcPost::Args args;
  args.x = call.In(kBf16, {channels}, Draw::kBell);
  args.post = call.In(kF32, {4}, Draw::kAround1);
  args.comb = call.In(kF32, {4, 4}, Draw::kUnit);
  args.stream = call.InOut("stream", kBf16, {4, channels}, Draw::kBell, Tolerance::kBf16);
  return call.Finish<HcPost>({4, channels, kBf16, kF32}, args);
}

Instance HcMeanCall(const Rows& rows) {
  CallBuilder call(rows);
  HcMean::Args args;
  args.stream = call.In(kBf16, {4, 611}, Draw::kBell);
  args.y = call.Out("y", kBf16, {611}, Tolerance::kBf16);
  return call.Finish<HcMean>({4, 611, kBf16}, args);
}

Instance EngramHashCall(const Rows& rows) {
  CallBuilder call(rows);
  EngramHash::Args args;
  args.ngram = call.InBy(DType::kI32, {4}, [](uint32_t id, int64_t i) {
    return static_cast<double>((id * 7919 + static_cast<uint32_t>(i) * 104729) % 99092);
  });
  args.multiplier = call.SharedBy(
      DType::kI64, {4}, [](int64_t i) { return static_cast<double>(76632096046245 - 17 * i); });
  args.prime = call.SharedBy(DType::kI64, {24},
                             [](int64_t i) { return static_cast<double>(16000057 + 2 * i); });
  args.offset =
      call.SharedBy(DType::kI64, {24}, [](int64_t i) { return static_cast<double>(16000000 * i); });
  args.rows = call.Out("rows", DType::kI32, {24}, Tolerance::kBits);
  return call.Finish<EngramHash>({4, 8}, args);
}

Instance EngramGatherCall(const Rows& rows, DType y_dtype) {
  CallBuilder call(rows);
  EngramGather::Args args;
  args.codes = call.Shared(DType::kE4m3, {50, 72}, Draw::kE4m3);
  args.scale = call.Shared(DType::kE8m0, {50, 3}, Draw::kScale);
  args.rows = call.InBy(DType::kI32, {12}, [](uint32_t id, int64_t i) {
    return static_cast<double>((id * 13 + static_cast<uint32_t>(i) * 29) % 52) - 1;
  });
  args.y = call.Out("y", y_dtype, {12 * 72}, Tolerance::kBits);
  return call.Finish<EngramGather>({12, 72, y_dtype}, args);
}

Instance EngramFusedWeightCall(const Rows& rows) {
  CallBuilder call(rows);
  EngramFusedWeight::Args args;
  args.q = call.Shared(kBf16, {4, 333}, Draw::kAround1);
  args.k = call.Shared(kBf16, {4, 333}, Draw::kAround1);
  args.w = call.WholeOut("w", kF32, {4, 333});
  return call.Finish<EngramFusedWeight>({4, 333}, args);
}

Instance EngramGateCall(const Rows& rows) {
  CallBuilder call(rows);
  EngramGate::Args args;
  args.stream = call.InOut("stream", kBf16, {4, 333}, Draw::kBell, Tolerance::kBf16);
  args.kv = call.In(kBf16, {5 * 333}, Draw::kBell);
  args.w = call.Shared(kF32, {4, 333}, Draw::kAround1);
  args.eps = 1e-20f;
  return call.Finish<EngramGate>({4, 333, kBf16}, args);
}

// Products of e4m3 codes that a backend may divide in several ways.
void AddCodeCases(std::vector<Case>& cases) {
  const auto add = [&cases](const std::string& name, int n, int k, Gaps gaps, uint32_t rows_max) {
    cases.push_back({OpId::kLinear, name, [=](const Rows& rows) {
                       return LinearCall(rows, WeightFormat::kE4m3Block, DType::kE4m3, kBf16, false,
                                         n, k, gaps);
                     }});
    cases.back().rows_max = rows_max;
  };
  // More rows than a tile, so many tiles that no inputs need be split.
  add("format 2 many channels", 6450, 1024, Gaps::kOdd, 150);
  add("format 2 three parts", 4200, 1536, Gaps::kOdd, 260);
  // Rows that begin at multiples of 16 bytes, which come another way: parts that are added up,
  // tiles one after the other, one block for all parts.
  add("format 2 whole long", 133, 1280, Gaps::kWhole, 64);
  add("format 2 whole many channels", 6450, 1024, Gaps::kWhole, 150);
  add("format 2 whole parts or one", 5200, 1024, Gaps::kWhole, 150);
  add("format 2 whole three parts", 4200, 1536, Gaps::kWhole, 260);
}

void AddProductCases(std::vector<Case>& cases) {
  const auto add = [&cases](OpId op, const std::string& name,
                            const std::function<Instance(const Rows&)>& make) {
    cases.push_back({op, name, make});
  };
  for (const WeightFormat format : {WeightFormat::kE4m3Block, WeightFormat::kE2m1Row32,
                                    WeightFormat::kBf16, WeightFormat::kF32}) {
    const bool codes = format == WeightFormat::kE4m3Block || format == WeightFormat::kE2m1Row32;
    const DType x_dtype = codes ? DType::kE4m3 : kBf16;
    const std::string name = "format " + std::to_string(static_cast<int>(format));
    add(OpId::kLinear, name, [=](const Rows& rows) {
      return LinearCall(rows, format, x_dtype, kBf16, false, 133, 203);
    });
    add(OpId::kLinear, name + " wide",
        [=](const Rows& rows) { return LinearCall(rows, format, x_dtype, kF32, false, 33, 96); });
    add(OpId::kGroupedLinear, name,
        [=](const Rows& rows) { return GroupedLinearCall(rows, format, kBf16); });
  }
  // Whole units for each eighth of the inputs: where a backend may split k.
  add(OpId::kLinear, "format 2 long", [](const Rows& rows) {
    return LinearCall(rows, WeightFormat::kE4m3Block, DType::kE4m3, kBf16, false, 133, 1280);
  });
  AddCodeCases(cases);
  for (const DType y : {kBf16, kF32}) {
    const std::string name = y == kBf16 ? "bf16" : "bf16 wide";
    add(OpId::kLinear, name + " long", [y](const Rows& rows) {
      return LinearCall(rows, WeightFormat::kBf16, kBf16, y, false, 133, 2560);
    });
    add(OpId::kLinear, name + " long whole", [y](const Rows& rows) {
      return LinearCall(rows, WeightFormat::kBf16, kBf16, y, false, 133, 2560, Gaps::kWhole);
    });
    add(OpId::kLinear, name + " few columns", [y](const Rows& rows) {
      return LinearCall(rows, WeightFormat::kBf16, kBf16, y, false, 3, 520);
    });
    add(OpId::kLinear, name + " many columns", [y](const Rows& rows) {
      return LinearCall(rows, WeightFormat::kBf16, kBf16, y, false, 8250, 136);
    });
  }
  add(OpId::kLinear, "bf16 accumulated", [](const Rows& rows) {
    return LinearCall(rows, WeightFormat::kBf16, kBf16, kF32, true, 65, 256);
  });
  add(OpId::kLinear, "f32 accumulated", [](const Rows& rows) {
    return LinearCall(rows, WeightFormat::kBf16, kF32, kF32, true, 65, 64);
  });
  add(OpId::kGroupedLinear, "format 2 long", [](const Rows& rows) {
    return GroupedLinearCall(rows, WeightFormat::kE4m3Block, kBf16, 512);
  });
  add(OpId::kGroupedLinear, "format 2 long whole", [](const Rows& rows) {
    return GroupedLinearCall(rows, WeightFormat::kE4m3Block, kBf16, 1024, Gaps::kWhole);
  });
  add(OpId::kGroupedLinear, "wide",
      [](const Rows& rows) { return GroupedLinearCall(rows, WeightFormat::kE4m3Block, kF32); });
}

}  // namespace

void AddDenseCases(std::vector<Case>& cases) {
  const auto add = [&cases](OpId op, const std::string& name,
                            const std::function<Instance(const Rows&)>& make) {
    cases.push_back({op, name, make});
  };
  for (const DType dtype : {kBf16, kF32}) {
    add(OpId::kPerTokenCast, dtype == kBf16 ? "bf16 by 32" : "f32 by 32",
        [dtype](const Rows& rows) { return PerTokenCastCall(rows, dtype, 1101, 32); });
    add(OpId::kPerTokenCast, dtype == kBf16 ? "bf16 by 128" : "f32 by 128",
        [dtype](const Rows& rows) { return PerTokenCastCall(rows, dtype, 200, 128); });
    for (const DType codes : {DType::kE4m3, DType::kE2m1x2}) {
      add(OpId::kCastBack, codes == DType::kE4m3 ? "e4m3" : "e2m1",
          [=](const Rows& rows) { return CastBackCall(rows, codes, dtype, 2077); });
    }
    add(OpId::kEngramGather, dtype == kBf16 ? "bf16" : "f32",
        [dtype](const Rows& rows) { return EngramGatherCall(rows, dtype); });
    add(OpId::kRmsNorm, dtype == kBf16 ? "bf16 weight" : "f32 weight",
        [dtype](const Rows& rows) { return RmsNormCall(rows, dtype, 2083); });
  }
  // Where a backend may take eight channels at once, or a row in several parts.
  add(OpId::kRmsNorm, "long",
      [](const Rows& rows) { return RmsNormCall(rows, kBf16, 8200, Gaps::kWhole); });
  add(OpId::kRmsNorm, "f32 weight whole",
      [](const Rows& rows) { return RmsNormCall(rows, kF32, 1288, Gaps::kWhole); });
  add(OpId::kFakeQuant, "e2m1 ue8m0 heads",
      [](const Rows& rows) { return FakeQuantCall(rows, CodeFormat::kE2m1Ue8m0, 32, true); });
  add(OpId::kFakeQuant, "e2m1 e4m3",
      [](const Rows& rows) { return FakeQuantCall(rows, CodeFormat::kE2m1E4m3, 16, false); });
  add(OpId::kFakeQuant, "e4m3",
      [](const Rows& rows) { return FakeQuantCall(rows, CodeFormat::kE4m3Ue8m0, 32, true); });
  AddProductCases(cases);
  add(OpId::kRope, "forward",
      [](const Rows& rows) { return RopeCall(rows, RopeDirection::kForward); });
  add(OpId::kRope, "inverse",
      [](const Rows& rows) { return RopeCall(rows, RopeDirection::kInverse); });
  add(OpId::kHcExpand, "odd", HcExpandCall);
  add(OpId::kHcMix, "odd", [](const Rows& rows) { return HcMixCall(rows, 4, 75); });
  add(OpId::kHcMix, "aligned", [](const Rows& rows) { return HcMixCall(rows, 4, 64); });
  add(OpId::kHcMix, "three_streams", [](const Rows& rows) { return HcMixCall(rows, 3, 64); });
  add(OpId::kHcMix, "long",
      [](const Rows& rows) { return HcMixCall(rows, 4, 1040, Gaps::kWhole); });
  for (const Gaps gaps : {Gaps::kOdd, Gaps::kWhole}) {
    const int channels = gaps == Gaps::kOdd ? 611 : 1032;
    const std::string name = gaps == Gaps::kOdd ? "odd" : "whole";
    add(OpId::kHcCollapse, name,
        [=](const Rows& rows) { return HcCollapseCall(rows, channels, gaps); });
    add(OpId::kHcPost, name, [=](const Rows& rows) { return HcPostCall(rows, channels, gaps); });
  }
  add(OpId::kHcMean, "odd", HcMeanCall);
  add(OpId::kEngramHash, "order 4", EngramHashCall);
  add(OpId::kEngramFusedWeight, "odd", EngramFusedWeightCall);
  cases.back().rows_independent = false;
  add(OpId::kEngramGate, "odd", EngramGateCall);
}

}  // namespace skein::kernels
