// Two workers of one process and a real channel between them: blocks that arrive, and every way in
// which they do not. The device runs its calls when the test lets it.
#include "worker/block_mover.h"

#include <deque>

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "absl/strings/str_cat.h"
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

// The test looks by itself.
class NoWaker final : public protocol::Waker {
 public:
  void Wake() override {}
};

// A worker as its actor sees it.
struct MovingWorker {
  MovingWorker(worker::LoadedModel& loaded, worker::CacheIdentity own)
      : model(loaded), shape(worker::ShapeOf(loaded)) {
    Start(std::move(own));
  }
  // As the first one, with the shape as it is now.
  void Restart() {
    mover.reset();
    Start({"layout", "cpu"});
  }
  void Start(worker::CacheIdentity own) {
    auto channel = protocol::UcxBlockChannel::Create({});
    EXPECT_TRUE(channel.ok()) << channel.status();
    address = (*channel)->address();
    mover = std::make_unique<worker::BlockMover>(
        *std::move(channel), std::move(own), shape, waker,
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
  worker::ParcelShape shape;
  NoWaker waker;
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

// Steps run between the calls of one transfer.
TEST_F(BlockMoverTest, ALargeTransferIsCopiedInSeveralCalls) {
  ComputeFirst();
  for (MovingWorker* side : {&from_, &to_}) {
    side->shape.call_bytes = 2 * side->shape.block_bytes;
    side->Restart();
  }
  from_.mover->Move(Lend());
  ASSERT_EQ(from_.calls.size(), 1U);
  from_.RunDevice();
  EXPECT_THAT(from_.mover->TakeMoved(), IsEmpty());
  EXPECT_EQ(from_.calls.size(), 1U) << "the third block, and the state";
  from_.RunDevice();
  EXPECT_THAT(from_.mover->TakeMoved(), IsEmpty());
  EXPECT_TRUE(from_.calls.empty()) << "it is lent";
  to_.mover->Move(Fetch());
  const auto fetched = to_.Ends(1);
  ASSERT_EQ(fetched.size(), 1U);
  EXPECT_EQ(fetched[0].status, MoveStatus::kOk) << fetched[0].message;
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

// What arrived for an epoch that is over is written nowhere: neither when it ends while the blocks
// are in the parcel, nor when the device has been told to copy them and gets to it late.
TEST_F(BlockMoverTest, NothingOfAnEndedEpochIsWrittenOrReported) {
  ComputeFirst();
  const auto bytes = [&] {
    std::vector<std::byte> all;
    for (const uint32_t block : {10, 9, 0}) {
      for (const std::span<std::byte> page : models_[1].cache().Pages(static_cast<int>(block))) {
        all.insert(all.end(), page.begin(), page.end());
      }
    }
    return all;
  };
  const std::vector<std::byte> before = bytes();
  to_.held = true;
  uint64_t transfer = 10;
  for (const bool queued : {false, true}) {
    from_.mover->Move(Lend(++transfer));
    to_.mover->Move(Fetch(transfer));
    ASSERT_EQ(from_.Ends(1).size(), 1U) << "it was taken";
    if (queued) {
      EXPECT_THAT(to_.Ends(1, absl::Milliseconds(300)), IsEmpty());
      ASSERT_EQ(to_.calls.size(), 1U) << "the device is to copy it";
    }
    to_.mover->Reset();
    to_.held = false;
    EXPECT_THAT(to_.Ends(1, absl::Milliseconds(300)), IsEmpty());
    EXPECT_TRUE(to_.calls.empty());
    to_.held = true;
    EXPECT_EQ(models_[1].input().saved(2).used, 0) << queued;
    EXPECT_EQ(bytes(), before) << queued;
  }
  to_.held = false;
  // The names are free again, and the next transfer is none the worse.
  from_.mover->Move(Lend(2));
  to_.mover->Move(Fetch(2));
  const auto fetched = to_.Ends(1, absl::Seconds(1));
  from_.Ends(1);
  const auto later = fetched.empty() ? to_.Ends(1) : fetched;
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].status, MoveStatus::kOk) << later[0].message;
}

TEST_F(BlockMoverTest, ParcelsHaveABoundInBytes) {
  ComputeFirst();
  const uint64_t each = worker::BlockParcel::BytesOf(from_.shape, 3);
  from_.shape.bytes_max = 2 * each + 1;
  from_.Restart();
  from_.mover->Move(Lend(1));
  from_.mover->Move(Lend(2));
  EXPECT_THAT(from_.mover->TakeMoved(), IsEmpty());
  from_.mover->Move(Lend(3));
  auto ends = from_.mover->TakeMoved();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].status, MoveStatus::kRefused);
  EXPECT_EQ(ends[0].message,
            absl::StrCat("the transfer takes ", each, " bytes of host memory beside ", 2 * each,
                         " of others, at most ", 2 * each + 1));
  // Those of an ended epoch count until nothing touches them any more.
  from_.mover->Reset();
  from_.RunDevice();
  from_.mover->Move(Lend(4));
  from_.mover->Move(Lend(5));
  EXPECT_THAT(from_.mover->TakeMoved(), IsEmpty());
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
