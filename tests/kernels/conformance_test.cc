// Every variant of every operator of the registry against the reference, and the promises that all
// of them make: a row's bits depend on the row alone, on neither instruction set nor threads;
// nothing outside the outputs is written and everything inside is; NaN in one row stays there.
#include "tests/kernels/conformance.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include <gtest/gtest.h>

#include "kernels/ops/sampling.h"
#include "kernels/reference/register.h"
#include "tests/kernels/judged_backends.h"

namespace skein::kernels {
namespace {

// The reference and the judged backends.
const KernelRegistry& Registry() {
  static const KernelRegistry* registry = [] {
    auto* built = new KernelRegistry;
    EXPECT_TRUE(RegisterReferenceKernels(*built).ok());
    EXPECT_TRUE(RegisterJudged(*built).ok());
    return built;
  }();
  return *registry;
}

// Backends that are measured, in contrast to the one that measures.
std::vector<std::string> Judged() {
  std::vector<std::string> names = Registry().Backends();
  std::erase(names, "reference");
  return names;
}

Instance RunOn(const Case& test, const Rows& rows, std::string_view backend) {
  Instance instance = test.make(rows);
  const absl::Status supported = instance.supports(Registry(), backend);
  EXPECT_TRUE(supported.ok()) << supported;
  absl::Status status = instance.run(Registry(), backend, JudgedStream(backend));
  if (status.ok()) status = FinishCall(backend);
  EXPECT_TRUE(status.ok()) << status;
  return instance;
}

// Largest |y - o| of a row over the largest |o| of it; infinities must agree and count as 0.
double RowError(const std::vector<double>& expected, const std::vector<double>& actual,
                size_t begin, size_t end) {
  double largest = 1e-30;
  double error = 0;
  for (size_t i = begin; i < end; ++i) {
    if (expected[i] == actual[i]) {
      if (std::isfinite(expected[i])) largest = std::max(largest, std::fabs(expected[i]));
      continue;
    }
    largest = std::max(largest, std::fabs(expected[i]));
    const double difference = std::fabs(actual[i] - expected[i]);
    error = std::isnan(difference) || std::isinf(difference) ? 1e30 : std::max(error, difference);
  }
  return error / largest;
}

double LargestRowError(const Output& expected, const Output& actual) {
  const std::vector<double> o = expected.buffer->Values();
  const std::vector<double> y = actual.buffer->Values();
  const int64_t rows = expected.buffer->view().dim(0);
  const size_t width = rows == 0 ? 0 : o.size() / static_cast<size_t>(rows);
  double error = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (expected.skipped.count(r) != 0) continue;
    const size_t begin = static_cast<size_t>(r) * width;
    error = std::max(error, RowError(o, y, begin, begin + width));
  }
  return error;
}

// T2: 99.9 % equal, none off by more than two bf16 steps at the larger of |o| and 2^-6 of the row.
void ExpectBf16(const Output& expected, const Output& actual) {
  const std::vector<double> o = expected.buffer->Values();
  const std::vector<double> y = actual.buffer->Values();
  const int64_t rows = expected.buffer->view().dim(0);
  const size_t width = rows == 0 ? 0 : o.size() / static_cast<size_t>(rows);
  size_t different = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (expected.skipped.count(r) != 0) continue;
    double largest = 0;
    for (size_t i = 0; i < width; ++i) {
      largest = std::max(largest, std::fabs(o[static_cast<size_t>(r) * width + i]));
    }
    for (size_t i = static_cast<size_t>(r) * width; i < static_cast<size_t>(r + 1) * width; ++i) {
      if (o[i] == y[i]) continue;
      ++different;
      const double magnitude = std::max(std::fabs(o[i]), largest * 0x1p-6);
      const double step = std::ldexp(1.0, std::ilogb(magnitude) - 7);
      ASSERT_LE(std::fabs(o[i] - y[i]), 2 * step) << "row " << r << " element " << i;
    }
  }
  EXPECT_LE(static_cast<double>(different), 0.001 * static_cast<double>(o.size()) + 1);
}

// T3: row error and similarity defect of products and attention.
void ExpectProduct(const Output& expected, const Output& actual) {
  EXPECT_LE(LargestRowError(expected, actual), 0x1p-7);
  const std::vector<double> o = expected.buffer->Values();
  const std::vector<double> y = actual.buffer->Values();
  const int64_t rows = expected.buffer->view().dim(0);
  const size_t width = rows == 0 ? 1 : o.size() / static_cast<size_t>(rows);
  double both = 0;
  double own = 0;
  for (size_t i = 0; i < o.size(); ++i) {
    if (expected.skipped.count(static_cast<int64_t>(i / width)) != 0) continue;
    both += 2 * o[i] * y[i];
    own += o[i] * o[i] + y[i] * y[i];
  }
  EXPECT_LE(own > 0 ? 1 - both / own : 0.0, 5e-6);
}

