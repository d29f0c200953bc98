// Casts between rows and scaled codes: lane kernels in front of the linears, plain loops over
// tables elsewhere. Rows are shared over the threads.
#include <cmath>

#include "kernels/cpu/family.h"

namespace skein::kernels::cpu {
namespace {

template <CpuIsa isa>
struct PerTokenCastKernel : WithoutWorkspace<PerTokenCast> {
  static absl::Status Supports(const PerTokenCast::Problem& problem) {
    return Support()
        .Float("x", problem.x_dtype)
        .Positive("channels", problem.channels)
        .Positive("group", problem.group)
        .Take();
  }
  static absl::Status Run(const PerTokenCast::Problem& problem, const PerTokenCast::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t rows = args.x.dim(0);
    ForEachTask(stream, rows, rows * problem.channels * 12, [&](int64_t t, int) {
      uint8_t* codes = args.codes.as<uint8_t>() + t * args.codes.step(0);
      uint8_t* scale = args.scale.as<uint8_t>() + t * args.scale.step(0);
      const std::byte* x = args.x.row(t);
      if (problem.x_dtype == DType::kBf16) {
        Lanes<isa>().cast_bf16(reinterpret_cast<const uint16_t*>(x), problem.channels,
                               problem.group, codes, scale);
      } else {
        Lanes<isa>().cast_f32(reinterpret_cast<const float*>(x), problem.channels, problem.group,
                              codes, scale);
      }
    });
    return absl::OkStatus();
  }
};

void StoreValue(const TensorView& y, int64_t offset, float value) {
  if (y.dtype == DType::kBf16) {
    y.as<uint16_t>()[offset] = EncodeBf16(value);
  } else {
    y.as<float>()[offset] = value;
  }
}

template <CpuIsa isa>
struct CastBackKernel : WithoutWorkspace<CastBack> {
  static absl::Status Supports(const CastBack::Problem& problem) {
    return Support()
        .Want(problem.codes_dtype == DType::kE4m3 || problem.codes_dtype == DType::kE2m1x2, "codes",
              DTypeName(problem.codes_dtype), "e4m3 or e2m1x2")
        .Float("y", problem.y_dtype)
        .Positive("channels", problem.channels)
        .Positive("group", problem.group)
        .Take();
  }
  static absl::Status Run(const CastBack::Problem& problem, const CastBack::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const bool packed = problem.codes_dtype == DType::kE2m1x2;
    const int64_t rows = args.y.dim(0);
    ForEachTask(stream, rows, rows * problem.channels, [&](int64_t t, int) {
      const uint8_t* codes = args.codes.as<uint8_t>() + t * args.codes.step(0);
      const uint8_t* scale = args.scale.as<uint8_t>() + t * args.scale.step(0);
      for (int64_t i = 0; i < problem.channels; ++i) {
        const float value =
            packed ? DecodeE2m1(static_cast<uint8_t>((codes[i / 2] >> (i % 2 * 4)) & 15))
                   : kE4m3Values[codes[i]];
        StoreValue(args.y, t * args.y.step(0) + i, value * DecodeE8m0(scale[i / problem.group]));
      }
    });
    return absl::OkStatus();
  }
};

float LargestMagnitude(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values[i]);
    if (std::isnan(magnitude)) return magnitude;
    if (magnitude > largest) largest = magnitude;
  }
  return largest;
}

template <CpuIsa isa>
struct FakeQuantKernel : WithoutWorkspace<FakeQuant> {
  static constexpr int kMaxGroup = 128;

  static absl::Status Supports(const FakeQuant::Problem& problem) {
    return Support()
        .Float("x", problem.dtype)
        .Positive("channels", problem.channels)
        .Want(problem.group > 0 && problem.group <= kMaxGroup, "group",
              std::to_string(problem.group), "1 to 128")
        .Want(problem.group <= 0 || problem.channels % problem.group == 0, "channels",
              std::to_string(problem.channels), "multiples of the group")
        .Take();
  }
  // One group, in place.
  static void Group(const FakeQuant::Problem& problem, const TensorView& x, int64_t offset) {
    if (x.dtype == DType::kBf16 && problem.format == CodeFormat::kE2m1Ue8m0 &&
        Lanes<isa>().fake_e2m1(x.as<uint16_t>() + offset, problem.group)) {
      return;
    }
    float values[kMaxGroup];
    for (int64_t i = 0; i < problem.group; ++i) {
      values[i] = x.dtype == DType::kBf16 ? DecodeBf16(x.as<uint16_t>()[offset + i])
                                          : x.as<float>()[offset + i];
    }
    const GroupScale s = ScaleOfGroup(problem.format, LargestMagnitude(values, problem.group));
    for (int64_t i = 0; i < problem.group; ++i) {
      const uint8_t code = EncodeInGroup(problem.format, values[i], s.value);
      StoreValue(x, offset + i, DecodeCode(problem.format, code) * s.value);
    }
  }
  static absl::Status Run(const FakeQuant::Problem& problem, const FakeQuant::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const TensorView& x = args.x;
    const int64_t heads = x.rank == 3 ? x.dim(1) : 1;
    const int64_t head_step = x.rank == 3 ? x.step(1) : 0;
    ForEachTask(stream, x.dim(0), x.size() * 24, [&](int64_t t, int) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t begin = 0; begin < problem.channels; begin += problem.group) {
          Group(problem, x, t * x.step(0) + h * head_step + begin);
        }
      }
    });
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status RegisterQuant(KernelRegistry& registry, CpuIsa isa) {
  constexpr DeterminismClass kClass = DeterminismClass::kBitwise;
  absl::Status status = RegisterFor<PerTokenCast, PerTokenCastKernel>(registry, isa, kClass);
  if (status.ok()) status = RegisterFor<CastBack, CastBackKernel>(registry, isa, kClass);
  if (status.ok()) status = RegisterFor<FakeQuant, FakeQuantKernel>(registry, isa, kClass);
  return status;
}

}  // namespace skein::kernels::cpu
