// Speculation on the tiny model, step by step as a scheduler would plan it: output with drafts is
// output without, token for token and logprob for logprob, in greedy and coupled mode, whatever is
// drafted, refused, fed to the drafter or run beside it.
#include <bit>
#include <cmath>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/rejection_sampler.h"
#include "tests/worker/tiny_model.h"
#include "worker/model/draft_head.h"
#include "worker/step_executor.h"

namespace skein::tests {
namespace {

using protocol::VerificationMode;

constexpr uint32_t kSlots = 8;
constexpr uint32_t kBlockTokens = 32;
constexpr uint32_t kBlocksEach = 12;

struct Token {
  int32_t token = -1;
  uint32_t logprob_bits = 0;
  std::vector<protocol::TopLogprob> top;
  friend bool operator==(const Token&, const Token&) = default;
};

// What a sequence's steps shall do.
struct Drafting {
  VerificationMode mode = VerificationMode::kGreedy;
  uint32_t depth = 0;  // of the head
  float min_survival = 0;
  bool feed = true;
  uint32_t provided = 0;  // random tokens given instead of the head's, some of them right
  uint32_t period = 1;    // drafts only in every so-manieth step
};

struct Stream {
  std::vector<int32_t> tokens;
  size_t prompt_length = 0;
  uint32_t slot = 0;
  protocol::RowSampling sampling;
  Drafting drafting;
  std::vector<Token> output;
  size_t wanted = 40;
  size_t computed = 0;
  size_t announced = 0;
  uint64_t num_steps = 0;
  uint64_t num_accepted = 0;
  const std::vector<Token>* truth = nullptr;  // to provide right drafts from
  std::mt19937 random{7};
};

// A prompt of ordinary token ids.
std::vector<int32_t> Prompt(uint32_t seed, size_t length) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(300 + random() % 3000));
  return tokens;
}

Stream Start(uint32_t seed, uint32_t slot, float temperature, const Drafting& drafting) {
  Stream stream;
  stream.tokens = Prompt(seed, 5 + seed % 60);
  stream.prompt_length = stream.tokens.size();
  stream.slot = slot;
  stream.sampling.temperature = temperature;
  stream.sampling.seed = 99 + seed;
  stream.sampling.num_top_logprobs = 2;
  if (seed % 3 == 1) stream.sampling.top_p = 0.9F;
  if (seed % 3 == 2) stream.sampling.top_k = 20;
  stream.drafting = drafting;
  stream.random.seed(seed);
  return stream;
}

// Tokens that the plan provides: those of the true output up to a random point, then wrong ones.
std::vector<int32_t> Provide(Stream& s) {
  std::vector<int32_t> drafts;
  const auto right = static_cast<uint32_t>(s.random() % (s.drafting.provided + 1));
  for (uint32_t i = 0; i < s.drafting.provided; ++i) {
    const size_t at = s.output.size() + i;
    const bool known = i < right && s.truth != nullptr && at < s.truth->size();
    drafts.push_back(known ? (*s.truth)[at].token : static_cast<int32_t>(s.random() % 4000));
  }
  return drafts;
}

protocol::SequenceStep Plan(Stream& s) {
  protocol::SequenceStep step;
  step.sequence = protocol::SequenceId(s.slot + 1);
  step.slot = protocol::SlotId(s.slot);
  step.fresh_slot = s.computed == 0;
  step.first_position = static_cast<uint32_t>(s.computed);
  step.tokens.assign(s.tokens.begin() + static_cast<std::ptrdiff_t>(s.computed), s.tokens.end());
  step.sample = true;
  step.sampling = s.sampling;
  step.mode = s.drafting.mode;
  step.feed_drafter = s.drafting.feed;
  const bool drafts = s.num_steps % s.drafting.period == 0;
  if (step.tokens.size() == 1 && drafts) {
    step.draft_depth = s.drafting.depth;
    step.min_survival = s.drafting.min_survival;
  }
  if (drafts && s.drafting.provided > 0) step.provided_drafts = Provide(s);
  const size_t rows = step.tokens.size() + step.draft_depth + step.provided_drafts.size();
  step.table_size_before = static_cast<uint32_t>(s.announced);
  while (s.announced * kBlockTokens < s.computed + rows) {
    step.new_blocks.emplace_back(s.slot * kBlocksEach + static_cast<uint32_t>(s.announced++));
  }
  return step;
}

void Append(Stream& s, const protocol::RowSummary& row, int32_t token, float logprob) {
  s.tokens.push_back(token);
  s.output.push_back({token, std::bit_cast<uint32_t>(logprob), row.top});
}

