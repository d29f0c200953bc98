// Reference casts: integer emulation of the formats on f32 bits, the same in both accumulation
// modes. Plain code in the calling thread; must never use anything but formats.h for a rounding.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

// Largest magnitude; NaN if any value is NaN.
float LargestMagnitude(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values[i]);
    if (std::isnan(magnitude)) return magnitude;
    largest = std::max(largest, magnitude);
  }
  return largest;
}

struct PerTokenCastKernel {
  static absl::Status Supports(const PerTokenCast::Problem& problem) {
    return Requirements()
        .Activation("x", problem.x_dtype)
        .Positive("channels", problem.channels)
        .Positive("group", problem.group)
        .Take();
  }
  static absl::Status Run(const PerTokenCast::Problem& problem, const PerTokenCast::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      const std::vector<float> x = LoadRow<float>(args.x, t);
      uint8_t* codes = args.codes.as<uint8_t>() + t * args.codes.step(0);
      uint8_t* scale = args.scale.as<uint8_t>() + t * args.scale.step(0);
      for (int64_t begin = 0; begin < problem.channels; begin += problem.group) {
        const int64_t count = std::min<int64_t>(problem.group, problem.channels - begin);
        const GroupScale s =
            ScaleOfGroup(CodeFormat::kE4m3Ue8m0, LargestMagnitude(x.data() + begin, count));
        scale[begin / problem.group] = s.byte;
        for (int64_t i = begin; i < begin + count; ++i) {
          codes[i] = EncodeInGroup(CodeFormat::kE4m3Ue8m0, x[static_cast<size_t>(i)], s.value);
        }
      }
    }
    return absl::OkStatus();
  }
};

struct CastBackKernel {
  static absl::Status Supports(const CastBack::Problem& problem) {
    const bool known = problem.codes_dtype == DType::kE4m3 || problem.codes_dtype == DType::kE2m1x2;
    return Requirements()
        .Want(known, "codes", DTypeName(problem.codes_dtype), "e4m3 or e2m1x2")
        .Activation("y", problem.y_dtype)
        .Positive("channels", problem.channels)
        .Positive("group", problem.group)
        .Take();
  }
  static absl::Status Run(const CastBack::Problem& problem, const CastBack::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const bool packed = problem.codes_dtype == DType::kE2m1x2;
    for (int64_t t = 0; t < args.y.dim(0); ++t) {
      const uint8_t* codes = args.codes.as<uint8_t>() + t * args.codes.step(0);
      const uint8_t* scale = args.scale.as<uint8_t>() + t * args.scale.step(0);
      for (int64_t i = 0; i < problem.channels; ++i) {
        const double value =
            packed ? DecodeE2m1(static_cast<uint8_t>((codes[i / 2] >> (i % 2 * 4)) & 15))
                   : DecodeE4m3(codes[i]);
        const double s = DecodeE8m0(scale[i / problem.group]);
        StoreAt(args.y.data, problem.y_dtype, t * args.y.step(0) + i, value * s);
      }
    }
    return absl::OkStatus();
  }
};

struct FakeQuantKernel {
  static absl::Status Supports(const FakeQuant::Problem& problem) {
    return Requirements()
        .Activation("x", problem.dtype)
        .Positive("channels", problem.channels)
        .Positive("group", problem.group)
        .Want(problem.group <= 0 || problem.channels % problem.group == 0, "channels",
              std::to_string(problem.channels), "multiples of the group")
        .Take();
  }
  static void Row(const FakeQuant::Problem& problem, const TensorView& x, int64_t offset) {
    std::vector<float> values(static_cast<size_t>(problem.channels));
    LoadSpan(x, offset, problem.channels, values.data());
    for (int64_t begin = 0; begin < problem.channels; begin += problem.group) {
      const GroupScale s =
          ScaleOfGroup(problem.format, LargestMagnitude(values.data() + begin, problem.group));
      for (int64_t i = begin; i < begin + problem.group; ++i) {
        const uint8_t code = EncodeInGroup(problem.format, values[static_cast<size_t>(i)], s.value);
        const double decoded = DecodeCode(problem.format, code);
        StoreAt(x.data, x.dtype, offset + i, decoded * double{s.value});
      }
    }
  }
  static absl::Status Run(const FakeQuant::Problem& problem, const FakeQuant::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const TensorView& x = args.x;
    const int64_t heads = x.rank == 3 ? x.dim(1) : 1;
    const int64_t head_step = x.rank == 3 ? x.step(1) : 0;
    for (int64_t t = 0; t < x.dim(0); ++t) {
      for (int64_t h = 0; h < heads; ++h) Row(problem, x, t * x.step(0) + h * head_step);
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status RegisterQuant(KernelRegistry& registry) {
  constexpr DeterminismClass kClass = DeterminismClass::kBitwise;
  absl::Status status = RegisterBoth<PerTokenCast, PerTokenCastKernel, PerTokenCastKernel>(
      registry, kClass, &PerTokenCastKernel::Supports);
  if (status.ok()) {
    status = RegisterBoth<CastBack, CastBackKernel, CastBackKernel>(registry, kClass,
                                                                    &CastBackKernel::Supports);
  }
  if (status.ok()) {
    status = RegisterBoth<FakeQuant, FakeQuantKernel, FakeQuantKernel>(registry, kClass,
                                                                       &FakeQuantKernel::Supports);
  }
  return status;
}

}  // namespace skein::kernels::reference