// Equal infinities are equal; others agree to f32 precision.
void ExpectLogprob(float expected, float actual, int64_t row) {
  if (expected == actual) return;
  EXPECT_NEAR(expected, actual, 1e-6 + 1e-6 * std::fabs(expected)) << row;
}

void ExpectRecords(Output& expected, Output& actual) {
  const SampleRecord* o = expected.buffer->as<SampleRecord>();
  const SampleRecord* y = actual.buffer->as<SampleRecord>();
  for (int64_t r = 0; r < expected.buffer->view().dim(0); ++r) {
    EXPECT_EQ(o[r].token, y[r].token) << r;
    EXPECT_EQ(o[r].argmax, y[r].argmax) << r;
    EXPECT_EQ(o[r].flags, y[r].flags) << r;
    ExpectLogprob(o[r].logprob, y[r].logprob, r);
    ExpectLogprob(o[r].argmax_logprob, y[r].argmax_logprob, r);
  }
}

void ExpectWithin(Output& expected, Output& actual, const Output& naive) {
  SCOPED_TRACE("output " + expected.name);
  switch (expected.tolerance) {
    case Tolerance::kBits:
      EXPECT_EQ(expected.buffer->bytes(), actual.buffer->bytes());
      return;
    case Tolerance::kF32: {
      const double error = LargestRowError(expected, actual);
      const double naive_error = LargestRowError(expected, naive);
      EXPECT_LE(error, expected.steps * 0x1p-24);
      EXPECT_LE(error, 4 * naive_error + 0x1p-23);
      return;
    }
    case Tolerance::kBf16:
      ExpectBf16(expected, actual);
      return;
    case Tolerance::kProduct:
      ExpectProduct(expected, actual);
      return;
    case Tolerance::kRecord:
      ExpectRecords(expected, actual);
      return;
  }
}

class Conformance : public ::testing::TestWithParam<size_t> {
 protected:
  const Case& test() const { return cases_[GetParam()]; }
  void SetUp() override { SCOPED_TRACE(std::string(OpName(test().op)) + ", " + test().name); }
  const std::vector<Case> cases_ = AllCases();
};

TEST_P(Conformance, MatchesTheReference) {
  for (const std::string& backend : Judged()) {
    SCOPED_TRACE(backend + " " + std::string(OpName(test().op)) + ", " + test().name);
    const uint32_t most = test().rows_max > 64 ? 2u : 64u;
    for (const auto& [first, count] : {std::pair{0u, 1u}, std::pair{3u, 7u}, std::pair{0u, most}}) {
      Instance expected = RunOn(test(), Ids(first, count), "reference");
      const Instance naive = RunOn(test(), Ids(first, count), "reference-float");
      Instance actual = RunOn(test(), Ids(first, count), backend);
      for (size_t i = 0; i < expected.outputs.size(); ++i) {
        ExpectWithin(expected.outputs[i], actual.outputs[i], naive.outputs[i]);
      }
    }
  }
}

TEST_P(Conformance, WritesItsOutputsAndNothingElse) {
  for (const std::string& backend : Registry().Backends()) {
    SCOPED_TRACE(backend + " " + std::string(OpName(test().op)) + ", " + test().name);
    const Instance one = RunOn(test(), Ids(0, 17, 0xA5), backend);
    const Instance two = RunOn(test(), Ids(0, 17, 0xFF), backend);
    const Instance untouched = test().make(Ids(0, 17, 0xA5));
    for (size_t i = 0; i < one.inputs.size(); ++i) {
      EXPECT_EQ(one.inputs[i]->bytes(), untouched.inputs[i]->bytes()) << "input " << i;
    }
    for (size_t i = 0; i < one.outputs.size(); ++i) {
      const Output& output = one.outputs[i];
      EXPECT_TRUE(output.buffer->GuardsIntact()) << output.name;
      EXPECT_TRUE(two.outputs[i].buffer->GuardsIntact()) << output.name;
      for (const int64_t row : output.skipped) {
        EXPECT_EQ(output.buffer->RowBytes(row), untouched.outputs[i].buffer->RowBytes(row))
            << output.name << " skipped row " << row;
      }
      // Pools are written in part: what the call leaves alone keeps its fill.
      const bool pool = !output.per_row && output.buffer->view().dtype == DType::kU8;
      if (pool) continue;
      if (!output.per_row) {
        EXPECT_EQ(output.buffer->Values(), two.outputs[i].buffer->Values()) << output.name;
      }
    }
    if (!one.outputs.empty() && one.outputs[0].per_row) ExpectSameBits(one, two);
  }
}

