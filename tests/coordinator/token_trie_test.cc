// Tests of the trie: each token once, at the node of its bytes.
// Thread: the test's.
// Must never: need a file outside the tree.
#include "coordinator/text/token_trie.h"

#include <string>

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

const Tokenizer& Tiny() {
  static const Tokenizer* const tokenizer =
      Tokenizer::Load("deploy/models/tiny-v41/tokenizer.json").value().release();
  return *tokenizer;
}

TEST(TokenTrieTest, EachNodeSpellsItsToken) {
  const TokenTrie trie(Tiny(), Tiny().vocab_size());
  std::vector<bool> seen(static_cast<size_t>(Tiny().vocab_size()));
  std::string path;
  for (size_t i = 1; i < trie.nodes().size(); ++i) {
    const TokenTrie::Node& node = trie.nodes()[i];
    ASSERT_LE(node.depth, path.size() + 1) << "preorder";
    path.resize(node.depth - 1u);
    path.push_back(static_cast<char>(node.byte));
    EXPECT_GT(node.behind, i);
    for (size_t child = i + 1; child < node.behind; ++child) {
      ASSERT_GT(trie.nodes()[child].depth, node.depth);
    }
    if (node.token < 0) continue;
    EXPECT_EQ(Tiny().TokenBytes(node.token), path);
    EXPECT_FALSE(seen[static_cast<size_t>(node.token)]);
    seen[static_cast<size_t>(node.token)] = true;
  }
  for (int32_t id = 0; id < Tiny().vocab_size(); ++id) {
    const bool is_text = !Tiny().TokenBytes(id).empty() && !Tiny().IsSpecial(id);
    EXPECT_EQ(seen[static_cast<size_t>(id)], is_text) << id;
    const uint32_t word = trie.mask()[static_cast<size_t>(id) / 32];
    EXPECT_EQ((word >> (id % 32) & 1u) != 0, is_text) << id;
  }
}

TEST(TokenTrieTest, TokensBeyondTheModelsVocabularyAreLeftOut) {
  const TokenTrie trie(Tiny(), 100);
  EXPECT_EQ(trie.mask().size(), 4u);
  for (const TokenTrie::Node& node : trie.nodes()) EXPECT_LT(node.token, 100);
}

TEST(TokenTrieTest, FindsTheLongestToken) {
  const TokenTrie trie(Tiny(), Tiny().vocab_size());
  const std::string text = " parameter>\n";
  const TokenTrie::Match match = trie.Longest(text);
  ASSERT_GE(match.token, 0);
  EXPECT_EQ(Tiny().TokenBytes(match.token), text.substr(0, match.length));
  for (int32_t id = 0; id < Tiny().vocab_size(); ++id) {
    if (Tiny().IsSpecial(id) || !text.starts_with(Tiny().TokenBytes(id))) continue;
    EXPECT_LE(Tiny().TokenBytes(id).size(), match.length) << id;
  }
  EXPECT_EQ(trie.Longest("").token, -1);
}

}  // namespace
}  // namespace skein::coordinator
