// The control loop with a group of two ranks: how it is formed, what the loss of one does to the
// other, and who is blamed for what. Each rank has a complete fake worker; the clock is virtual.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/control_loop.h"
#include "protocol/base/form_time.h"
#include "tests/protocol/virtual_context.h"
#include "tests/scheduler/fake_worker.h"

namespace skein::tests {
namespace {

using coordinator::FinishReason;
using coordinator::TokenDelta;
using protocol::ActorId;
using protocol::Epoch;
using protocol::GroupId;
using protocol::RankId;

constexpr protocol::CacheGeometry kGeometry = {4, 32, 4, 64, 32};

class TokenRecord final : public coordinator::TokenSink {
 public:
  void Deliver(TokenDelta delta) override {
    EXPECT_FALSE(finish.has_value()) << "a delta follows the last one";
    for (const coordinator::DeltaToken& token : delta.tokens) tokens.push_back(token.id);
    finish = delta.finish;
    if (finish) error = delta.error;
  }
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;
  absl::Status error;
};

ActorId Worker(uint32_t node) { return {protocol::NodeId(node), 0}; }

class ControlRanksTest : public ::testing::Test {
 protected:
  explicit ControlRanksTest(uint32_t groups = 1)
      : metrics_(registry_, 2 * groups, 0),
        loop_(Options(groups), door_, metrics_, drained_, &operators_) {
    loop_.OnStart(context_);
  }

