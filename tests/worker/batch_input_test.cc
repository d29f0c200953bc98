// A plan becomes the metadata of a step; a plan that contradicts the slots changes nothing.
#include "worker/batch_input.h"

#include <functional>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/ops/sampling.h"

namespace skein::worker {
namespace {

using kernels::TensorView;
using protocol::BlockId;
using protocol::SequenceStep;
using protocol::StepPlan;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr int kBlockTokens = 4;
constexpr int kNumBlocks = 64;

std::vector<int32_t> Ints(const TensorView& view) {
  return {view.as<int32_t>(), view.as<int32_t>() + view.size()};
}
std::vector<int64_t> Longs(const TensorView& view) {
  return {view.as<int64_t>(), view.as<int64_t>() + view.size()};
}

// The demo model's shapes: window 64, ratios 1 and 2, 4-grams, drafts of 5.
class BatchInputTest : public ::testing::Test {
 protected:
  static ModelSpec Spec() { return *ModelSpec::Load("deploy/models/tiny-v41"); }
  static ModelLimits Limits() {
    return {.max_rows = 100, .max_samples = 3, .max_model_len = 128, .max_top = 5};
  }
  static std::vector<int32_t> HalfMap() {
    std::vector<int32_t> map(4096);
    for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<int32_t>(i / 2);
    return map;
  }

