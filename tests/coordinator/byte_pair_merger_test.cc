// Tests of merging: order of merges, and agreement of the two ways.
// Thread: single.
// Must never: depend on a tokenizer file.
#include "coordinator/text/byte_pair_merger.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;

BytePairMerger MakeMerger() {
  BytePairMerger merger;
  for (int byte = 0; byte < 256; ++byte) merger.SetByteId(static_cast<uint8_t>(byte), byte);
  EXPECT_TRUE(merger.AddMerge('b', 'c', 300).ok());
  EXPECT_TRUE(merger.AddMerge('a', 'b', 301).ok());
  EXPECT_TRUE(merger.AddMerge('a', 'a', 302).ok());
  EXPECT_TRUE(merger.AddMerge(302, 302, 303).ok());
  EXPECT_TRUE(merger.AddMerge(301, 'd', 304).ok());
  return merger;
}

std::vector<int32_t> Merge(const BytePairMerger& merger, std::string_view bytes) {
  std::vector<int32_t> ids;
  merger.Append(bytes, &ids);
  return ids;
}

TEST(BytePairMergerTest, EarlierMergesWinAndTiesGoLeft) {
  const BytePairMerger merger = MakeMerger();
  EXPECT_THAT(Merge(merger, "abc"), ElementsAre('a', 300));
  EXPECT_THAT(Merge(merger, "abd"), ElementsAre(304));
  EXPECT_THAT(Merge(merger, "aaa"), ElementsAre(302, 'a'));
  EXPECT_THAT(Merge(merger, "aaaa"), ElementsAre(303));
  EXPECT_THAT(Merge(merger, "x"), ElementsAre('x'));
  EXPECT_TRUE(Merge(merger, "").empty());
}

TEST(BytePairMergerTest, LongWordsMergeLikeShortOnes) {
  const BytePairMerger merger = MakeMerger();
  uint32_t state = 1;
  for (int round = 0; round < 200; ++round) {
    std::string word;
    for (int i = 0; i < 40; ++i) {
      state = state * 1664525u + 1013904223u;
      word.push_back(static_cast<char>('a' + (state >> 24) % 4));
    }
    const std::vector<int32_t> once = Merge(merger, word);
    // No merge crosses 'z', so a word that is long through separators merges piece by piece.
    std::vector<int32_t> expected = once;
    expected.push_back('z');
    expected.insert(expected.end(), once.begin(), once.end());
    EXPECT_EQ(Merge(merger, word + "z" + word), expected) << word;
  }
}

// Words that are looked up give what merging gives, and a token that no merge reaches (here
// "abc": its bytes merge into 'a' and 300) is never used.
TEST(BytePairMergerTest, IndexedWordsChangeNoResult) {
  const BytePairMerger plain = MakeMerger();
  BytePairMerger indexed = MakeMerger();
  std::vector<std::string> texts(306);
  for (size_t byte = 0; byte < 256; ++byte) texts[byte] = std::string(1, static_cast<char>(byte));
  texts[300] = "bc";
  texts[301] = "ab";
  texts[302] = "aa";
  texts[303] = "aaaa";
  texts[304] = "abd";
  texts[305] = "abc";
  indexed.IndexWords(std::vector<std::string_view>(texts.begin(), texts.end()));
  EXPECT_THAT(Merge(indexed, "abc"), ElementsAre('a', 300));
  EXPECT_THAT(Merge(indexed, "abd"), ElementsAre(304));
  EXPECT_TRUE(Merge(indexed, "").empty());
  uint32_t state = 7;
  for (int round = 0; round < 2000; ++round) {
    std::string word;
    for (int i = 0; i < 1 + round % 70; ++i) {
      state = state * 1664525u + 1013904223u;
      word.push_back(static_cast<char>('a' + (state >> 24) % 4));
    }
    EXPECT_EQ(Merge(indexed, word), Merge(plain, word)) << word;
  }
}

TEST(BytePairMergerTest, RefusesARepeatedPair) {
  BytePairMerger merger = MakeMerger();
  EXPECT_EQ(merger.AddMerge('a', 'b', 400).message(),
            "merge 5 repeats merge 1; each pair may occur once");
}

TEST(BytePairMergerTest, KnowsWhenAByteIsMissing) {
  EXPECT_TRUE(MakeMerger().CoversAllBytes());
  EXPECT_FALSE(BytePairMerger().CoversAllBytes());
}

}  // namespace
}  // namespace skein::coordinator
