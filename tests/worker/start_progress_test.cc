// The parts of a worker's start: how long each took, and that whoever watches is told of whole
// percents only.
#include "worker/start_progress.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class StartProgressTest : public ::testing::Test {
 protected:
  absl::Time now_ = absl::FromUnixSeconds(100);
  std::vector<std::pair<std::string, int>> told_;
  StartProgress progress_{
      [this](StartPhase phase, int percent) { told_.emplace_back(StartPhaseName(phase), percent); },
      [this] { return now_; }};
};

TEST_F(StartProgressTest, WholePercentsAreToldOnce) {
  progress_.Begin(StartPhase::kWeights);
  for (uint64_t done = 0; done <= 1000; ++done) progress_.Advance(done * 2, 100000);
  EXPECT_THAT(told_, ElementsAre(Pair("weights", 0), Pair("weights", 1), Pair("weights", 2)));
  progress_.Advance(7, 0);
  progress_.Advance(300000, 100000);
  EXPECT_THAT(told_.back(), Pair("weights", 100));
  progress_.Begin(StartPhase::kWarmup);
  EXPECT_THAT(told_.back(), Pair("warmup", 0));
}

TEST_F(StartProgressTest, TimesOfAPhaseAddUp) {
  now_ += absl::Seconds(1);
  progress_.Begin(StartPhase::kWeights);
  now_ += absl::Seconds(2);
  progress_.Begin(StartPhase::kEngram);
  now_ += absl::Seconds(3);
  progress_.Begin(StartPhase::kWeights);
  now_ += absl::Seconds(4);
  progress_.End();
  now_ += absl::Seconds(50);
  EXPECT_EQ(progress_.Took(StartPhase::kWeights), absl::Seconds(6));
  EXPECT_EQ(progress_.Took(StartPhase::kEngram), absl::Seconds(3));
  EXPECT_EQ(progress_.Took(StartPhase::kGraphCapture), absl::ZeroDuration());
  EXPECT_EQ(progress_.total(), absl::Seconds(10));
}

}  // namespace
}  // namespace skein::worker
