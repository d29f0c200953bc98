// The sampler: known logprobs, what each truncation keeps, the distribution of its draws, and that
// a draw depends on seed, position and logits alone.
#include "kernels/ops/sampling.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "kernels/cpu/register.h"
#include "kernels/exact_math.h"
#include "kernels/reference/register.h"
#include "tests/kernels/buffer.h"

namespace skein::kernels {
namespace {

class Sampling : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(reference::RegisterSampling(registry_).ok());
    ASSERT_TRUE(cpu::RegisterSampling(registry_, CpuIsa::kScalar).ok());
    ASSERT_TRUE(cpu::RegisterVerification(registry_, CpuIsa::kScalar).ok());
  }
  // One record per parameter set, all on the same logits.
  std::vector<SampleRecord> Draw(const std::vector<float>& logits,
                                 const std::vector<SampleParams>& params) {
    const int64_t rows = static_cast<int64_t>(params.size());
    const int64_t vocab = static_cast<int64_t>(logits.size());
    std::vector<float> all;
    for (int64_t r = 0; r < rows; ++r) all.insert(all.end(), logits.begin(), logits.end());
    std::vector<SampleRecord> records(params.size());
    const SampleTokens::Problem problem{static_cast<int>(vocab), 0, DType::kF32,
                                        static_cast<int>(rows)};
    SampleTokens::Args args;
    args.logits = MakeView(all.data(), DType::kF32, {rows, vocab});
    args.params =
        MakeView(params.data(), DType::kU8, {rows, static_cast<int64_t>(sizeof(SampleParams))});
    args.record =
        MakeView(records.data(), DType::kU8, {rows, static_cast<int64_t>(sizeof(SampleRecord))});
    const KernelVariant<SampleTokens>* variant = registry_.Find<SampleTokens>(GetParam());
    TestWorkspace workspace(variant->workspace_bytes(problem));
    EXPECT_TRUE(variant->run(problem, args, workspace.get(), {}).ok());
    return records;
  }
  // Tokens that occur in many draws, with their counts.
  std::map<int32_t, int> Counts(const std::vector<float>& logits, SampleParams params, int draws) {
    std::vector<SampleParams> all;
    for (int i = 0; i < draws; ++i) {
      params.seed = 0x9E3779B97F4A7C15ull * static_cast<uint64_t>(i + 1);
      params.position = static_cast<uint32_t>(i % 97);
      all.push_back(params);
    }
    std::map<int32_t, int> counts;
    for (const SampleRecord& record : Draw(logits, all)) ++counts[record.token];
    return counts;
  }
  KernelRegistry registry_;
};

INSTANTIATE_TEST_SUITE_P(Backends, Sampling, ::testing::Values("cpu", "reference"),
                         [](const auto& backend) { return backend.param; });

std::vector<float> Logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3));
  return logits;
}

TEST_P(Sampling, LogprobOfATwoTokenUniformRow) {
  SampleParams params;
  params.temperature = 0;
  const SampleRecord record = Draw({5, 5}, {params})[0];
  EXPECT_EQ(record.token, 0);
  EXPECT_EQ(record.argmax, 0);
  EXPECT_NEAR(record.logprob, -0.693147, 1e-6);
}

