// The bits of the cpu matrix products: equal for scalar, AVX2 and AVX-512 where there is one, for
// any number of threads, and for a row alone or among others, at M = 1..64, with tails in K and odd
// N, in every weight format.
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/arg_check.h"
#include "kernels/cpu/register.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/reference/register.h"
#include "tests/kernels/buffer.h"

namespace skein::kernels {
namespace {

struct Shape {
  WeightFormat format;
  DType x_dtype;
  int n;
  int k;
  DType y_dtype = DType::kF32;
};

// A weight with a realistic spread of scales, and activations whose row depends on its id alone.
struct LinearData {
  Linear::Problem problem;
  Buffer codes, scale, x, x_scale;
};

Buffer RandomBytes(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed, bool scales) {
  Buffer buffer(dtype, shape);
  TestRandom random(seed, 0);
  buffer.Fill([&](int64_t) {
    if (scales) return static_cast<double>(118 + random.Below(6));
    const int64_t code = random.Below(256);
    return static_cast<double>((code & 0x7F) == 0x7F ? 0x10 : code);
  });
  return buffer;
}

Buffer RandomWeight(const Shape& shape, DType dtype) {
  Buffer buffer(dtype, {shape.n, shape.k});
  TestRandom random(5, 1);
  buffer.Fill([&](int64_t) { return random.Bell(); });
  return buffer;
}

LinearData Make(const Shape& shape, const std::vector<uint32_t>& ids) {
  LinearData data;
  data.problem = {shape.n,       shape.k,       shape.format, 32,
                  shape.x_dtype, shape.y_dtype, false,        static_cast<int>(ids.size())};
  const int64_t rows = static_cast<int64_t>(ids.size());
  const int64_t units = (shape.k + 31) / 32;
  switch (shape.format) {
    case WeightFormat::kE4m3Block:
      data.codes = RandomBytes(DType::kE4m3, {shape.n, shape.k}, 1, false);
      data.scale = RandomBytes(DType::kE8m0, {(shape.n + 31) / 32, units}, 2, true);
      break;
    case WeightFormat::kE2m1Row32:
      data.codes = RandomBytes(DType::kE2m1x2, {shape.n, (shape.k + 1) / 2}, 1, false);
      data.scale = RandomBytes(DType::kE8m0, {shape.n, units}, 2, true);
      break;
    case WeightFormat::kBf16:
      data.codes = RandomWeight(shape, DType::kBf16);
      break;
    case WeightFormat::kF32:
      data.codes = RandomWeight(shape, DType::kF32);
      break;
  }
  data.x = Buffer(shape.x_dtype, {rows, shape.k}, 3);
  data.x_scale = Buffer(DType::kE8m0, {rows, units}, 1);
  for (int64_t r = 0; r < rows; ++r) {
    TestRandom random(9, ids[static_cast<size_t>(r)]);
    data.x.FillRow(r, [&](int64_t) {
      if (shape.x_dtype != DType::kE4m3) return static_cast<double>(random.Bell());
      const int64_t code = random.Below(256);
      return static_cast<double>((code & 0x7F) == 0x7F ? 0x10 : code);
    });
    data.x_scale.FillRow(r, [&](int64_t) { return static_cast<double>(120 + random.Below(5)); });
  }
  return data;
}

Buffer Product(const KernelRegistry& registry, std::string_view backend, const LinearData& data,
               cpu::ThreadPool* pool) {
  const KernelVariant<Linear>* variant = registry.Find<Linear>(backend);
  EXPECT_TRUE(variant->supports(data.problem).ok());
  Buffer y(data.problem.y_dtype, {data.x.view().dim(0), data.problem.n}, 5);
  TestWorkspace workspace(variant->workspace_bytes(data.problem));
  Linear::Args args;
  args.x = data.x.view();
  if (data.problem.x_dtype == DType::kE4m3) args.x_scale = data.x_scale.view();
  args.w.codes = data.codes.view();
  if (data.problem.format == WeightFormat::kE4m3Block ||
      data.problem.format == WeightFormat::kE2m1Row32) {
    args.w.scale = data.scale.view();
  }
  args.y = y.view();
  const absl::Status status = variant->run(data.problem, args, workspace.get(), {pool});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(y.GuardsIntact());
  return y;
}

class LinearBits : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(cpu::RegisterGemm(scalar_, CpuIsa::kScalar).ok());
    ASSERT_TRUE(cpu::RegisterGemm(fast_, CpuHasAvx2() ? CpuIsa::kAvx2 : CpuIsa::kScalar).ok());
    ASSERT_TRUE(cpu::RegisterGemm(wide_, CpuHasAvx512() ? CpuIsa::kAvx512 : CpuIsa::kScalar).ok());
    ASSERT_TRUE(reference::RegisterGemm(oracle_).ok());
  }
  KernelRegistry scalar_, fast_, wide_, oracle_;
};