  static coordinator::ControlOptions Options(uint32_t groups) {
    coordinator::ControlOptions options;
    options.num_groups = groups;
    options.limits.max_num_seqs = 4;
    options.limits.max_num_batched_tokens = 64;
    options.limits.lanes = 1;
    options.limits.admission = {100, 10'000};
    options.num_ranks = 2;
    options.term = protocol::Term(4);
    options.rebalance_interval = absl::Seconds(1);
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
  void Register(uint32_t node, const std::string& host = "", const std::string& address = "") {
    protocol::RegisterWorker registration;
    registration.protocol_minor = minor_;
    registration.host = host;
    registration.group_address = address;
    registration.geometry = kGeometry;
    registration.rank = RankId((node - 1) % 2);
    registration.num_ranks = 2;
    registration.incarnation = protocol::Incarnation(++incarnation_);
    Receive(Worker(node), Epoch(0), registration);
  }
  void Beat() {
    for (const uint32_t node : alive_) Receive(Worker(node), Epoch(0), protocol::Heartbeat{});
  }
  void Wait(absl::Duration duration) {
    for (absl::Duration left = duration; left > absl::ZeroDuration();
         left -= absl::Milliseconds(100)) {
      Beat();
      context_.Advance(absl::Milliseconds(100), loop_);
    }
  }

  // What was sent since the last look, of one kind, by node.
  template <typename M>
  std::map<uint32_t, M> Take() {
    std::map<uint32_t, M> found;
    for (SentMessage& sent : context_.TakeSent()) {
      if (auto* message = std::get_if<M>(&sent.message)) {
        found[sent.to.node.value()] = std::move(*message);
      }
    }
    return found;
  }
  void Confirm(uint32_t node, const protocol::FormGroup& form) {
    workers_[node].Restart(kGeometry);
    Receive(Worker(node), form.epoch, protocol::GroupFormed{form.group, form.rank, form.epoch});
  }
  void ConfirmAll(const std::map<uint32_t, protocol::FormGroup>& forms) {
    for (const auto& [node, form] : forms) Confirm(node, form);
  }
  void Start() {
    Register(1);
    Register(2);
    ConfirmAll(Take<protocol::FormGroup>());
    ASSERT_TRUE(door_.ready());
  }
  void LoseWorker(uint32_t node) {
    loop_.OnPeerDown(context_, {Worker(node), absl::UnavailableError("gone")});
  }

  std::shared_ptr<TokenRecord> Submit(uint64_t id, std::vector<int32_t> prompt, int32_t count) {
    auto client = std::make_shared<TokenRecord>();
    coordinator::SubmitRequest request;
    request.id = protocol::RequestId(id);
    request.prompt_ids = std::move(prompt);
    request.stop = StopAt(count);
    request.sink = client;
    EXPECT_TRUE(door_.TrySubmit(std::move(request)).ok());
    return client;
  }
  std::map<uint32_t, protocol::StepPlan> Plans() {
    loop_.OnIdle(context_);
    return Take<protocol::StepPlan>();
  }
  void Answer(uint32_t node, const protocol::StepPlan& plan) {
    Receive(Worker(node), plan.epoch, workers_[node].Run(plan));
  }
  void Refuse(uint32_t node, const protocol::StepPlan& plan, protocol::StepStatus status) {
    protocol::StepResult result;
    result.group = plan.group;
    result.rank = plan.rank;
    result.epoch = plan.epoch;
    result.step = plan.step;
    result.lane = plan.lane;
    result.status = status;
    result.message = "told so";
    Receive(Worker(node), plan.epoch, result);
    loop_.OnIdle(context_);
  }
  void RunAll() {
    for (int i = 0; i < 200; ++i) {
      const auto plans = Plans();
      if (plans.empty()) return;
      for (const auto& [node, plan] : plans) Answer(node, plan);
    }
    FAIL() << "the loop plans without end";
  }
  size_t NumSequences(bool (*has)(const scheduler::Sequence&)) {
    size_t count = 0;
    for (const auto& [id, sequence] : loop_.scheduler().sequences()) count += has(*sequence);
    return count;
  }
  double Ended(std::string_view cause) { return metrics_.epoch_changes.At({cause}).value(); }

  CountingWaker waker_;
  protocol::MetricsRegistry registry_{{}};
  coordinator::CoordinatorMetrics metrics_;
  coordinator::FrontDoorQueue door_{{.queued_requests_max = 16, .queued_tokens_max = 1000}, waker_};
  std::atomic<bool> drained_ = false;
  coordinator::OperatorQueue operators_{waker_};
  coordinator::ControlLoop loop_;
  std::set<uint32_t> alive_ = {1, 2};  // send heartbeats
  VirtualContext context_{protocol::kCoordinatorActor};
  std::map<uint32_t, FakeWorker> workers_;
  uint64_t incarnation_ = 10;
  uint32_t minor_ = protocol::kProtocolMinor;
};

TEST_F(ControlRanksTest, RanksAreToldWhereTheOthersAre) {
  Register(1, "here", "10.0.0.1:4000");
  Register(2, "there");
  const auto forms = Take<protocol::FormGroup>();
  ASSERT_EQ(forms.size(), 2U);
  for (const auto& [node, form] : forms) {
    EXPECT_THAT(form.places, ::testing::ElementsAre(protocol::RankAddress{"here", "10.0.0.1:4000"},
                                                    protocol::RankAddress{"there", ""}));
  }
}

// A worker of the minor before does not say where it is: it knows groups of one host alone.
TEST_F(ControlRanksTest, RanksOfAnOlderWorkerAreOnOneHost) {
  Register(1, "here", "10.0.0.1:4000");
  Register(2);
  EXPECT_THAT(Take<protocol::FormGroup>().at(1).places, ::testing::IsEmpty());
}

TEST_F(ControlRanksTest, RanksMeetUnderOneNameAndServeTogether) {
  Register(2);
  EXPECT_EQ(Take<protocol::FormGroup>().size(), 0U) << "one of two";
  Register(1);
  const auto forms = Take<protocol::FormGroup>();
  ASSERT_EQ(forms.size(), 2U);
  for (const uint32_t node : {1, 2}) {
    EXPECT_EQ(forms.at(node).rank, RankId(node - 1));
    EXPECT_EQ(forms.at(node).num_ranks, 2U);
    EXPECT_EQ(forms.at(node).epoch, forms.at(1).epoch);
    EXPECT_EQ(forms.at(node).communicator, forms.at(1).communicator);
    EXPECT_THAT(forms.at(node).communicator, ::testing::MatchesRegex("[a-z0-9-]{20,80}"));
  }
  Confirm(1, forms.at(1));
  EXPECT_FALSE(door_.ready()) << "the other rank has not answered";
  Confirm(2, forms.at(2));
  EXPECT_TRUE(door_.ready());

  const auto first = Submit(1, {5, 6, 7}, 4);
  const auto second = Submit(2, {8, 8}, 6);
  const auto plans = Plans();
  ASSERT_EQ(plans.size(), 2U);
  EXPECT_EQ(plans.at(1).step, plans.at(2).step);
  EXPECT_EQ(plans.at(1).plan_hash, plans.at(2).plan_hash);
  EXPECT_EQ(metrics_.engines[0].requests_running.value(), 1);
  EXPECT_EQ(metrics_.engines[1].requests_running.value(), 1);
  for (const auto& [node, plan] : plans) Answer(node, plan);
  RunAll();
  EXPECT_EQ(first->tokens, DecodeAlone({5, 6, 7}, StopAt(4), 32));
  EXPECT_EQ(second->tokens, DecodeAlone({8, 8}, StopAt(6), 32));
  EXPECT_EQ(metrics_.engines[0].generation_tokens.value(), 4);
  EXPECT_EQ(metrics_.engines[1].generation_tokens.value(), 6);
  EXPECT_EQ(metrics_.groups.At({"ready"}).value(), 1);
}

TEST_F(ControlRanksTest, TheLossOfOneRankEndsTheEpochAndTheOtherStays) {
  Start();
  const auto first = Submit(1, {5, 6, 7}, 9);
  const auto second = Submit(2, {8, 8}, 9);
  for (int i = 0; i < 3; ++i) {
    for (const auto& [node, plan] : Plans()) Answer(node, plan);
  }
  const auto plans = Plans();
  const protocol::StepResult late = workers_[1].Run(plans.at(1));
  LoseWorker(2);
  EXPECT_FALSE(door_.ready());
  const auto told = Take<protocol::AbortEpoch>();
  ASSERT_EQ(told.size(), 1U) << "the one that lives";
  EXPECT_EQ(told.at(1).epoch, plans.at(1).epoch);
  Receive(Worker(1), plans.at(1).epoch, late);
  EXPECT_EQ(metrics_.stale_results.value(), 1);
  EXPECT_EQ(Ended("peer_down"), 1);

  Register(2);
  const auto forms = Take<protocol::FormGroup>();
  ASSERT_EQ(forms.size(), 2U) << "the survivor has no need to register again";
  EXPECT_GT(forms.at(1).epoch, plans.at(1).epoch);
  ConfirmAll(forms);
  RunAll();
  EXPECT_EQ(first->tokens, DecodeAlone({5, 6, 7}, StopAt(9), 32));
  EXPECT_EQ(second->tokens, DecodeAlone({8, 8}, StopAt(9), 32));
}

// Aim: a rank whose partner is gone answers before the coordinator knows of the loss. That is no
// failure of the step: who was in it is marked by the death, as on one rank, and blamed for nothing
// else.
TEST_F(ControlRanksTest, AnAbortedStepWaitsForItsCause) {
  Start();
  const auto first = Submit(1, {5, 6, 7}, 9);
  const auto second = Submit(2, {8, 8}, 9);
  const auto plans = Plans();
  Refuse(1, plans.at(1), protocol::StepStatus::kAborted);
  EXPECT_EQ(Ended("step_failed"), 0);
  EXPECT_TRUE(loop_.scheduler().has_epoch(GroupId(0)));
  EXPECT_EQ(metrics_.groups.At({"suspect"}).value(), 1);
  LoseWorker(2);
  const auto marked = [](const scheduler::Sequence& sequence) {
    return sequence.suspicion.marked() && sequence.step_failures == 0;
  };
  EXPECT_EQ(NumSequences(marked), 2U);
  Register(2);
  EXPECT_EQ(NumSequences(marked), 0U) << "it was killed from outside";
  ConfirmAll(Take<protocol::FormGroup>());
  RunAll();
  EXPECT_EQ(first->tokens, DecodeAlone({5, 6, 7}, StopAt(9), 32));
  EXPECT_EQ(second->tokens, DecodeAlone({8, 8}, StopAt(9), 32));
}

TEST_F(ControlRanksTest, AnAbortedStepWithoutACauseEndsTheEpochAndBlamesNobody) {
  Start();
  const auto client = Submit(1, {5, 6, 7}, 5);
  for (int i = 0; i < 5; ++i) {
    const auto plans = Plans();
    ASSERT_EQ(plans.size(), 2U) << i;
    Refuse(2, plans.at(2), protocol::StepStatus::kAborted);
    EXPECT_EQ(Plans().size(), 0U) << "nothing is planned for a group in doubt";
    Wait(absl::Milliseconds(1900));
    EXPECT_EQ(Ended("step_aborted"), i);
    context_.TakeSent();
    Wait(absl::Milliseconds(300));
    EXPECT_EQ(Ended("step_aborted"), i + 1);
    ConfirmAll(Take<protocol::FormGroup>());
  }
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({5, 6, 7}, StopAt(5), 32));
}

TEST_F(ControlRanksTest, AFailedStepOfOneRankIsToldToBoth) {
  Start();
  Submit(1, {5, 6, 7}, 5);
  Submit(2, {8, 8}, 5);
  const auto plans = Plans();
  Refuse(2, plans.at(2), protocol::StepStatus::kFailed);
  const std::vector<SentMessage> all = context_.TakeSent();
  size_t told = 0;
  for (const SentMessage& sent : all) {
    told += std::holds_alternative<protocol::AbortEpoch>(sent.message) ? 1 : 0;
  }
  EXPECT_EQ(told, 2U);
  EXPECT_EQ(NumSequences([](const scheduler::Sequence& s) { return s.step_failures == 1; }), 2U)
      << "experts of one rank computed rows of the other";
  EXPECT_EQ(Ended("step_failed"), 1);
}

TEST_F(ControlRanksTest, RanksThatDoNotMeetAreFormedAnewAfterAPause) {
  Register(1);
  Register(2);
  const auto forms = Take<protocol::FormGroup>();
  Confirm(1, forms.at(1));
  Receive(Worker(2), forms.at(2).epoch,
          protocol::AbortEpoch{GroupId(0), forms.at(2).epoch, "nobody came"});
  EXPECT_EQ(Take<protocol::AbortEpoch>().size(), 1U) << "the other rank waits in vain";
  Wait(absl::Milliseconds(400));
  EXPECT_EQ(Take<protocol::FormGroup>().size(), 0U);
  Wait(absl::Milliseconds(200));
  const auto again = Take<protocol::FormGroup>();
  ASSERT_EQ(again.size(), 2U);
  EXPECT_NE(again.at(1).communicator, forms.at(1).communicator);
  EXPECT_EQ(NumSequences([](const scheduler::Sequence&) { return true; }), 0U);

  Confirm(2, again.at(2));
  // The errors of the ranks, which know why, come first.
  Wait(protocol::kFormMeetTime + protocol::kFormConnectTime + protocol::kFormRecordTime);
  EXPECT_EQ(Take<protocol::FormGroup>().size(), 0U);
  Wait(protocol::kFormMargin + absl::Seconds(1));
  const auto third = Take<protocol::FormGroup>();
  ASSERT_EQ(third.size(), 2U) << "rank 0 never answered";
  ConfirmAll(third);
  EXPECT_TRUE(door_.ready());
}

TEST_F(ControlRanksTest, AResultInTheNameOfAnotherRankIsDropped) {
  Start();
  Submit(1, {5, 6, 7}, 5);
  const auto plans = Plans();
  protocol::StepResult result = workers_[1].Run(plans.at(1));
  Receive(Worker(2), plans.at(1).epoch, result);
  loop_.OnIdle(context_);
  EXPECT_EQ(metrics_.stale_results.value(), 1);
  EXPECT_EQ(Ended("step_failed"), 0);
  EXPECT_EQ(metrics_.engines[0].generation_tokens.value(), 0);
}

// ---- experts that change places

const protocol::ExpertPlacement kPlaced = {{1, 0, 0, 1}};

// Rank 0 has the two experts that have most of the rows.
class RebalanceTest : public ControlRanksTest {
 protected:
  using ControlRanksTest::ControlRanksTest;
  absl::Status Ask(coordinator::OperatorCommand::Verb verb, uint32_t group) {
    absl::Status answer = absl::UnknownError("no answer");
    EXPECT_TRUE(operators_
                    .TryPush({verb, group, "", "", "uid:0",
                              [&](const coordinator::OperatorAnswer& got) { answer = got.status; }})
                    .ok());
    loop_.OnIdle(context_);
    return answer;
  }
  // A sequence runs, and the group is quiet while its last steps do.
  std::map<uint32_t, protocol::StepPlan> RunUntilQuiet() {
    AnswerCounted(Plans());
    const auto plans = Plans();
    EXPECT_FALSE(plans.empty());
    Look();
    return plans;
  }
  // Answers the plans until the next ones are due; rank 0 counts.
  void AnswerCounted(const std::map<uint32_t, protocol::StepPlan>& plans) {
    for (const auto& [node, plan] : plans) {
      protocol::StepResult result = workers_[node].Run(plan);
      result.expert_load = {false, {{1000, 1000, 50, 50}}};
      Receive(Worker(node), plan.epoch, result);
    }
  }
  // The time between two looks, while steps go on.
  void Look() {
    Wait(absl::Milliseconds(1500));
    loop_.OnIdle(context_);
  }
  double Rebalances(std::string_view result) { return metrics_.rebalances.At({result}).value(); }
};

TEST_F(RebalanceTest, ExpertsMoveBetweenStepsAndSequencesGoOn) {
  Start();
  const auto client = Submit(1, {1, 2, 3}, 12);
  auto plans = Plans();
  AnswerCounted(plans);
  plans = Plans();
  ASSERT_EQ(plans.size(), 2u);
  Look();
  // The group is quiet, but its step is not over.
  EXPECT_TRUE(Take<protocol::AbortEpoch>().empty());
  const size_t before = client->tokens.size();
  AnswerCounted(plans);
  loop_.OnIdle(context_);
  EXPECT_GT(client->tokens.size(), before);
  const std::map<uint32_t, protocol::FormGroup> forms = Take<protocol::FormGroup>();
  ASSERT_EQ(forms.size(), 2u);
  for (const auto& [node, form] : forms) EXPECT_EQ(form.placement, kPlaced);
  EXPECT_EQ(Ended("rebalanced"), 1);
  EXPECT_TRUE(Plans().empty());
  // Requests wait for the group instead of being sent away.
  const auto other = Submit(2, {4, 5}, 6);
  // It may load for long.
  Wait(protocol::FormTime() + absl::Seconds(60));
  EXPECT_TRUE(Take<protocol::FormGroup>().empty());
  ConfirmAll(forms);
  RunAll();
  EXPECT_EQ(client->finish, FinishReason::kLength);
  EXPECT_EQ(client->tokens, DecodeAlone({1, 2, 3}, StopAt(12), 32));
  EXPECT_EQ(other->tokens, DecodeAlone({4, 5}, StopAt(6), 32));
  EXPECT_EQ(Rebalances("ok"), 1);
  // Whoever comes back has the placement with the next epoch.
  LoseWorker(2);
  Register(2);
  for (const auto& [node, form] : Take<protocol::FormGroup>()) EXPECT_EQ(form.placement, kPlaced);
  EXPECT_EQ(Rebalances("failed"), 0);
}

TEST_F(RebalanceTest, RanksThatCannotLoadKeepWhatTheyHave) {
  Start();
  const auto client = Submit(1, {1, 2, 3}, 12);
  AnswerCounted(Plans());
  Look();
  auto plans = Take<protocol::StepPlan>();
  AnswerCounted(plans);
  loop_.OnIdle(context_);
  std::map<uint32_t, protocol::FormGroup> forms = Take<protocol::FormGroup>();
  ASSERT_EQ(forms.size(), 2u);
  const protocol::FormGroup& form = forms.at(2);
  Receive(Worker(2), form.epoch,
          protocol::AbortEpoch{form.group, form.epoch, "an expert cannot be read"});
  Wait(absl::Seconds(1));
  forms = Take<protocol::FormGroup>();
  ASSERT_EQ(forms.size(), 2u);
  for (const auto& [node, again] : forms) EXPECT_TRUE(again.placement.empty());
  ConfirmAll(forms);
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({1, 2, 3}, StopAt(12), 32));
  EXPECT_EQ(Rebalances("failed"), 1);
  EXPECT_EQ(Rebalances("ok"), 0);
}

TEST_F(RebalanceTest, RanksOfAnOlderVersionKeepTheirExperts) {
  minor_ = 5;
  Start();
  const auto client = Submit(1, {1, 2, 3}, 12);
  AnswerCounted(Plans());
  Look();
  AnswerCounted(Take<protocol::StepPlan>());
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({1, 2, 3}, StopAt(12), 32));
  EXPECT_EQ(Ended("rebalanced"), 0);
}

using Verb = coordinator::OperatorCommand::Verb;

// A drain lets what runs finish: the group does not leave for its experts, although it was to.
TEST_F(RebalanceTest, AGroupThatIsDrainedWhileItIsQuietStays) {
  Start();
  const auto client = Submit(1, {1, 2, 3}, 12);
  const auto plans = RunUntilQuiet();
  EXPECT_TRUE(Ask(Verb::kDrain, 0).ok());
  AnswerCounted(plans);
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({1, 2, 3}, StopAt(12), 32));
  EXPECT_EQ(Ended("rebalanced"), 0);
  EXPECT_EQ(Rebalances("failed"), 1);
}

