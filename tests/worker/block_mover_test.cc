// Two workers of one process and a real channel between them: blocks that arrive, and every way in
// which they do not. The device runs its calls when the test lets it.
#include "worker/block_mover.h"

#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "protocol/base/clock.h"
#include "protocol/tensor/ucx_block_channel.h"
#include "tests/worker/two_models.h"

namespace skein::tests {
namespace {

using protocol::BlocksMoved;
using protocol::MoveSide;
using protocol::MoveStatus;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CountingWaker final : public protocol::Waker {
 public:
  void Wake() override {}
};

// A worker as its actor sees it.
struct MovingWorker {
  MovingWorker(worker::LoadedModel& loaded, worker::CacheIdentity own) : model(loaded) {
    auto channel = protocol::UcxBlockChannel::Create({});
    EXPECT_TRUE(channel.ok()) << channel.status();
    address = (*channel)->address();
    mover = std::make_unique<worker::BlockMover>(
        *std::move(channel), std::move(own), worker::ShapeOf(model), waker,
        [this](worker::DeviceCall call) {
          calls.push_back(std::move(call));
          return absl::OkStatus();
        });
  }
  void RunDevice() {
    for (; !calls.empty(); calls.pop_front()) calls.front()(model);
  }
  // Sides that end until there are so many; fewer when it takes too long.
  std::vector<BlocksMoved> Ends(size_t count, absl::Duration limit = absl::Seconds(20)) {
    std::vector<BlocksMoved> ends;
    for (const absl::Time end = protocol::MonotonicNow() + limit;
         ends.size() < count && protocol::MonotonicNow() < end; ::poll(nullptr, 0, 1)) {
      if (!held) RunDevice();
      for (BlocksMoved& moved : mover->TakeMoved()) ends.push_back(std::move(moved));
    }
    return ends;
  }

  worker::LoadedModel& model;
  CountingWaker waker;
  std::string address;
  std::deque<worker::DeviceCall> calls;
  bool held = false;  // the device runs nothing
  std::unique_ptr<worker::BlockMover> mover;
};

class BlockMoverTest : public ::testing::Test {
 protected:
  void ComputeFirst() {
    models_.Run(0, prompt_, 0, 96, kFrom);
    want_ = models_.Run(0, prompt_, 96, 130, kFrom, std::nullopt, 4);
    ASSERT_EQ(want_.status, protocol::StepStatus::kOk) << want_.message;
    ASSERT_EQ(want_.sequences.size(), 1U);
  }
  protocol::MoveBlocks Lend(uint64_t transfer = 1) {
    return OrderOf(transfer, MoveSide::kLend, {3, 5, 7}, 4);
  }
  protocol::MoveBlocks Fetch(uint64_t transfer = 1) {
    protocol::MoveBlocks move = OrderOf(transfer, MoveSide::kFetch, {10, 9, 0}, 6);
    move.address = from_.address;
    move.cache_layout = "layout";
    move.numerics = "cpu";
    return move;
  }

  const std::vector<uint32_t> kFrom = {3, 5, 7, 1, 2};
  const std::vector<uint32_t> kTo = {10, 9, 0, 20, 21};
  const std::vector<int32_t> prompt_ = PromptOf(130);
  TwoModels models_;
  protocol::StepResult want_;
  MovingWorker from_{models_[0], {"layout", "cpu"}};
  MovingWorker to_{models_[1], {"layout", "cpu"}};
};

TEST_F(BlockMoverTest, BlocksArriveAndTheLoanComesBack) {
  ComputeFirst();
  to_.mover->Move(Fetch());
  from_.mover->Move(Lend());
  from_.RunDevice();
  ASSERT_THAT(from_.mover->TakeMoved(), IsEmpty());
  const auto fetched = to_.Ends(1);
  const auto lent = from_.Ends(1);
  ASSERT_EQ(fetched.size(), 1U);
  ASSERT_EQ(lent.size(), 1U);
  EXPECT_EQ(fetched[0].status, MoveStatus::kOk) << fetched[0].message;
  EXPECT_EQ(lent[0].status, MoveStatus::kOk) << lent[0].message;
  EXPECT_EQ(fetched[0].epoch, protocol::Epoch(3));
  EXPECT_EQ(fetched[0].group, protocol::GroupId(1));
  EXPECT_GT(fetched[0].bytes, 3 * worker::ShapeOf(models_[0]).block_bytes);
  EXPECT_GT(fetched[0].took_us, 0U);
  EXPECT_EQ(models_.Run(1, prompt_, 96, 130, kTo, 6).sequences, want_.sequences);
}

TEST_F(BlockMoverTest, BlocksOfAnotherLayoutAreRefusedWithBothSides) {
  protocol::MoveBlocks other = Fetch();
  other.cache_layout = "other";
  to_.mover->Move(other);
  const auto ends = to_.mover->TakeMoved();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].status, MoveStatus::kRefused);
  EXPECT_THAT(ends[0].message, HasSubstr("layout \"other\" and numerics \"cpu\", this worker has "
                                         "\"layout\" and \"cpu\""));
}

