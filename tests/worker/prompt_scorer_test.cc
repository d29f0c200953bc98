// Logprobs of prompt tokens: those of the rows' own logits, and functions of the prompt alone: not
// of the chunks, the batch, the threads, the drafts beside it or how many rows are scored at once.
#include <bit>
#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json.h"
#include "tests/worker/tiny_model.h"
#include "worker/model/checkpoint.h"
#include "worker/step_executor.h"

namespace skein::tests {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBlockTokens = 32;
constexpr int32_t kTop = 5;
constexpr uint32_t kSlot = 2;  // of the scored prompt

// The prompt whose logits are recorded.
std::vector<int32_t> RecordedPrompt() {
  std::ifstream stream("tests/data/tiny-v41-goldens/goldens.json");
  std::stringstream text;
  text << stream.rdbuf();
  const auto json = protocol::ParseJson(text.str());
  EXPECT_TRUE(json.ok()) << json.status();
  std::vector<int32_t> ids;
  for (const protocol::JsonValue& id : json->Find("prompts")->elements()[0].Find("ids")->elements())
    ids.push_back(static_cast<int32_t>(*id.AsInt64("id")));
  EXPECT_EQ(ids.size(), 40U);
  return ids;
}

TinySetup SetupOf(int max_samples) {
  TinySetup setup;
  setup.max_rows = 96;
  setup.max_samples = max_samples;
  setup.max_draft_requests = 8;
  return setup;
}

// The next chunk of a prompt; the last one is sampled.
protocol::SequenceStep ChunkOf(const std::vector<int32_t>& ids, size_t begin, size_t chunk,
                               uint32_t slot) {
  protocol::SequenceStep step;
  const size_t count = std::min(chunk, ids.size() - begin);
  const auto from = ids.begin() + static_cast<std::ptrdiff_t>(begin);
  step.sequence = protocol::SequenceId(slot);
  step.slot = protocol::SlotId(slot);
  step.fresh_slot = begin == 0;
  step.first_position = static_cast<uint32_t>(begin);
  step.tokens.assign(from, from + static_cast<std::ptrdiff_t>(count));
  const auto blocks = [](size_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; };
  step.table_size_before = static_cast<uint32_t>(blocks(begin));
  for (size_t b = blocks(begin); b < blocks(begin + count); ++b) {
    step.new_blocks.emplace_back(static_cast<uint32_t>(b * 8 + slot));
  }
  step.sample = begin + count == ids.size();
  step.sampling.temperature = 0;
  return step;
}

protocol::SequenceStep ScoredChunk(const std::vector<int32_t>& ids, size_t begin, size_t chunk) {
  protocol::SequenceStep step = ChunkOf(ids, begin, chunk, kSlot);
  const size_t end = begin + step.tokens.size();
  step.scoring.count = static_cast<uint32_t>(step.tokens.size() - (step.sample ? 1 : 0));
  step.scoring.num_top_logprobs = kTop;
  if (!step.sample) step.scoring.next_token = ids[end];
  return step;
}

using Scores = std::vector<protocol::TokenScore>;

Scores Score(worker::LoadedModel& model, const std::vector<int32_t>& ids, size_t chunk) {
  model.input().Reset();
  Scores scores;
  for (size_t at = 0; at < ids.size(); at += chunk) {
    protocol::StepPlan plan;
    plan.sequences.push_back(ScoredChunk(ids, at, chunk));
    const protocol::StepResult result = worker::RunPlan(model, plan);
    EXPECT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    if (result.status != protocol::StepStatus::kOk) return scores;
    const Scores& more = result.sequences[0].scores;
    EXPECT_EQ(more.size(), plan.sequences[0].scoring.count);
    scores.insert(scores.end(), more.begin(), more.end());
  }
  return scores;
}

void ExpectSame(const Scores& got, const Scores& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i].logprob), std::bit_cast<uint32_t>(want[i].logprob))
        << "token " << i + 1 << ": " << got[i].logprob << " and " << want[i].logprob;
    ASSERT_EQ(got[i], want[i]) << "token " << i + 1;
  }
}

double LogSumExp(std::span<const float> row) {
  const double max = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float logit : row) sum += std::exp(logit - max);
  return max + std::log(sum);
}

worker::LoadedModel& SharedModel() {
  static TinyModel* tiny = new TinyModel(SetupOf(8));
  return tiny->model();
}

