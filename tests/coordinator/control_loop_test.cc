// The control loop against a complete fake worker, one virtual clock and recorded clients:
// membership, steps, loss of a worker, stale results, cancellation, deadlines, drain.
#include "coordinator/control_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/protocol/virtual_context.h"
#include "tests/scheduler/fake_worker.h"

namespace skein::tests {
namespace {

using coordinator::FinishReason;
using coordinator::TokenDelta;
using protocol::ActorId;
using protocol::Epoch;
using protocol::StepPlan;
using protocol::StepResult;
using ::testing::HasSubstr;

constexpr uint64_t kTerm = 4;
constexpr protocol::CacheGeometry kGeometry = {4, 32, 4, 64, 32};

class RecordedClient final : public coordinator::TokenSink {
 public:
  void Deliver(TokenDelta delta) override {
    EXPECT_FALSE(last.finish.has_value()) << "a delta follows the last one";
    for (const auto& token : delta.tokens) tokens.push_back(token.id);
    for (const auto& token : delta.tokens) num_drafted += token.drafted ? 1 : 0;
    last = std::move(delta);
  }
  bool over() const { return last.finish.has_value(); }

  std::vector<int32_t> tokens;
  uint64_t num_drafted = 0;  // of the tokens
  TokenDelta last;
};

ActorId Worker(uint32_t node) { return {protocol::NodeId(node), 0}; }

class ControlLoopTest : public ::testing::Test {
 protected:
  ControlLoopTest() { loop_.OnStart(context_); }

  explicit ControlLoopTest(scheduler::SpeculationSettings speculation, uint32_t batched = 64)
      : speculation_(speculation), batched_tokens_(batched) {
    loop_.OnStart(context_);
  }

  coordinator::ControlOptions Options() const {
    coordinator::ControlOptions options;
    options.limits.max_num_seqs = 4;
    options.limits.max_num_batched_tokens = batched_tokens_;
    options.limits.lanes = 1;
    options.limits.speculation = speculation_;
    options.limits.admission = {16, 1000};
    options.term = protocol::Term(kTerm);
    options.shutdown_timeout = absl::Seconds(10);
    return options;
  }

  void Receive(ActorId from, Epoch epoch, protocol::Message message) {
    protocol::Envelope envelope;
    envelope.from = from;
    envelope.to = protocol::kCoordinatorActor;
    envelope.epoch = epoch;
    envelope.message = std::move(message);
    loop_.OnMessage(context_, std::move(envelope));
  }
  void Idle() { loop_.OnIdle(context_); }

  void Register(uint32_t node, protocol::CacheGeometry geometry = kGeometry) {
    protocol::RegisterWorker registration;
    registration.geometry = geometry;
    Receive(Worker(node), Epoch(0), registration);
  }
  // Answers the FormGroup that was sent last.
  void Form(uint32_t node, protocol::CacheGeometry geometry = kGeometry) {
    const auto form = context_.Sent<protocol::FormGroup>();
    ASSERT_TRUE(form.has_value());
    EXPECT_EQ(context_.TakeSent().back().to, Worker(node));
    epoch_ = form->epoch;
    fake_.Restart(geometry);
    Receive(Worker(node), epoch_, protocol::GroupFormed{form->group, form->rank, form->epoch});
  }
  void StartWorker(uint32_t node = 1) {
    Register(node);
    Form(node);
    ASSERT_TRUE(door_.ready());
  }

  std::shared_ptr<RecordedClient> Submit(uint64_t id, std::vector<int32_t> prompt,
                                         protocol::StopConditions stop,
                                         protocol::SpeculationParams speculation = {}) {
    auto client = std::make_shared<RecordedClient>();
    coordinator::SubmitRequest request;
    request.id = protocol::RequestId(id);
    request.prompt_ids = std::move(prompt);
    request.stop = std::move(stop);
    request.speculation = speculation;
    request.sink = client;
    const absl::Status status = door_.TrySubmit(std::move(request));
    EXPECT_TRUE(status.ok()) << status;
    return client;
  }

