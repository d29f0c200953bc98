// Processors are claimed once on a host and given back; node lists are read as the system writes
// them.
#include "worker/host_placement.h"

#include <gtest/gtest.h>

namespace skein::worker {
namespace {

// Numbers that no host has, so that running workers do not matter.
constexpr int kFirst = 900'000;

TEST(ProcessorClaims, AProcessorHasOneHolder) {
  const std::vector<int> usable = {kFirst, kFirst + 1, kFirst + 2};
  ProcessorClaims one = ProcessorClaims::Take(usable, 2);
  EXPECT_EQ(one.processors(), (std::vector<int>{kFirst, kFirst + 1}));
  const ProcessorClaims two = ProcessorClaims::Take(usable, 1);
  EXPECT_EQ(two.processors(), std::vector<int>{kFirst + 2});
  EXPECT_TRUE(ProcessorClaims::Take(usable, 1).processors().empty());
}

TEST(ProcessorClaims, TooFewMeansNoneAndKeepsNone) {
  const std::vector<int> usable = {kFirst + 10, kFirst + 11};
  EXPECT_TRUE(ProcessorClaims::Take(usable, 3).processors().empty());
  EXPECT_EQ(ProcessorClaims::Take(usable, 2).processors(), usable);
}

TEST(ProcessorClaims, EndWithTheirOwner) {
  const std::vector<int> usable = {kFirst + 20};
  {
    ProcessorClaims moved;
    moved = ProcessorClaims::Take(usable, 1);
    EXPECT_EQ(moved.processors(), usable);
    EXPECT_TRUE(ProcessorClaims::Take(usable, 1).processors().empty());
  }
  EXPECT_EQ(ProcessorClaims::Take(usable, 1).processors(), usable);
}

TEST(NodeList, ReadsNumbersAndRanges) {
  EXPECT_EQ(ParseNodeList("0"), std::vector<int>{0});
  EXPECT_EQ(ParseNodeList("0-2,5"), (std::vector<int>{0, 1, 2, 5}));
  for (const char* bad : {"", "a", "2-1", "0-", "1-2-3", "-1", "5000"}) {
    EXPECT_EQ(ParseNodeList(bad), std::nullopt) << bad;
  }
}

TEST(InterleaveMemory, SaysWhatItDid) {
  const std::string text = InterleaveMemory();
  EXPECT_TRUE(text == "one node, nothing to place" || text.starts_with("interleaved over nodes ") ||
              text.starts_with("not placed: ") || text.starts_with("unknown: "))
      << text;
}

}  // namespace
}  // namespace skein::worker
