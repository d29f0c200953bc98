// Tests of worker/node/processor_shares: shares do not overlap while there are enough processors.
#include "worker/node/processor_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::worker {
namespace {

using ::testing::ElementsAre;

TEST(ProcessorShares, NeighboursInSharesOfNearlyOneSize) {
  const std::vector<int> processors = {0, 1, 2, 4, 6, 7, 9};
  EXPECT_THAT(ShareProcessors(processors, 1), ElementsAre(processors));
  EXPECT_THAT(ShareProcessors(processors, 3),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 4), ElementsAre(6, 7, 9)));
  EXPECT_THAT(ShareProcessors(processors, 7).back(), ElementsAre(9));
}

TEST(ProcessorShares, FewProcessorsAreUsedTwice) {
  const std::vector<int> processors = {3, 5};
  EXPECT_THAT(ShareProcessors(processors, 3),
              ElementsAre(ElementsAre(3), ElementsAre(5), ElementsAre(3)));
}

TEST(ProcessorShares, ThisProcessMayUseSome) {
  const std::vector<int> allowed = AllowedProcessors();
  ASSERT_FALSE(allowed.empty());
  EXPECT_GE(allowed.front(), 0);
  EXPECT_TRUE(std::is_sorted(allowed.begin(), allowed.end()));
}

}  // namespace
}  // namespace skein::worker