TEST_P(LinearBits, DependOnTheRowAlone) {
  cpu::ThreadPool two(2), three(3);
  std::vector<uint32_t> all;
  for (uint32_t id = 0; id < 64; ++id) all.push_back(id);
  std::vector<std::vector<uint8_t>> alone;
  for (const uint32_t id : all) {
    alone.push_back(Product(fast_, "cpu", Make(GetParam(), {id}), nullptr).RowBytes(0));
  }
  for (size_t rows = 1; rows <= 64; ++rows) {
    // A batch of `rows` ending with the last ids, so that places differ from ids.
    const std::vector<uint32_t> ids(all.end() - static_cast<int64_t>(rows), all.end());
    const LinearData data = Make(GetParam(), ids);
    const Buffer y = Product(fast_, "cpu", data, nullptr);
    for (size_t r = 0; r < rows; ++r) {
      ASSERT_EQ(y.RowBytes(static_cast<int64_t>(r)), alone[ids[r]]) << rows << " " << r;
    }
    ASSERT_EQ(Product(fast_, "cpu", data, &two).bytes(), y.bytes()) << rows;
    ASSERT_EQ(Product(fast_, "cpu", data, &three).bytes(), y.bytes()) << rows;
    ASSERT_EQ(Product(scalar_, "cpu", data, nullptr).bytes(), y.bytes()) << rows;
    ASSERT_EQ(Product(scalar_, "cpu", data, &two).bytes(), y.bytes()) << rows;
    ASSERT_EQ(Product(wide_, "cpu", data, nullptr).bytes(), y.bytes()) << rows;
  }
}

// More rows than the panel keeps sums of at a time.
TEST_P(LinearBits, OfManyRowsAreThoseOfEachAlone) {
  cpu::ThreadPool three(3);
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < 203; ++id) ids.push_back(id);
  const Buffer y = Product(fast_, "cpu", Make(GetParam(), ids), &three);
  ASSERT_EQ(Product(wide_, "cpu", Make(GetParam(), ids), nullptr).bytes(), y.bytes());
  for (const uint32_t id : ids) {
    ASSERT_EQ(y.RowBytes(id), Product(scalar_, "cpu", Make(GetParam(), {id}), nullptr).RowBytes(0))
        << id;
  }
}