// rule: R4.2 — of a token that was given, not drawn.
TEST_P(Sampling, R42LogprobOfAGivenTokenOfAUniformRow) {
  const std::vector<float> logits = {5, 5};
  VerifyParams params;
  params.draft_token = 1;
  params.form = DraftForm::kPoint;
  float out[5] = {};
  int32_t recovered = 0, flags = 0;
  const auto view = [](float* value) { return MakeView(value, DType::kF32, {1}); };
  VerifyDrafts::Args args;
  args.logits = MakeView(logits.data(), DType::kF32, {1, 2});
  args.params = MakeView(&params, DType::kU8, {1, static_cast<int64_t>(sizeof(params))});
  args.target_probability = view(&out[0]);
  args.draft_probability = view(&out[1]);
  args.residual_mass = view(&out[2]);
  args.draft_logprob = view(&out[3]);
  args.recovered_logprob = view(&out[4]);
  args.recovered = MakeView(&recovered, DType::kI32, {1});
  args.flags = MakeView(&flags, DType::kI32, {1});
  const KernelVariant<VerifyDrafts>* variant = registry_.Find<VerifyDrafts>(GetParam());
  ASSERT_NE(variant, nullptr);
  const VerifyDrafts::Problem problem{2, DType::kF32, 1};
  TestWorkspace workspace(variant->workspace_bytes(problem));
  ASSERT_TRUE(variant->run(problem, args, workspace.get(), {}).ok());
  EXPECT_NEAR(out[3], -0.693147, 1e-6);
}

TEST_P(Sampling, LogprobsAreRawWhateverTheTruncationAndTemperature) {
  SampleParams params;
  params.temperature = 0.1f;
  params.top_k = 1;
  const SampleRecord record = Draw(Logs({0.1, 0.2, 0.7}), {params})[0];
  EXPECT_EQ(record.token, 2);
  EXPECT_NEAR(record.logprob, std::log(0.7), 1e-6);
  EXPECT_EQ(record.argmax_logprob, record.logprob);
}

// rule: R4.1 — of the distribution that is sampled.
TEST_P(Sampling, ProcessedLogprobsAreThoseOfTheDraw) {
  SampleParams params;
  params.logprobs = LogprobForm::kProcessed;
  params.temperature = 0.5f;
  params.top_k = 2;
  const SampleRecord record = Draw(Logs({0.1, 0.3, 0.6}), {params})[0];
  // At temperature 0.5 probabilities are squared; the third is cut off.
  const double sum = 0.6 * 0.6 + 0.3 * 0.3;
  EXPECT_EQ(record.argmax, 2);
  EXPECT_NEAR(record.argmax_logprob, std::log(0.6 * 0.6 / sum), 1e-6);
  ASSERT_TRUE(record.token == 1 || record.token == 2);
  const double drawn = record.token == 1 ? 0.3 : 0.6;
  EXPECT_NEAR(record.logprob, std::log(drawn * drawn / sum), 1e-6);
  params.top_k = 1;
  EXPECT_EQ(Draw(Logs({0.1, 0.3, 0.6}), {params})[0].logprob, 0);
  // Greedy: at temperature 1, and nothing is cut.
  params.temperature = 0;
  EXPECT_NEAR(Draw(Logs({0.1, 0.3, 0.6}), {params})[0].logprob, std::log(0.6), 1e-6);
  const float infinity = std::numeric_limits<float>::infinity();
  const SampleRecord point = Draw({1, infinity, infinity}, {params})[0];
  EXPECT_EQ(point.token, 1);
  EXPECT_EQ(point.logprob, 0);
  EXPECT_EQ(Draw({-infinity, -infinity}, {params})[0].flags, kSampleAllMasked);
}

TEST_P(Sampling, MaskedInfiniteAndNanRows) {
  const float infinity = std::numeric_limits<float>::infinity();
  SampleParams params;
  const SampleRecord masked = Draw({-infinity, -infinity, -infinity}, {params})[0];
  EXPECT_EQ(masked.token, -1);
  EXPECT_EQ(masked.flags, kSampleAllMasked);
  const SampleRecord nan = Draw({1, std::nanf(""), 2}, {params})[0];
  EXPECT_EQ(nan.token, -1);
  EXPECT_EQ(nan.flags, kSampleNonFinite);
  const SampleRecord only = Draw({-infinity, -3, -infinity}, {params})[0];
  EXPECT_EQ(only.token, 1);
  EXPECT_EQ(only.logprob, 0);
  const SampleRecord point = Draw({1, infinity, infinity}, {params})[0];
  EXPECT_EQ(point.token, 1);
  EXPECT_EQ(point.flags, 0u);
}

