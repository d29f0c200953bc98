// Blocks and a checkpoint from one model to another: what is computed behind them there is, bit for
// bit, what is computed where they came from. Orders that contradict a worker change nothing.
#include "worker/block_parcel.h"

#include <cstring>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/two_models.h"

namespace skein::tests {
namespace {

using protocol::MoveSide;
using ::testing::HasSubstr;

class BlockParcelTest : public ::testing::Test {
 protected:
  // Model 0 computes 96 tokens in blocks 3, 5, 7 and leaves their state in checkpoint 4.
  void ComputeFirst() {
    models_.Run(0, prompt_, 0, 50, kFrom);
    models_.Run(0, prompt_, 50, 96, kFrom);
    want_ = models_.Run(0, prompt_, 96, 130, kFrom, std::nullopt, 4);
    ASSERT_EQ(want_.status, protocol::StepStatus::kOk) << want_.message;
    ASSERT_EQ(want_.sequences.size(), 1U);
  }
  worker::BlockParcel MakeParcel() { return {worker::ShapeOf(models_[0]), 3}; }

  static constexpr worker::BlockRange kAll = {0, 3};
  const std::vector<uint32_t> kFrom = {3, 5, 7, 1, 2};
  const std::vector<uint32_t> kTo = {10, 9, 0, 20, 21};
  const protocol::MoveBlocks lend_ = OrderOf(1, MoveSide::kLend, {3, 5, 7}, 4);
  const protocol::MoveBlocks fetch_ = OrderOf(1, MoveSide::kFetch, {10, 9, 0}, 6);
  const std::vector<int32_t> prompt_ = PromptOf(130);
  TwoModels models_;
  protocol::StepResult want_;
};

TEST_F(BlockParcelTest, WhatFollowsIsTheSameBitForBit) {
  ComputeFirst();
  worker::BlockParcel parcel = MakeParcel();
  ASSERT_TRUE(worker::Pack(models_[0], lend_, kAll, parcel).ok());
  // Other rows were there before.
  models_.Run(1, PromptOf(90), 0, 90, kTo);
  ASSERT_TRUE(worker::Unpack(models_[1], fetch_, kAll, parcel).ok());
  protocol::StepResult got = models_.Run(1, prompt_, 96, 130, kTo, 6);
  EXPECT_EQ(got.sequences, want_.sequences);
  // The same once more, from the checkpoint that it left there.
  EXPECT_EQ(models_.Run(1, prompt_, 96, 130, kTo, 6).sequences, want_.sequences);
}

TEST_F(BlockParcelTest, RangesTogetherAreTheWhole) {
  ComputeFirst();
  worker::BlockParcel parcel = MakeParcel();
  for (const worker::BlockRange range : {worker::BlockRange{0, 2}, worker::BlockRange{2, 3}}) {
    EXPECT_EQ(models_[1].input().saved(2).used, 0);
    ASSERT_TRUE(worker::Pack(models_[0], lend_, range, parcel).ok());
  }
  for (const worker::BlockRange range : {worker::BlockRange{0, 1}, worker::BlockRange{1, 3}}) {
    EXPECT_EQ(models_[1].input().saved(2).used, 0) << "the state comes last";
    ASSERT_TRUE(worker::Unpack(models_[1], fetch_, range, parcel).ok());
  }
  EXPECT_EQ(models_.Run(1, prompt_, 96, 130, kTo, 6).sequences, want_.sequences);
}

// What came is of another worker, which may be wrong in ways that no checksum shows.
TEST_F(BlockParcelTest, StateThatContradictsItselfIsWrittenNowhere) {
  ComputeFirst();
  worker::BlockParcel parcel = MakeParcel();
  ASSERT_TRUE(worker::Pack(models_[0], lend_, kAll, parcel).ok());
  worker::SavedSlot right;
  std::byte* const at = parcel.pieces().back().data();
  std::memcpy(&right, at, sizeof(right));
  const auto unpack = [&](const std::function<void(worker::SavedSlot&)>& change) {
    worker::SavedSlot wrong = right;
    change(wrong);
    std::memcpy(at, &wrong, sizeof(wrong));
    return std::string(worker::Unpack(models_[1], fetch_, kAll, parcel).message());
  };
  using Saved = worker::SavedSlot;
  EXPECT_THAT(unpack([](Saved& saved) { saved.begin = 97; }), HasSubstr("contradicts itself"));
  EXPECT_THAT(unpack([](Saved& saved) { saved.begin = -1; }), HasSubstr("contradicts itself"));
  EXPECT_THAT(unpack([](Saved& saved) { saved.written = -1; }), HasSubstr("contradicts itself"));
  EXPECT_THAT(unpack([](Saved& saved) { saved.fed_from = -4; }), HasSubstr("contradicts itself"));
  EXPECT_THAT(unpack([](Saved& saved) { saved.fed_to = 1000; }), HasSubstr("contradicts itself"));
  EXPECT_THAT(unpack([](Saved& saved) { saved.fed_from = saved.fed_to + 1; }),
              HasSubstr("contradicts itself"));
  EXPECT_THAT(unpack([](Saved& saved) { saved.used = 2; }), HasSubstr("not the state"));
  EXPECT_THAT(unpack([](Saved& saved) { saved.written = int64_t{1} << 62; }),
              HasSubstr("not the state"));
  EXPECT_EQ(models_[1].input().saved(2).used, 0);
  EXPECT_EQ(unpack([](Saved&) {}), "");
}

TEST_F(BlockParcelTest, ADamagedParcelWouldShow) {
  ComputeFirst();
  for (const size_t piece : {0, 2, 3}) {
    worker::BlockParcel parcel = MakeParcel();
    ASSERT_TRUE(worker::Pack(models_[0], lend_, kAll, parcel).ok());
    const std::span<std::byte> bytes = parcel.pieces()[piece];
    const size_t state = piece == 3 ? sizeof(worker::SavedSlot) : 0;
    for (size_t i = state; i < bytes.size(); ++i) bytes[i] ^= std::byte{0x01};
    ASSERT_TRUE(worker::Unpack(models_[1], fetch_, kAll, parcel).ok());
    EXPECT_NE(models_.Run(1, prompt_, 96, 130, kTo, 6).sequences, want_.sequences) << piece;
  }
}

TEST_F(BlockParcelTest, OrdersThatContradictTheWorkerAreRefused) {
  ComputeFirst();
  worker::BlockParcel parcel = MakeParcel();
  protocol::MoveBlocks wrong = lend_;
  wrong.blocks[1] = protocol::BlockId(24);
  EXPECT_THAT(std::string(worker::Pack(models_[0], wrong, kAll, parcel).message()),
              HasSubstr("block 24 does not exist; the worker has 24"));
  for (const uint32_t checkpoint : {3, 8}) {
    wrong = lend_;
    wrong.checkpoint = protocol::SlotId(checkpoint);
    EXPECT_THAT(std::string(worker::Pack(models_[0], wrong, kAll, parcel).message()),
                HasSubstr("does not exist; the worker has 4, numbered from 4"));
  }
  wrong = lend_;
  wrong.checkpoint = protocol::SlotId(5);
  EXPECT_THAT(std::string(worker::Pack(models_[0], wrong, kAll, parcel).message()),
              HasSubstr("checkpoint 5 has 0 tokens, which are not the state at position 96"));
  wrong = lend_;
  wrong.position = 64;
  EXPECT_THAT(std::string(worker::Pack(models_[0], wrong, kAll, parcel).message()),
              HasSubstr("checkpoint 4 has 96 tokens, which are not the state at position 64"));
  ASSERT_TRUE(worker::Pack(models_[0], lend_, kAll, parcel).ok());
  wrong = fetch_;
  wrong.position = 64;
  EXPECT_FALSE(worker::Unpack(models_[1], wrong, kAll, parcel).ok());
  EXPECT_EQ(models_[1].input().saved(2).used, 0) << "nothing has changed";
}

}  // namespace
}  // namespace skein::tests
