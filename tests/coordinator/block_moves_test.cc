// The control loop with a group that computes prompts and one that decodes: what both workers are
// told of a transfer, what their answers change, and what happens without them. Each worker is a
// complete fake one; the clock is virtual.
#include "coordinator/block_moves.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/control_loop.h"
#include "tests/protocol/virtual_context.h"
#include "tests/scheduler/fake_worker.h"

namespace skein::tests {
namespace {

using coordinator::FinishReason;
using coordinator::TokenDelta;
using protocol::ActorId;
using protocol::BlocksMoved;
using protocol::Epoch;
using protocol::MoveBlocks;
using protocol::MoveSide;
using protocol::MoveStatus;

class TokenRecord final : public coordinator::TokenSink {
 public:
  void Deliver(TokenDelta delta) override {
    for (const coordinator::DeltaToken& token : delta.tokens) tokens.push_back(token.id);
    finish = delta.finish;
  }
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;
};

ActorId Worker(uint32_t node) { return {protocol::NodeId(node), 0}; }

protocol::CacheGeometry Geometry() {
  protocol::CacheGeometry geometry = {4, 32, 4, 64, 32};
  geometry.num_checkpoints = 4;
  return geometry;
}

class BlockMovesTest : public ::testing::Test {
 protected:
  BlockMovesTest() { loop_.OnStart(context_); }

