// Ids come lowest first over several levels of the bit tree, and come back one by one.
#include "scheduler/free_ids.h"

#include <random>
#include <set>

#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

TEST(FreeIds, HandsOutTheLowestFirst) {
  FreeIds ids(3);
  EXPECT_EQ(ids.size(), 3U);
  EXPECT_EQ(ids.TakeLowest(), 0U);
  EXPECT_EQ(ids.TakeLowest(), 1U);
  ids.Insert(0);
  EXPECT_TRUE(ids.Contains(0));
  EXPECT_FALSE(ids.Contains(1));
  EXPECT_FALSE(ids.Contains(3));
  EXPECT_EQ(ids.TakeLowest(), 0U);
  EXPECT_EQ(ids.TakeLowest(), 2U);
  EXPECT_TRUE(ids.empty());
}

TEST(FreeIds, AgreesWithASetAtEverySize) {
  std::mt19937 random(7);
  for (const uint32_t count : {0U, 1U, 63U, 64U, 65U, 4096U, 4097U, 300'000U}) {
    SCOPED_TRACE(count);
    FreeIds ids(count);
    std::set<uint32_t> expected;
    for (uint32_t i = 0; i < count; ++i) expected.insert(expected.end(), i);
    std::vector<uint32_t> taken;
    for (int i = 0; i < 20'000; ++i) {
      if (!expected.empty() && (taken.empty() || random() % 3 != 0)) {
        const uint32_t id = ids.TakeLowest();
        ASSERT_EQ(id, *expected.begin());
        expected.erase(id);
        taken.push_back(id);
      } else if (!taken.empty()) {
        std::swap(taken[random() % taken.size()], taken.back());
        ids.Insert(taken.back());
        expected.insert(taken.back());
        taken.pop_back();
      }
      ASSERT_EQ(ids.size(), expected.size());
    }
  }
}

TEST(FreeIdsDeathTest, MisuseIsABug) {
  FreeIds ids(2);
  EXPECT_DEATH(ids.Insert(1), "id 1 of 2 is freed twice");
  EXPECT_DEATH(ids.Insert(2), "id 2 of 2 is freed twice");
  EXPECT_EQ(ids.TakeLowest() + ids.TakeLowest(), 1U);
  EXPECT_DEATH(ids.TakeLowest(), "no id of 2 is free");
}

}  // namespace
}  // namespace skein::scheduler
