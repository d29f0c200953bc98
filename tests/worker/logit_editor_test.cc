// Penalties, biases and token lists on the tiny model: they act, raw logprobs stay raw, and drafts,
// recorded steps and company change nothing.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/draft_stream.h"

namespace skein::tests {
namespace {

using protocol::LogitEdits;

constexpr int32_t kVocab = 4096;

worker::LoadedModel& SharedModel() {
  static auto* tiny = new TinyModel(StreamSetup(false));
  return tiny->model();
}

Stream RunAlone(Stream stream, worker::LoadedModel& model = SharedModel()) {
  std::vector<Stream> alone = {std::move(stream)};
  RunStreams(model, alone);
  return alone[0];
}

Stream Edited(uint32_t seed, float temperature, const Drafting& drafting, const LogitEdits& edits) {
  Stream stream = StartStream(seed, seed % kSlots, temperature, drafting);
  stream.edits = std::make_shared<const LogitEdits>(edits);
  return stream;
}

// Every kind of edit, some of them in each set.
LogitEdits EditsOf(uint32_t seed) {
  LogitEdits edits;
  if (seed % 2 == 0) edits.presence_penalty = 0.7F;
  if (seed % 3 == 0) edits.frequency_penalty = seed % 2 == 0 ? -0.6F : 0.9F;
  if (seed % 3 != 1) edits.repetition_penalty = 1.3F;
  if (seed % 4 == 1) {
    for (int32_t token = 5; token < 900; token += 3) edits.bias.push_back({token, 2.5F});
    edits.bias.push_back({2000, -std::numeric_limits<float>::infinity()});
  }
  if (seed % 5 == 2) {
    for (int32_t token = 0; token < kVocab; token += 2) edits.allowed_tokens.push_back(token);
  }
  return edits;
}

class Edits : public ::testing::TestWithParam<float> {};

// rule: V2, DT2
TEST_P(Edits, EveryDepthGivesTheSameOutput) {
  uint64_t accepted = 0;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    LogitEdits edits = EditsOf(seed);
    const auto mode = GetParam() == 0 ? VerificationMode::kGreedy : VerificationMode::kCoupled;
    // What it would say without the words that it must not complete.
    const Stream free = RunAlone(Edited(seed, GetParam(), {.mode = mode, .feed = false}, edits));
    for (size_t i = 4; i + 1 < free.output.size(); i += 9) {
      edits.bad_words.push_back({free.output[i].token, free.output[i + 1].token});
    }
    edits.bad_words.push_back({free.output[1].token});
    const Stream plain = RunAlone(Edited(seed, GetParam(), {.mode = mode, .feed = false}, edits));
    EXPECT_NE(plain.output, free.output);
    for (uint32_t depth = 1; depth <= 5; depth += 2) {
      const Stream got = RunAlone(Edited(seed, GetParam(), {mode, depth}, edits));
      EXPECT_EQ(got.output, plain.output) << "seed " << seed << " depth " << depth;
      accepted += got.num_accepted;
    }
    Drafting provided{.mode = mode, .provided = 4};
    Stream stream = Edited(seed, GetParam(), provided, edits);
    stream.truth = &plain.output;
    const Stream got = RunAlone(std::move(stream));
    EXPECT_EQ(got.output, plain.output) << "seed " << seed << " with provided drafts";
    EXPECT_GT(got.num_accepted, 0u);
  }
  EXPECT_GT(accepted, 0u);
}

TEST_P(Edits, CompanyAndRecordedStepsChangeNothing) {
  TinyModel recorded(StreamSetup(true));
  ASSERT_TRUE(recorded.ok());
  const auto mode = GetParam() == 0 ? VerificationMode::kGreedy : VerificationMode::kCoupled;
  std::vector<Stream> batch, alone;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    batch.push_back(slot % 3 == 0 ? StartStream(slot, slot, GetParam(), {mode, slot % 6})
                                  : Edited(slot, GetParam(), {mode, slot % 6}, EditsOf(slot)));
    batch.back().wanted = 10 + 3 * slot;
    alone.push_back(RunAlone(batch.back()));
  }
  RunStreams(recorded.model(), batch);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    EXPECT_EQ(batch[slot].output, alone[slot].output) << slot;
  }
}

INSTANTIATE_TEST_SUITE_P(Temperatures, Edits, ::testing::Values(0.0F, 0.8F),
                         [](const auto& test) { return test.param == 0 ? "greedy" : "coupled"; });

