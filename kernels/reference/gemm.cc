// Reference matrix products: operands decoded exactly, one dot product per output, one rounding at
// the store. Plain code in the calling thread; must never requantise an operand.
#include <cstring>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

// Row `n` of a weight, decoded.
template <typename Acc>
void DecodeWeightRow(const Weight& w, WeightFormat format, int block, int64_t n, int64_t k,
                     Acc* out) {
  const TensorView& codes = w.codes;
  switch (format) {
    case WeightFormat::kBf16:
    case WeightFormat::kF32:
      LoadSpan(codes, n * codes.step(0), k, out);
      return;
    case WeightFormat::kE4m3Block: {
      const uint8_t* row = codes.as<uint8_t>() + n * codes.step(0);
      const uint8_t* scale = w.scale.as<uint8_t>() + n / block * w.scale.step(0);
      for (int64_t i = 0; i < k; ++i) {
        out[i] =
            static_cast<Acc>(DecodeE4m3(row[i])) * static_cast<Acc>(DecodeE8m0(scale[i / block]));
      }
      return;
    }
    case WeightFormat::kE2m1Row32: {
      const uint8_t* row = codes.as<uint8_t>() + n * codes.step(0);
      const uint8_t* scale = w.scale.as<uint8_t>() + n * w.scale.step(0);
      for (int64_t i = 0; i < k; ++i) {
        const uint8_t code = static_cast<uint8_t>((row[i / 2] >> (i % 2 * 4)) & 15);
        out[i] = static_cast<Acc>(DecodeE2m1(code)) * static_cast<Acc>(DecodeE8m0(scale[i / 32]));
      }
      return;
    }
  }
}

// One row of activations, decoded. `offset` counts elements from the view's start.
template <typename Acc>
void DecodeActivations(const TensorView& x, const TensorView& x_scale, int64_t row, int64_t offset,
                       int64_t k, Acc* out) {
  if (x.dtype != DType::kE4m3) {
    LoadSpan(x, offset, k, out);
    return;
  }
  const uint8_t* codes = x.as<uint8_t>() + offset;
  const uint8_t* scale = x_scale.as<uint8_t>() + row * x_scale.step(0);
  for (int64_t i = 0; i < k; ++i) {
    out[i] = static_cast<Acc>(DecodeE4m3(codes[i])) * static_cast<Acc>(DecodeE8m0(scale[i / 32]));
  }
}

Requirements Formats(DType x_dtype, DType y_dtype, WeightFormat format, int block) {
  Requirements want;
  want.Want(IsActivation(x_dtype) || x_dtype == DType::kE4m3, "x", DTypeName(x_dtype),
            "e4m3, bf16, f32 or f64");
  want.Activation("y", y_dtype);
  if (format == WeightFormat::kE4m3Block) want.Positive("block", block);
  return want;
}

template <typename Acc>
struct LinearKernel {
  static absl::Status Run(const Linear::Problem& problem, const Linear::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t rows = args.x.dim(0);
    const int64_t k = problem.k;
    std::vector<Acc> x(static_cast<size_t>(rows * k));
    for (int64_t t = 0; t < rows; ++t) {
      DecodeActivations(args.x, args.x_scale, t, t * args.x.step(0), k, x.data() + t * k);
    }
    std::vector<Acc> w(static_cast<size_t>(k));
    for (int64_t n = 0; rows > 0 && n < problem.n; ++n) {
      DecodeWeightRow(args.w, problem.format, problem.block, n, k, w.data());
      for (int64_t t = 0; t < rows; ++t) {
        Acc sum = Dot(x.data() + t * k, w.data(), k);
        const int64_t at = t * args.y.step(0) + n;
        if (problem.accumulate) sum += LoadAt<Acc>(args.y.data, problem.y_dtype, at);
        StoreAt(args.y.data, problem.y_dtype, at, sum);
      }
    }
    return absl::OkStatus();
  }
};

absl::Status LinearSupports(const Linear::Problem& problem) {
  return Formats(problem.x_dtype, problem.y_dtype, problem.format, problem.block)
      .Positive("n", problem.n)
      .Positive("k", problem.k)
      .Want(!problem.accumulate || IsWide(problem.y_dtype), "accumulation into y",
            DTypeName(problem.y_dtype), "f32 or f64")
      .Take();
}