// rule: R4.2 — of the recorded logits, as near as plain float32 is to them.
TEST(PromptScores, R42AreThoseOfTheRecordedLogits) {
  const std::vector<int32_t> ids = RecordedPrompt();
  const auto file =
      worker::SafetensorsFile::Open("tests/data/tiny-v41-goldens/goldens.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const kernels::TensorView logits = (*file)->tensors().at("p0.logits");
  const Scores scores = Score(SharedModel(), ids, 16);
  ASSERT_EQ(scores.size(), 39U);
  double total = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto* row = reinterpret_cast<const float*>(logits.row(static_cast<int64_t>(i)));
    const std::span<const float> all(row, static_cast<size_t>(logits.dim(1)));
    const double want = all[static_cast<size_t>(ids[i + 1])] - LogSumExp(all);
    total += std::abs(scores[i].logprob - want);
  }
  constexpr double kFloat32Noise = 0.100837;  // mean, recorded beside the logits
  EXPECT_LT(total / static_cast<double>(scores.size()), 2 * kFloat32Noise);
}

// rule: R4.2 — of the model's own logits, which the step that samples the prefix leaves.
TEST(PromptScores, R42AreTheLogSoftmaxOfTheirRows) {
  if (BackendOfTests().device != nullptr) GTEST_SKIP() << "the logits are on the device";
  const std::vector<int32_t> ids = RecordedPrompt();
  worker::LoadedModel& model = SharedModel();
  const Scores scores = Score(model, ids, 16);
  for (size_t length = 1; length < ids.size(); ++length) {
    model.input().Reset();
    protocol::StepPlan plan;
    const std::vector<int32_t> prefix(ids.begin(),
                                      ids.begin() + static_cast<std::ptrdiff_t>(length));
    plan.sequences.push_back(ChunkOf(prefix, 0, length, kSlot));
    ASSERT_EQ(worker::RunPlan(model, plan).status, protocol::StepStatus::kOk);
    const std::span<const float> row(model.model().head().logits(1).as<const float>(), 4096);
    const double want = row[static_cast<size_t>(ids[length])] - LogSumExp(row);
    ASSERT_NEAR(scores[length - 1].logprob, want, 1e-5) << "token " << length;
    ASSERT_EQ(scores[length - 1].top.size(), static_cast<size_t>(kTop));
    EXPECT_EQ(scores[length - 1].top[0].token,
              std::max_element(row.begin(), row.end()) - row.begin());
  }
}

TEST(PromptScores, LP4TheChunksChangeNothing) {
  const std::vector<int32_t> ids = RecordedPrompt();
  const Scores whole = Score(SharedModel(), ids, 96);
  for (const size_t chunk : {size_t{1}, size_t{7}, size_t{39}}) {
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    ExpectSame(Score(SharedModel(), ids, chunk), whole);
  }
}

TEST(PromptScores, LP4HowManyAreScoredAtOnceChangesNothing) {
  const std::vector<int32_t> ids = RecordedPrompt();
  const Scores eight = Score(SharedModel(), ids, 96);
  TinyModel one(SetupOf(1));
  ExpectSame(Score(one.model(), ids, 96), eight);
  TinyModel all(SetupOf(64));
  ExpectSame(Score(all.model(), ids, 96), eight);
}

TEST(PromptScores, LP4ASecondThreadChangesNothing) {
  const std::vector<int32_t> ids = RecordedPrompt();
  TinySetup setup = SetupOf(8);
  setup.threads = 2;
  TinyModel two(setup);
  ExpectSame(Score(two.model(), ids, 16), Score(SharedModel(), ids, 16));
}