  // The plan that was sent since the last call.
  std::optional<StepPlan> TakePlan() {
    std::optional<StepPlan> plan = context_.Sent<StepPlan>();
    context_.TakeSent();
    return plan;
  }
  // Lets the worker run what is sent until nothing more comes.
  void RunAll(uint32_t node = 1) {
    for (int i = 0; i < 200; ++i) {
      Idle();
      const std::optional<StepPlan> plan = TakePlan();
      if (!plan) return;
      Receive(Worker(node), plan->epoch, fake_.Run(*plan));
    }
    FAIL() << "the loop plans without end";
  }
  double EpochChanges(std::string_view cause) { return metrics_.epoch_changes.At({cause}).value(); }

  const scheduler::SpeculationSettings speculation_ = {};
  const uint32_t batched_tokens_ = 64;
  CountingWaker waker_;
  protocol::MetricsRegistry registry_{{}};
  coordinator::CoordinatorMetrics metrics_{registry_, 1, 5};
  std::chrono::steady_clock::time_point clock_ = std::chrono::steady_clock::now();
  coordinator::FrontDoorQueue door_{
      {.queued_requests_max = 8, .queued_tokens_max = 100}, waker_, [this] { return clock_; }};
  std::atomic<bool> drained_ = false;
  coordinator::ControlLoop loop_{Options(), door_, metrics_, drained_};
  VirtualContext context_{protocol::kCoordinatorActor};
  FakeWorker fake_;
  Epoch epoch_;
};

TEST_F(ControlLoopTest, AWorkerRegistersFormsAndIsReady) {
  Register(1);
  EXPECT_FALSE(door_.ready());
  const auto form = context_.Sent<protocol::FormGroup>();
  ASSERT_TRUE(form.has_value());
  EXPECT_EQ(form->epoch.value() >> 32, kTerm);
  EXPECT_EQ(form->num_ranks, 1U);
  Form(1);
  EXPECT_TRUE(door_.ready());
  // A second answer changes nothing.
  Receive(Worker(1), epoch_, protocol::GroupFormed{{}, {}, epoch_});
  EXPECT_TRUE(door_.ready());
  Idle();
  EXPECT_EQ(metrics_.workers.At({"ready"}).value(), 1);
}

TEST_F(ControlLoopTest, AWorkerOfAnotherProtocolIsSentAway) {
  protocol::RegisterWorker registration;
  registration.protocol_major = 9;
  registration.build = "9.9";
  registration.geometry = kGeometry;
  Receive(Worker(1), Epoch(0), registration);
  const protocol::Shutdown shutdown = context_.Sent<protocol::Shutdown>().value();
  EXPECT_THAT(shutdown.reason, HasSubstr("worker 1 speaks protocol 9.6 (build 9.9), this "));
  EXPECT_TRUE(shutdown.refused) << "another start would not help";
  EXPECT_FALSE(context_.Sent<protocol::FormGroup>().has_value());
}

TEST_F(ControlLoopTest, ASpareTakesOverFromAMemberThatIsSentAway) {
  StartWorker(1);
  Register(2);
  protocol::RegisterWorker registration;
  registration.protocol_major = 9;
  Receive(Worker(1), Epoch(0), registration);
  EXPECT_EQ(EpochChanges("registered_again"), 1);
  EXPECT_EQ(context_.TakeSent().back().to, Worker(2));
}

TEST_F(ControlLoopTest, HeartbeatsOfMembersAndSparesAreAnswered) {
  StartWorker(1);
  Register(2);
  context_.TakeSent();
  Receive(Worker(1), epoch_, protocol::Heartbeat{});
  Receive(Worker(2), Epoch(0), protocol::Heartbeat{});
  Receive(Worker(3), Epoch(0), protocol::Heartbeat{});
  const std::vector<SentMessage> sent = context_.TakeSent();
  ASSERT_EQ(sent.size(), 2U) << "a stranger gets no lease";
  EXPECT_EQ(sent[0].to, Worker(1));
  EXPECT_EQ(sent[0].epoch, epoch_);
  EXPECT_EQ(std::get<protocol::LeaseGrant>(sent[0].message).duration_ms, 1000U);
  EXPECT_EQ(sent[1].to, Worker(2));
  EXPECT_EQ(sent[1].epoch, Epoch(0));
}

TEST_F(ControlLoopTest, ARequestBecomesDeltasInOrder) {
  StartWorker();
  const auto client = Submit(7, {5, 6, 7}, StopAt(4));
  EXPECT_EQ(door_.waiting_requests(), 1U);
  Idle();
  EXPECT_EQ(door_.waiting_requests(), 0U) << "it runs";
  const auto plan = TakePlan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->epoch, epoch_);
  EXPECT_EQ(plan->sequences[0].tokens, (protocol::StepTokens{5, 6, 7}));
  const std::vector<int32_t> alone = DecodeAlone({5, 6, 7}, StopAt(4), 32);
  Receive(Worker(1), epoch_, fake_.Run(*plan));
  EXPECT_TRUE(client->tokens.empty()) << "messages are only recorded";
  Idle();
  EXPECT_EQ(client->tokens, std::vector<int32_t>{alone[0]});
  EXPECT_EQ(client->last.tokens[0].logprob, LogprobOf(std::vector<int32_t>{5, 6, 7}));
  EXPECT_FALSE(client->over());
  const auto next = TakePlan();
  Receive(Worker(1), epoch_, fake_.Run(*next));
  RunAll();
  EXPECT_EQ(client->tokens, alone);
  EXPECT_EQ(client->last.finish, FinishReason::kLength);
  EXPECT_EQ(client->last.num_steps, 4U);
  EXPECT_EQ(metrics_.engines[0].prompt_tokens.value(), 3);
  EXPECT_EQ(metrics_.engines[0].generation_tokens.value(), 4);
}

TEST_F(ControlLoopTest, AStopTokenIsNamed) {
  StartWorker();
  const std::vector<int32_t> alone = DecodeAlone({5, 6, 7}, StopAt(9), 32);
  const auto client = Submit(7, {5, 6, 7}, StopAt(9, 0, {alone[1]}));
  RunAll();
  EXPECT_EQ(client->last.finish, FinishReason::kStop);
  EXPECT_EQ(client->last.stop_token_id, alone[1]);
  EXPECT_EQ(client->tokens.back(), alone[1]);
}

TEST_F(ControlLoopTest, WhatCannotRunGetsAnErrorDelta) {
  StartWorker();
  const auto client = Submit(7, std::vector<int32_t>(40, 3), StopAt(1));
  Idle();
  EXPECT_EQ(client->last.finish, FinishReason::kError);
  EXPECT_THAT(std::string(client->last.error.message()), HasSubstr("has 40 tokens, max_model_len"));
  EXPECT_EQ(door_.waiting_requests(), 0U);
}

struct SmallBudgetTest : ControlLoopTest {
  SmallBudgetTest() : ControlLoopTest({}, 8) {}
};

TEST_F(SmallBudgetTest, FullStepsOfPromptTeachHowManyTokensMayWait) {
  StartWorker();
  Submit(1, std::vector<int32_t>(24, 3), StopAt(1));
  RunAll();
  // 124 tokens: more than the 100 that the door began with, less than four seconds of prefill.
  for (uint64_t id = 2; id < 6; ++id) Submit(id, std::vector<int32_t>(31, 3), StopAt(1));
  EXPECT_EQ(door_.waiting_requests(), 4U);
}

TEST_F(ControlLoopTest, ALostWorkerIsReplacedAndTheClientSeesEachTokenOnce) {
  StartWorker(1);
  const auto client = Submit(7, {5, 6, 7}, StopAt(6));
  const auto other = Submit(8, {9, 9}, StopAt(6));
  Idle();
  auto plan = TakePlan();
  Receive(Worker(1), epoch_, fake_.Run(*plan));
  Idle();
  plan = TakePlan();
  const Epoch old = epoch_;
  const StepResult late = fake_.Run(*plan);
  Register(2);
  loop_.OnPeerDown(context_, {Worker(1), absl::UnavailableError("lease ended")});
  EXPECT_FALSE(door_.ready());
  EXPECT_EQ(EpochChanges("peer_down"), 1);
  Form(2);
  EXPECT_GT(epoch_, old);
  // The result of the ended epoch arrives late, from the old and under the name of the new worker.
  Receive(Worker(1), old, late);
  Receive(Worker(2), old, late);
  EXPECT_EQ(metrics_.stale_results.value(), 2);
  RunAll(2);
  EXPECT_EQ(client->tokens, DecodeAlone({5, 6, 7}, StopAt(6), 32));
  EXPECT_EQ(other->tokens, DecodeAlone({9, 9}, StopAt(6), 32));
  EXPECT_EQ(client->last.finish, FinishReason::kLength);
  EXPECT_EQ(metrics_.replays.At({"replayed"}).value(), 2);
  EXPECT_EQ(fake_.defect(), "");
}

TEST_F(ControlLoopTest, ASmallerReplacementEndsWhatItCannotRun) {
  StartWorker(1);
  const auto client = Submit(7, std::vector<int32_t>(20, 3), StopAt(6));
  Idle();
  TakePlan();
  Register(2, {4, 3, 4, 64, 32});
  loop_.OnPeerDown(context_, {Worker(1), absl::UnavailableError("lease ended")});
  Form(2, {4, 3, 4, 64, 32});
  EXPECT_EQ(client->last.finish, FinishReason::kError);
  EXPECT_EQ(client->last.error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(client->last.error.message()),
              HasSubstr("26 tokens need 7 cache blocks, the worker has 3"));
  EXPECT_TRUE(loop_.scheduler().empty());
}

TEST_F(ControlLoopTest, WithoutWorkersRequestsWaitForTheNextOne) {
  StartWorker(1);
  const auto client = Submit(7, {5, 6, 7}, StopAt(3));
  Idle();
  TakePlan();
  loop_.OnPeerDown(context_, {Worker(1), absl::UnavailableError("gone")});
  Idle();
  EXPECT_FALSE(TakePlan().has_value());
  EXPECT_FALSE(client->over());
  StartWorker(1);
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({5, 6, 7}, StopAt(3), 32));
}

