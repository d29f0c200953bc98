// Keys of the control plane: made, read, and refused with their remedy.
#include "protocol/transport/curve_keys.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "protocol/base/strings.h"
#include "tests/protocol/curve_fixture.h"

namespace skein::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::CurveFixture;

std::string ErrorOf(const CurveFiles& files, CurveSide side) {
  const auto keys = LoadCurveKeys(files, side);
  return keys.ok() ? "none" : std::string(StatusText(keys.status()));
}

TEST(CurveKeysTest, APairThatWasMadeIsRead) {
  const CurveFixture fixture;
  const CurveKeys keys = fixture.Coordinator();
  EXPECT_EQ(keys.public_key, fixture.server_key());
  EXPECT_EQ(keys.secret_key.size(), 40u);
  EXPECT_NE(keys.secret_key, keys.public_key);
  EXPECT_THAT(fixture.Worker().server_keys, ElementsAre(fixture.server_key()));
  const std::string both = fixture.server_key() + "," + fixture.NewPair("next");
  EXPECT_EQ(fixture.Worker("worker", both).server_keys.size(), 2u);
}

TEST(CurveKeysTest, AFileThatIsThereIsKept) {
  const CurveFixture fixture;
  EXPECT_EQ(WriteNewCurveKeys(fixture.path("worker")).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(WriteNewCurveKeys("/no/such/directory/key").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CurveKeysTest, WhatIsMissingIsNamed) {
  const CurveFixture fixture;
  EXPECT_THAT(ErrorOf({}, CurveSide::kWorker),
              HasSubstr("transport.curve_secret_key_file: a tcp control endpoint needs it"));
  EXPECT_THAT(ErrorOf({"", fixture.path("none"), ""}, CurveSide::kWorker),
              HasSubstr("No such file or directory; make one with skein keygen FILE"));
  EXPECT_THAT(ErrorOf({"", fixture.path("worker"), ""}, CurveSide::kWorker),
              HasSubstr("transport.curve_server_key: \"\" is not the coordinator's public key"));
  EXPECT_THAT(ErrorOf({"short", fixture.path("worker"), ""}, CurveSide::kWorker),
              HasSubstr("\"short\" is not the coordinator's public key of 40 characters"));
  EXPECT_THAT(ErrorOf({"", fixture.path("coordinator"), ""}, CurveSide::kCoordinator),
              HasSubstr("transport.curve_allowed_keys_file: a coordinator on tcp needs it"));
  EXPECT_THAT(
      ErrorOf({"", fixture.path("coordinator"), fixture.path("none")}, CurveSide::kCoordinator),
      HasSubstr("transport.curve_allowed_keys_file: cannot read"));
}

TEST(CurveKeysTest, ASecretThatOthersCanReadIsRefused) {
  const CurveFixture fixture;
  ASSERT_EQ(::chmod(fixture.path("worker").c_str(), 0640), 0);
  EXPECT_THAT(ErrorOf({fixture.server_key(), fixture.path("worker"), ""}, CurveSide::kWorker),
              HasSubstr("must be a file that only its owner can read: chmod 600 it"));
}

TEST(CurveKeysTest, KeysOfTwoPairsAreNoPair) {
  const CurveFixture fixture;
  const std::string path = fixture.path("mixed");
  std::ofstream(path) << "public " << fixture.server_key() << "\nsecret "
                      << fixture.Worker().secret_key << "\n";
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf({fixture.server_key(), path, ""}, CurveSide::kWorker),
              HasSubstr("has no lines \"public KEY\" and \"secret KEY\" of one pair"));
}

TEST(CurveKeysTest, AllowListsHaveOneKeyInALine) {
  const CurveFixture fixture;
  const std::string key = fixture.server_key();
  EXPECT_THAT(*ParseAllowedKeys(Concat("# workers\n\n", key, "  # node 1\n")), ElementsAre(key));
  EXPECT_TRUE(ParseAllowedKeys("")->empty());
  EXPECT_THAT(std::string(StatusText(ParseAllowedKeys(Concat(key, "\nnone\n")).status())),
              HasSubstr("line 2 is no public key of 40 characters"));
}

}  // namespace
}  // namespace skein::protocol
