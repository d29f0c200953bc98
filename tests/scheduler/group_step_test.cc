// The hash by which ranks of a group know that they run the same step.
#include "scheduler/group_step.h"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

std::vector<protocol::StepPlan> TwoPlans() {
  std::vector<protocol::StepPlan> plans(2);
  for (protocol::StepPlan& plan : plans) {
    plan.epoch = protocol::Epoch(7);
    plan.step = protocol::StepId(3);
  }
  plans[0].sequences.emplace_back().tokens = {1, 2, 3};
  plans[0].sequences[0].sequence = protocol::SequenceId(5);
  return plans;
}

uint64_t HashOf(std::vector<protocol::StepPlan> plans) {
  SealStep(plans);
  EXPECT_EQ(plans[0].plan_hash, plans[1].plan_hash);
  return plans[0].plan_hash;
}

TEST(GroupStep, TheHashTellsStepsApart) {
  const uint64_t hash = HashOf(TwoPlans());
  EXPECT_NE(hash, 0U);
  EXPECT_EQ(HashOf(TwoPlans()), hash);
  using Plans = std::vector<protocol::StepPlan>;
  const std::function<void(Plans&)> changes[] = {
      [](Plans& plans) { plans[0].epoch = protocol::Epoch(8); },
      [](Plans& plans) { plans[0].step = protocol::StepId(4); },
      [](Plans& plans) { plans[0].lane = 1; },
      [](Plans& plans) { plans[0].sequences[0].tokens.push_back(4); },
      [](Plans& plans) { plans[0].sequences[0].draft_depth = 1; },
      [](Plans& plans) { plans[0].sequences[0].sequence = protocol::SequenceId(6); },
      [](Plans& plans) { std::swap(plans[0].sequences, plans[1].sequences); },
      [](Plans& plans) { plans[1].sequences.emplace_back(); },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Plans plans = TwoPlans();
    changes[i](plans);
    EXPECT_NE(HashOf(plans), hash) << "change " << i;
  }
}

TEST(GroupStep, APlanAloneHasNone) {
  std::vector<protocol::StepPlan> plans(1);
  SealStep(plans);
  EXPECT_EQ(plans[0].plan_hash, 0U);
}

}  // namespace
}  // namespace skein::scheduler