TEST_P(Sampling, TruncationKeepsTheRightTokens) {
  const std::vector<float> logits = Logs({0.05, 0.5, 0.15, 0.3});
  const auto kept = [&](float top_p, int top_k, float min_p) {
    SampleParams params;
    params.top_p = top_p;
    params.top_k = top_k;
    params.min_p = min_p;
    std::vector<int32_t> tokens;
    for (const auto& [token, count] : Counts(logits, params, 3000)) tokens.push_back(token);
    return tokens;
  };
  using Tokens = std::vector<int32_t>;
  EXPECT_EQ(kept(1, 0, 0), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept(0.4f, 0, 0), (Tokens{1}));
  EXPECT_EQ(kept(0.0f, 0, 0), (Tokens{1}));
  EXPECT_EQ(kept(0.79f, 0, 0), (Tokens{1, 3}));
  EXPECT_EQ(kept(0.81f, 0, 0), (Tokens{1, 2, 3}));
  EXPECT_EQ(kept(1, 2, 0), (Tokens{1, 3}));
  EXPECT_EQ(kept(1, 0, 0.29f), (Tokens{1, 2, 3}));
  EXPECT_EQ(kept(1, 0, 0.5f), (Tokens{1, 3}));
  // top_p acts on what top_k left: 0.5 and 0.3 of 0.8.
  EXPECT_EQ(kept(0.62f, 2, 0), (Tokens{1}));
  EXPECT_EQ(kept(0.63f, 2, 0), (Tokens{1, 3}));
}

TEST_P(Sampling, EqualLogitsGoToTheLowerId) {
  SampleParams params;
  params.top_k = 2;
  std::vector<int32_t> tokens;
  for (const auto& [token, count] : Counts({1, 1, 1, 1, 1}, params, 400)) tokens.push_back(token);
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1}));
}

// Chi-square of the draws against the distribution that was asked for.
TEST_P(Sampling, DrawsFollowTheDistribution) {
  const std::vector<double> p = {0.02, 0.4, 0.1, 0.08, 0.15, 0.05, 0.19, 0.01};
  const int draws = 200000;
  for (const float temperature : {1.0f, 2.0f}) {
    for (const int top_k : {0, 5}) {
      SampleParams params;
      params.temperature = temperature;
      params.top_k = top_k;
      std::vector<double> expected;
      double sum = 0;
      for (const double value : p) {
        const bool in = top_k == 0 || value >= 0.08;
        expected.push_back(in ? std::pow(value, 1 / temperature) : 0);
        sum += expected.back();
      }
      std::map<int32_t, int> counts = Counts(Logs(p), params, draws);
      double chi = 0;
      for (size_t v = 0; v < p.size(); ++v) {
        const double mean = draws * expected[v] / sum;
        const double seen = counts[static_cast<int32_t>(v)];
        if (expected[v] == 0) {
          EXPECT_EQ(seen, 0);
        } else {
          chi += (seen - mean) * (seen - mean) / mean;
        }
      }
      // p-values 1e-4 and 1 - 1e-4 for 7 and for 4 degrees of freedom.
      EXPECT_LT(chi, top_k == 0 ? 29.9 : 23.5) << temperature << " " << top_k;
      EXPECT_GT(chi, top_k == 0 ? 0.3 : 0.02) << temperature << " " << top_k;
    }
  }
}

TEST(GumbelNoise, StaysFiniteAtBothEnds) {
  EXPECT_GT(GumbelNoise(0, 0), -4.0);
  EXPECT_LT(GumbelNoise(0, 0), -3.7);
  EXPECT_LE(GumbelNoise(~0u, ~0u), kMostGumbelNoise);
  EXPECT_GT(GumbelNoise(~0u, ~0u), 36.0);
  EXPECT_NEAR(GumbelNoise(0x80000000u, 0), 0.366513, 1e-6);
}

}  // namespace
}  // namespace skein::kernels