TEST_F(BlockMoverTest, WhatTheLenderDoesNotHaveIsRefused) {
  from_.mover->Move(Lend());
  const auto ends = from_.Ends(1);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].status, MoveStatus::kRefused);
  EXPECT_THAT(ends[0].message, HasSubstr("not the state at position 96"));
  protocol::MoveBlocks none = Lend(2);
  none.blocks.resize(25);
  from_.mover->Move(none);
  EXPECT_THAT(from_.mover->TakeMoved()[0].message,
              HasSubstr("the order names 25 blocks, the worker has 24"));
}

TEST_F(BlockMoverTest, LoansAndFetchesThatNobodyMeetsExpire) {
  ComputeFirst();
  protocol::MoveBlocks lend = Lend();
  lend.timeout_ms = 200;
  from_.mover->Move(lend);
  protocol::MoveBlocks fetch = Fetch(2);
  fetch.timeout_ms = 200;
  to_.mover->Move(fetch);
  const auto lent = from_.Ends(1);
  const auto fetched = to_.Ends(1);
  ASSERT_EQ(lent.size(), 1U);
  ASSERT_EQ(fetched.size(), 1U);
  EXPECT_EQ(lent[0].status, MoveStatus::kExpired);
  EXPECT_EQ(fetched[0].status, MoveStatus::kExpired);
}

TEST_F(BlockMoverTest, AWorkerThatDiesEndsTheFetch) {
  ComputeFirst();
  to_.mover->Move(Fetch());
  EXPECT_THAT(to_.Ends(1, absl::Milliseconds(200)), IsEmpty()) << "it waits for the loan";
  from_.mover.reset();
  const auto fetched = to_.Ends(1);
  ASSERT_EQ(fetched.size(), 1U);
  EXPECT_EQ(fetched[0].status, MoveStatus::kLost);
}

// What arrived for an epoch that is over is written nowhere, though the device gets to it late.
TEST_F(BlockMoverTest, NothingOfAnEndedEpochIsWrittenOrReported) {
  ComputeFirst();
  to_.held = true;
  from_.mover->Move(Lend());
  to_.mover->Move(Fetch());
  ASSERT_EQ(from_.Ends(1).size(), 1U) << "it was taken";
  to_.mover->Reset();
  to_.held = false;
  EXPECT_THAT(to_.Ends(1, absl::Milliseconds(300)), IsEmpty());
  EXPECT_EQ(models_[1].input().saved(2).used, 0);
  // The names are free again, and the next transfer is none the worse.
  from_.mover->Move(Lend(2));
  to_.mover->Move(Fetch(2));
  const auto fetched = to_.Ends(1, absl::Seconds(1));
  from_.Ends(1);
  const auto later = fetched.empty() ? to_.Ends(1) : fetched;
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].status, MoveStatus::kOk) << later[0].message;
}

TEST_F(BlockMoverTest, TransfersHaveABoundAndNames) {
  ComputeFirst();
  for (uint64_t i = 1; i <= worker::kMovesMax; ++i) from_.mover->Move(Lend(i));
  EXPECT_THAT(from_.mover->TakeMoved(), IsEmpty());
  from_.mover->Move(Lend(3));
  from_.mover->Move(Lend(99));
  const auto ends = from_.mover->TakeMoved();
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_THAT(ends[0].message, HasSubstr("under way"));
  EXPECT_THAT(ends[1].message, HasSubstr("16 transfers are under way, at most 16"));
  EXPECT_EQ(ends[1].status, MoveStatus::kRefused);
}

}  // namespace
}  // namespace skein::tests
