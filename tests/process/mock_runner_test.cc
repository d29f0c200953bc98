// The memory of the mock worker: right tokens from right rows, wrong ones from any other.
#include "tests/process/mock_runner.h"

#include <gtest/gtest.h>

#include "tests/process/mock_model.h"

namespace skein::tests {
namespace {

using protocol::BlockId;
using protocol::SequenceStep;
using protocol::StepPlan;
using protocol::StepResult;

constexpr protocol::CacheGeometry kGeometry = {4, 8, 2, 64, 32, 0};

SequenceStep Step(uint32_t slot, uint32_t position, const std::vector<int32_t>& tokens,
                  uint32_t table_before, std::vector<BlockId> blocks) {
  SequenceStep step;
  step.slot = protocol::SlotId(slot);
  step.fresh_slot = position == 0;
  step.first_position = position;
  step.tokens.assign(tokens.begin(), tokens.end());
  step.table_size_before = table_before;
  step.new_blocks = std::move(blocks);
  step.sample = true;
  return step;
}

// The character that the only sequence of the plan gets; '?' when the plan is refused.
char CharacterOf(MockMemory& memory, SequenceStep step) {
  StepPlan plan;
  plan.sequences.push_back(std::move(step));
  const StepResult result = memory.Run(plan);
  if (result.sequences.empty()) return '?';
  return static_cast<char>(result.sequences[0].rows.at(0).plain_token - 3 + '!');
}

TEST(MockMemoryTest, TheTokensAreThoseOfTheWholePrefix) {
  MockMemory memory(kGeometry);
  const std::vector<int32_t> prompt = {40, 41, 42, 43, 44};
  const std::string answer = MockAnswer(prompt, 2);
  EXPECT_EQ(CharacterOf(memory, Step(0, 0, {40, 41, 42, 43, 44}, 0, {BlockId(3), BlockId(1)})),
            answer[0]);
  EXPECT_EQ(CharacterOf(memory, Step(0, 5, {TokenOf(answer[0])}, 2, {})), answer[1]);
}

TEST(MockMemoryTest, ARowThatAnotherSequenceOverwroteGivesAnotherToken) {
  MockMemory memory(kGeometry);
  const std::string answer = MockAnswer(std::vector<int32_t>{40, 41}, 2);
  ASSERT_EQ(CharacterOf(memory, Step(0, 0, {40, 41}, 0, {BlockId(3)})), answer[0]);
  CharacterOf(memory, Step(1, 0, {50}, 0, {BlockId(3)}));
  EXPECT_NE(CharacterOf(memory, Step(0, 2, {TokenOf(answer[0])}, 1, {})), answer[1]);
}

TEST(MockMemoryTest, ARowBeyondItsPlaceGivesAnotherToken) {
  MockMemory memory(kGeometry);
  const std::string answer = MockAnswer(std::vector<int32_t>{40, 41}, 2);
  ASSERT_EQ(CharacterOf(memory, Step(0, 0, {40, 41}, 0, {BlockId(3)})), answer[0]);
  EXPECT_NE(CharacterOf(memory, Step(0, 3, {TokenOf(answer[0])}, 1, {})), answer[1]);
}

TEST(MockMemoryTest, APlanForAnotherTableIsRefused) {
  MockMemory memory(kGeometry);
  EXPECT_EQ(CharacterOf(memory, Step(0, 4, {40}, 1, {BlockId(3)})), '?');
  EXPECT_EQ(CharacterOf(memory, Step(0, 0, {40}, 0, {BlockId(8)})), '?');
  EXPECT_EQ(CharacterOf(memory, Step(2, 0, {40}, 0, {BlockId(1)})), '?');
  EXPECT_EQ(CharacterOf(memory, Step(0, 0, {40, 41, 42, 43, 44}, 0, {BlockId(1)})), '?');
}

TEST(MockMemoryTest, NothingIsHeldAfterForget) {
  MockMemory memory(kGeometry);
  CharacterOf(memory, Step(0, 0, {40, 41}, 0, {BlockId(3)}));
  memory.Forget();
  EXPECT_EQ(CharacterOf(memory, Step(0, 2, {42}, 1, {})), '?');
}

}  // namespace
}  // namespace skein::tests