// Cases whose outputs are per row.
class RowConformance : public Conformance {};
// Of them those that a NaN does not end.
class PoisonConformance : public Conformance {};

TEST_P(RowConformance, ARowIsItsOwnWhateverTheBatch) {
  for (const std::string& backend : test().rows_max > 64 ? Judged() : Registry().Backends()) {
    SCOPED_TRACE(backend + " " + std::string(OpName(test().op)) + ", " + test().name);
    const Instance all = RunOn(test(), Ids(0, test().rows_max), backend);
    for (const auto& [first, count] : {std::pair{0u, 1u}, std::pair{37u, 1u}, std::pair{63u, 1u},
                                       std::pair{30u, 7u}, std::pair{2u, 33u}}) {
      const Instance some = RunOn(test(), Ids(first, count), backend);
      for (size_t i = 0; i < all.outputs.size(); ++i) {
        for (uint32_t r = 0; r < count; ++r) {
          if (some.outputs[i].skipped.count(r) != 0) continue;
          ASSERT_EQ(some.outputs[i].buffer->RowBytes(r), all.outputs[i].buffer->RowBytes(first + r))
              << all.outputs[i].name << " row " << r << " of " << count << " from " << first;
        }
      }
    }
  }
}

TEST_P(PoisonConformance, NanOfNeighboursDoesNotLeak) {
  for (const std::string& backend : Registry().Backends()) {
    SCOPED_TRACE(backend + " " + std::string(OpName(test().op)) + ", " + test().name);
    const Instance clean = RunOn(test(), Ids(0, 21), backend);
    Rows rows = Ids(0, 21);
    for (uint32_t id = 0; id < 21; id += 2) rows.poisoned.insert(id);
    const Instance poisoned = RunOn(test(), rows, backend);
    for (size_t i = 0; i < clean.outputs.size(); ++i) {
      for (int64_t r = 1; r < 21; r += 2) {
        if (clean.outputs[i].skipped.count(r) != 0) continue;
        EXPECT_EQ(clean.outputs[i].buffer->RowBytes(r), poisoned.outputs[i].buffer->RowBytes(r))
            << clean.outputs[i].name << " row " << r;
      }
    }
  }
}

TEST_P(Conformance, EmptyInputWritesNothing) {
  for (const std::string& backend : Registry().Backends()) {
    SCOPED_TRACE(backend + " " + std::string(OpName(test().op)) + ", " + test().name);
    const Instance empty = RunOn(test(), Ids(0, 0), backend);
    for (const Output& output : empty.outputs) {
      if (output.per_row) {
        EXPECT_EQ(output.buffer->view().size(), 0);
        EXPECT_TRUE(output.buffer->GuardsIntact());
      }
    }
  }
}

// Indices of the cases for which `applies` holds.
std::vector<size_t> Indices(const std::function<bool(const Case&)>& applies) {
  const std::vector<Case> cases = AllCases();
  std::vector<size_t> indices;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (applies(cases[i])) indices.push_back(i);
  }
  return indices;
}

INSTANTIATE_TEST_SUITE_P(All, Conformance,
                         ::testing::ValuesIn(Indices([](const Case&) { return true; })),
                         &CaseNameOf<::testing::TestParamInfo<size_t>>);
INSTANTIATE_TEST_SUITE_P(All, RowConformance, ::testing::ValuesIn(Indices([](const Case& c) {
                           return c.rows_independent;
                         })),
                         &CaseNameOf<::testing::TestParamInfo<size_t>>);
INSTANTIATE_TEST_SUITE_P(All, PoisonConformance, ::testing::ValuesIn(Indices([](const Case& c) {
                           return c.rows_independent && !c.nan_is_error;
                         })),
                         &CaseNameOf<::testing::TestParamInfo<size_t>>);

TEST(ConformanceCoverage, EveryRegisteredOperatorHasACase) {
  const std::vector<Case> cases = AllCases();
  for (const std::string& backend : Registry().Backends()) {
    for (const OpId op : Registry().Operators(backend)) {
      EXPECT_TRUE(
          std::any_of(cases.begin(), cases.end(), [op](const Case& test) { return test.op == op; }))
          << backend << " " << OpName(op) << " has no conformance case";
    }
    EXPECT_EQ(Registry().Operators(backend).size(), static_cast<size_t>(kNumOps))
        << backend << " lacks an operator";
  }
}

}  // namespace
}  // namespace skein::kernels
