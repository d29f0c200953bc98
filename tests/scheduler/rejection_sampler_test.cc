// Tests of the acceptance rule: each mode's decisions, and with the workers' own kernels the law of
// what is emitted. The same statistical test must catch every planted error.
#include "scheduler/rejection_sampler.h"

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/register.h"
#include "kernels/ops/sampling.h"
#include "scheduler/philox.h"
#include "tests/kernels/buffer.h"
#include "tests/scheduler/chi_square.h"

namespace skein::scheduler {
namespace {

using kernels::DraftForm;
using kernels::DType;
using kernels::MakeView;
using kernels::SampleParams;
using kernels::VerifyParams;
using protocol::RowSummary;
using protocol::VerificationMode;

RowSummary Row(uint32_t position, int32_t draft, int32_t argmax, int32_t plain) {
  RowSummary row;
  row.position = position;
  row.draft_token = draft;
  row.argmax_token = argmax;
  row.argmax_logprob = -1;
  row.plain_token = plain;
  row.plain_logprob = -2;
  row.recovered_token = 77;
  row.recovered_logprob = -3;
  return row;
}

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, 0, 0),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, CoinIsTheWorkersAcceptWord) {
  const uint64_t seed = 0x0123456789abcdef;
  const auto block = kernels::RandomBlock(seed, 42, kernels::RandomPurpose::kAccept, 0, 0);
  EXPECT_EQ(AcceptanceCoin(seed, 42), ((block[0] >> 8) + 0.5) / 16777216.0);
}

TEST(VerifyDraft, WithoutDraftsTheOnlyRowGivesTheToken) {
  const std::vector<RowSummary> rows = {Row(9, -1, 5, 6)};
  const auto greedy = VerifyDraft(rows, VerificationMode::kGreedy, 1);
  EXPECT_EQ(greedy.token, 5);
  EXPECT_EQ(greedy.logprob, -1);
  EXPECT_EQ(VerifyDraft(rows, VerificationMode::kCoupled, 1).token, 6);
  const auto plain = VerifyDraft(rows, VerificationMode::kRejection, 1);
  EXPECT_EQ(plain.token, 6);
  EXPECT_EQ(plain.next, NextToken::kPlain);
  EXPECT_EQ(plain.num_accepted, 0u);
}

TEST(VerifyDraft, GreedyKeepsArgmaxDraftsAndCoupledPlainOnes) {
  const std::vector<RowSummary> rows = {Row(9, 5, 5, 5), Row(10, 6, 6, 8), Row(11, -1, 9, 10)};
  const auto greedy = VerifyDraft(rows, VerificationMode::kGreedy, 1);
  EXPECT_EQ(greedy.num_accepted, 2u);
  EXPECT_EQ(greedy.token, 9);
  const auto coupled = VerifyDraft(rows, VerificationMode::kCoupled, 1);
  EXPECT_EQ(coupled.num_accepted, 1u);
  EXPECT_EQ(coupled.token, 8);
  EXPECT_EQ(coupled.logprob, -2);
}

TEST(VerifyDraft, RejectionComparesTheCoin) {
  std::vector<RowSummary> rows = {Row(9, 5, 1, 2), Row(10, -1, 3, 4)};
  const double coin = AcceptanceCoin(99, 9);
  rows[0].draft_probability = 1;
  rows[0].target_probability = static_cast<float>(coin * 1.0001);
  auto outcome = VerifyDraft(rows, VerificationMode::kRejection, 99);
  EXPECT_EQ(outcome.num_accepted, 1u);
  EXPECT_EQ(outcome.token, 4);
  EXPECT_EQ(outcome.next, NextToken::kPlain);
  rows[0].target_probability = static_cast<float>(coin * 0.9999);
  outcome = VerifyDraft(rows, VerificationMode::kRejection, 99);
  EXPECT_EQ(outcome.num_accepted, 0u);
  EXPECT_EQ(outcome.token, 77);
  EXPECT_EQ(outcome.logprob, -3);
  EXPECT_EQ(outcome.next, NextToken::kRecovered);
}

