// Tests of the tokens that may not end a generation yet.
// Thread: the test's.
// Must never: open a socket.
#include "coordinator/api/min_tokens_constraint.h"

#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kAll = ~0u;

protocol::StopConditions Stops(int32_t min_tokens) {
  protocol::StopConditions stop;
  stop.min_tokens = min_tokens;
  stop.stop_token_ids = {1, 33, 500};
  return stop;
}

// Binds from the second token on, to token 1 alone.
class OnlyTheEnd final : public scheduler::TokenConstraint {
 public:
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<OnlyTheEnd>(*this);
  }
  void Advance(int32_t) override { binds_ = true; }
  bool binds() const override { return binds_; }
  std::vector<uint32_t> Mask() const override { return {2, 0}; }
  std::vector<int32_t> Forced(size_t) const override { return {1}; }

 private:
  bool binds_ = false;
};

TEST(MinTokensConstraintTest, StopTokensMayNotFollowBeforeTheLastOfThem) {
  MinTokensConstraint constraint(Stops(3), 64, nullptr);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(constraint.binds());
    EXPECT_THAT(constraint.Mask(), ElementsAre(kAll - 2, kAll - 2));
    EXPECT_TRUE(constraint.Forced(5).empty());
    constraint.Advance(7);
  }
  EXPECT_FALSE(constraint.binds()) << "the third token may be the end";
  EXPECT_FALSE(MinTokensConstraint(Stops(1), 64, nullptr).binds());
}

TEST(MinTokensConstraintTest, ACloneCountsByItself) {
  MinTokensConstraint constraint(Stops(2), 64, nullptr);
  const auto clone = constraint.Clone();
  constraint.Advance(7);
  EXPECT_FALSE(constraint.binds());
  EXPECT_TRUE(clone->binds());
  clone->Advance(7);
  EXPECT_FALSE(clone->binds());
}

TEST(MinTokensConstraintTest, TheOtherConstraintHoldsAndHasTheLastWord) {
  MinTokensConstraint constraint(Stops(9), 64, std::make_unique<OnlyTheEnd>());
  EXPECT_THAT(constraint.Mask(), ElementsAre(kAll - 2, kAll - 2));
  constraint.Advance(7);
  EXPECT_THAT(constraint.Mask(), ElementsAre(2u, 0u)) << "nothing else may follow";
  EXPECT_THAT(constraint.Forced(5), ElementsAre(1));
  const auto clone = constraint.Clone();
  EXPECT_EQ(clone->Mask(), constraint.Mask());
}

}  // namespace
}  // namespace skein::coordinator