TEST_F(ControlLoopTest, AFailedOrRefusedStepStartsANewEpoch) {
  for (const auto status : {protocol::StepStatus::kFailed, protocol::StepStatus::kRefused}) {
    StartWorker(1);
    const uint64_t id = 7 + static_cast<uint64_t>(status);
    const auto client = Submit(id, {5, 6, 7}, StopAt(3));
    Idle();
    StepResult result = fake_.Run(*TakePlan());
    result.status = status;
    result.message = "out of paper";
    result.sequences.clear();
    Receive(Worker(1), epoch_, result);
    const Epoch old = epoch_;
    Idle();
    const auto abort = context_.Sent<protocol::AbortEpoch>();
    ASSERT_TRUE(abort.has_value());
    EXPECT_EQ(abort->epoch, old);
    EXPECT_EQ(abort->reason, "a step failed: out of paper");
    Form(1);
    RunAll();
    EXPECT_EQ(client->tokens, DecodeAlone({5, 6, 7}, StopAt(3), 32));
    loop_.OnPeerDown(context_, {Worker(1), absl::UnavailableError("end of the round")});
  }
  EXPECT_EQ(EpochChanges("step_failed"), 2);
}

TEST_F(ControlLoopTest, AResultThatAnswersAnotherPlanStartsANewEpoch) {
  StartWorker(1);
  const auto client = Submit(7, {5, 6, 7}, StopAt(3));
  Idle();
  StepResult result = fake_.Run(*TakePlan());
  result.step = protocol::StepId(99);
  Receive(Worker(1), epoch_, result);
  Idle();
  EXPECT_EQ(EpochChanges("step_failed"), 1);
  EXPECT_TRUE(client->tokens.empty());
  Form(1);
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({5, 6, 7}, StopAt(3), 32));
}