TEST(VerifyDraft, RowsWithoutUsableDraftsKeepNothing) {
  std::vector<RowSummary> rows = {Row(9, -1, 5, 6), Row(10, -1, 7, 8)};
  EXPECT_EQ(VerifyDraft(rows, VerificationMode::kRejection, 1).token, 6);
  rows[0].draft_token = 5;
  rows[0].target_probability = 1;
  rows[0].draft_probability = 0;
  rows[0].flags = protocol::kRowDraftMissing;
  const auto missing = VerifyDraft(rows, VerificationMode::kRejection, 1);
  EXPECT_EQ(missing.num_accepted, 0u);
  EXPECT_EQ(missing.token, 77);
  for (const auto mode :
       {VerificationMode::kGreedy, VerificationMode::kCoupled, VerificationMode::kRejection}) {
    std::vector<RowSummary> broken = {Row(9, 5, -1, -1)};
    broken[0].flags = protocol::kRowNonFinite;
    EXPECT_EQ(VerifyDraft(broken, mode, 1).token, -1);
  }
}

// The law of the output. A world of `kVocab` tokens: logits of the target and the draft for the
// first token and, given the first, for the second.
constexpr int kVocab = 5;
constexpr uint32_t kPosition = 100;
using Logits = std::array<float, kVocab>;

struct World {
  std::array<Logits, kVocab + 1> target;  // [0]: first token; [1 + a]: after a
  std::array<Logits, kVocab + 1> draft;
  SampleParams sampling;
};

enum class Plant {
  kNone,
  kRowOffByOne,            // a draft is judged by the row after its own
  kDraftBeforeTruncation,  // q without the truncation that the draft was drawn under
  kResidualIsTarget,       // the recovered token is drawn from p
  kRecoveredOfNextRow,     // the recovered token comes from the row after
  kLookAhead,              // the first draft is verified only if it is token 0
};

// One row of every trial through the workers' kernels.
class Kernels {
 public:
  Kernels() { EXPECT_TRUE(RegisterCpuKernels(registry_, kernels::CpuIsa::kScalar).ok()); }

  std::vector<kernels::SampleRecord> Sample(std::vector<Logits> logits,
                                            const std::vector<SampleParams>& params) {
    const auto rows = static_cast<int64_t>(logits.size());
    std::vector<kernels::SampleRecord> records(logits.size());
    const kernels::SampleTokens::Problem problem{kVocab, 0, DType::kF32, static_cast<int>(rows)};
    const auto* variant = registry_.Find<kernels::SampleTokens>("cpu");
    kernels::TestWorkspace workspace(variant->workspace_bytes(problem));
    kernels::SampleTokens::Args args;
    args.logits = MakeView(logits.data(), DType::kF32, {rows, kVocab});
    args.params =
        MakeView(params.data(), DType::kU8, {rows, static_cast<int64_t>(sizeof(SampleParams))});
    args.record = MakeView(records.data(), DType::kU8,
                           {rows, static_cast<int64_t>(sizeof(kernels::SampleRecord))});
    EXPECT_TRUE(variant->run(problem, args, workspace.get(), {}).ok());
    return records;
  }

  std::vector<RowSummary> Verify(std::vector<Logits> target, std::vector<Logits> draft,
                                 const std::vector<VerifyParams>& params) {
    const auto rows = static_cast<int64_t>(target.size());
    const size_t count = target.size();
    const kernels::VerifyDrafts::Problem problem{kVocab, DType::kF32, static_cast<int>(rows)};
    const auto* variant = registry_.Find<kernels::VerifyDrafts>("cpu");
    kernels::TestWorkspace workspace(variant->workspace_bytes(problem));
    std::array<std::vector<float>, 5> wide;
    for (auto& values : wide) values.resize(count);
    std::vector<int32_t> recovered(count), flags(count);
    const auto view = [&](auto& values, DType dtype) {
      return MakeView(values.data(), dtype, {rows});
    };
    kernels::VerifyDrafts::Args args;
    args.logits = MakeView(target.data(), DType::kF32, {rows, kVocab});
    args.draft_logits = MakeView(draft.data(), DType::kF32, {rows, kVocab});
    args.params =
        MakeView(params.data(), DType::kU8, {rows, static_cast<int64_t>(sizeof(VerifyParams))});
    args.target_probability = view(wide[0], DType::kF32);
    args.draft_probability = view(wide[1], DType::kF32);
    args.residual_mass = view(wide[2], DType::kF32);
    args.draft_logprob = view(wide[3], DType::kF32);
    args.recovered_logprob = view(wide[4], DType::kF32);
    args.recovered = view(recovered, DType::kI32);
    args.flags = view(flags, DType::kI32);
    EXPECT_TRUE(variant->run(problem, args, workspace.get(), {}).ok());
    std::vector<RowSummary> out(count);
    for (size_t i = 0; i < count; ++i) {
      out[i].draft_token = params[i].draft_token;
      out[i].target_probability = wide[0][i];
      out[i].draft_probability = wide[1][i];
      out[i].residual_mass = wide[2][i];
      out[i].recovered_token = recovered[i];
    }
    return out;
  }