TEST_P(LinearBits, StayCloseToTheDoubleProduct) {
  LinearData data = Make(GetParam(), {3, 1, 4, 15});
  data.problem.y_dtype = DType::kF32;
  const std::vector<double> expected = Product(oracle_, "reference", data, nullptr).Values();
  const std::vector<double> naive = Product(oracle_, "reference-float", data, nullptr).Values();
  const std::vector<double> y = Product(fast_, "cpu", data, nullptr).Values();
  double largest = 0, error = 0, naive_error = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    largest = std::max(largest, std::fabs(expected[i]));
    error = std::max(error, std::fabs(y[i] - expected[i]));
    naive_error = std::max(naive_error, std::fabs(naive[i] - expected[i]));
  }
  EXPECT_GT(largest, 0.1);
  EXPECT_LE(error / largest, 4 * naive_error / largest + 0x1p-23);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LinearBits,
    ::testing::Values(Shape{WeightFormat::kE4m3Block, DType::kE4m3, 193, 192},
                      Shape{WeightFormat::kE2m1Row32, DType::kE4m3, 130, 320},
                      Shape{WeightFormat::kE4m3Block, DType::kE4m3, 67, 75},
                      Shape{WeightFormat::kE2m1Row32, DType::kE4m3, 33, 90},
                      Shape{WeightFormat::kE4m3Block, DType::kBf16, 31, 64},
                      Shape{WeightFormat::kBf16, DType::kBf16, 101, 133},
                      Shape{WeightFormat::kF32, DType::kF32, 24, 768},
                      Shape{WeightFormat::kE4m3Block, DType::kE4m3, 9, 1100},
                      Shape{WeightFormat::kE2m1Row32, DType::kE4m3, 6, 1090},
                      Shape{WeightFormat::kBf16, DType::kBf16, 5, 1024},
                      Shape{WeightFormat::kF32, DType::kBf16, 7, 13},
                      Shape{WeightFormat::kE4m3Block, DType::kE4m3, 38, 192, DType::kBf16},
                      Shape{WeightFormat::kE2m1Row32, DType::kE4m3, 70, 192, DType::kBf16},
                      Shape{WeightFormat::kE2m1Row32, DType::kE4m3, 33, 64},
                      Shape{WeightFormat::kBf16, DType::kBf16, 42, 200, DType::kBf16},
                      Shape{WeightFormat::kE4m3Block, DType::kE4m3, 12, 1056, DType::kBf16}));

// One block of K at a time is non-zero, with a scale of its own: a scale read from the wrong place
// shows at once.
TEST(LinearScales, EachBlockUsesItsOwnScale) {
  KernelRegistry registry;
  ASSERT_TRUE(cpu::RegisterGemm(registry, CpuIsa::kAuto).ok());
  for (const WeightFormat format : {WeightFormat::kE4m3Block, WeightFormat::kE2m1Row32}) {
    for (int block = 0; block < 4; ++block) {
      LinearData data = Make({format, DType::kE4m3, 70, 128}, {0});
      data.codes.Fill([&](int64_t) { return format == WeightFormat::kE4m3Block ? 0x38 : 0x22; });
      data.scale.Fill([&](int64_t flat) { return static_cast<double>(100 + flat % 41); });
      data.x.Fill([&](int64_t flat) { return flat / 32 == block ? 0x38 : 0; });
      data.x_scale.Fill([&](int64_t flat) { return static_cast<double>(120 + 3 * flat); });
      const std::vector<double> y = Product(registry, "cpu", data, nullptr).Values();
      for (int n = 0; n < 70; ++n) {
        const int row = format == WeightFormat::kE4m3Block ? n / 32 : n;
        const int exponent = (100 + (row * 4 + block) % 41 - 127) + (120 + 3 * block - 127);
        ASSERT_EQ(y[static_cast<size_t>(n)], std::ldexp(32.0, exponent)) << n << " " << block;
      }
    }
  }
}

TEST(LinearScales, BytesTooLargeOrNanPoisonTheirRowsAlone) {
  KernelRegistry registry;
  ASSERT_TRUE(cpu::RegisterGemm(registry, CpuIsa::kAuto).ok());
  LinearData data = Make({WeightFormat::kE2m1Row32, DType::kE4m3, 40, 64}, {0, 1});
  data.scale.as<uint8_t>()[2 * 3] = 255;
  data.scale.as<uint8_t>()[2 * 5 + 1] = 247;
  data.x_scale.FillRow(1, [](int64_t) { return 255; });
  const std::vector<double> y = Product(registry, "cpu", data, nullptr).Values();
  for (size_t n = 0; n < 40; ++n) {
    EXPECT_EQ(std::isnan(y[n]), n == 3 || n == 5) << n;
    EXPECT_TRUE(std::isnan(y[40 + n]));
  }
}