TEST_F(ControlLoopTest, AnAbortOfTheWorkerStartsANewEpoch) {
  StartWorker(1);
  Receive(Worker(1), epoch_, protocol::AbortEpoch{{}, Epoch(3), "of another epoch"});
  EXPECT_TRUE(door_.ready());
  Receive(Worker(1), epoch_, protocol::AbortEpoch{{}, epoch_, "device lost"});
  EXPECT_FALSE(door_.ready());
  Form(1);
  EXPECT_TRUE(door_.ready());
}

TEST_F(ControlLoopTest, APlanThatCannotBeSentEndsTheEpoch) {
  StartWorker(1);
  Register(2);
  const auto client = Submit(7, {5, 6, 7}, StopAt(2));
  context_.SetDown(Worker(1), true);
  Idle();
  EXPECT_EQ(EpochChanges("peer_down"), 1);
  Form(2);
  RunAll(2);
  EXPECT_EQ(client->tokens, DecodeAlone({5, 6, 7}, StopAt(2), 32));
}

TEST_F(ControlLoopTest, CancelEndsARequestOnce) {
  StartWorker();
  const auto queued = Submit(1, {5}, StopAt(9));
  door_.Cancel({protocol::RequestId(1)});
  const auto running = Submit(2, {6}, StopAt(9));
  Idle();
  EXPECT_EQ(queued->last.finish, FinishReason::kCancelled);
  const auto plan = TakePlan();
  ASSERT_EQ(plan->sequences.size(), 1U);
  door_.Cancel({protocol::RequestId(2)});
  door_.Cancel({protocol::RequestId(99)});
  Idle();
  EXPECT_FALSE(running->over()) << "its step must end first";
  Receive(Worker(1), epoch_, fake_.Run(*plan));
  Idle();
  EXPECT_EQ(running->last.finish, FinishReason::kCancelled);
  EXPECT_EQ(running->last.error.message(), "the client is gone");
  EXPECT_TRUE(running->tokens.empty());
  EXPECT_TRUE(loop_.scheduler().empty());
  EXPECT_EQ(door_.waiting_requests(), 0U);
}

