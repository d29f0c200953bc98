// Tests of cache roots: equal for equal tenants and salts, whoever was asked for between.
#include "coordinator/cache_roots.h"

#include <set>

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

// rule: P1
TEST(CacheRootsTest, EachTenantAndSaltHasItsOwn) {
  CacheRoots roots(HmacSha256("secret", ""));
  const std::string first = roots.Of("a", "");
  std::set<std::string> all = {first};
  EXPECT_TRUE(all.insert(roots.Of("b", "")).second);
  EXPECT_TRUE(all.insert(roots.Of("b", "a")).second);
  EXPECT_TRUE(all.insert(roots.Of("", "a")).second);
  EXPECT_TRUE(all.insert(roots.Of("", "")).second);
  EXPECT_EQ(roots.Of("a", ""), first);
}

TEST(CacheRootsTest, AnotherSecretGivesOthers) {
  CacheRoots here(HmacSha256("secret", ""));
  CacheRoots there(HmacSha256("other", ""));
  EXPECT_NE(here.Of("a", ""), there.Of("a", ""));
}

}  // namespace
}  // namespace skein::coordinator