 private:
  kernels::KernelRegistry registry_;
};

// What one step of every trial emits: two drafts, three rows.
class Trials {
 public:
  Trials(const World& world, VerificationMode mode, Plant plant, uint64_t seed, size_t count)
      : world_(world), mode_(mode), plant_(plant), seeds_(count) {
    std::mt19937_64 random(seed);
    for (uint64_t& value : seeds_) value = random();
  }

  // Counts of the first two tokens of every trial.
  std::array<double, kVocab * kVocab> Count(double* accepted_first) {
    std::array<double, kVocab* kVocab> counts = {};
    const std::vector<int32_t> none(seeds_.size(), -1);
    const auto first = Step(kPosition, none);
    std::vector<int32_t> emitted_first;
    for (const auto& tokens : first) emitted_first.push_back(tokens[0]);
    const auto second = Step(kPosition + 1, emitted_first);  // for trials that emitted one token
    *accepted_first = accepted_first_ / static_cast<double>(seeds_.size());
    for (size_t i = 0; i < seeds_.size(); ++i) {
      const int32_t next = first[i].size() > 1 ? first[i][1] : second[i][0];
      ++counts[static_cast<size_t>(first[i][0] * kVocab + next)];
    }
    return counts;
  }

 private:
  using Table = std::array<Logits, kVocab + 1>;

  SampleParams Params(size_t trial, uint32_t position, kernels::RandomPurpose purpose) const {
    SampleParams params = world_.sampling;
    params.seed = seeds_[trial];
    params.position = position;
    params.purpose = purpose;
    return params;
  }

  // Tokens drawn from the table's rows after `before`.
  std::vector<int32_t> Draw(const Table& table, const std::vector<int32_t>& before,
                            uint32_t position, kernels::RandomPurpose purpose) {
    std::vector<Logits> logits;
    std::vector<SampleParams> params;
    for (size_t i = 0; i < seeds_.size(); ++i) {
      logits.push_back(table[static_cast<size_t>(before[i] + 1)]);
      params.push_back(Params(i, position, purpose));
    }
    std::vector<int32_t> tokens;
    for (const auto& record : kernels_.Sample(logits, params)) tokens.push_back(record.token);
    return tokens;
  }

