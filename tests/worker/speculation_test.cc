// Speculation on the tiny model, step by step as a scheduler would plan it: output with drafts is
// output without, token for token and logprob for logprob, in greedy and coupled mode, whatever is
// drafted, refused, fed to the drafter or run beside it.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/draft_stream.h"
#include "worker/model/draft_head.h"

namespace skein::tests {
namespace {

using protocol::VerificationMode;

worker::LoadedModel& SharedModel() {
  static auto* tiny = new TinyModel(StreamSetup());
  return tiny->model();
}

Stream RunOne(Stream stream) {
  std::vector<Stream> alone = {std::move(stream)};
  RunStreams(SharedModel(), alone);
  return alone[0];
}

std::vector<Token> Truth(uint32_t seed, float temperature, VerificationMode mode) {
  return RunOne(StartStream(seed, 3, temperature, {.mode = mode, .feed = false})).output;
}

struct Mode {
  VerificationMode mode;
  float temperature;
};

class Speculation : public ::testing::TestWithParam<Mode> {};

// rule: V4, LP1
TEST_P(Speculation, EveryDepthGivesTheSameOutput) {
  const auto [mode, temperature] = GetParam();
  uint64_t accepted = 0;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    const std::vector<Token> truth = Truth(seed, temperature, mode);
    for (uint32_t depth = 1; depth <= 5; ++depth) {
      const Stream got = RunOne(StartStream(seed, seed % kSlots, temperature, {mode, depth}));
      EXPECT_EQ(got.output, truth) << "seed " << seed << " depth " << depth;
      accepted += got.num_accepted;
    }
  }
  EXPECT_GT(accepted, 0u);
}

TEST_P(Speculation, CutsPausesAndGapsOfTheDrafterChangeNothing) {
  const auto [mode, temperature] = GetParam();
  for (uint32_t seed = 10; seed < 14; ++seed) {
    const std::vector<Token> truth = Truth(seed, temperature, mode);
    for (const Drafting& drafting :
         {Drafting{mode, 5, 0.5F}, Drafting{mode, 5, 0, true, 0, 3}, Drafting{mode, 5, 0, false}}) {
      EXPECT_EQ(RunOne(StartStream(seed, 1, temperature, drafting)).output, truth) << seed;
    }
  }
}

// rule: LP2
TEST_P(Speculation, ProvidedDraftsRightAndWrongChangeNothing) {
  const auto [mode, temperature] = GetParam();
  for (uint32_t seed = 20; seed < 26; ++seed) {
    const std::vector<Token> truth = Truth(seed, temperature, mode);
    Stream stream = StartStream(seed, 2, temperature, {.mode = mode, .provided = 1 + seed % 5});
    stream.truth = &truth;
    const Stream got = RunOne(std::move(stream));
    EXPECT_EQ(got.output, truth) << seed;
    EXPECT_GT(got.num_accepted, 0u);
  }
}

TEST_P(Speculation, CompanyChangesNothing) {
  const auto [mode, temperature] = GetParam();
  std::vector<std::vector<Token>> truths;
  std::vector<Stream> batch;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    truths.push_back(Truth(slot + 30, temperature, mode));
    batch.push_back(StartStream(slot + 30, slot, temperature, {mode, slot % 6, 0, slot % 3 != 0}));
  }
  RunStreams(SharedModel(), batch);
  for (uint32_t slot = 0; slot < kSlots; ++slot)
    EXPECT_EQ(batch[slot].output, truths[slot]) << slot;
}

INSTANTIATE_TEST_SUITE_P(Modes, Speculation,
                         ::testing::Values(Mode{VerificationMode::kGreedy, 0.0F},
                                           Mode{VerificationMode::kCoupled, 0.0F},
                                           Mode{VerificationMode::kCoupled, 0.8F}),
                         [](const auto& test) {
                           return test.param.mode == VerificationMode::kGreedy ? "greedy"
                                  : test.param.temperature == 0                ? "coupled_greedy"
                                                                               : "coupled";
                         });

// 200 random prompts, 32 at a time, greedy and seeded, each with its own depth and company.
TEST(SpeculationAtScale, TwoHundredPromptsAreUnchanged) {
  constexpr uint32_t kBatch = 32;
  TinySetup setup;
  setup.threads = 2;
  setup.max_rows = 2200;
  setup.max_samples = kBatch * 6;
  setup.max_model_len = 384;
  setup.num_slots = kBatch;
  setup.num_blocks = kBatch * kBlocksEach;
  setup.max_draft_requests = kBatch;
  TinyModel tiny(setup);
  ASSERT_TRUE(tiny.ok());
  const auto run = [&](uint32_t from, bool drafts) {
    std::vector<Stream> batch;
    for (uint32_t i = 0; i < kBatch && from + i < 200; ++i) {
      const uint32_t seed = 1000 + from + i;
      const float temperature = seed % 2 == 0 ? 0.0F : 0.9F;
      Drafting drafting;
      drafting.mode = seed % 2 == 0 ? VerificationMode::kGreedy : VerificationMode::kCoupled;
      drafting.depth = drafts ? seed % 6 : 0;
      drafting.feed = drafts;
      batch.push_back(StartStream(seed, drafts ? (i * 7) % kBatch : i, temperature, drafting));
      batch.back().wanted = 8 + seed % 30;
    }
    RunStreams(tiny.model(), batch);
    return batch;
  };
  uint64_t accepted = 0;
  for (uint32_t from = 0; from < 200; from += kBatch) {
    const std::vector<Stream> plain = run(from, false);
    const std::vector<Stream> drafted = run(from, true);
    ASSERT_EQ(plain.size(), drafted.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(drafted[i].output, plain[i].output) << "prompt " << from + i;
      accepted += drafted[i].num_accepted;
    }
  }
  EXPECT_GT(accepted, 200u);
}