// rule: R4.1, LP3
TEST(LogitEditsTest, LogprobsAreThoseBeforeTheEdits) {
  const Stream plain = RunAlone(StartStream(3, 0, 0, {}));
  LogitEdits edits;
  edits.bias = {{plain.output[0].token, -std::numeric_limits<float>::infinity()}};
  const Stream edited = RunAlone(Edited(3, 0, {}, edits));
  EXPECT_NE(edited.output[0].token, plain.output[0].token);
  EXPECT_EQ(edited.output[0].top, plain.output[0].top);
  EXPECT_EQ(edited.output[0].token, plain.output[0].top[1].token);
  EXPECT_EQ(edited.output[0].logprob_bits, std::bit_cast<uint32_t>(plain.output[0].top[1].logprob));
}

// Rows of a stream whose penalties, temperature and cut leave five tokens to draw from.
Stream Narrow(float temperature, const Drafting& drafting, bool processed) {
  LogitEdits edits;
  edits.presence_penalty = 1.5F;
  edits.repetition_penalty = 1.2F;
  Stream stream = Edited(3, temperature, drafting, edits);
  stream.sampling.top_p = 1;
  stream.sampling.top_k = 5;
  stream.sampling.num_top_logprobs = 20;
  stream.sampling.processed_logprobs = processed;
  return RunAlone(std::move(stream));
}