  // `count` tokens from `token` on at `first`, with `blocks` appended to a table of `before`.
  static SequenceStep Step(uint64_t sequence, uint32_t slot, uint32_t first, int32_t token,
                           size_t count, uint32_t before, std::vector<uint32_t> blocks) {
    SequenceStep step;
    step.sequence = protocol::SequenceId(sequence);
    step.slot = protocol::SlotId(slot);
    step.fresh_slot = first == 0;
    step.first_position = first;
    step.tokens.resize(count);
    std::iota(step.tokens.begin(), step.tokens.end(), token);
    step.table_size_before = before;
    for (uint32_t block : blocks) step.new_blocks.emplace_back(block);
    return step;
  }
  const ModelBatch& Build(std::vector<SequenceStep> steps) {
    StepPlan plan;
    plan.sequences = std::move(steps);
    const absl::Status status = input_.Check(plan);
    EXPECT_TRUE(status.ok()) << status;
    return input_.Build(plan, std::vector<SequenceDrafts>(plan.sequences.size()));
  }
  std::string Refusal(std::vector<SequenceStep> steps) {
    StepPlan plan;
    plan.sequences = std::move(steps);
    const absl::Status status = input_.Check(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  const ModelSpec spec_ = Spec();
  const std::vector<int32_t> map_ = HalfMap();
  Arena arena_;
  KvCache cache_{spec_, Numerics::Model(), kBlockTokens, kNumBlocks, arena_};
  StateSlots slots_{spec_, Numerics::Model(), 4, spec_.dspark.stages, arena_};
  BatchInput input_{spec_, Limits(), cache_, slots_, map_, arena_};
};

// A prefill of sequence 20 beside a decoding sequence 10, which has three tokens already.
class MixedBatch : public BatchInputTest {
 protected:
  const ModelBatch& BuildMixed() {
    Build({Step(10, 2, 0, 100, 3, 0, {4})});
    SequenceStep decode = Step(10, 2, 3, 200, 1, 1, {});
    decode.sample = true;
    decode.sampling = {.temperature = 0.5F,
                       .top_p = 0.25F,
                       .min_p = 0.125F,
                       .top_k = 7,
                       .seed = 99,
                       .num_top_logprobs = 2};
    return Build({decode, Step(20, 1, 0, 300, 5, 0, {7, 2})});
  }
};

TEST_F(MixedBatch, RowsNameSequenceAndPosition) {
  const ModelBatch& batch = BuildMixed();
  EXPECT_EQ(batch.num_rows, 6);
  EXPECT_EQ(batch.num_sequences, 2);
  EXPECT_THAT(Ints(batch.ids), ElementsAre(200, 300, 301, 302, 303, 304));
  EXPECT_THAT(Ints(batch.rows.position), ElementsAre(3, 0, 1, 2, 3, 4));
  EXPECT_THAT(Ints(batch.rows.sequence), ElementsAre(0, 1, 1, 1, 1, 1));
  EXPECT_THAT(Ints(batch.rows.first_row), ElementsAre(0, 1));
  EXPECT_THAT(Ints(batch.rows.first_position), ElementsAre(3, 0));
  EXPECT_THAT(Ints(batch.rows.slot), ElementsAre(2, 1));
  EXPECT_EQ(batch.rows.block_tokens, kBlockTokens);
  EXPECT_EQ(batch.rows.block_table.dim(1), 32);
  const std::vector<int32_t> tables = Ints(batch.rows.block_table);
  EXPECT_EQ(tables[0], 4);
  EXPECT_EQ(tables[1], -1);
  EXPECT_EQ(tables[32], 7);
  EXPECT_EQ(tables[33], 2);
  EXPECT_EQ(tables[34], -1);
  EXPECT_THAT(Ints(batch.window_begin), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Ints(batch.window_end), ElementsAre(4, 1, 2, 3, 4, 5));
}

TEST_F(MixedBatch, RingRowsAreAddressedByPosition) {
  const ModelBatch& batch = BuildMixed();
  EXPECT_THAT(Longs(batch.ring_source), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Longs(batch.ring_target),
              ElementsAre(2 * 70 + 3, 70, 70 + 1, 70 + 2, 70 + 3, 70 + 4));
}

TEST_F(MixedBatch, CompletedGroupsGoToTheirBlocks) {
  const ModelBatch& batch = BuildMixed();
  ASSERT_EQ(batch.groups.size(), 2U);
  const CompletedGroups& single = *batch.FindGroups(1);
  EXPECT_EQ(single.count, 6);
  EXPECT_EQ(single.max_columns, 5);
  EXPECT_THAT(Ints(single.row), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Longs(single.target), ElementsAre(4 * 4 + 3, 28, 29, 30, 31, 2 * 4));
  EXPECT_TRUE(single.ring_target.absent());
  const CompletedGroups& pairs = *batch.FindGroups(2);
  EXPECT_EQ(pairs.count, 3);
  EXPECT_EQ(pairs.max_columns, 2);
  EXPECT_THAT(Ints(pairs.row), ElementsAre(0, 2, 4));
  EXPECT_THAT(Longs(pairs.target), ElementsAre(4 * 2 + 1, 7 * 2, 7 * 2 + 1));
  EXPECT_THAT(Longs(pairs.ring_target), ElementsAre(2 * 8 + 3, 8, 8 + 1, 8 + 2, 8 + 3, 8 + 4));
  EXPECT_EQ(batch.FindGroups(4), nullptr);
}

TEST_F(MixedBatch, RotaryRowsAreThoseOfTokenAndGroup) {
  const ModelBatch& batch = BuildMixed();
  std::vector<float> row(32);
  auto at = [&](const TensorView& view, int index) {
    const auto* data = reinterpret_cast<const float*>(view.row(index));
    return std::vector<float>(data, data + 32);
  };
  RopeTable(spec_.rope, 32, false).FillRow(4, row.data());
  EXPECT_EQ(at(batch.rope_plain, 5), row);
  const RopeTable compress(spec_.rope, 32, true);
  compress.FillRow(3, row.data());
  EXPECT_EQ(at(batch.rope_compress, 0), row);
  compress.FillRow(2, row.data());
  EXPECT_EQ(at(batch.FindGroups(2)->cos_sin, 0), row) << "the first token of the group";
}

TEST_F(MixedBatch, NgramsLookBackThroughTheSlot) {
  const ModelBatch& batch = BuildMixed();
  const std::vector<int32_t> ngram = Ints(batch.ngram);
  const std::vector<int32_t> expected = {
      100, 51,  50,  50,   // 200, then 102, 101, 100 of the earlier step
      150, 1,   1,   1,    // 300, then padding: the class of token 2
      150, 150, 1,   1,    // 301, 300
      151, 150, 150, 1,    // 302 ...
      151, 151, 150, 150,  // 303 ...
      152, 151, 151, 150};
  EXPECT_THAT(ngram, ElementsAreArray(expected));
}

TEST_F(MixedBatch, SampledRowsCarryTheirParameters) {
  const ModelBatch& batch = BuildMixed();
  EXPECT_EQ(batch.num_samples, 1);
  EXPECT_THAT(Ints(batch.sample_row), ElementsAre(0));
  const auto& params = *batch.sample_params.as<kernels::SampleParams>();
  EXPECT_EQ(params.position, 4U);
  EXPECT_EQ(params.seed, 99U);
  EXPECT_EQ(params.top_k, 7);
  EXPECT_EQ(params.num_top, 2);
  EXPECT_FLOAT_EQ(params.temperature, 0.5F);
  EXPECT_FLOAT_EQ(params.top_p, 0.25F);
  EXPECT_FLOAT_EQ(params.min_p, 0.125F);
}

TEST_F(BatchInputTest, AChunkLongerThanTheRingKeepsItsEnd) {
  std::vector<uint32_t> blocks(25);
  std::iota(blocks.begin(), blocks.end(), 0U);
  const ModelBatch& batch = Build({Step(1, 0, 0, 5, 100, 0, blocks)});
  const std::vector<int64_t> ring = Longs(batch.ring_target);
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(ring[static_cast<size_t>(i)], i < 30 ? -1 : i % 70) << i;
  }
  const std::vector<int64_t> open = Longs(batch.FindGroups(2)->ring_target);
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(open[static_cast<size_t>(i)], i < 92 ? -1 : i % 8) << i;
  }
  EXPECT_EQ(Ints(batch.window_begin)[99], 36);
}

TEST_F(BatchInputTest, ColumnsCountAlsoWhenNoGroupIsCompleted) {
  Build({Step(1, 0, 0, 5, 4, 0, {0})});
  const ModelBatch& batch = Build({Step(1, 0, 4, 9, 1, 1, {1})});
  EXPECT_EQ(batch.FindGroups(2)->count, 0);
  EXPECT_EQ(batch.FindGroups(2)->max_columns, 2);
}

TEST_F(BatchInputTest, AnEmptyPlanIsAnEmptyBatch) {
  const ModelBatch& batch = Build({});
  EXPECT_EQ(batch.num_rows, 0);
  EXPECT_EQ(batch.num_sequences, 0);
  EXPECT_EQ(batch.num_samples, 0);
}

TEST_F(BatchInputTest, GoingBackByADraftIsALength) {
  Build({Step(1, 0, 0, 5, 19, 0, {0, 1, 2, 3, 4})});
  const ModelBatch& batch = Build({Step(1, 0, 14, 50, 2, 5, {})});
  EXPECT_THAT(Ints(batch.rows.position), ElementsAre(14, 15));
  EXPECT_THAT(Refusal({Step(1, 0, 17, 50, 1, 5, {})}),
              "sequence 1: first_position 17 leaves a gap after 16 computed tokens");
  EXPECT_EQ(Refusal({Step(1, 0, 10, 50, 1, 5, {})}),
            "sequence 1: first_position 10 goes back 6 tokens, at most 5, the largest draft; start "
            "it again in a fresh slot");
  // To the row after the decided token, when a whole draft was refused.
  EXPECT_THAT(Ints(Build({Step(1, 0, 11, 50, 1, 5, {})}).rows.position), ElementsAre(11));
}

TEST_F(BatchInputTest, ResetForgetsEverySlot) {
  Build({Step(1, 0, 0, 5, 3, 0, {0})});
  input_.Reset();
  EXPECT_EQ(Refusal({Step(1, 0, 3, 8, 1, 1, {})}), "sequence 1: slot 0 does not hold it");
  Build({Step(1, 0, 0, 5, 3, 0, {0})});
}

TEST_F(BatchInputTest, AFreshSlotForgetsItsSequence) {
  Build({Step(1, 0, 0, 5, 3, 0, {0})});
  Build({Step(2, 0, 0, 5, 2, 0, {3})});
  EXPECT_EQ(Refusal({Step(1, 0, 3, 8, 1, 1, {})}), "sequence 1: slot 0 does not hold it");
  EXPECT_EQ(Ints(Build({Step(2, 0, 2, 9, 1, 1, {})}).rows.block_table)[0], 3);
}

TEST_F(BatchInputTest, EveryRefusalLeavesTheStateAsItWas) {
  Build({Step(1, 0, 0, 5, 3, 0, {9})});
  // Each bad plan begins with a good step, which must not be applied either.
  const SequenceStep good = Step(1, 0, 3, 8, 2, 1, {10});
  const SequenceStep other = Step(2, 1, 0, 40, 2, 0, {11});
  struct Case {
    std::function<void(SequenceStep&)> damage;
    const char* text;
  };
  const std::vector<Case> cases = {
      {[](SequenceStep& s) { s.slot = protocol::SlotId(4); },
       "sequence 2: slot 4 does not exist; the worker has 4, numbered from 0"},
      {[](SequenceStep& s) { s.fresh_slot = false; }, "sequence 2: slot 1 does not hold it"},
      {[](SequenceStep& s) { s.first_position = 1; },
       "sequence 2: first_position 1 leaves a gap after 0 shared tokens"},
      {[](SequenceStep& s) { s.tokens.clear(); }, "sequence 2: has no tokens"},
      {[](SequenceStep& s) { s.tokens.assign(129, 1); },
       "sequence 2: ends at position 129, max_model_len is 128"},
      {[](SequenceStep& s) { s.table_size_before = 1; },
       "sequence 2: table_size_before is 1, the worker has 0 blocks"},
      {[](SequenceStep& s) { s.tokens.assign(5, 1); },
       "sequence 2: 1 blocks of 4 tokens do not hold 5 tokens"},
      {[](SequenceStep& s) { s.new_blocks.assign(33, BlockId(1)); },
       "sequence 2: has 33 blocks, at most 32"},
      {[](SequenceStep& s) { s.new_blocks[0] = BlockId(64); },
       "sequence 2: block 64 does not exist; the worker has 64, numbered from 0"},
      {[](SequenceStep& s) { s.tokens[1] = 4096; },
       "sequence 2: token 4096, the vocabulary has 4096"},
      {[](SequenceStep& s) { s.tokens[1] = -1; }, "sequence 2: token -1, the vocabulary has 4096"},
      {[](SequenceStep& s) { s.sampling.num_top_logprobs = 6; },
       "sequence 2: num_top_logprobs is 6, at most 5"},
      {[](SequenceStep& s) { s.sampling.num_top_logprobs = -1; },
       "sequence 2: num_top_logprobs is -1, at most 5"},
      {[](SequenceStep& s) { s.slot = protocol::SlotId(0); }, "slot 0 is in the plan twice"}};
  for (const Case& c : cases) {
    SequenceStep bad = other;
    c.damage(bad);
    EXPECT_EQ(Refusal({good, bad}), c.text);
  }
  SequenceStep again = Step(1, 0, 0, 5, 3, 1, {});
  again.fresh_slot = true;
  EXPECT_EQ(Refusal({again}), "sequence 1: table_size_before is 1, the worker has 0 blocks");
  const ModelBatch& batch = Build({good, other});
  EXPECT_THAT(Ints(batch.rows.position), ElementsAre(3, 4, 0, 1));
  EXPECT_EQ(Ints(batch.rows.block_table)[1], 10);
}

TEST_F(BatchInputTest, ThePlanAsAWholeIsBounded) {
  std::vector<uint32_t> blocks(13);
  std::iota(blocks.begin(), blocks.end(), 0U);
  EXPECT_EQ(Refusal({Step(1, 0, 0, 5, 51, 0, blocks), Step(2, 1, 0, 5, 50, 0, blocks)}),
            "the plan has 101 tokens, at most 100");
  std::vector<SequenceStep> samples;
  for (uint32_t slot = 0; slot < 4; ++slot) {
    samples.push_back(Step(slot, slot, 0, 5, 1, 0, {slot}));
    samples.back().sample = true;
  }
  EXPECT_EQ(Refusal(samples), "the plan samples 4 rows, at most 3");
}

// What a decode step wrote for drafts counts, kept or not: rings are longer by one draft alone.
TEST_F(BatchInputTest, GoingBackIsMeasuredFromWhatWasWritten) {
  Build({Step(10, 2, 0, 100, 8, 0, {4, 5, 6})});
  SequenceStep decode = Step(10, 2, 8, 200, 1, 3, {7});
  decode.sample = true;
  decode.draft_depth = 5;
  StepPlan plan;
  plan.sequences.push_back(decode);
  input_.BuildDecode(plan, {.sequences = 1, .depth = 5, .feeds_drafter = true});
  input_.Settle(decode, {}, true);
  EXPECT_THAT(Refusal({Step(10, 2, 8, 201, 1, 4, {})}),
              ::testing::HasSubstr("goes back 6 tokens, at most 5"));
  StepPlan next;
  next.sequences.push_back(Step(10, 2, 9, 201, 1, 4, {}));
  EXPECT_TRUE(input_.Check(next).ok()) << input_.Check(next);
}

}  // namespace
}  // namespace skein::worker