// One step of rejection: the summary's own numbers agree with each other.
TEST(RejectionStep, SummaryIsConsistent) {
  Stream stream = StartStream(40, 0, 0.9F, {VerificationMode::kRejection, 5});
  SharedModel().input().Reset();
  uint32_t verified = 0;
  for (int i = 0; i < 30; ++i) {
    protocol::StepPlan plan;
    plan.sequences.push_back(PlanStream(stream));
    const auto result = worker::RunPlan(SharedModel(), plan);
    ASSERT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    const auto& rows = result.sequences[0].rows;
    for (size_t j = 0; j + 1 < rows.size(); ++j, ++verified) {
      EXPECT_GT(rows[j].draft_probability, 0);
      EXPECT_LE(rows[j].target_probability, 1.00001F);
      EXPECT_GE(rows[j].recovered_token, 0);
      EXPECT_LE(rows[j].draft_logprob, 0);
      EXPECT_GT(rows[j].confidence, 0);
      EXPECT_EQ(rows[j].flags, 0u);
      EXPECT_EQ(rows[j].position + 1, rows[j + 1].position);
    }
    EXPECT_EQ(rows.back().draft_token, -1);
    CommitStream(stream, rows);
  }
  EXPECT_GT(verified, 100u);
}

TEST(RejectionStep, PlansThatCannotBeDraftedAreRefused) {
  const auto refusal = [](auto change) {
    SharedModel().input().Reset();
    Stream stream = StartStream(41, 0, 0.9F, {VerificationMode::kRejection, 5});
    protocol::StepPlan plan;
    plan.sequences.push_back(PlanStream(stream));
    change(plan.sequences[0]);
    const auto result = worker::RunPlan(SharedModel(), plan);
    EXPECT_EQ(result.status, protocol::StepStatus::kRefused);
    return result.message;
  };
  EXPECT_EQ(
      refusal([](auto& step) { step.draft_depth = 2; }),
      "sequence 1: drafts after 46 tokens from position 0; a draft follows one decided token");
  EXPECT_EQ(refusal([](auto& step) { step.provided_drafts.assign(6, 1); }),
            "sequence 1: verifies 6 drafts, at most 5");
  EXPECT_EQ(refusal([](auto& step) { step.provided_drafts = {9999}; }),
            "sequence 1: draft 9999, the vocabulary has 4096");
  EXPECT_EQ(refusal([](auto& step) { step.sampling.temperature = 0; }),
            "sequence 1: temperature 0 is verified greedily");
  EXPECT_EQ(refusal([](auto& step) {
              step.sample = false;
              step.provided_drafts = {1};
            }),
            "sequence 1: has drafts but is not sampled");
}

TEST(KeptDrafts, CutsAtTheFirstUnlikelyOne) {
  const std::vector<double> confidence = {2, 1, -3, 9};
  EXPECT_EQ(worker::KeptDrafts(confidence, 0), 4u);
  EXPECT_EQ(worker::KeptDrafts(confidence, 0.5), 2u);
  EXPECT_EQ(worker::KeptDrafts(confidence, 0.9), 0u);
  EXPECT_EQ(worker::KeptDrafts(std::vector<double>{std::nan("")}, 0.1), 0u);
}

// The counter-example of the causality rule: with p = (0.7, 0.3) and q = (0.5, 0.5), a cut after
// the first draft that looks at the second's confidence, high after token 0 and low after token 1,
// would verify token 0 more often than token 1. The cut here sees only what came before a draft.
TEST(KeptDrafts, CannotSeeTheDraftItDecidesAbout) {
  const std::vector<double> after_token_0 = {1.39, 2.2};
  const std::vector<double> after_token_1 = {1.39, -30};
  for (double survival = 0; survival <= 1; survival += 0.01) {
    const bool first_kept = worker::KeptDrafts(after_token_0, survival) > 0;
    EXPECT_EQ(first_kept, worker::KeptDrafts(after_token_1, survival) > 0) << survival;
  }
}

}  // namespace
}  // namespace skein::tests
