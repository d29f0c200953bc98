// Tests of suggested names.
// Thread: single.
#include "protocol/config/name_suggestion.h"

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

TEST(NameSuggestion, NamesTheNearestAndNothingFar) {
  const std::vector<std::string> known = {"port", "host", "num_blocks"};
  EXPECT_EQ(NameSuggestion("prot", known, "--"), "; did you mean --port?");
  EXPECT_EQ(NameSuggestion("num_block", known, ""), "; did you mean num_blocks?");
  EXPECT_EQ(NameSuggestion("qqqqqq", known, ""), "");
  EXPECT_EQ(NameSuggestion(std::string(200, 'p'), known, ""), "");
}

}  // namespace
}  // namespace skein::protocol
