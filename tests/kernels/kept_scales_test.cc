// Products of the model's shapes keep the checkpoint's scales, one for each 32 inputs: their error
// against the exact product in f64 is that of rounding the output. Beside it stands what the same
// numbers lose when they are quantised again with one scale for each 128.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/formats.h"
#include "kernels/ops/gemm.h"
#include "tests/kernels/buffer.h"
#include "tests/kernels/judged_backends.h"

namespace skein::kernels {
namespace {

constexpr int kRows = 16;
constexpr int kChannels = 256;
constexpr int kUnit = 32;

struct Shape {
  const char* name;
  int inputs;
  bool packed;  // e2m1 weights, a scale for each row and 32 inputs; else e4m3 by blocks of 32 x 32
};

// Codes, scales and the numbers they stand for.
struct Coded {
  Buffer codes, scale;
  std::vector<double> value;
};

// Bell-shaped numbers whose size changes by up to four times from one scale to the next.
Coded MakeCoded(std::mt19937& random, int rows, int inputs, int scale_rows, bool packed) {
  const CodeFormat format = packed ? CodeFormat::kE2m1Ue8m0 : CodeFormat::kE4m3Ue8m0;
  Coded out;
  out.codes =
      packed ? Buffer(DType::kE2m1x2, {rows, inputs / 2}) : Buffer(DType::kE4m3, {rows, inputs});
  out.scale = Buffer(DType::kE8m0, {rows / scale_rows, inputs / kUnit});
  out.value.resize(static_cast<size_t>(rows) * static_cast<size_t>(inputs));
  std::normal_distribution<double> bell;
  std::uniform_real_distribution<double> octaves(0, 2);
  for (int r0 = 0; r0 < rows; r0 += scale_rows) {
    for (int c0 = 0; c0 < inputs; c0 += kUnit) {
      const double size = std::exp2(octaves(random));
      std::vector<double> drawn(static_cast<size_t>(scale_rows * kUnit));
      double largest = 1e-30;
      for (double& d : drawn) {
        d = bell(random) * size;
        largest = std::max(largest, std::fabs(d));
      }
      const GroupScale scale = ScaleOfGroup(format, static_cast<float>(largest));
      out.scale.as<uint8_t>()[r0 / scale_rows * (inputs / kUnit) + c0 / kUnit] = scale.byte;
      for (int i = 0; i < scale_rows * kUnit; ++i) {
        const int row = r0 + i / kUnit, column = c0 + i % kUnit;
        const auto number = static_cast<float>(drawn[static_cast<size_t>(i)]);
        const uint8_t code = EncodeInGroup(format, number, scale.value);
        const auto at =
            static_cast<size_t>(row) * static_cast<size_t>(inputs) + static_cast<size_t>(column);
        out.value[at] = double{DecodeCode(format, code)} * scale.value;
        uint8_t& byte = out.codes.as<uint8_t>()[packed ? at / 2 : at];
        byte = packed && column % 2 != 0 ? static_cast<uint8_t>(byte | code << 4) : code;
      }
    }
  }
  return out;
}

// The numbers as e4m3 codes with one f32 scale for each block of `rows` by 128.
std::vector<double> Requantised(const std::vector<double>& value, int inputs, int scale_rows) {
  std::vector<double> out(value.size());
  const int rows = static_cast<int>(value.size()) / inputs;
  for (int r0 = 0; r0 < rows; r0 += scale_rows) {
    for (int c0 = 0; c0 < inputs; c0 += 128) {
      const auto each = [&](auto visit) {
        for (int r = r0; r < std::min(r0 + scale_rows, rows); ++r) {
          for (int c = c0; c < c0 + 128; ++c)
            visit(static_cast<size_t>(r) * static_cast<size_t>(inputs) + static_cast<size_t>(c));
        }
      };
      double largest = 1e-30;
      each([&](size_t at) { largest = std::max(largest, std::fabs(value[at])); });
      const auto scale = static_cast<float>(largest / 448);
      each([&](size_t at) {
        out[at] = double{DecodeE4m3(EncodeE4m3(static_cast<float>(value[at] / scale)))} * scale;
      });
    }
  }
  return out;
}

// Outputs by row in f64.
std::vector<double> Product(const std::vector<double>& x, const std::vector<double>& w,
                            int inputs) {
  std::vector<double> out;
  const auto width = static_cast<size_t>(inputs);
  for (size_t t = 0; t < kRows; ++t) {
    for (size_t n = 0; n < kChannels; ++n) {
      double sum = 0;
      for (size_t i = 0; i < width; ++i) sum += x[t * width + i] * w[n * width + i];
      out.push_back(sum);
    }
  }
  return out;
}

// Root of the mean square error over that of the exact numbers.
double RelativeError(const std::vector<double>& exact, const std::vector<double>& actual) {
  double error = 0, size = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += (actual[i] - exact[i]) * (actual[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  return std::sqrt(error / size);
}

template <typename Op>
void RunOn(const KernelRegistry& registry, const std::string& backend,
           const typename Op::Problem& problem, const typename Op::Args& args) {
  const KernelVariant<Op>* variant = registry.Find<Op>(backend);
  ASSERT_NE(variant, nullptr) << backend;
  ASSERT_TRUE(variant->supports(problem).ok()) << variant->supports(problem);
  TestWorkspace workspace(variant->workspace_bytes(problem));
  absl::Status status = variant->run(problem, args, workspace.get(), JudgedStream(backend));
  if (status.ok()) status = FinishCall(backend);
  ASSERT_TRUE(status.ok()) << status;
}

TEST(KeptScales, TheErrorIsThatOfTheOutput) {
  KernelRegistry registry;
  ASSERT_TRUE(RegisterJudged(registry).ok());
  std::mt19937 random(7);
  for (const Shape& shape : {Shape{"q_a 5120", 5120, false}, Shape{"q_b 1280", 1280, false},
                             Shape{"o_b 8192", 8192, false}, Shape{"experts up 5120", 5120, true},
                             Shape{"experts down 2304", 2304, true}}) {
    SCOPED_TRACE(shape.name);
    Coded x = MakeCoded(random, kRows, shape.inputs, 1, false);
    Coded w = MakeCoded(random, kChannels, shape.inputs, shape.packed ? 1 : kUnit, shape.packed);
    const std::vector<double> exact = Product(x.value, w.value, shape.inputs);
    const double again = RelativeError(
        exact, Product(Requantised(x.value, shape.inputs, 1),
                       Requantised(w.value, shape.inputs, shape.packed ? 1 : 128), shape.inputs));
    for (const std::string& backend : registry.Backends()) {
      Buffer y(DType::kBf16, {kRows, kChannels});
      if (shape.packed) {
        Buffer offset(DType::kI32, {2});
        offset.as<int32_t>()[0] = 0;
        offset.as<int32_t>()[1] = kRows;
        const std::vector<Weight> weights = {{w.codes.view(), w.scale.view()}};
        ExpertLinear::Args args;
        args.expert_offset = offset.view();
        args.x = x.codes.view();
        args.x_scale = x.scale.view();
        args.w = weights;
        args.y = y.view();
        ExpertLinear::Problem problem;
        problem.num_experts = 1;
        problem.n = kChannels;
        problem.k = shape.inputs;
        problem.max_rows = kRows;
        RunOn<ExpertLinear>(registry, backend, problem, args);
      } else {
        Linear::Args args;
        args.x = x.codes.view();
        args.x_scale = x.scale.view();
        args.w = {w.codes.view(), w.scale.view()};
        args.y = y.view();
        RunOn<Linear>(registry, backend,
                      {kChannels, shape.inputs, WeightFormat::kE4m3Block, kUnit, DType::kE4m3,
                       DType::kBf16, false, kRows},
                      args);
      }
      const double kept = RelativeError(exact, y.Values());
      std::printf("%s, %s: kept %.2e, per 128 %.2e\n", backend.c_str(), shape.name, kept, again);
      EXPECT_LE(kept, 3e-3) << backend;
      EXPECT_GE(again, 5 * kept) << backend;
    }
  }
}

}  // namespace
}  // namespace skein::kernels
