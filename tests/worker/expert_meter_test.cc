// What a rank says of its experts: of one step in kPeriod, the choices of the plan's own rows,
// layer by layer, whatever the other ranks run; those of the draft head beside them.
#include "worker/expert_meter.h"

#include <numeric>

#include <gtest/gtest.h>

#include "tests/worker/draft_stream.h"
#include "tests/worker/rank_group.h"

namespace skein::tests {
namespace {

using worker::ExpertMeter;

uint32_t Sum(const std::vector<uint32_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0u);
}

class ExpertMeterTest : public ::testing::TestWithParam<std::pair<bool, bool>> {};

TEST_P(ExpertMeterTest, AStepInAPeriodSaysWhatItsRowsChose) {
  RankSetup setup;
  std::tie(setup.split, setup.record) = GetParam();
  RankGroup group(setup);
  const worker::ModelSpec& spec = group.part(0).spec();
  Stream stream = StartStream(3, 0, 0.0F, {VerificationMode::kGreedy, 3});
  stream.wanted = 1000;
  size_t said = 0;
  for (uint64_t step = 1; step <= 2 * ExpertMeter::kPeriod; ++step) {
    std::vector<protocol::StepPlan> plans(2);
    plans[0].sequences.push_back(PlanStream(stream));
    const auto results = group.Run(plans);
    ASSERT_FALSE(::testing::Test::HasFailure());
    const auto& rows = results[0].sequences[0].rows;
    const protocol::ExpertLoad& load = results[0].expert_load;
    if (load.counts.empty()) {
      CommitStream(stream, rows);
      continue;
    }
    ++said;
    EXPECT_EQ(step % ExpertMeter::kPeriod, 0u);
    EXPECT_FALSE(load.prefill);
    ASSERT_EQ(load.counts.size(), static_cast<size_t>(spec.num_layers + spec.dspark.stages));
    for (int layer = 0; layer < spec.num_layers; ++layer) {
      EXPECT_EQ(Sum(load.counts[static_cast<size_t>(layer)]),
                rows.size() * static_cast<size_t>(spec.experts_per_token));
    }
    EXPECT_EQ(Sum(load.counts.back()),
              static_cast<uint32_t>(spec.dspark.block * spec.dspark.experts_per_token));
    // Of a rank without rows.
    EXPECT_EQ(results[1].expert_load.counts.size(), load.counts.size());
    EXPECT_EQ(Sum(results[1].expert_load.counts[0]), 0u);
    CommitStream(stream, rows);
  }
  EXPECT_EQ(said, 2u);
}

INSTANTIATE_TEST_SUITE_P(Devices, ExpertMeterTest,
                         ::testing::Values(std::pair{false, false}, std::pair{true, false},
                                           std::pair{true, true}));

// The choices are those of the gate: of one layer they lie where the whole model has them, too.
TEST(ExpertMeter, CountsAreThoseOfTheGate) {
  const auto part = LoadPart(RankSetup(), {0, 2});
  Stream stream = StartStream(5, 0, 0.0F, {});
  protocol::StepPlan plan;
  plan.sequences.push_back(PlanStream(stream));
  const int rows = static_cast<int>(plan.sequences[0].tokens.size());
  ASSERT_EQ(worker::RunPlan(*part, plan).status, protocol::StepStatus::kOk);
  const auto load = part->meter()->Read(rows, 0);
  ASSERT_TRUE(load.ok());
  const int layers = part->spec().num_layers;
  for (int layer = 0; layer < layers; ++layer) {
    std::vector<uint32_t> counts(static_cast<size_t>(part->spec().num_experts));
    const kernels::TensorView chosen = part->model().experts(layer, rows);
    for (int64_t i = 0; i < chosen.size(); ++i) ++counts.at(chosen.as<int32_t>()[i]);
    EXPECT_EQ(load->counts[static_cast<size_t>(layer)], counts);
  }
  EXPECT_NE(load->counts[0], load->counts[1]);
}

}  // namespace
}  // namespace skein::tests
