// Tests of ids and seeds.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/request_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

TEST(RequestIdsTest, IdsDifferAndClientIdsAreKept) {
  const RequestIds ids(7);
  EXPECT_NE(ids.AnswerId(RequestForm::kChat, 1), ids.AnswerId(RequestForm::kChat, 2));
  EXPECT_EQ(ids.AnswerId(RequestForm::kCompletion, 1).size(), 5u + 32);
  EXPECT_EQ(ids.HeaderId("abc", 1), "abc");
  EXPECT_EQ(ids.HeaderId("a\nb", 1).substr(0, 4), "req-");
  EXPECT_EQ(ids.HeaderId(std::string(129, 'a'), 1).size(), 4u + 16);
  EXPECT_NE(ids.SamplingSeed(1), RequestIds(8).SamplingSeed(1));
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_GE(ids.Spread(i), 0);
    EXPECT_LT(ids.Spread(i), 1);
  }
}

}  // namespace
}  // namespace skein::coordinator