// Small codes make low parts of the integers, scales at the edges go where no product may.
TEST(LinearScales, SmallCodesAndEdgesOfTheScalesHaveTheSameBits) {
  KernelRegistry scalar, fast;
  ASSERT_TRUE(cpu::RegisterGemm(scalar, CpuIsa::kScalar).ok());
  ASSERT_TRUE(cpu::RegisterGemm(fast, CpuIsa::kAuto).ok());
  for (const WeightFormat format : {WeightFormat::kE4m3Block, WeightFormat::kE2m1Row32}) {
    for (const int first : {72, 100, 132, 174}) {
      for (const auto& [rows, k] : std::initializer_list<std::pair<uint32_t, int>>{
               {1, 352}, {4, 352}, {9, 352}, {1, 192}, {4, 192}, {9, 192}}) {
        std::vector<uint32_t> ids;
        for (uint32_t id = 0; id < rows; ++id) ids.push_back(id);
        LinearData data = Make({format, DType::kE4m3, 37, k}, ids);
        data.scale.Fill([&](int64_t flat) { return static_cast<double>(first + flat % 6); });
        data.x_scale.Fill([&](int64_t flat) { return static_cast<double>(first + flat % 5); });
        data.x.Fill([&](int64_t flat) {
          return static_cast<double>(flat / 32 % 3 == 0 ? flat % 48 : flat % 126);
        });
        const std::vector<double> a = Product(scalar, "cpu", data, nullptr).Values();
        const std::vector<double> b = Product(fast, "cpu", data, nullptr).Values();
        for (size_t i = 0; i < a.size(); ++i) {
          ASSERT_EQ(std::isnan(a[i]), std::isnan(b[i])) << first << " " << rows << " " << i;
          if (std::isnan(a[i])) continue;
          ASSERT_EQ(a[i], b[i]) << first << " " << rows << " " << i;
        }
        ASSERT_EQ(std::isnan(a[0]), first == 72 || first == 174) << first;
      }
    }
  }
}

// A block of zeros may have any scale.
TEST(LinearScales, ZerosUnderAScaleThatNoProductTakesAreZeros) {
  KernelRegistry registry;
  ASSERT_TRUE(cpu::RegisterGemm(registry, CpuIsa::kAuto).ok());
  for (const WeightFormat format : {WeightFormat::kE4m3Block, WeightFormat::kE2m1Row32}) {
    for (const uint32_t rows : {1U, 8U}) {
      std::vector<uint32_t> ids(rows, 3);
      LinearData data = Make({format, DType::kE4m3, 32, 64}, ids);
      data.codes.Fill([](int64_t) { return 0; });
      data.scale.Fill([](int64_t flat) { return static_cast<double>(flat % 2 == 0 ? 0 : 255); });
      for (const double value : Product(registry, "cpu", data, nullptr).Values()) {
        ASSERT_EQ(value, 0.0);
      }
    }
  }
}

TEST(LinearErrors, NameWhatIsMissing) {
  KernelRegistry registry;
  ASSERT_TRUE(cpu::RegisterGemm(registry, CpuIsa::kAuto).ok());
  Linear::Problem problem = {8, 64, WeightFormat::kE4m3Block, 48, DType::kF64, DType::kF64};
  EXPECT_EQ(registry.Find<Linear>("cpu")->supports(problem).message(),
            "x: required f64, supported e4m3, bf16 or f32; y: required f64, supported bf16 or f32; "
            "block: required 48, supported powers of two from 32");
  LinearData data = Make({WeightFormat::kBf16, DType::kBf16, 8, 64}, {0, 1});
  Buffer y(DType::kF32, {2, 8});
  Linear::Args args;
  args.x = data.x.view();
  args.w.codes = data.codes.view();
  args.y = y.view();
  EXPECT_EQ(registry.Find<Linear>("cpu")->run(data.problem, args, {}, {}).message(),
            "linear: workspace has 0 bytes, the call needs 1536; raise max_rows of the problem");
  args.y = MakeView(y.as<float>(), DType::kF32, {2, 7});
  EXPECT_EQ(registry.Find<Linear>("cpu")->run(data.problem, args, {}, {}).message(),
            "linear: y is [2, 7] f32, expected [2, 8] f32");
}

}  // namespace
}  // namespace skein::kernels
