// Tests of protocol/codec: every message round trips; limits hold on both sides; hostile bytes end
// in a status and never crash.
#include "protocol/codec/codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"
#include "tests/protocol/message_samples.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;
using tests::SampleMessages;
using tests::SamplePlan;
using tests::SampleResult;

TEST(CodecTest, EveryMessageRoundTrips) {
  const std::vector<Message> messages = SampleMessages();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (size_t i = 0; i < messages.size(); ++i) {
    ASSERT_EQ(messages[i].index(), i) << "one sample of each alternative, in order";
    const auto bytes = EncodeMessage(messages[i]);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const auto decoded = DecodeMessage(TypeOf(messages[i]), *bytes);
    ASSERT_TRUE(decoded.ok()) << MessageTypeName(TypeOf(messages[i])) << decoded.status();
    EXPECT_EQ(*decoded, messages[i]) << MessageTypeName(TypeOf(messages[i]));
  }
}

TEST(CodecTest, TypeNumbersAndNamesAreTheWire) {
  EXPECT_EQ(TypeOf(StepPlan{}), static_cast<MessageType>(1));
  EXPECT_EQ(TypeOf(Shutdown{}), static_cast<MessageType>(11));
  EXPECT_EQ(MessageTypeName(MessageType::kStepPlan), "StepPlan");
  EXPECT_EQ(MessageTypeName(static_cast<MessageType>(99)), "unknown");
}

TEST(CodecTest, MisalignedBytesDecode) {
  const Message message = SamplePlan();
  const auto bytes = EncodeMessage(message);
  ASSERT_TRUE(bytes.ok());
  for (size_t offset = 0; offset < 8; ++offset) {
    std::vector<std::byte> shifted(bytes->size() + offset);
    std::memcpy(shifted.data() + offset, bytes->data(), bytes->size());
    const auto decoded = DecodeMessage(MessageType::kStepPlan, std::span(shifted).subspan(offset));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, message);
  }
}

TEST(CodecTest, TheSenderRefusesWhatDoesNotFit) {
  StepPlan many;
  many.sequences.resize(kPlanSequencesMax + 1);
  EXPECT_THAT(std::string(StatusText(EncodeMessage(many).status())),
              HasSubstr("StepPlan.sequences has 4097 entries; at most 4096"));
  StepPlan one;
  one.sequences.resize(1);
  one.sequences[0].tokens.resize(kStepTokensMax + 1);
  EXPECT_THAT(std::string(StatusText(EncodeMessage(one).status())),
              HasSubstr("SequenceStep.tokens has 131073 entries"));
  StepPlan large;
  large.sequences.resize(3);
  for (SequenceStep& step : large.sequences) step.tokens.resize(kStepTokensMax);
  const absl::Status status = EncodeMessage(large).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(StatusText(status)), HasSubstr("StepPlan needs 1573"));
  StepResult result;
  result.sequences.resize(1);
  result.sequences[0].rows.resize(kSummaryRowsMax + 1);
  EXPECT_THAT(std::string(StatusText(EncodeMessage(result).status())),
              HasSubstr("VerificationSummary.rows has 65 entries"));
}

