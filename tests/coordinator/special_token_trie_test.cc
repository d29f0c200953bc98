// Tests of finding added tokens.
// Thread: single.
// Must never: depend on a tokenizer file.
#include "coordinator/text/special_token_trie.h"

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

TEST(SpecialTokenTrieTest, FindsTheFirstAndLongest) {
  SpecialTokenTrie trie;
  EXPECT_TRUE(trie.Add("<a>", 1));
  EXPECT_TRUE(trie.Add("<a><b>", 2));
  EXPECT_TRUE(trie.Add("b>", 3));
  EXPECT_FALSE(trie.Add("<a>", 4));
  const auto match = trie.FindFirst("x<<a><b>", 0);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->begin, 2u);
  EXPECT_EQ(match->end, 8u);
  EXPECT_EQ(match->id, 2);
  EXPECT_EQ(trie.FindFirst("<a><b", 0)->id, 1);
  EXPECT_EQ(trie.FindFirst("<a><b>", 1)->id, 3);
  EXPECT_FALSE(trie.FindFirst("<a", 0).has_value());
  EXPECT_FALSE(trie.FindFirst("", 0).has_value());
}

}  // namespace
}  // namespace skein::coordinator