TEST_F(ControlLoopTest, ACancelledRequestEndsWithItsEpoch) {
  StartWorker();
  const auto client = Submit(2, {6}, StopAt(9));
  Idle();
  door_.Cancel({protocol::RequestId(2)});
  Idle();
  loop_.OnPeerDown(context_, {Worker(1), absl::UnavailableError("gone")});
  EXPECT_EQ(client->last.finish, FinishReason::kCancelled);
  EXPECT_TRUE(loop_.scheduler().empty());
}

TEST_F(ControlLoopTest, A4NothingIsComputedBehindADeadline) {
  StartWorker();
  const auto client = std::make_shared<RecordedClient>();
  coordinator::SubmitRequest request;
  request.id = protocol::RequestId(3);
  request.prompt_ids = {4, 4};
  request.stop = StopAt(20);
  request.deadline = clock_ + std::chrono::seconds(2);
  request.sink = client;
  ASSERT_TRUE(door_.TrySubmit(std::move(request)).ok());
  const auto patient = Submit(4, {5}, StopAt(20));
  Idle();
  clock_ += std::chrono::seconds(2);
  Receive(Worker(1), epoch_, fake_.Run(*TakePlan()));
  Idle();
  EXPECT_EQ(TakePlan()->sequences.size(), 1U) << "only the one without a deadline";
  EXPECT_EQ(client->last.error, absl::DeadlineExceededError("the request's deadline passed"));
  EXPECT_EQ(patient->tokens.size(), 1U);
}

TEST_F(ControlLoopTest, DrainStopsWhenTheLastRequestAndConnectionEnded) {
  StartWorker();
  const auto client = Submit(1, {5}, StopAt(3));
  door_.StartDraining();
  RunAll();
  EXPECT_EQ(client->last.finish, FinishReason::kLength);
  EXPECT_FALSE(context_.stopped().has_value()) << "a connection is open";
  drained_ = true;
  Idle();
  ASSERT_TRUE(context_.stopped().has_value());
  EXPECT_TRUE(context_.stopped()->ok());
}

TEST_F(ControlLoopTest, DrainGivesUpAfterItsTimeout) {
  StartWorker();
  const auto client = Submit(1, {5}, StopAt(20));
  Idle();
  door_.StartDraining();
  Idle();
  context_.Advance(absl::Milliseconds(9800), loop_);
  EXPECT_FALSE(client->over());
  context_.Advance(absl::Milliseconds(400), loop_);
  EXPECT_EQ(client->last.finish, FinishReason::kError);
  EXPECT_EQ(client->last.error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->last.error.message(), "the server stopped before the answer ended");
  EXPECT_FALSE(context_.stopped().has_value()) << "the last error events still leave";
  context_.Advance(absl::Seconds(3), loop_);
  ASSERT_TRUE(context_.stopped().has_value());
  EXPECT_TRUE(context_.stopped()->ok());
}