  // The row that decides the token at `position` after `before`.
  std::vector<RowSummary> Rows(uint32_t position, const std::vector<int32_t>& before,
                               const std::vector<int32_t>& judged_after,
                               const std::vector<int32_t>& draft) {
    std::vector<Logits> target, proposed;
    std::vector<VerifyParams> params;
    for (size_t i = 0; i < seeds_.size(); ++i) {
      target.push_back(world_.target[static_cast<size_t>(judged_after[i] + 1)]);
      proposed.push_back(world_.draft[static_cast<size_t>(before[i] + 1)]);
      params.push_back({Params(i, position, kernels::RandomPurpose::kPlain), draft[i],
                        DraftForm::kLogits, static_cast<int32_t>(i)});
    }
    std::vector<RowSummary> rows = kernels_.Verify(target, proposed, params);
    if (plant_ == Plant::kDraftBeforeTruncation) {
      for (VerifyParams& row : params) row.sampling.top_k = 0, row.sampling.top_p = 1;
      const std::vector<RowSummary> whole = kernels_.Verify(target, proposed, params);
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i].draft_probability = whole[i].draft_probability;
      }
    }
    const std::vector<int32_t> plain =
        Draw(world_.target, judged_after, position, kernels::RandomPurpose::kPlain);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].position = position;
      rows[i].plain_token = plain[i];
      if (plant_ == Plant::kResidualIsTarget) rows[i].recovered_token = plain[i];
    }
    return rows;
  }

  std::vector<std::vector<int32_t>> Step(uint32_t position, const std::vector<int32_t>& before) {
    const auto purpose = mode_ == VerificationMode::kCoupled ? kernels::RandomPurpose::kPlain
                                                             : kernels::RandomPurpose::kDraft;
    const auto draft = Draw(world_.draft, before, position, purpose);
    const auto next = Draw(world_.draft, draft, position + 1, purpose);
    auto first = Rows(position, before, plant_ == Plant::kRowOffByOne ? draft : before, draft);
    auto second = Rows(position + 1, draft, draft, next);
    const auto bonus = Rows(position + 2, next, next, next);
    std::vector<std::vector<int32_t>> emitted;
    for (size_t i = 0; i < seeds_.size(); ++i) {
      if (plant_ == Plant::kRecoveredOfNextRow) {
        first[i].recovered_token = second[i].recovered_token;
      }
      std::vector<RowSummary> rows = {first[i], second[i], bonus[i]};
      if (plant_ == Plant::kLookAhead && draft[i] != 0) rows.resize(1);
      rows.back().draft_token = -1;
      const VerificationOutcome outcome = VerifyDraft(rows, mode_, seeds_[i]);
      std::vector<int32_t> tokens;
      for (uint32_t j = 0; j < outcome.num_accepted; ++j) tokens.push_back(rows[j].draft_token);
      tokens.push_back(outcome.token);
      if (before[i] < 0) accepted_first_ += outcome.num_accepted > 0 ? 1 : 0;
      emitted.push_back(std::move(tokens));
    }
    return emitted;
  }

  const World& world_;
  const VerificationMode mode_;
  const Plant plant_;
  std::vector<uint64_t> seeds_;
  Kernels kernels_;
  double accepted_first_ = 0;
};

// The distribution of a row, by its definition.
std::array<double, kVocab> Law(const Logits& logits, const SampleParams& params) {
  std::array<int, kVocab> order = {0, 1, 2, 3, 4};
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  std::array<double, kVocab> p = {};
  const auto weight = [&](int v) {
    return std::exp(static_cast<double>(logits[static_cast<size_t>(v)]) /
                    static_cast<double>(params.temperature));
  };
  const int most = params.top_k > 0 ? params.top_k : kVocab;
  double total = 0;
  for (int i = 0; i < most; ++i) total += weight(order[static_cast<size_t>(i)]);
  double sum = 0;
  for (int i = 0; i < most; ++i) {
    const int v = order[static_cast<size_t>(i)];
    const double top = weight(order[0]);
    if (i > 0 && (sum >= static_cast<double>(params.top_p) * total ||
                  weight(v) < static_cast<double>(params.min_p) * top)) {
      break;
    }
    sum += weight(v);
    p[static_cast<size_t>(v)] = weight(v);
  }
  for (double& value : p) value /= sum;
  return p;
}

// p-value of the joint law of the first two tokens; 0 when a token outside it was emitted.
double JointPValue(const World& world, const std::array<double, kVocab * kVocab>& counts,
                   double trials) {
  const auto first = Law(world.target[0], world.sampling);
  double chi = 0;
  int cells = 0;
  for (size_t a = 0; a < kVocab; ++a) {
    const auto second = Law(world.target[a + 1], world.sampling);
    for (size_t b = 0; b < kVocab; ++b) {
      const double mean = trials * first[a] * second[b];
      const double seen = counts[a * kVocab + b];
      if (mean == 0 && seen > 0) return 0;
      if (mean == 0) continue;
      chi += (seen - mean) * (seen - mean) / mean;
      ++cells;
    }
  }
  return tests::TailProbability(chi, cells - 1);
}

constexpr int kSeeds = 20;
constexpr size_t kTrials = 8000;

// A random world: drafts that resemble the target, and four kinds of truncation.
World RandomWorld(int seed) {
  World world;
  std::mt19937_64 random(static_cast<uint64_t>(seed) * 7919 + 1);
  std::normal_distribution<float> normal;
  for (size_t row = 0; row < world.target.size(); ++row) {
    for (size_t v = 0; v < kVocab; ++v) {
      world.target[row][v] = normal(random);
      world.draft[row][v] = world.target[row][v] + 0.8F * normal(random);
    }
  }
  world.sampling.temperature = seed % 2 == 0 ? 1.0F : 0.7F;
  if (seed % 4 == 1) world.sampling.top_k = 3;
  if (seed % 4 == 2) world.sampling.top_p = 0.8F;
  if (seed % 4 == 3) world.sampling.min_p = 0.15F;
  return world;
}