TEST_F(RebalanceTest, AGroupThatIsFormedForItIsDrainedAfterwards) {
  Start();
  const auto client = Submit(1, {1, 2, 3}, 12);
  AnswerCounted(RunUntilQuiet());
  loop_.OnIdle(context_);
  const auto forms = Take<protocol::FormGroup>();
  ASSERT_EQ(forms.size(), 2u);
  EXPECT_EQ(Ask(Verb::kDrain, 0),
            absl::FailedPreconditionError(
                "the experts of group 0 change places; drain it when it is ready"));
  ConfirmAll(forms);
  const auto next = Plans();
  EXPECT_TRUE(Ask(Verb::kDrain, 0).ok());
  AnswerCounted(next);
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({1, 2, 3}, StopAt(12), 32));
}

TEST_F(RebalanceTest, RanksThatCannotBeToldLeaveNothingUnderWay) {
  Start();
  const auto client = Submit(1, {1, 2, 3}, 12);
  const auto plans = RunUntilQuiet();
  AnswerCounted(plans);
  context_.SetDown(Worker(2), true);
  loop_.OnIdle(context_);
  EXPECT_EQ(Rebalances("failed"), 1);
  context_.SetDown(Worker(2), false);
  Register(2);
  const auto forms = Take<protocol::FormGroup>();
  ASSERT_EQ(forms.size(), 2u);
  for (const auto& [node, form] : forms) EXPECT_TRUE(form.placement.empty());
  ConfirmAll(forms);
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({1, 2, 3}, StopAt(12), 32));
}

class RebalanceTwoGroupsTest : public RebalanceTest {
 protected:
  RebalanceTwoGroupsTest() : RebalanceTest(2) {
    alive_ = {1, 2, 3, 4};
    for (const uint32_t node : alive_) Register(node);
    ConfirmAll(Take<protocol::FormGroup>());
  }
};

// The group that would leave is the last one that serves.
TEST_F(RebalanceTwoGroupsTest, NoGroupLeavesWhileAnotherDoesNotServe) {
  ASSERT_TRUE(door_.ready());
  EXPECT_TRUE(Ask(Verb::kDrain, 1).ok());
  const auto client = Submit(1, {1, 2, 3}, 12);
  AnswerCounted(RunUntilQuiet());
  RunAll();
  EXPECT_EQ(client->tokens, DecodeAlone({1, 2, 3}, StopAt(12), 32));
  EXPECT_EQ(Ended("rebalanced"), 0);
  EXPECT_EQ(Rebalances("failed"), 0);
  EXPECT_TRUE(Ask(Verb::kUndrain, 1).ok());
  Look();
  EXPECT_EQ(Ended("rebalanced"), 1);
}

}  // namespace
}  // namespace skein::tests
