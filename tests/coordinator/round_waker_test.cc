// Tests of the waker: one wake-up per round, more when many ask, none lost.
#include "coordinator/round_waker.h"

#include <vector>

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

class CountingWaker final : public protocol::Waker {
 public:
  void Wake() override { ++wakes; }
  int wakes = 0;
};

TEST(RoundWakerTest, WakesAtOnceWithoutALoop) {
  CountingWaker target;
  RoundWaker waker(target);
  waker.Wake();
  waker.Wake();
  EXPECT_EQ(target.wakes, 2);
}

TEST(RoundWakerTest, WakesOnceARoundAndAfterSixteenRequests) {
  CountingWaker target;
  RoundWaker waker(target);
  std::vector<std::function<void()>> posted;
  waker.SetPoster([&](std::function<void()> function) { posted.push_back(std::move(function)); });
  for (uint32_t i = 0; i < RoundWaker::kRequestsMax; ++i) waker.Wake();
  EXPECT_EQ(target.wakes, 0);
  ASSERT_EQ(posted.size(), 1u);
  waker.Wake();
  EXPECT_EQ(target.wakes, 1);
  posted[0]();
  EXPECT_EQ(target.wakes, 2);
  waker.Wake();
  ASSERT_EQ(posted.size(), 2u);
  posted[1]();
  EXPECT_EQ(target.wakes, 3);
}

}  // namespace
}  // namespace skein::coordinator