// A world in which every planted error shows: drafts that differ from the target, each row from
// every other, the truncation cuts both, and token 0 is drafted half of the time, more often than
// the target gives it.
World TellingWorld(int seed) {
  World world;
  std::mt19937_64 random(static_cast<uint64_t>(seed) * 104'729 + 5);
  std::uniform_real_distribution<float> jitter(-0.2F, 0.2F);
  for (size_t row = 0; row < world.target.size(); ++row) {
    // The others take turns at 1.5, 0.75, 0 and -0.75; the draft's order is the target's reversed.
    for (size_t v = 1; v < kVocab; ++v) {
      const auto turn = static_cast<float>((v + row) % (kVocab - 1));
      world.target[row][v] = 1.5F - 0.75F * turn + jitter(random);
      world.draft[row][v] = -0.75F + 0.75F * turn + jitter(random);
    }
    world.target[row][0] = 0.9F;
    world.draft[row][0] = 2;
  }
  world.sampling.temperature = seed % 2 == 0 ? 1.0F : 1.25F;
  world.sampling.top_k = 3;
  if (seed % 4 == 2) world.sampling.top_p = 0.9F;
  if (seed % 4 == 3) world.sampling.min_p = 0.05F;
  return world;
}

double PValue(const World& world, int seed, VerificationMode mode, Plant plant) {
  Trials trials(world, mode, plant, static_cast<uint64_t>(seed) + 1000, kTrials);
  double accepted = 0;
  const auto counts = trials.Count(&accepted);
  return JointPValue(world, counts, static_cast<double>(kTrials));
}

TEST(RejectionLaw, EveryModeKeepsTheDistribution) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    const World world = RandomWorld(seed);
    EXPECT_GT(PValue(world, seed, VerificationMode::kRejection, Plant::kNone), 0.001) << seed;
    EXPECT_GT(PValue(world, seed, VerificationMode::kCoupled, Plant::kNone), 0.001) << seed;
  }
}

// Every seed must find nothing wrong in the telling worlds, and every planted error.
class TellingWorldTest : public ::testing::TestWithParam<Plant> {};

TEST_P(TellingWorldTest, EverySeedNotices) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    const double p = PValue(TellingWorld(seed), seed, VerificationMode::kRejection, GetParam());
    if (GetParam() == Plant::kNone) {
      EXPECT_GT(p, 0.001) << "seed " << seed;
    } else {
      EXPECT_LT(p, 1e-6) << "seed " << seed << " does not notice the error";
    }
  }
}

std::string PlantName(const ::testing::TestParamInfo<Plant>& plant) {
  static const char* const kNames[] = {
      "None",     "RowOffByOne", "DraftBeforeTruncation", "ResidualIsTarget", "RecoveredOfNextRow",
      "LookAhead"};
  return kNames[static_cast<int>(plant.param)];
}

INSTANTIATE_TEST_SUITE_P(Plants, TellingWorldTest,
                         ::testing::Values(Plant::kNone, Plant::kRowOffByOne,
                                           Plant::kDraftBeforeTruncation, Plant::kResidualIsTarget,
                                           Plant::kRecoveredOfNextRow, Plant::kLookAhead),
                         PlantName);

TEST(RejectionLaw, AcceptsWithTheOverlapOfTheDistributions) {
  for (int seed = 0; seed < kSeeds; seed += 4) {
    const World world = RandomWorld(seed);
    Trials trials(world, VerificationMode::kRejection, Plant::kNone, 5, kTrials);
    double accepted = 0;
    trials.Count(&accepted);
    const auto p = Law(world.target[0], world.sampling);
    const auto q = Law(world.draft[0], world.sampling);
    double overlap = 0;
    for (size_t v = 0; v < kVocab; ++v) overlap += std::min(p[v], q[v]);
    const double sigma = std::sqrt(overlap * (1 - overlap) / static_cast<double>(kTrials));
    EXPECT_NEAR(accepted, overlap, 4 * sigma) << seed;
  }
}

}  // namespace
}  // namespace skein::scheduler