// Prompts beside one that decodes with drafts; the scores of each, and the decoded tokens.
TEST(PromptScores, LP4OthersThatDraftChangeNothingAndAreNotChanged) {
  const std::vector<int32_t> ids = RecordedPrompt();
  const std::vector<int32_t> other(ids.begin() + 3, ids.begin() + 23);
  worker::LoadedModel& model = SharedModel();
  const Scores alone = Score(model, ids, 96);
  for (const bool scores : {false, true}) {
    model.input().Reset();
    std::vector<int32_t> drafting = other;
    std::vector<protocol::RowSummary> rows;
    Scores got;
    for (size_t at = 0; at < ids.size(); at += 6) {
      protocol::StepPlan plan;
      const bool first = at == 0;
      const size_t begin = first ? 0 : drafting.size() - 1;
      protocol::SequenceStep beside = ChunkOf(drafting, begin, 64, 0);
      beside.feed_drafter = true;
      beside.mode = protocol::VerificationMode::kGreedy;
      // Room for a draft that crosses into the next block is there from the beginning.
      beside.table_size_before = first ? 0 : 2;
      beside.new_blocks.clear();
      if (first) beside.new_blocks = {protocol::BlockId(40), protocol::BlockId(41)};
      if (!first) beside.draft_depth = 3;
      plan.sequences.push_back(beside);
      plan.sequences.push_back(ScoredChunk(ids, at, 6));
      if (!scores) plan.sequences[1].scoring = {};
      const protocol::StepResult result = worker::RunPlan(model, plan);
      ASSERT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
      rows.push_back(result.sequences[0].rows[0]);
      drafting.push_back(rows.back().plain_token);
      const Scores& more = result.sequences[1].scores;
      got.insert(got.end(), more.begin(), more.end());
    }
    static std::vector<protocol::RowSummary> unscored;
    if (!scores) {
      unscored = rows;
      EXPECT_TRUE(got.empty());
    } else {
      EXPECT_EQ(rows, unscored);
      ExpectSame(got, alone);
    }
  }
}

// What a generation reports of its tokens is what the same tokens get as a prompt.
TEST(PromptScores, EqualTheLogprobsOfTheGenerationThatMadeThem) {
  std::vector<int32_t> ids = RecordedPrompt();
  const size_t prompt = ids.size();
  worker::LoadedModel& model = SharedModel();
  model.input().Reset();
  std::vector<protocol::RowSummary> rows;
  for (size_t at = 0; rows.size() < 16; at = ids.size() - 1) {
    protocol::StepPlan plan;
    plan.sequences.push_back(ChunkOf(ids, at, 96, kSlot));
    plan.sequences[0].sampling.num_top_logprobs = kTop;
    const protocol::StepResult result = worker::RunPlan(model, plan);
    ASSERT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    rows.push_back(result.sequences[0].rows[0]);
    ids.push_back(rows.back().plain_token);
  }
  const Scores scores = Score(model, ids, 13);
  for (size_t i = 0; i < rows.size(); ++i) {
    const protocol::TokenScore& score = scores[prompt - 1 + i];
    EXPECT_EQ(std::bit_cast<uint32_t>(score.logprob),
              std::bit_cast<uint32_t>(rows[i].plain_logprob));
    EXPECT_EQ(score.top, rows[i].top);
  }
}

// rule: R4.1 — no prompt token was drawn, so there is nothing else to tell.
TEST(PromptScores, R41AreRawWhateverThoseOfTheAnswerAre) {
  const std::vector<int32_t> ids = RecordedPrompt();
  worker::LoadedModel& model = SharedModel();
  const Scores raw = Score(model, ids, 96);
  model.input().Reset();
  protocol::StepPlan plan;
  plan.sequences.push_back(ScoredChunk(ids, 0, 96));
  plan.sequences[0].sampling = {.temperature = 0.3F, .top_k = 2, .processed_logprobs = true};
  ExpectSame(worker::RunPlan(model, plan).sequences[0].scores, raw);
}

TEST(PromptScores, APlanThatCannotBeScoredIsRefused) {
  const std::vector<int32_t> ids = RecordedPrompt();
  worker::LoadedModel& model = SharedModel();
  model.input().Reset();
  protocol::StepPlan plan;
  plan.sequences.push_back(ScoredChunk(ids, 0, 16));
  const auto refusal = [&](protocol::PromptScoring scoring) {
    plan.sequences[0].scoring = scoring;
    const protocol::StepResult result = worker::RunPlan(model, plan);
    EXPECT_EQ(result.status, protocol::StepStatus::kRefused);
    return result.message;
  };
  EXPECT_THAT(refusal({1, 16, 5, 0}), HasSubstr("scores rows up to 17 of 16"));
  EXPECT_THAT(refusal({0, 16, -1, 0}), HasSubstr("scores token -1"));
  EXPECT_THAT(refusal({0, 16, 4096, 0}), HasSubstr("scores token 4096"));
  EXPECT_THAT(refusal({0, 16, 5, 21}), HasSubstr("wants 21 alternatives"));
}

}  // namespace
}  // namespace skein::tests