TEST_F(ControlLoopTest, TheQueueIsBounded) {
  StartWorker();
  std::vector<std::shared_ptr<RecordedClient>> clients;
  for (uint64_t id = 1; id <= 8; ++id) clients.push_back(Submit(id, {5}, StopAt(2)));
  coordinator::SubmitRequest request;
  request.id = protocol::RequestId(9);
  request.prompt_ids = {5};
  EXPECT_EQ(door_.TrySubmit(std::move(request)).code(), absl::StatusCode::kResourceExhausted);
  Idle();
  EXPECT_EQ(door_.waiting_requests(), 4U) << "four run, four wait";
  Idle();
  EXPECT_EQ(metrics_.engines[0].requests_running.value(), 4);
  const auto plan = TakePlan();
  Receive(Worker(1), epoch_, fake_.Run(*plan));
  RunAll();
  for (const auto& client : clients) EXPECT_EQ(client->tokens.size(), 2U);
  EXPECT_EQ(door_.waiting_tokens(), 0U);
}

TEST_F(ControlLoopTest, ARowWithoutTokenIsAnErrorOfItsRequestAlone) {
  StartWorker();
  const auto bad = Submit(1, {5}, StopAt(3));
  const auto good = Submit(2, {6}, StopAt(3));
  Idle();
  StepResult result = fake_.Run(*TakePlan());
  result.sequences[0].rows[0].plain_token = -1;
  result.sequences[0].rows[0].flags = protocol::kRowNonFinite;
  Receive(Worker(1), epoch_, result);
  RunAll();
  EXPECT_EQ(bad->last.finish, FinishReason::kError);
  EXPECT_EQ(bad->last.error.message(), "no token at position 1: the logits are not finite");
  EXPECT_EQ(good->tokens, DecodeAlone({6}, StopAt(3), 32));
}

// ---- speculation

constexpr protocol::CacheGeometry kDrafting = {4, 32, 4, 64, 32, 5};

class SpeculativeLoopTest : public ControlLoopTest {
 protected:
  SpeculativeLoopTest() : ControlLoopTest({5, scheduler::Adaptation::kFixed}) {
    Register(1, kDrafting);
    Form(1, kDrafting);
  }
  coordinator::SpeculationMetrics& counts() { return metrics_.engines[0].speculation; }
  double Disabled(scheduler::Undrafted reason) {
    return counts().disabled[static_cast<size_t>(reason)].value();
  }
};

TEST_F(SpeculativeLoopTest, ADeltaCarriesSeveralTokensAndTheWorkBehindThem) {
  const auto client = Submit(1, {5}, StopAt(20));
  size_t largest = 0;
  for (int i = 0; i < 50 && !client->over(); ++i) {
    const size_t before = client->tokens.size();
    Idle();
    largest = std::max(largest, client->tokens.size() - before);
    if (const auto plan = TakePlan()) Receive(Worker(1), plan->epoch, fake_.Run(*plan));
  }
  EXPECT_EQ(client->tokens, DecodeAlone({5}, StopAt(20), 32));
  EXPECT_GT(largest, 1u);
  EXPECT_EQ(client->last.finish, FinishReason::kLength);
  EXPECT_LT(client->last.num_steps, 15u);
  EXPECT_EQ(client->last.num_steps + client->num_drafted, 20u) << "kept drafts and one a step";
  EXPECT_GT(client->last.num_draft_tokens, client->num_drafted);
  EXPECT_EQ(metrics_.engines[0].generation_tokens.value(), 20);
  EXPECT_EQ(metrics_.engines[0].inter_token_latency.count(), 19u) << "one for each token";
}