TEST(CodecTest, LongTextsAreCut) {
  const auto bytes = EncodeMessage(Shutdown{std::string(100'000, 'x')});
  ASSERT_TRUE(bytes.ok());
  const auto decoded = DecodeMessage(MessageType::kShutdown, *bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Shutdown>(*decoded).reason, std::string(kTextBytesMax, 'x'));
}

std::string DecodeError(MessageType type, std::span<const std::byte> body) {
  const auto decoded = DecodeMessage(type, body);
  return decoded.ok() ? "accepted" : std::string(StatusText(decoded.status()));
}

TEST(CodecTest, TheReceiverRefusesValuesOutOfRange) {
  StepPlan plan = SamplePlan();
  plan.sequences[1].sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(DecodeError(MessageType::kStepPlan, *EncodeMessage(plan)),
              HasSubstr("temperature, top_p or min_p is not finite"));
  plan = SamplePlan();
  plan.sequences[1].sampling.top_k = -3;
  EXPECT_THAT(DecodeError(MessageType::kStepPlan, *EncodeMessage(plan)),
              HasSubstr("RowSampling.top_k: -3 is negative"));
  plan = SamplePlan();
  plan.sequences[1].sampling.num_top_logprobs = 33;
  EXPECT_THAT(DecodeError(MessageType::kStepPlan, *EncodeMessage(plan)),
              HasSubstr("RowSampling.num_top_logprobs: 33; from 0 to 32"));
  StepResult result = SampleResult();
  result.status = static_cast<StepStatus>(9);
  EXPECT_THAT(DecodeError(MessageType::kStepResult, *EncodeMessage(result)),
              HasSubstr("StepResult.status: 9 names no status"));
  EXPECT_THAT(DecodeError(MessageType::kFormGroup,
                          *EncodeMessage(FormGroup{GroupId(1), RankId(2), 2, Epoch(1)})),
              HasSubstr("FormGroup.rank: 2 of 2 ranks"));
  EXPECT_THAT(DecodeError(MessageType::kFormGroup,
                          *EncodeMessage(FormGroup{
                              GroupId(1), RankId(0), 2, Epoch(1), "name", {{"host", "address"}}})),
              HasSubstr("FormGroup.places: 1 places of 2 ranks"));
  RegisterWorker registration;
  registration.rank = RankId(4);
  registration.num_ranks = 4;
  EXPECT_THAT(DecodeError(MessageType::kRegisterWorker, *EncodeMessage(registration)),
              HasSubstr("RegisterWorker.rank: 4 of 4 ranks"));
}

TEST(CodecTest, PlacementsAndLoadsOutOfRangeAreRefused) {
  FormGroup form{GroupId(1), RankId(0), 2, Epoch(1), "name", {}, {{0, 1}, {0, 2}}};
  EXPECT_THAT(DecodeError(MessageType::kFormGroup, *EncodeMessage(form)),
              HasSubstr("FormGroup.placement: an expert on rank 2 of 2 ranks"));
  form.placement.assign(kLayersMax + 1, {0, 1});
  EXPECT_THAT(std::string(EncodeMessage(form).status().message()),
              HasSubstr("FormGroup.placement has 257 entries; at most 256"));
  form.placement = {std::vector<uint16_t>(kExpertsMax + 1)};
  EXPECT_THAT(std::string(EncodeMessage(form).status().message()),
              HasSubstr("FormGroup.placement has 4097 entries; at most 4096"));
  StepResult result = SampleResult();
  result.expert_load.counts.assign(kLayersMax + 1, {1});
  EXPECT_THAT(std::string(EncodeMessage(result).status().message()),
              HasSubstr("StepResult.expert_load has 257 entries"));
}

TEST(CodecTest, MovesOutOfRangeAreRefused) {
  MoveBlocks move;
  move.blocks.resize(kMovedBlocksMax + 1);
  EXPECT_THAT(std::string(StatusText(EncodeMessage(move).status())),
              HasSubstr("MoveBlocks.blocks has 131073 entries; at most 131072"));
  move.blocks.clear();
  move.side = static_cast<MoveSide>(2);
  EXPECT_EQ(DecodeError(MessageType::kMoveBlocks, *EncodeMessage(move)),
            "MoveBlocks.side: 2 names no side");
  BlocksMoved moved;
  moved.side = static_cast<MoveSide>(7);
  EXPECT_EQ(DecodeError(MessageType::kBlocksMoved, *EncodeMessage(moved)),
            "BlocksMoved.side: 7 names no side");
  moved.side = MoveSide::kFetch;
  moved.status = static_cast<MoveStatus>(4);
  EXPECT_EQ(DecodeError(MessageType::kBlocksMoved, *EncodeMessage(moved)),
            "BlocksMoved.status: 4 names no status");
}

TEST(CodecTest, EditsOutOfRangeAreRefused) {
  const auto told = [](const auto& change) {
    SequenceEdits edits;
    change(edits);
    StepPlan plan = SamplePlan();
    plan.sequences[0].edits.value = std::make_shared<const SequenceEdits>(std::move(edits));
    const auto bytes = EncodeMessage(plan);
    return bytes.ok() ? DecodeError(MessageType::kStepPlan, *bytes)
                      : std::string(StatusText(bytes.status()));
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto penalty = HasSubstr("SequenceEdits: a penalty is not finite, or repetition is not");
  EXPECT_THAT(told([](SequenceEdits& e) { e.edits.presence_penalty = std::nanf(""); }), penalty);
  EXPECT_THAT(told([](SequenceEdits& e) { e.edits.frequency_penalty = kInfinity; }), penalty);
  EXPECT_THAT(told([](SequenceEdits& e) { e.edits.repetition_penalty = 0; }), penalty);
  const auto bias = HasSubstr("SequenceEdits.bias: a value is not a number below infinity");
  EXPECT_THAT(told([](SequenceEdits& e) { e.edits.bias = {{3, kInfinity}}; }), bias);
  EXPECT_THAT(told([](SequenceEdits& e) { e.edits.bias = {{3, std::nanf("")}}; }), bias);
  const auto many = HasSubstr("SequenceStep.edits has 262145 entries; at most 262144");
  EXPECT_THAT(told([](SequenceEdits& e) { e.history.resize(kEditTokensMax + 1); }), many);
  EXPECT_THAT(told([](SequenceEdits& e) {
                e.edits.bad_words = {{}, {1}};
                e.edits.bad_words[0].resize(kEditTokensMax + 1);
              }),
              many);
  StepPlan plan = SamplePlan();
  plan.sequences[0].masks.assign(kSummaryRowsMax + 1, {1});
  EXPECT_THAT(std::string(StatusText(EncodeMessage(plan).status())),
              HasSubstr("SequenceStep.masks has 65 entries; at most 64"));
  plan.sequences[0].masks.assign(1, std::vector<uint32_t>(kMaskWordsMax + 1));
  EXPECT_THAT(std::string(StatusText(EncodeMessage(plan).status())),
              HasSubstr("SequenceStep.masks words has 16385 entries; at most 16384"));
}

TEST(CodecTest, ScoresOutOfRangeAreRefused) {
  StepPlan plan = SamplePlan();
  plan.sequences[1].scoring.count = kStepScoresMax + 1;
  EXPECT_THAT(std::string(StatusText(EncodeMessage(plan).status())),
              HasSubstr("SequenceStep.scoring has 1025 entries; at most 1024"));
  plan.sequences[1].scoring = {0, 1, 7, static_cast<int32_t>(kTopLogprobsMax) + 1};
  EXPECT_THAT(DecodeError(MessageType::kStepPlan, EncodeMessage(plan).value()),
              HasSubstr("SequenceStep.scoring: 33 alternatives; from 0 to 32"));
  StepResult result = SampleResult();
  result.sequences[0].scores[0].top.resize(kTopLogprobsMax + 1);
  EXPECT_THAT(std::string(StatusText(EncodeMessage(result).status())),
              HasSubstr("TokenScore.top has 33 entries; at most 32"));
  result.sequences[0].scores.assign(kStepScoresMax + 1, {});
  EXPECT_THAT(std::string(StatusText(EncodeMessage(result).status())),
              HasSubstr("VerificationSummary.scores has 1025 entries; at most 1024"));
}

// The most scores of a step leave room for the rest of a message.
TEST(CodecTest, TheScoresOfAStepTakeAQuarterOfAMessage) {
  StepResult result = SampleResult();
  result.sequences[0].scores.assign(kStepScoresMax,
                                    {-1, std::vector<TopLogprob>(20, TopLogprob{1, -0.5F})});
  const auto bytes = EncodeMessage(result);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_LT(bytes->size(), kBodyBytesMax / 4);
}

TEST(CodecTest, ForeignBytesAreRefused) {
  EXPECT_THAT(DecodeError(MessageType::kLeaseGrant, {}),
              HasSubstr("LeaseGrant: a body of 0 bytes"));
  const std::vector<std::byte> odd(12);
  EXPECT_THAT(DecodeError(MessageType::kLeaseGrant, odd),
              HasSubstr("a body of 12 bytes; must be whole"));
  const std::vector<std::byte> huge(kBodyBytesMax + 8);
  EXPECT_THAT(DecodeError(MessageType::kLeaseGrant, huge), HasSubstr("at most 1048448"));
  auto bytes = EncodeMessage(LeaseGrant{3});
  EXPECT_THAT(DecodeError(static_cast<MessageType>(99), *bytes),
              HasSubstr("message type 99 is not known"));
  bytes->resize(bytes->size() + 8);
  EXPECT_THAT(DecodeError(MessageType::kLeaseGrant, *bytes),
              HasSubstr("LeaseGrant: bytes after the end of the message"));
}

// Many list entries that all point at one long list: small on the wire, huge when followed.
TEST(CodecTest, AliasedListsHitTheTraversalLimit) {
  StepPlan plan;
  plan.sequences.resize(32);
  plan.sequences[0].tokens.assign(800, 7);
  auto bytes = EncodeMessage(plan);
  ASSERT_TRUE(bytes.ok());
  std::vector<uint64_t> words(bytes->size() / 8);
  std::memcpy(words.data(), bytes->data(), bytes->size());
  // Find the list pointer of the 800 int32 (element size code 4) and repoint later entries to it.
  size_t pointer_at = 0;
  size_t target = 0;
  for (size_t i = 1; i < words.size(); ++i) {
    if ((words[i] & 3) == 1 && (words[i] >> 32) == ((800u << 3) | 4)) {
      pointer_at = i;
      target = i + 1 + ((words[i] & 0xffffffffu) >> 2);
    }
  }
  ASSERT_NE(pointer_at, 0u);
  // Element size of SequenceStep: from the tag word of the composite list, data + pointer words.
  const size_t stride = [&] {
    for (size_t i = 1; i < words.size(); ++i) {
      if ((words[i] & 3) == 0 && ((words[i] & 0xffffffffu) >> 2) == 32) {
        return static_cast<size_t>(((words[i] >> 32) & 0xffff) + (words[i] >> 48));
      }
    }
    return size_t{0};
  }();
  ASSERT_GT(stride, 0u);
  for (size_t entry = 1; entry < 32; ++entry) {
    const size_t at = pointer_at + entry * stride;
    const int64_t offset = static_cast<int64_t>(target) - static_cast<int64_t>(at) - 1;
    words[at] =
        (static_cast<uint64_t>((800u << 3) | 4) << 32) | (static_cast<uint32_t>(offset) << 2) | 1;
  }
  std::memcpy(bytes->data(), words.data(), bytes->size());
  EXPECT_THAT(DecodeError(MessageType::kStepPlan, *bytes), HasSubstr("traversal limit"));
}

// A verified row without alternatives costs at most 64 bytes on the wire.
TEST(CodecTest, ARowCostsAtMost64Bytes) {
  StepResult result;
  result.sequences.push_back({SequenceId(1), {RowSummary{}}});
  const auto one = EncodeMessage(result);
  result.sequences[0].rows.resize(7);
  const auto seven = EncodeMessage(result);
  ASSERT_TRUE(one.ok() && seven.ok());
  EXPECT_LE(seven->size() - one->size(), 6 * 64u);
}

TEST(CodecTest, DraftsBeyondTheirBoundsAreRefused) {
  StepPlan plan = SamplePlan();
  plan.sequences[0].draft_depth = kStepDraftsMax + 1;
  EXPECT_THAT(std::string(EncodeMessage(plan).status().message()),
              HasSubstr("SequenceStep drafts has 64 entries"));
  plan.sequences[0].draft_depth = 0;
  plan.sequences[2].provided_drafts.resize(kStepDraftsMax + 1);
  EXPECT_FALSE(EncodeMessage(plan).ok());
}

TEST(CodecTest, EveryTruncationIsRefused) {
  for (const Message& message : SampleMessages()) {
    const auto bytes = EncodeMessage(message);
    ASSERT_TRUE(bytes.ok());
    for (size_t size = 0; size < bytes->size(); ++size) {
      const auto decoded = DecodeMessage(TypeOf(message), std::span(*bytes).first(size));
      EXPECT_FALSE(decoded.ok()) << MessageTypeName(TypeOf(message)) << " cut to " << size;
    }
  }
}

TEST(CodecTest, EveryBitFlipEndsInAStatusOrAMessage) {
  size_t refused = 0;
  size_t changed = 0;
  for (const Message& message : SampleMessages()) {
    const auto bytes = EncodeMessage(message);
    ASSERT_TRUE(bytes.ok());
    for (size_t bit = 0; bit < bytes->size() * 8; ++bit) {
      std::vector<std::byte> flipped = *bytes;
      flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      const auto decoded = DecodeMessage(TypeOf(message), flipped);
      if (!decoded.ok()) {
        ++refused;
        EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
      } else if (!(*decoded == message)) {
        ++changed;
      }
    }
  }
  EXPECT_GT(refused, 500u);
  EXPECT_GT(changed, 500u) << "silent changes exist: this is why frames carry a CRC";
}

TEST(CodecTest, BytesOfOneTypeReadAsAnotherNeverCrash) {
  for (const Message& message : SampleMessages()) {
    const auto bytes = EncodeMessage(message);
    for (uint16_t type = 0; type < 20; ++type) {
      const auto decoded = DecodeMessage(static_cast<MessageType>(type), *bytes);
      if (decoded.ok()) {
        EXPECT_EQ(TypeOf(*decoded), static_cast<MessageType>(type));
      }
    }
  }
}

}  // namespace
}  // namespace skein::protocol
