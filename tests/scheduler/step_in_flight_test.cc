// What a result must answer, what a step cost, and the masks of a bound sequence.
#include "scheduler/step_in_flight.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/fake_constraint.h"

namespace skein::tests {
namespace {

using scheduler::StepInFlight;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

StepInFlight TwoParts() {
  StepInFlight step;
  step.step = protocol::StepId(7);
  step.parts.push_back({nullptr, protocol::SequenceId(1), true, 4, 0});
  step.parts.push_back({nullptr, protocol::SequenceId(2), true, 1, 3});
  return step;
}

protocol::StepResult Answer() {
  protocol::StepResult result;
  result.step = protocol::StepId(7);
  result.epoch = protocol::Epoch(2);
  result.sequences.resize(2);
  result.sequences[0] = {protocol::SequenceId(1), std::vector<protocol::RowSummary>(1)};
  result.sequences[1] = {protocol::SequenceId(2), std::vector<protocol::RowSummary>(3)};
  result.device_time_us = 50;
  result.draft_time_us = 20;
  return result;
}

TEST(StepInFlight, AResultAnswersItsStepRowByRow) {
  const StepInFlight step = TwoParts();
  const auto refusal = [&](const std::function<void(protocol::StepResult&)>& change) {
    protocol::StepResult result = Answer();
    change(result);
    return std::string(scheduler::CheckResult(step, protocol::Epoch(2), result).message());
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto& r) { r.step = protocol::StepId(8); }),
              HasSubstr("result of step 8"));
  EXPECT_THAT(refusal([](auto& r) { r.epoch = protocol::Epoch(1); }), HasSubstr("epoch 1"));
  EXPECT_THAT(refusal([](auto& r) { r.sequences.pop_back(); }),
              HasSubstr("1 sequences, the plan 2"));
  EXPECT_THAT(refusal([](auto& r) { r.sequences[0].rows.resize(2); }),
              HasSubstr("with 2 rows, the plan has sequence 1 with 1"));
  EXPECT_THAT(refusal([](auto& r) { r.sequences[1].rows.resize(5); }), HasSubstr("with 1 to 4"));
}

TEST(StepInFlight, ProvidedDraftsCostRowsAndNoDrafting) {
  StepInFlight step = TwoParts();
  const auto drafted = scheduler::CostOf(step, Answer());
  EXPECT_EQ(drafted.rows, 4u + 1u + 2u);
  EXPECT_EQ(drafted.num_drafted, 1u);
  EXPECT_EQ(drafted.device_time_us, 50u);
  EXPECT_EQ(drafted.draft_time_us, 20u);
  step.parts[1].provided = true;
  EXPECT_EQ(scheduler::CostOf(step, Answer()).rows, 7u);
  EXPECT_EQ(scheduler::CostOf(step, Answer()).num_drafted, 0u);
}

// rule: G5
TEST(StepInFlight, G5EachProvidedDraftHasTheMaskAfterIt) {
  scheduler::Sequence sequence;
  sequence.constraint = FakeConstraint().Clone();
  sequence.constraint->Advance(3);
  protocol::SequenceStep step;
  step.provided_drafts = {17, 16};
  scheduler::AddMasks(sequence, step);
  EXPECT_THAT(step.masks, ElementsAre(ElementsAre(1u << 17, 0u), ElementsAre(1u << 16, 0u),
                                      ElementsAre(1u << 15, 0u)));
  EXPECT_EQ(sequence.constraint->Mask()[0], 1u << 17) << "looking ahead moves nothing";
}

TEST(StepInFlight, AWishIsCutFromItsEnd) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  scheduler::DraftWish wish;
  wish.provided = tokens;
  wish.Limit(2);
  EXPECT_THAT(wish.provided, ElementsAre(1, 2));
  wish = {.depth = 4};
  wish.Limit(3);
  EXPECT_EQ(wish.size(), 3u);
}

}  // namespace
}  // namespace skein::tests
