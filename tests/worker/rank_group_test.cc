// A rank of a group answers what the whole model answers, bit for bit: whatever the other ranks run
// or do not run beside it, on every backend that shares the host's memory. And one rank's error
// ends the step of all.
#include "tests/worker/rank_group.h"

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <tuple>

#include <gmock/gmock.h>
#include <poll.h>

#include "tests/worker/draft_stream.h"
#include "tests/worker/owned_streams.h"

namespace skein::tests {
namespace {

using protocol::StepPlan;
using protocol::StepResult;
using protocol::StepStatus;
using ::testing::HasSubstr;

// Ranks, whether they exchange like GPUs, and whether decode steps are recorded.
using GroupForm = std::tuple<int, bool, bool>;
class RankGroupTest : public ::testing::TestWithParam<GroupForm> {
 protected:
  static RankSetup Ranks() {
    RankSetup setup;
    std::tie(setup.ranks, setup.split, setup.record) = GetParam();
    return setup;
  }
};

TEST_P(RankGroupTest, StreamsWithAndWithoutDraftsAreThoseOfTheWholeModel) {
  RankGroup group(Ranks());
  const Drafting kinds[] = {{VerificationMode::kGreedy, 5},
                            {VerificationMode::kCoupled, 3, 0.4F},
                            {VerificationMode::kRejection, 4},
                            {VerificationMode::kCoupled, 0, 0, false},
                            {VerificationMode::kGreedy, 0, 0, true, 2},
                            {VerificationMode::kRejection, 5, 0.3F, true, 0, 3}};
  std::vector<Owned> owned;
  for (uint32_t i = 0; i < 10; ++i) {
    const Drafting& drafting = kinds[i % 6];
    const float temperature = drafting.mode == VerificationMode::kGreedy ? 0.0F : 0.8F;
    const auto ranks = static_cast<uint32_t>(group.size());
    if (i / ranks >= 4) break;
    owned.push_back(OwnedStream(50 + i, i % ranks, i / ranks, temperature, drafting));
    // Ranks begin and end at different times.
    owned.back().from_step = i % 4;
  }
  RunOwned(group, owned);
}

TEST_P(RankGroupTest, OneStreamAloneMeetsRanksWithoutAny) {
  RankGroup group(Ranks());
  for (const size_t rank : {size_t{0}, static_cast<size_t>(group.size()) - 1}) {
    std::vector<Owned> owned;
    owned.push_back(OwnedStream(71, rank, 2, 0.7F, {VerificationMode::kCoupled, 5}));
    RunOwned(group, owned);
    group.Meet();
  }
  const std::vector<StepResult> empty =
      group.Run(std::vector<StepPlan>(static_cast<size_t>(group.size())));
  EXPECT_TRUE(empty.back().sequences.empty());
}

TEST_P(RankGroupTest, ChunksEditsAndScoresBesideDecodesChangeNothing) {
  RankGroup group(Ranks());
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<Owned> owned;
  owned.push_back(OwnedStream(80, 0, 0, 0.0F, {VerificationMode::kGreedy, 5}));
  Owned chunked = OwnedStream(81, ranks - 1, 1, 0.8F, {VerificationMode::kCoupled, 2});
  chunked.stream.tokens = RandomPrompt(81, 230);
  chunked.stream.prompt_length = 230;
  chunked.chunk = 50;
  owned.push_back(chunked);
  Owned edited = OwnedStream(82, 0, 2, 0.8F, {VerificationMode::kCoupled, 3});
  protocol::LogitEdits edits;
  edits.presence_penalty = 0.5F;
  edits.repetition_penalty = 1.2F;
  edits.bias = {{487, 3.0F}};
  edited.stream.edits = std::make_shared<const protocol::LogitEdits>(edits);
  owned.push_back(edited);
  size_t scored = 0;
  RunOwned(group, owned, [&](Owned& one, protocol::SequenceStep& step) {
    if (step.tokens.size() < 2 || one.stream.slot == 2) return;
    step.scoring = {0, static_cast<uint32_t>(step.tokens.size()) - 1, -1, 2};
    scored += step.scoring.count;
  });
  EXPECT_GT(scored, 200u);
}

// A sequence saves its state at the end of two blocks; another one begins there, on the same rank,
// while the other ranks run something else.
TEST_P(RankGroupTest, APrefixHitIsThatOfTheWholeModel) {
  RankGroup group(Ranks());
  const auto ranks = static_cast<size_t>(group.size());
  const size_t home = ranks - 1;
  Owned first = OwnedStream(90, home, 0, 0.0F, {VerificationMode::kGreedy, 3});
  first.stream.tokens = RandomPrompt(90, 100);
  first.chunk = 64;
  first.stream.wanted = 3;
  std::vector<Owned> owned = {first, OwnedStream(91, 0, 1, 0.8F, {VerificationMode::kCoupled, 5})};
  RunOwned(group, owned, [](Owned& one, protocol::SequenceStep& step) {
    if (one.stream.slot == 0 && step.first_position == 64) step.save_to = protocol::SlotId(4);
  });
  Owned second = OwnedStream(90, home, 2, 0.9F, {VerificationMode::kCoupled, 4});
  second.stream.tokens = first.stream.tokens;
  second.stream.computed = 64;
  std::vector<Owned> next = {second, OwnedStream(92, 0, 3, 0.0F, {VerificationMode::kGreedy, 2})};
  RunOwned(group, next, [](Owned& one, protocol::SequenceStep& step) {
    if (one.stream.slot != 2 || step.first_position != 64) return;
    step.fresh_slot = true;
    step.shared_length = 64;
    step.restore_from = protocol::SlotId(4);
    step.new_blocks[0] = protocol::BlockId(0);
    step.new_blocks[1] = protocol::BlockId(1);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RankGroupTest,
                         ::testing::Values(GroupForm{1, false, false}, GroupForm{2, false, false},
                                           GroupForm{4, false, false}, GroupForm{2, false, true},
                                           GroupForm{2, true, false}, GroupForm{3, true, true},
                                           GroupForm{4, true, true}));

// Three ranks share 16 experts and 12 columns unevenly and evenly.
TEST(RankGroup, ThreeRanksAreThoseOfTheWholeModel) {
  RankSetup setup;
  setup.ranks = 3;
  RankGroup group(setup);
  std::vector<Owned> owned;
  for (uint32_t i = 0; i < 3; ++i) {
    owned.push_back(OwnedStream(60 + i, i, i, 0.8F, {VerificationMode::kCoupled, i + 1}));
  }
  RunOwned(group, owned);
}

// More rows of all ranks than one rank may have: the owners take them in parts.
TEST(RankGroup, RowsOfAllRanksAreTakenInParts) {
  RankSetup setup;
  setup.ranks = 4;
  setup.max_rows = 40;
  setup.max_drafts = 5;
  for (const bool split : {false, true}) {
    setup.split = split;
    RankGroup group(setup);
    std::vector<Owned> owned;
    for (uint32_t i = 0; i < 4; ++i) {
      owned.push_back(OwnedStream(40 + i, i, 0, 0.0F, {VerificationMode::kGreedy, 4}));
      owned.back().stream.tokens = RandomPrompt(40 + i, 37 + i);
      owned.back().stream.wanted = 4;
      owned.back().chunk = 40 - i;
    }
    RunOwned(group, owned);
  }
}

// Every rank brings as many rows as it may, and all of them are alike: the same n-grams, whose
// table rows lie with each column's owner, and the same experts, whose owners get every row there
// is. What a collective may carry is bound by the rows alone.
TEST(RankGroup, TheFullestStepFitsWhateverItsTokensAre) {
  RankSetup setup;
  setup.ranks = 4;
  setup.max_rows = 96;
  RankGroup group(setup);
  for (const bool alike : {true, false}) {
    group.Meet();
    std::vector<StepPlan> plans(4);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      Stream stream = StartStream(rank, rank, 0.0F, {});
      stream.tokens = alike ? std::vector<int32_t>(96, 487) : RandomPrompt(rank, 96);
      plans[rank].sequences.push_back(PlanStream(stream));
    }
    group.Run(plans);
  }
  // One row more is refused by the rank that has it, before anything is exchanged.
  std::vector<StepPlan> plans(4);
  Stream stream = StartStream(1, 0, 0.0F, {});
  stream.tokens = RandomPrompt(1, 97);
  plans[2].sequences.push_back(PlanStream(stream));
  const std::vector<StepResult> results = group.RunParts(plans);
  EXPECT_EQ(results[2].status, StepStatus::kRefused);
  EXPECT_EQ(results[0].status, StepStatus::kAborted);
}

struct Checkpoint {
  const char* name;
  const char* backend;
};

class RankGroupCheckpoints : public ::testing::TestWithParam<Checkpoint> {};

TEST_P(RankGroupCheckpoints, TwoRanksAnswerAsOne) {
  RankSetup setup;
  setup.model_dir = std::string("tests/data/conformance-v41/") + GetParam().name;
  setup.backend = GetParam().backend;
  setup.max_model_len = 64;
  setup.num_blocks = 16;
  setup.max_rows = 64;
  const auto spec = worker::ModelSpec::Load(setup.model_dir);
  ASSERT_TRUE(spec.ok()) << spec.status();
  setup.max_drafts = spec->dspark.stages > 0 ? spec->dspark.block : 0;
  RankGroup group(setup);
  std::vector<Owned> owned;
  for (uint32_t i = 0; i < 3; ++i) {
    Drafting drafting{VerificationMode::kCoupled, setup.max_drafts > 0 ? 1 + i : 0};
    drafting.feed = setup.max_drafts > 0;
    Owned one = OwnedStream(i, i % 2, i, 0.8F, drafting);
    std::mt19937 random(i);
    one.stream.tokens.clear();
    for (size_t t = 0; t < 9 + 7 * i; ++t) {
      one.stream.tokens.push_back(
          static_cast<int32_t>(random() % static_cast<unsigned>(spec->vocab - 1)));
    }
    one.stream.wanted = 5;
    one.chunk = 8;
    owned.push_back(one);
  }
  // Blocks of a stream of these tests, not of the others.
  RunOwned(group, owned, [&](Owned& one, protocol::SequenceStep& step) {
    for (size_t b = 0; b < step.new_blocks.size(); ++b) {
      step.new_blocks[b] = protocol::BlockId(one.stream.slot * 4 + step.table_size_before +
                                             static_cast<uint32_t>(b));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Models, RankGroupCheckpoints,
    ::testing::Values(Checkpoint{"mixed_engram", "cpu"}, Checkpoint{"mixed_engram", "reference"},
                      Checkpoint{"engram4", "cpu"}, Checkpoint{"engram4", "reference"},
                      Checkpoint{"dspark", "cpu"}, Checkpoint{"dspark", "reference"},
                      Checkpoint{"odd_knobs", "cpu"}, Checkpoint{"odd_knobs", "reference"},
                      Checkpoint{"r1", "cpu"}, Checkpoint{"window", "reference"}),
    [](const auto& test) { return std::string(test.param.name) + "_" + test.param.backend; });

// ---- what a rank holds

TEST(RankShard, APartHasItsExpertsAndColumnsAlone) {
  RankSetup setup;
  const auto whole = LoadPart(setup, {});
  uint64_t shared_twice = 0;
  for (const int rank : {0, 1}) {
    const auto part = LoadPart(setup, {rank, 2});
    EXPECT_EQ(part->weights().layers[0].moe.w1.size(), 8u);
    EXPECT_EQ(part->weights().draft.stages[0].moe.w1.size(), 4u);
    EXPECT_LT(part->weights().engram[0].codes.dim(0), whole->weights().engram[0].codes.dim(0));
    EXPECT_EQ(part->weights().bytes + worker::LeftOutBytes({rank, 2}, whole->spec()),
              whole->weights().bytes);
    shared_twice += part->weights().bytes;
  }
  // The first row of the second part is the one after the last of the first.
  const auto& spec = whole->spec();
  const worker::TableRows first = worker::TableRowsOf({0, 2}, spec.engram, 0);
  const worker::TableRows second = worker::TableRowsOf({1, 2}, spec.engram, 0);
  EXPECT_EQ(first.begin + first.count, second.begin);
  EXPECT_LE(second.begin + second.count, spec.engram.rows[0]);
  EXPECT_GT(shared_twice, whole->weights().bytes);
}

TEST(RankShard, SizesThatDoNotSplitTheModelAreNamed) {
  const auto spec = worker::ModelSpec::Load("deploy/models/tiny-v41");
  ASSERT_TRUE(spec.ok());
  EXPECT_TRUE(worker::CheckShard({3, 4}, *spec).ok());
  EXPECT_EQ(worker::CheckShard({0, 5}, *spec).message(),
            "scheduler.expert_parallel_size is 5, the n-gram tables of the model have 12 hash "
            "columns, which are split whole: use one of 1, 2, 3, 4, 6");
  EXPECT_EQ(worker::CheckShard({0, 12}, *spec).message(),
            "scheduler.expert_parallel_size is 12, the model has 8 experts in a layer: at most one "
            "rank each");
  EXPECT_FALSE(worker::CheckShard({2, 2}, *spec).ok());
}

// ---- what goes wrong

TEST(RankErrors, APlanThatOneRankRefusesEndsTheStepOfAll) {
  RankGroup group({});
  std::vector<StepPlan> plans(2);
  Stream stream = StartStream(3, 0, 0.0F, {});
  plans[0].sequences.push_back(PlanStream(stream));
  plans[1].sequences.push_back(plans[0].sequences[0]);
  plans[1].sequences[0].fresh_slot = false;
  const std::vector<StepResult> results = group.RunParts(plans);
  EXPECT_EQ(results[1].status, StepStatus::kRefused);
  EXPECT_EQ(results[1].message, "sequence 1: slot 0 does not hold it");
  EXPECT_EQ(results[0].status, StepStatus::kAborted);
  EXPECT_THAT(results[0].message,
              HasSubstr("rank 1 refused its plan of step 0: sequence 1: slot 0 does not hold it"));
}

// rule: HA7
TEST(RankErrors, PlansThatDoNotBelongTogetherAreNamed) {
  for (const int what : {0, 1, 2}) {
    RankGroup group({});
    std::vector<StepPlan> plans(2);
    for (StepPlan& plan : plans) plan.plan_hash = 77;
    if (what == 0) plans[1].plan_hash = 78;
    if (what == 1) plans[1].step = protocol::StepId(9);
    if (what == 2) plans[1].lane = 1;
    for (const StepResult& result : group.RunParts(plans)) {
      EXPECT_EQ(result.status, StepStatus::kFailed);
      EXPECT_THAT(result.message, HasSubstr("the plans of a step do not belong together"));
      EXPECT_THAT(result.message, HasSubstr(what == 0   ? "with plan hash 78"
                                            : what == 1 ? "step 9 of epoch 0"
                                                        : "in lane 1"));
    }
  }
}

// A rank that joins NCCL's communicator and then makes no exchange of its own: NCCL makes its
// connections in the first one, which waits for it. `then` is what else it does.
absl::Status EnterWithASilentRank(absl::Duration patience,
                                  const std::function<void(protocol::HostGroup&)>& then) {
  const auto library = *protocol::NcclLibrary::Open(SKEIN_FAKE_NCCL);
  SplitDevice device(size_t{1} << 20);
  const std::string name = NewCommunicator();
  absl::Status entered;
  std::atomic<bool> left = false;
  ForEachRank(2, [&](size_t rank) {
    auto group = *protocol::HostGroup::Create({.name = name,
                                               .label = "group 2 epoch 4",
                                               .rank = static_cast<int>(rank),
                                               .size = 2,
                                               .capacity = 4096});
    ASSERT_TRUE(group->Join(protocol::MonotonicNow() + absl::Seconds(30)).ok());
    if (rank == 0) {
      worker::RankExchange exchange({0, 2}, 4096, device, library);
      entered = exchange.Enter(*group, "group 2 epoch 4", protocol::MonotonicNow() + patience);
      left.store(true);
      return;
    }
    std::array<protocol::NcclId, 2> ids{};
    const protocol::GatherPart part{std::as_bytes(std::span(&ids[1], 1)),
                                    std::as_writable_bytes(std::span(ids)), sizeof ids[0]};
    const absl::Time late = protocol::MonotonicNow() + absl::Seconds(30);
    ASSERT_TRUE(group->AllGather({&part, 1}, late).ok());
    protocol::NcclGroup nccl(library, 1, 2, "group 2 epoch 4");
    ASSERT_TRUE(nccl.Join(ids[0], late, nullptr).ok());
    then(*group);
    while (!left.load()) std::this_thread::yield();
  });
  return entered;
}

// rule: HA7
TEST(RankErrors, ARankThatDiesWhileNcclConnectsIsNoticedAtOnce) {
  absl::Time told;
  const absl::Status entered =
      EnterWithASilentRank(absl::Seconds(30), [&](protocol::HostGroup& group) {
        ::poll(nullptr, 0, 50);
        told = protocol::MonotonicNow();
        group.Abort("rank 1 is gone");
      });
  EXPECT_LT(protocol::MonotonicNow() - told, absl::Milliseconds(1200));
  EXPECT_EQ(entered.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(entered.message(), HasSubstr("rank 1 is gone"));
}

TEST(RankErrors, ARankThatMakesNoConnectionsIsWaitedForUntilTheDeadline) {
  const absl::Status entered =
      EnterWithASilentRank(absl::Milliseconds(200), [](protocol::HostGroup&) {});
  EXPECT_EQ(entered.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(entered.message(), "group 2 epoch 4: a gather: the other ranks did not come");
}

// What ends the exchanges of a step is told once: the device is whole when it recovers.
TEST(RankErrors, ADeviceRecoversFromAStepThatAnotherRankEnded) {
  RankSetup setup;
  setup.split = true;
  RankGroup group(setup);
  group.group(1).Abort("rank 1 stops");
  worker::LoadedModel& part = group.part(0);
  const absl::Status waited = part.device().Wait();
  EXPECT_EQ(waited.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(waited.message(), HasSubstr("rank 1 stops"));
  EXPECT_TRUE(part.model().Recover().ok()) << part.model().Recover();
}

// A device that waits for the exchange of a rank that is late waits no longer than the step may
// take, and ends the group.
TEST(RankErrors, ADeviceWaitsForALateRankUntilTheDeadlineOfTheStep) {
  RankSetup setup;
  setup.split = true;
  RankGroup group(setup);
  worker::LoadedModel& part = group.part(0);
  part.ranks()->SetDeadline(protocol::MonotonicNow() + absl::Seconds(60));
  EXPECT_TRUE(part.device().Wait().ok());
  part.ranks()->SetDeadline(protocol::MonotonicNow() - absl::Milliseconds(1));
  EXPECT_EQ(part.device().Wait(),
            absl::DeadlineExceededError("an exchange of the step did not end: a rank is late"));
  EXPECT_THAT(group.group(1).Live().message(), HasSubstr("a rank is late"));
}

// After an abort every later plan of the epoch is answered, and no rank waits.
TEST(RankErrors, PlansAfterAnAbortAreAborted) {
  RankGroup group({});
  group.group(1).Abort("rank 1 stops");
  for (int i = 0; i < 3; ++i) {
    for (const StepResult& result : group.RunParts(std::vector<StepPlan>(2))) {
      EXPECT_EQ(result.status, StepStatus::kAborted);
      EXPECT_THAT(result.message, HasSubstr("aborted by rank 1: rank 1 stops"));
    }
  }
  group.Meet();
  std::vector<Owned> owned;
  owned.push_back(OwnedStream(5, 1, 0, 0.0F, {VerificationMode::kGreedy, 2}));
  RunOwned(group, owned);
}

}  // namespace
}  // namespace skein::tests
