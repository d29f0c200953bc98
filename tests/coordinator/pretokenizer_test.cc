// Tests of splitting by patterns.
// Thread: single.
// Must never: depend on a tokenizer file.
#include "coordinator/text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PretokenizerTest, AppliesPatternsInOrderAndKeepsMatchesApart) {
  const std::vector<std::string> patterns = {"\\p{N}{1,3}", " ?\\p{L}+"};
  const auto splitter = Pretokenizer::Create(patterns);
  ASSERT_TRUE(splitter.ok()) << splitter.status();
  EXPECT_THAT(*(*splitter)->Split("ab cd12345, é中"),
              ElementsAre("ab", " cd", "123", "45", ",", " é中"));
  EXPECT_TRUE((*splitter)->Split("")->empty());
}

TEST(PretokenizerTest, LookaheadSeesOnlyItsPiece) {
  const std::vector<std::string> patterns = {"[0-9]", "\\s+(?!\\S)|\\s+"};
  const auto splitter = Pretokenizer::Create(patterns);
  ASSERT_TRUE(splitter.ok());
  EXPECT_THAT(*(*splitter)->Split("a  b  1"), ElementsAre("a", " ", " ", "b", "  ", "1"));
}

TEST(PretokenizerTest, EmptyMatchesSplitNothing) {
  const std::vector<std::string> patterns = {"x*"};
  const auto splitter = Pretokenizer::Create(patterns);
  ASSERT_TRUE(splitter.ok());
  EXPECT_THAT(*(*splitter)->Split("aéxxb"), ElementsAre("aé", "xx", "b"));
}

TEST(PretokenizerTest, RefusesBadPatterns) {
  std::vector<std::string> patterns = {"ok", "[a"};
  EXPECT_THAT(std::string(Pretokenizer::Create(patterns).status().message()),
              HasSubstr("pre-tokenizer pattern 1 is refused at byte 2: "));
  patterns = {std::string(40, '(') + std::string(40, ')')};
  EXPECT_THAT(std::string(Pretokenizer::Create(patterns).status().message()),
              HasSubstr("parentheses are too deeply nested"));
}

}  // namespace
}  // namespace skein::coordinator
