// The tests of ranks on the GPU of this machine, which they share. Without one the program says so
// and skips. Those of forms that one GPU does not have (recorded, of the host) are left out.
#include <cstdio>

#include <gtest/gtest.h>

#include "tests/worker/rank_group.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto device = skein::worker::OpenGpu("sm90", 0);
  if (!device.ok() && !GTEST_FLAG_GET(list_tests)) {
    std::printf("skipped: %s\n", std::string(device.status().message()).c_str());
    return 0;
  }
  skein::tests::BackendOfRanks() = "sm90";
  if (GTEST_FLAG_GET(filter) == "*") {
    GTEST_FLAG_SET(filter,
                   "NcclOnGpu.*:Ranks/RankGroupTest.*/1:Ranks/RankGroupTest.*/2:RankGroup.Three*:"
                   "RankGroup.TheFullest*:RankErrors.APlan*:RankErrors.PlansAfter*:"
                   "Ranks/ExpertRebalanceTest.*/0:Ranks/ExpertRebalanceTest.*/2");
  }
  return RUN_ALL_TESTS();
}