// rule: R4.1 — and what is drawn is the same in both forms.
TEST(LogitEditsTest, ProcessedLogprobsAreThoseOfWhatIsDrawn) {
  const Stream raw = Narrow(0.6F, {.mode = VerificationMode::kCoupled}, false);
  const Stream processed = Narrow(0.6F, {.mode = VerificationMode::kCoupled}, true);
  EXPECT_EQ(processed.tokens, raw.tokens);
  for (const Token& token : processed.output) {
    ASSERT_EQ(token.top.size(), 5u);
    double sum = 0;
    for (const protocol::TopLogprob& top : token.top) {
      sum += std::exp(double{top.logprob});
      if (top.token != token.token) continue;
      EXPECT_EQ(std::bit_cast<uint32_t>(top.logprob), token.logprob_bits);
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  // The first token has no penalty yet but those of the prompt: of two tokens that are not in it
  // the difference is that of the raw ones, divided by the temperature.
  const auto& drawn = processed.output[0].top;
  const auto of_raw = [&](int32_t token) {
    for (const protocol::TopLogprob& top : raw.output[0].top) {
      if (top.token == token) return double{top.logprob};
    }
    return std::nan("");
  };
  EXPECT_NEAR(drawn[0].logprob - drawn[1].logprob,
              (of_raw(drawn[0].token) - of_raw(drawn[1].token)) / 0.6, 1e-4);
}

// rule: R4.1, R4.2, LP1 — whoever chose the token, and at every draft depth.
TEST(LogitEditsTest, ProcessedLogprobsAreTheSameWithDrafts) {
  for (const float temperature : {0.0F, 0.6F}) {
    const auto mode = temperature == 0 ? VerificationMode::kGreedy : VerificationMode::kCoupled;
    const Stream plain = Narrow(temperature, {.mode = mode}, true);
    const Stream drafted = Narrow(temperature, {mode, 5}, true);
    EXPECT_EQ(drafted.output, plain.output) << temperature;
    EXPECT_GT(drafted.num_accepted, 0u);
  }
  const Stream rejection = Narrow(0.6F, {VerificationMode::kRejection, 5}, true);
  EXPECT_GT(rejection.num_accepted, 0u);
  for (const Token& token : rejection.output) {
    const auto entry = std::find_if(token.top.begin(), token.top.end(),
                                    [&](const auto& top) { return top.token == token.token; });
    ASSERT_NE(entry, token.top.end()) << "no token is drawn that was cut off";
    EXPECT_EQ(std::bit_cast<uint32_t>(entry->logprob), token.logprob_bits);
  }
}

// The penalties by vLLM's definition, from the logprobs of one step: differences of logits are
// differences of logprobs.
TEST(LogitEditsTest, PenaltiesCountPromptAndOutputAsTheyShould) {
  // The prompt has token 7, the output token 9 twice: the first step is told so as history.
  const auto chosen = [](const LogitEdits& edits, std::vector<int32_t> history) {
    SharedModel().input().Reset();
    Stream stream = StartStream(5, 0, 0, {});
    stream.tokens = {11, 12, 13};
    stream.tokens.insert(stream.tokens.end(), history.begin(), history.end());
    stream.edits = std::make_shared<const LogitEdits>(edits);
    stream.prompt_length = 3;
    protocol::StepPlan plan;
    plan.sequences.push_back(PlanStream(stream));
    plan.sequences[0].sampling.num_top_logprobs = 20;
    const auto result = worker::RunPlan(SharedModel(), plan);
    EXPECT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    return result.sequences[0].rows[0];
  };
  const auto raw = chosen({}, {});
  const int32_t best = raw.top[0].token;
  const int32_t next = raw.top[1].token;
  const float gap = raw.top[0].logprob - raw.top[1].logprob;
  ASSERT_GT(gap, 0);
  // A bias just below the gap changes nothing, one just above it does.
  LogitEdits edits;
  edits.bias = {{next, gap * 0.999F}};
  EXPECT_EQ(chosen(edits, {}).plain_token, best);
  edits.bias = {{next, gap * 1.001F}};
  EXPECT_EQ(chosen(edits, {}).plain_token, next);
  // Presence and frequency do not see the prompt.
  edits = {};
  edits.presence_penalty = edits.frequency_penalty = 2;
  const auto of_prompt = chosen(edits, {});
  EXPECT_EQ(of_prompt.plain_token, best);
  EXPECT_EQ(of_prompt.top, raw.top);
}

// rule: G6
TEST(LogitEditsTest, MasksActOnTheirRowsAndNothingAllowedIsAnError) {
  SharedModel().input().Reset();
  Stream stream = StartStream(6, 0, 0.8F, {.mode = VerificationMode::kCoupled});
  protocol::StepPlan plan;
  plan.sequences.push_back(PlanStream(stream));
  protocol::SequenceStep& step = plan.sequences[0];
  step.provided_drafts = {70, 71};
  step.masks.assign(3, std::vector<uint32_t>(kVocab / 32, 0));
  step.masks[0][70 / 32] = 1u << (70 % 32);
  step.masks[1][2000 / 32] = 1u << (2000 % 32);
  const auto result = worker::RunPlan(SharedModel(), plan);
  ASSERT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
  const auto& rows = result.sequences[0].rows;
  EXPECT_EQ(rows[0].plain_token, 70);
  EXPECT_LT(rows[0].plain_logprob, 0);
  EXPECT_EQ(rows[1].plain_token, 2000);
  EXPECT_EQ(rows[2].plain_token, -1);
  EXPECT_EQ(rows[2].flags, protocol::kRowAllMasked);
}

TEST(LogitEditsTest, PlansWithWrongEditsAreRefused) {
  const auto refusal = [](auto change) {
    SharedModel().input().Reset();
    protocol::StepPlan plan;
    Stream stream = StartStream(41, 0, 0, {});
    plan.sequences.push_back(PlanStream(stream));
    protocol::SequenceEdits edits;
    change(plan.sequences[0], edits);
    plan.sequences[0].edits.value = std::make_shared<const protocol::SequenceEdits>(edits);
    const auto result = worker::RunPlan(SharedModel(), plan);
    EXPECT_EQ(result.status, protocol::StepStatus::kRefused);
    return result.message;
  };
  using Step = protocol::SequenceStep;
  using Told = protocol::SequenceEdits;
  EXPECT_EQ(refusal([](Step&, Told& e) { e.edits.allowed_tokens = {4096}; }),
            "sequence 1: edits.allowed_tokens has token 4096, the vocabulary has 4096");
  EXPECT_EQ(refusal([](Step&, Told& e) { e.edits.bad_words = {{}}; }),
            "sequence 1: edits.bad_words has an empty word");
  EXPECT_EQ(refusal([](Step&, Told& e) {
              e.edits.bias = {{1, 1}, {1, 2}};
            }),
            "sequence 1: edits.bias has a token twice or more than 4096 entries: 2");
  EXPECT_EQ(refusal([](Step&, Told& e) {
              e.history = {1, 2};
            }),
            "sequence 1: edits.history ends at 2, the step begins at 0");
  EXPECT_EQ(refusal([](Step& s, Told&) { s.masks.assign(1, std::vector<uint32_t>(129)); }),
            "sequence 1: a mask has 129 words, the vocabulary needs 128");
  EXPECT_EQ(
      refusal([](Step& s, Told&) { s.masks.assign(2, std::vector<uint32_t>(128)); }),
      "sequence 1: 2 masks for 1 + 0 rows and a draft depth of 0; each sampled row needs one, "
      "and depth is 0");
}

}  // namespace
}  // namespace skein::tests