void Commit(Stream& s, const std::vector<protocol::RowSummary>& rows) {
  const auto outcome = scheduler::VerifyDraft(rows, s.drafting.mode, s.sampling.seed);
  s.computed = s.tokens.size() + outcome.num_accepted;
  for (uint32_t i = 0; i < outcome.num_accepted; ++i) {
    const protocol::RowSummary& row = rows[i];
    const float logprob = s.drafting.mode == VerificationMode::kRejection ? row.draft_logprob
                          : s.drafting.mode == VerificationMode::kGreedy  ? row.argmax_logprob
                                                                          : row.plain_logprob;
    Append(s, row, row.draft_token, logprob);
  }
  Append(s, rows[outcome.num_accepted], outcome.token, outcome.logprob);
  ++s.num_steps;
  s.num_accepted += outcome.num_accepted;
}

void RunAll(worker::LoadedModel& model, std::vector<Stream>& streams) {
  model.input().Reset();
  for (int i = 0; i < 2000; ++i) {
    protocol::StepPlan plan;
    std::vector<Stream*> order;
    for (Stream& s : streams) {
      if (s.output.size() >= s.wanted) continue;
      plan.sequences.push_back(Plan(s));
      order.push_back(&s);
    }
    if (order.empty()) break;
    const protocol::StepResult result = worker::RunPlan(model, plan);
    ASSERT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    for (size_t s = 0; s < order.size(); ++s) Commit(*order[s], result.sequences[s].rows);
  }
  for (Stream& s : streams) s.output.resize(s.wanted);
}

worker::LoadedModel& SharedModel() {
  static TinyModel* tiny = [] {
    TinySetup setup;
    setup.threads = 1;
    setup.max_rows = 640;
    setup.max_samples = kSlots * 6;
    setup.max_model_len = 384;
    setup.num_slots = kSlots;
    setup.num_blocks = kSlots * kBlocksEach;
    setup.max_draft_requests = kSlots;
    return new TinyModel(setup);
  }();
  return tiny->model();
}

Stream RunOne(Stream stream) {
  std::vector<Stream> alone = {std::move(stream)};
  RunAll(SharedModel(), alone);
  return alone[0];
}

std::vector<Token> Truth(uint32_t seed, float temperature, VerificationMode mode) {
  return RunOne(Start(seed, 3, temperature, {.mode = mode, .feed = false})).output;
}

struct Mode {
  VerificationMode mode;
  float temperature;
};

class Speculation : public ::testing::TestWithParam<Mode> {};

TEST_P(Speculation, EveryDepthGivesTheSameOutput) {
  const auto [mode, temperature] = GetParam();
  uint64_t accepted = 0;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    const std::vector<Token> truth = Truth(seed, temperature, mode);
    for (uint32_t depth = 1; depth <= 5; ++depth) {
      const Stream got = RunOne(Start(seed, seed % kSlots, temperature, {mode, depth}));
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
      EXPECT_EQ(RunOne(Start(seed, 1, temperature, drafting)).output, truth) << seed;
    }
  }
}

TEST_P(Speculation, ProvidedDraftsRightAndWrongChangeNothing) {
  const auto [mode, temperature] = GetParam();
  for (uint32_t seed = 20; seed < 26; ++seed) {
    const std::vector<Token> truth = Truth(seed, temperature, mode);
    Stream stream = Start(seed, 2, temperature, {.mode = mode, .provided = 1 + seed % 5});
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
    batch.push_back(Start(slot + 30, slot, temperature, {mode, slot % 6, 0, slot % 3 != 0}));
  }
  RunAll(SharedModel(), batch);
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

// One step of rejection: the summary's own numbers agree with each other.
TEST(RejectionStep, SummaryIsConsistent) {
  Stream stream = Start(40, 0, 0.9F, {VerificationMode::kRejection, 5});
  SharedModel().input().Reset();
  uint32_t verified = 0;
  for (int i = 0; i < 30; ++i) {
    protocol::StepPlan plan;
    plan.sequences.push_back(Plan(stream));
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
    Commit(stream, rows);
  }
  EXPECT_GT(verified, 100u);
}

TEST(RejectionStep, PlansThatCannotBeDraftedAreRefused) {
  const auto refusal = [](auto change) {
    SharedModel().input().Reset();
    Stream stream = Start(41, 0, 0.9F, {VerificationMode::kRejection, 5});
    protocol::StepPlan plan;
    plan.sequences.push_back(Plan(stream));
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
