// Tests of protocol/base: ids, status macros, string conversions.
#include <sstream>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>

#include <gtest/gtest.h>

#include "absl/container/flat_hash_set.h"
#include "protocol/base/ids.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

static_assert(!std::is_convertible_v<uint64_t, RequestId>);
static_assert(!std::is_convertible_v<RequestId, uint64_t>);
static_assert(!std::is_constructible_v<RequestId, SequenceId>);
static_assert(!std::is_assignable_v<BlockId&, SlotId>);

TEST(IdsTest, CompareHashAndPrint) {
  EXPECT_LT(StepId(3), StepId(4));
  EXPECT_EQ(StepId(3).Next(), StepId(4));
  EXPECT_EQ(Epoch().value(), 0u);
  std::unordered_set<BlockId> standard = {BlockId(1), BlockId(2), BlockId(1)};
  EXPECT_EQ(standard.size(), 2u);
  absl::flat_hash_set<BlockId> swiss = {BlockId(1), BlockId(2), BlockId(1)};
  EXPECT_EQ(swiss.size(), 2u);
  std::ostringstream out;
  out << SlotId(7);
  EXPECT_EQ(out.str(), "7");
}

TEST(IdsTest, AttemptsOfALaterTermNeverRepeat) {
  EXPECT_LT(MakeAttempt(Term(1), 0xffffffffu), MakeAttempt(Term(2), 0));
  EXPECT_NE(MakeAttempt(Term(1), 5), MakeAttempt(Term(2), 5));
}

absl::Status Fail(bool fail) {
  return fail ? absl::UnavailableError("peer 3 is gone") : absl::OkStatus();
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError(Concat(value, " is odd"));
  return value / 2;
}

absl::Status ReturnsEarly(bool fail, int& reached) {
  SKEIN_RETURN_IF_ERROR(Fail(fail));
  reached = 1;
  return absl::OkStatus();
}

absl::StatusOr<int> Quarter(int value) {
  SKEIN_ASSIGN_OR_RETURN(const int half, Half(value));
  SKEIN_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(StatusMacrosTest, ReturnOnErrorAndContinueOnSuccess) {
  int reached = 0;
  EXPECT_EQ(ReturnsEarly(true, reached).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(ReturnsEarly(false, reached).ok());
  EXPECT_EQ(reached, 1);
}

TEST(StatusMacrosTest, AssignOrReturnKeepsTheFirstError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(StatusText(Quarter(6).status()), "3 is odd");
  EXPECT_EQ(StatusText(Quarter(5).status()), "5 is odd");
}

TEST(StringsTest, ConversionsKeepBytes) {
  const std::string_view text("a\0b", 3);
  EXPECT_EQ(ToStd(ToAbsl(text)), text);
  EXPECT_EQ(Concat("x=", std::string_view("y"), ' ' == 32 ? 1 : 0, std::string("z")), "x=y1z");
}

TEST(StringsTest, TransparentLookup) {
  std::unordered_map<std::string, int, StringHash, StringEqual> map = {{"alpha", 1}};
  EXPECT_NE(map.find(std::string_view("alpha")), map.end());
  EXPECT_EQ(map.find("beta"), map.end());
}

}  // namespace
}  // namespace skein::protocol
