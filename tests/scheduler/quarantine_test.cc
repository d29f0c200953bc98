// The bounded table of refused prompts.
#include "scheduler/quarantine.h"

#include <vector>

#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

constexpr Quarantine::Time kStart{std::chrono::hours(5)};

PromptHash HashOf(std::vector<int32_t> tokens) { return HashPrompt(tokens, ""); }

TEST(QuarantineTest, HashesTellPromptsAndTenantsApart) {
  EXPECT_EQ(HashOf({1, 2}), HashOf({1, 2}));
  EXPECT_NE(HashOf({1, 2}), HashOf({2, 1}));
  EXPECT_NE(HashOf({1, 2}), HashOf({1, 2, 0}));
  EXPECT_NE(HashPrompt(std::vector<int32_t>{1}, "a"), HashPrompt(std::vector<int32_t>{1}, "b"));
}

TEST(QuarantineTest, RefusesForTenMinutes) {
  Quarantine quarantine;
  quarantine.Add(HashOf({7}), kStart);
  EXPECT_TRUE(quarantine.Refuses(HashOf({7}), kStart));
  EXPECT_FALSE(quarantine.Refuses(HashOf({8}), kStart));
  EXPECT_TRUE(quarantine.Refuses(HashOf({7}), kStart + std::chrono::seconds(599)));
  EXPECT_FALSE(quarantine.Refuses(HashOf({7}), kStart + std::chrono::seconds(600)));
}

TEST(QuarantineTest, TheTableIsBounded) {
  Quarantine quarantine(2);
  quarantine.Add(HashOf({1}), kStart);
  quarantine.Add(HashOf({2}), kStart + std::chrono::seconds(1));
  quarantine.Add(HashOf({3}), kStart + std::chrono::seconds(2));
  EXPECT_EQ(quarantine.size(), 2U);
  EXPECT_FALSE(quarantine.Refuses(HashOf({1}), kStart + std::chrono::seconds(3)));
  EXPECT_TRUE(quarantine.Refuses(HashOf({2}), kStart + std::chrono::seconds(3)));
  quarantine.Add(HashOf({4}), kStart + std::chrono::minutes(20));
  EXPECT_EQ(quarantine.size(), 1U) << "what ended is gone";
}

}  // namespace
}  // namespace skein::scheduler