TEST_F(SpeculativeLoopTest, CountsDraftsByPosition) {
  const auto client = Submit(1, {5}, StopAt(25));
  RunAll();
  EXPECT_GT(counts().drafts.value(), 2);
  EXPECT_EQ(counts().draft_tokens.value(), static_cast<double>(client->last.num_draft_tokens));
  EXPECT_EQ(counts().accepted_tokens.value(), static_cast<double>(client->num_drafted));
  ASSERT_EQ(counts().accepted_at.size(), 5u);
  double sum = 0;
  for (const protocol::Counter& position : counts().accepted_at) sum += position.value();
  EXPECT_EQ(sum, counts().accepted_tokens.value());
  EXPECT_GE(counts().accepted_at[0].value(), counts().accepted_at[1].value());
  const std::string text = registry_.Text();
  EXPECT_THAT(text, HasSubstr("skein_spec_drafts_total{engine=\"0\",method=\"dspark\"} "));
  EXPECT_THAT(text, HasSubstr("skein_spec_draft_tokens_total{engine=\"0\",method=\"mtp\"} 0\n"));
  EXPECT_THAT(text,
              HasSubstr("skein_spec_accepted_tokens_total{engine=\"0\",method=\"provided\"} 0\n"));
  EXPECT_THAT(
      text,
      HasSubstr("skein_spec_accepted_tokens_per_position_total{engine=\"0\",position=\"4\"} "));
  EXPECT_THAT(text,
              HasSubstr("skein_spec_disabled_requests_total{engine=\"0\",reason=\"grammar\"} 0\n"));
}

TEST_F(SpeculativeLoopTest, CountsOnceWhyARequestHadNoDrafts) {
  const auto without = Submit(1, {5}, StopAt(6), {.enabled = false});
  RunAll();
  EXPECT_EQ(without->last.num_draft_tokens, 0u);
  EXPECT_EQ(without->last.num_steps, 6u);
  EXPECT_EQ(Disabled(scheduler::Undrafted::kByRequest), 1);
  const auto zero = Submit(2, {6}, StopAt(6), {.max_draft_tokens = 0});
  const auto with = Submit(3, {7}, StopAt(6));
  RunAll();
  EXPECT_EQ(zero->last.num_draft_tokens, 0u);
  EXPECT_GT(with->last.num_draft_tokens, 0u);
  EXPECT_EQ(Disabled(scheduler::Undrafted::kByRequest), 2);
  EXPECT_EQ(Disabled(scheduler::Undrafted::kNearTheEnd), 0);
  EXPECT_EQ(Disabled(scheduler::Undrafted::kByLoad), 0);
}

TEST_F(SpeculativeLoopTest, NearTheModelsLengthNothingIsDrafted) {
  // The last token before max_model_len is decoded alone, unless a draft reached it.
  for (uint64_t id = 1; id <= 12; ++id) {
    const std::vector<int32_t> prompt(id, static_cast<int32_t>(id));
    const auto client = Submit(id, prompt, StopAt(40));
    RunAll();
    EXPECT_EQ(client->tokens, DecodeAlone(prompt, StopAt(40), 32));
  }
  EXPECT_GT(Disabled(scheduler::Undrafted::kNearTheEnd), 0);
  EXPECT_LT(Disabled(scheduler::Undrafted::kNearTheEnd), 12);
}

TEST_F(SpeculativeLoopTest, ARequestThatEndsWithAnErrorReportsItsDrafts) {
  const auto client = Submit(1, {5}, StopAt(30));
  Idle();
  for (int i = 0; i < 3; ++i) {
    const auto plan = TakePlan();
    ASSERT_TRUE(plan.has_value());
    Receive(Worker(1), plan->epoch, fake_.Run(*plan));
    Idle();
  }
  door_.StartDraining();
  door_.Cancel({protocol::RequestId(1)});
  const auto plan = TakePlan();
  ASSERT_TRUE(plan.has_value());
  Receive(Worker(1), plan->epoch, fake_.Run(*plan));
  Idle();
  RunAll();
  EXPECT_EQ(client->last.finish, FinishReason::kCancelled);
  EXPECT_GT(client->last.num_draft_tokens, 0u);
  EXPECT_GE(client->last.num_draft_tokens, client->num_drafted);
}

}  // namespace
}  // namespace skein::tests