  static coordinator::ControlOptions Options() {
    coordinator::ControlOptions options;
    options.limits.max_num_seqs = 4;
    options.limits.max_num_batched_tokens = 64;
    options.limits.lanes = 1;
    options.limits.admission = {100, 10'000};
    options.limits.prefix_caching = true;
    options.limits.moves_blocks = true;
    options.limits.prefill_groups = 1;
    options.num_groups = 2;
    options.term = protocol::Term(4);
    return options;
  }

  void Receive(uint32_t node, Epoch epoch, protocol::Message message) {
    protocol::Envelope envelope;
    envelope.from = Worker(node);
    envelope.to = protocol::kCoordinatorActor;
    envelope.epoch = epoch;
    envelope.message = std::move(message);
    loop_.OnMessage(context_, std::move(envelope));
  }
  void StartWorker(uint32_t node, std::string layout = "layout") {
    protocol::RegisterWorker registration;
    registration.geometry = Geometry();
    registration.cache_layout = std::move(layout);
    registration.numerics = "cpu";
    registration.block_address = "10.0.0." + std::to_string(node) + ":4000";
    Receive(node, Epoch(0), registration);
    const auto form = context_.Sent<protocol::FormGroup>();
    ASSERT_TRUE(form.has_value());
    context_.TakeSent();
    epochs_[node] = form->epoch;
    workers_[node].Restart(Geometry());
    Receive(node, form->epoch, protocol::GroupFormed{form->group, form->rank, form->epoch});
  }
  // Those of different requests have nothing in common.
  static std::vector<int32_t> PromptOf(uint64_t id) {
    std::vector<int32_t> prompt;
    for (uint64_t i = 0; i < 14; ++i) prompt.push_back(static_cast<int32_t>((id - 1) * 14 + i));
    return prompt;
  }
  void Submit(uint64_t id = 1) {
    coordinator::SubmitRequest request;
    request.id = protocol::RequestId(id);
    request.prompt_ids = PromptOf(id);
    request.stop = StopAt(10);
    request.sink = client_;
    ASSERT_TRUE(door_.TrySubmit(std::move(request)).ok());
  }
  // One round of the loop: plans are run at once, orders are kept.
  bool Round() {
    loop_.OnIdle(context_);
    bool any = false;
    for (SentMessage& sent : context_.TakeSent()) {
      const uint32_t node = sent.to.node.value();
      if (auto* move = std::get_if<MoveBlocks>(&sent.message)) orders_[node] = std::move(*move);
      if (auto* plan = std::get_if<protocol::StepPlan>(&sent.message)) {
        Receive(node, plan->epoch, workers_[node].Run(*plan));
        EXPECT_EQ(workers_[node].defect(), "");
        last_planned_ = node;
        any = true;
      }
    }
    return any;
  }
  void RunAll() {
    for (int i = 0; i < 100 && Round(); ++i) {
    }
  }
  void Answer(uint32_t node, MoveStatus status) {
    const MoveBlocks& move = orders_.at(node);
    BlocksMoved moved;
    moved.transfer = move.transfer;
    moved.group = move.group;
    moved.epoch = move.epoch;
    moved.side = move.side;
    moved.status = status;
    moved.message = "as planned";
    Receive(node, move.epoch, moved);
  }
  void Copy() {
    workers_[2].Import(workers_[1].Export(orders_.at(1).blocks, orders_.at(1).checkpoint),
                       orders_.at(2).blocks, orders_.at(2).checkpoint);
  }
  double Counted(std::string_view result) {
    return metrics_.migrations.At({"handover", result}).value();
  }
  std::vector<int32_t> Alone(uint64_t id = 1) { return DecodeAlone(PromptOf(id), StopAt(10), 32); }
  // Time passes; these workers are heard meanwhile.
  void Pass(absl::Duration time, const std::vector<uint32_t>& heard) {
    for (; time > absl::ZeroDuration(); time -= absl::Milliseconds(100)) {
      context_.Advance(absl::Milliseconds(100), loop_);
      for (const uint32_t node : heard) Receive(node, epochs_[node], protocol::Heartbeat{});
    }
    context_.TakeSent();
  }

  CountingWaker waker_;
  protocol::MetricsRegistry registry_{{}};
  coordinator::CoordinatorMetrics metrics_{registry_, 2, 0};
  coordinator::FrontDoorQueue door_{{.queued_requests_max = 16, .queued_tokens_max = 1000}, waker_};
  std::atomic<bool> drained_ = false;
  coordinator::ControlLoop loop_{Options(), door_, metrics_, drained_};
  VirtualContext context_{protocol::kCoordinatorActor};
  std::map<uint32_t, FakeWorker> workers_;
  std::map<uint32_t, Epoch> epochs_;
  std::map<uint32_t, MoveBlocks> orders_;
  std::shared_ptr<TokenRecord> client_ = std::make_shared<TokenRecord>();
  uint32_t last_planned_ = 0;
};

TEST_F(BlockMovesTest, BothWorkersAreToldAndTheSequenceGoesOnWithItsCache) {
  StartWorker(1);
  StartWorker(2);
  Submit();
  RunAll();
  ASSERT_EQ(orders_.size(), 2U);
  const MoveBlocks& lend = orders_.at(1);
  const MoveBlocks& fetch = orders_.at(2);
  EXPECT_EQ(lend.side, MoveSide::kLend);
  EXPECT_EQ(fetch.side, MoveSide::kFetch);
  EXPECT_EQ(lend.transfer, fetch.transfer);
  EXPECT_EQ(lend.epoch, epochs_[1]);
  EXPECT_EQ(fetch.epoch, epochs_[2]);
  EXPECT_EQ(fetch.group, protocol::GroupId(1));
  EXPECT_EQ(fetch.address, "10.0.0.1:4000");
  EXPECT_EQ(fetch.cache_layout, "layout");
  EXPECT_EQ(fetch.numerics, "cpu");
  EXPECT_EQ(fetch.position, 12U);
  EXPECT_EQ(fetch.blocks.size(), 3U);
  EXPECT_EQ(fetch.timeout_ms, 5000U + 3 * 10) << "and what each block may take";
  EXPECT_EQ(lend.timeout_ms, fetch.timeout_ms);
  EXPECT_EQ(client_->tokens.size(), 1U) << "it waits";
  EXPECT_EQ(metrics_.engines[0].kv_blocks_lent.value(), 3);
  Copy();
  Answer(1, MoveStatus::kOk);
  Answer(2, MoveStatus::kOk);
  RunAll();
  EXPECT_EQ(last_planned_, 2U);
  EXPECT_EQ(client_->tokens, Alone());
  EXPECT_EQ(client_->finish, FinishReason::kLength);
  EXPECT_EQ(metrics_.engines[0].kv_blocks_lent.value(), 0);
  EXPECT_EQ(Counted("moved"), 1);
  EXPECT_EQ(Counted("replayed"), 0);
}

TEST_F(BlockMovesTest, ALostTransferIsCountedAndComputedAgain) {
  StartWorker(1);
  StartWorker(2);
  Submit();
  RunAll();
  Answer(1, MoveStatus::kExpired);
  Answer(2, MoveStatus::kLost);
  RunAll();
  EXPECT_EQ(client_->tokens, Alone());
  EXPECT_EQ(Counted("moved"), 0);
  EXPECT_EQ(Counted("replayed"), 1);
}

// A pair between which every transfer is lost is left alone for a while, and longer each time.
TEST_F(BlockMovesTest, APairThatLosesEveryTransferIsLeftAlone) {
  StartWorker(1);
  StartWorker(2);
  uint64_t id = 0;
  const auto tried = [&] {
    orders_.clear();
    client_ = std::make_shared<TokenRecord>();
    Submit(++id);
    RunAll();
    const bool moved = !orders_.empty();
    if (moved) {
      Answer(1, MoveStatus::kExpired);
      Answer(2, MoveStatus::kLost);
      RunAll();
    }
    EXPECT_EQ(client_->tokens, Alone(id));
    return moved;
  };
  EXPECT_TRUE(tried()) << "nothing is known";
  EXPECT_TRUE(tried()) << "one loss says little";
  EXPECT_FALSE(tried()) << "two do";
  Pass(absl::Milliseconds(1100), {1, 2});
  EXPECT_TRUE(tried());
  Pass(absl::Milliseconds(1100), {1, 2});
  EXPECT_FALSE(tried()) << "twice as long now";
  Pass(absl::Milliseconds(1100), {1, 2});
  EXPECT_TRUE(tried());
  EXPECT_EQ(Counted("replayed"), 4);
}

// The fetcher waits for what nobody lends; the sequence does not, and the pair is not to blame.
TEST_F(BlockMovesTest, ARefusedLoanIsGivenUpAtOnceAndIsNoLoss) {
  StartWorker(1);
  StartWorker(2);
  for (uint64_t id = 1; id <= 3; ++id) {
    orders_.clear();
    client_ = std::make_shared<TokenRecord>();
    Submit(id);
    RunAll();
    ASSERT_EQ(orders_.size(), 2U) << id;
    EXPECT_EQ(client_->tokens.size(), 1U);
    Answer(1, MoveStatus::kRefused);
    RunAll();
    EXPECT_EQ(client_->tokens, Alone(id));
    EXPECT_EQ(metrics_.engines[0].kv_blocks_lent.value(), 0);
    EXPECT_EQ(loop_.scheduler().engine(1).arrivals().size(), 1U) << "its places stay kept";
    Answer(2, MoveStatus::kExpired);
    EXPECT_EQ(loop_.scheduler().engine(1).arrivals().size(), 0U);
  }
  EXPECT_EQ(Counted("replayed"), 3);
}

// Transfers that are lost together say no more than one that is.
TEST_F(BlockMovesTest, LossesOfOneMomentAreOne) {
  StartWorker(1);
  StartWorker(2);
  std::vector<std::pair<MoveBlocks, MoveBlocks>> under_way;
  const auto begin = [&](uint64_t id) {
    orders_.clear();
    client_ = std::make_shared<TokenRecord>();
    Submit(id);
    RunAll();
    if (orders_.size() == 2) under_way.emplace_back(orders_.at(1), orders_.at(2));
    return orders_.size() == 2;
  };
  const auto lose_all = [&] {
    for (const auto& [lend, fetch] : std::exchange(under_way, {})) {
      orders_ = {{1, lend}, {2, fetch}};
      Answer(2, MoveStatus::kLost);
      Answer(1, MoveStatus::kLost);
    }
    RunAll();
  };
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(begin(id)) << id;
  lose_all();
  EXPECT_TRUE(begin(4)) << "three at a time are one loss, which says little";
  EXPECT_TRUE(begin(5));
  lose_all();
  EXPECT_FALSE(begin(6)) << "the second one";
  Pass(absl::Milliseconds(1100), {1, 2});
  EXPECT_TRUE(begin(7)) << "and not the third: a second, not two";
}

TEST_F(BlockMovesTest, NothingIsHandedToAWorkerThatIsSilent) {
  StartWorker(1);
  StartWorker(2);
  Pass(absl::Milliseconds(500), {1});
  Submit();
  RunAll();
  EXPECT_TRUE(orders_.empty());
  EXPECT_EQ(client_->tokens, Alone());
  EXPECT_TRUE(loop_.scheduler().has_epoch(protocol::GroupId(1))) << "it is not lost yet";
}

TEST_F(BlockMovesTest, AnAnswerThatDoesNotComeHoldsUpTheSequenceForAFewSeconds) {
  StartWorker(1);
  StartWorker(2);
  Submit();
  RunAll();
  for (int i = 0; i < 75; ++i) {
    context_.Advance(absl::Milliseconds(100), loop_);
    for (uint32_t node : {1U, 2U}) Receive(node, epochs_[node], protocol::Heartbeat{});
    for (SentMessage& sent : context_.TakeSent()) {
      if (auto* plan = std::get_if<protocol::StepPlan>(&sent.message)) {
        Receive(sent.to.node.value(), plan->epoch, workers_[sent.to.node.value()].Run(*plan));
      }
    }
  }
  EXPECT_EQ(client_->tokens, Alone());
  EXPECT_EQ(Counted("replayed"), 1);
  EXPECT_EQ(loop_.scheduler().engine(1).arrivals().size(), 1U) << "its places stay kept";
}

TEST_F(BlockMovesTest, AnswersOfEndedEpochsChangeNothing) {
  StartWorker(1);
  StartWorker(2);
  Submit();
  RunAll();
  orders_.at(2).epoch = Epoch(1);
  Answer(2, MoveStatus::kOk);
  EXPECT_EQ(metrics_.stale_results.value(), 1);
  EXPECT_EQ(loop_.scheduler().engine(1).arrivals().size(), 1U);
}

TEST_F(BlockMovesTest, AWorkerThatCannotBeToldIsLost) {
  StartWorker(1);
  StartWorker(2);
  Submit();
  for (int i = 0; i < 2; ++i) Round();
  context_.SetDown(Worker(2), true);
  RunAll();
  EXPECT_FALSE(loop_.scheduler().has_epoch(protocol::GroupId(1)));
  RunAll();
  EXPECT_EQ(client_->tokens, Alone()) << "the other one does both parts";
}

TEST_F(BlockMovesTest, NothingIsHandedToAWorkerWithOtherBlocks) {
  StartWorker(1);
  StartWorker(2, "other");
  Submit();
  RunAll();
  EXPECT_TRUE(orders_.empty());
  EXPECT_EQ(client_->tokens, Alone());
  EXPECT_EQ(last_planned_, 1U);
}

}  // namespace
}  // namespace skein::tests
