// Tests of digests: known answers, text form, random ones.
#include "coordinator/key_digest.h"

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

// RFC 4231, test cases 1 and 2.
TEST(KeyDigestTest, GivesTheKnownAnswers) {
  EXPECT_EQ(ToHex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(ToHex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(KeyDigestTest, TextFormGoesThereAndBack) {
  const KeyDigest digest = HmacSha256("k", "t");
  EXPECT_EQ(FromHex(ToHex(digest)), digest);
  EXPECT_EQ(FromHex(""), std::nullopt);
  EXPECT_EQ(FromHex(std::string(63, 'a')), std::nullopt);
  EXPECT_EQ(FromHex(std::string(65, 'a')), std::nullopt);
  EXPECT_EQ(FromHex(std::string(64, 'A')), std::nullopt) << "lower case only";
}

TEST(KeyDigestTest, ComparesEveryByte) {
  const KeyDigest digest = HmacSha256("k", "t");
  EXPECT_TRUE(SameDigest(digest, digest));
  for (size_t i = 0; i < digest.size(); ++i) {
    KeyDigest other = digest;
    other[i] ^= 1;
    EXPECT_FALSE(SameDigest(digest, other)) << i;
  }
}

TEST(KeyDigestTest, RandomOnesDiffer) { EXPECT_NE(RandomDigest(), RandomDigest()); }

}  // namespace
}  // namespace skein::coordinator
