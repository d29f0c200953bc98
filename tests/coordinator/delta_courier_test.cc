// Tests of the courier: one post for what is waiting, order, the end.
#include "coordinator/api/delta_courier.h"

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

class Receiver final : public DeltaReceiver {
 public:
  void OnDelta(const TokenDelta& delta) override { steps.push_back(delta.num_steps); }
  std::vector<uint64_t> steps;
};

TokenDelta Step(uint64_t number) {
  TokenDelta delta;
  delta.num_steps = number;
  return delta;
}

class DeltaCourierTest : public ::testing::Test {
 protected:
  const std::shared_ptr<DeltaCourier> courier_ = std::make_shared<DeltaCourier>();
  const std::shared_ptr<Receiver> a_ = std::make_shared<Receiver>();
  const std::shared_ptr<Receiver> b_ = std::make_shared<Receiver>();
  std::vector<std::function<void()>> posted_;
  const DeltaCourier::Poster post_ = [this](std::function<void()> function) {
    posted_.push_back(std::move(function));
  };
};

TEST_F(DeltaCourierTest, DeliversWhatIsWaitingWithOnePost) {
  courier_->Send(a_, Step(1), post_);
  courier_->Send(b_, Step(1), post_);
  courier_->Send(a_, Step(2), post_);
  ASSERT_EQ(posted_.size(), 1u);
  EXPECT_TRUE(a_->steps.empty());
  EXPECT_EQ(courier_->mailbox_depth(), 3u);
  posted_[0]();
  EXPECT_EQ(courier_->mailbox_depth(), 0u);
  EXPECT_EQ(a_->steps, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(b_->steps, (std::vector<uint64_t>{1}));
  courier_->Send(b_, Step(2), post_);
  ASSERT_EQ(posted_.size(), 2u);
  posted_[1]();
  EXPECT_EQ(b_->steps, (std::vector<uint64_t>{1, 2}));
}

TEST_F(DeltaCourierTest, HoldsNobodyAfterTheEnd) {
  courier_->Send(a_, Step(1), post_);
  EXPECT_EQ(a_.use_count(), 2);
  courier_->Close();
  EXPECT_EQ(a_.use_count(), 1);
  courier_->Send(a_, Step(2), post_);
  EXPECT_EQ(a_.use_count(), 1);
  posted_[0]();
  EXPECT_TRUE(a_->steps.empty());
}

}  // namespace
}  // namespace skein::coordinator
