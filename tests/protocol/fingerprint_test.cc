// Names of contents: known values, whole files, and what cannot be read.
#include "protocol/base/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

TEST(FingerprintTest, IsFnv) {
  EXPECT_EQ(Fingerprint(""), "cbf29ce484222325");
  EXPECT_EQ(Fingerprint("a"), "af63dc4c8601ec8c");
  EXPECT_EQ(Fingerprint("foobar"), "85944171f73967e8");
}

TEST(FingerprintTest, AFileIsItsBytes) {
  const std::string path = ::testing::TempDir() + "/fingerprinted";
  const std::string bytes(200'000, 'x');
  std::FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
  std::fclose(file);
  const auto named = FileFingerprint(path);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(*named, Fingerprint(bytes));
}

TEST(FingerprintTest, AMissingFileIsNamed) {
  const auto named = FileFingerprint("/nowhere/at all");
  EXPECT_EQ(named.status(), absl::NotFoundError("/nowhere/at all: No such file or directory"));
}

}  // namespace
}  // namespace skein::protocol