template <typename Acc>
struct GroupedLinearKernel {
  static absl::Status Run(const GroupedLinear::Problem& problem, const GroupedLinear::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t rows = args.x.dim(0);
    const int64_t k = problem.k;
    std::vector<Acc> x(static_cast<size_t>(rows * k));
    std::vector<Acc> w(static_cast<size_t>(k));
    for (int64_t g = 0; rows > 0 && g < problem.groups; ++g) {
      for (int64_t t = 0; t < rows; ++t) {
        LoadSpan(args.x, t * args.x.step(0) + g * args.x.step(1), k, x.data() + t * k);
      }
      for (int64_t n = 0; n < problem.n; ++n) {
        DecodeWeightRow(args.w, problem.format, problem.block, g * problem.n + n, k, w.data());
        for (int64_t t = 0; t < rows; ++t) {
          StoreAt(args.y.data, problem.y_dtype, t * args.y.step(0) + g * args.y.step(1) + n,
                  Dot(x.data() + t * k, w.data(), k));
        }
      }
    }
    return absl::OkStatus();
  }
};

absl::Status GroupedLinearSupports(const GroupedLinear::Problem& problem) {
  return Formats(problem.x_dtype, problem.y_dtype, problem.format, problem.block)
      .Activation("x", problem.x_dtype)
      .Positive("groups", problem.groups)
      .Positive("n", problem.n)
      .Positive("k", problem.k)
      .Take();
}

template <typename Acc>
struct ExpertLinearKernel {
  static absl::Status Run(const ExpertLinear::Problem& problem, const ExpertLinear::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int32_t* offsets = args.expert_offset.as<int32_t>();
    const int64_t k = problem.k;
    std::vector<Acc> w(static_cast<size_t>(k));
    std::vector<Acc> x;
    for (int64_t e = 0; e < problem.num_experts; ++e) {
      const int64_t begin = offsets[e];
      const int64_t count = offsets[e + 1] - begin;
      if (count <= 0) continue;
      x.resize(static_cast<size_t>(count * k));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row =
            args.source_row.absent() ? begin + i : args.source_row.as<int32_t>()[begin + i];
        DecodeActivations(args.x, args.x_scale, row, row * args.x.step(0), k, x.data() + i * k);
      }
      const auto multiply = [&](std::span<const Weight> weights, const TensorView& y) {
        for (int64_t n = 0; n < problem.n; ++n) {
          DecodeWeightRow(weights[static_cast<size_t>(e)], problem.format, problem.block, n, k,
                          w.data());
          for (int64_t i = 0; i < count; ++i) {
            StoreAt(y.data, problem.y_dtype, (begin + i) * y.step(0) + n,
                    Dot(x.data() + i * k, w.data(), k));
          }
        }
      };
      multiply(args.w, args.y);
      if (!args.y_second.absent()) multiply(args.w_second, args.y_second);
    }
    return absl::OkStatus();
  }
};

absl::Status ExpertLinearSupports(const ExpertLinear::Problem& problem) {
  return Formats(problem.x_dtype, problem.y_dtype, problem.format, problem.block)
      .Positive("num_experts", problem.num_experts)
      .Positive("n", problem.n)
      .Positive("k", problem.k)
      .Take();
}

}  // namespace

absl::Status RegisterGemm(KernelRegistry& registry) {
  constexpr DeterminismClass kClass = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterBoth<Linear, LinearKernel<double>, LinearKernel<float>>(
      registry, kClass, &LinearSupports);
  if (status.ok()) {
    status = RegisterBoth<GroupedLinear, GroupedLinearKernel<double>, GroupedLinearKernel<float>>(
        registry, kClass, &GroupedLinearSupports);
  }
  if (status.ok()) {
    status = RegisterBoth<ExpertLinear, ExpertLinearKernel<double>, ExpertLinearKernel<float>>(
        registry, kClass, &ExpertLinearSupports);
  }
  return status;
}

}  // namespace skein::kernels::reference
