// A broken state is named by the number of its invariant and its values. The sequences are plain
// state behind const pointers, so that a test can break them.
#include "scheduler/invariants.h"

#include <functional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using scheduler::Sequence;
using ::testing::HasSubstr;

// Sequence 1 in flight with 3 tokens, 2 running between steps in the other lane, 3 queued.
class BrokenState : public ::testing::Test {
 protected:
  BrokenState() : scheduler_(LimitsOf(kSetup), 1) {
    scheduler_.StartEpoch(kOnly, protocol::Epoch(1), std::vector{GeometryOf(kSetup)});
    Add(1);
    Add(2);
    in_flight_ = scheduler_.PlanStep(kOnly, 0).at(0);
    FakeWorker worker;
    worker.Restart(GeometryOf(kSetup));
    scheduler::StepCommit commit;
    EXPECT_TRUE(
        scheduler_.CommitStep(kOnly, worker.Run(scheduler_.PlanStep(kOnly, 1).at(0)), commit).ok());
    Add(3);
  }

  void Add(uint64_t id) {
    scheduler::NewSequence sequence;
    sequence.id = protocol::SequenceId(id);
    sequence.prompt = {1, 2, 3};
    sequence.stop.max_tokens = 5;
    EXPECT_TRUE(scheduler_.AddSequence(sequence).ok());
  }
  Sequence& At(uint64_t id) { return *scheduler_.sequences().at(protocol::SequenceId(id)); }

  // Breaks a sequence, expects the text, and mends it.
  void Expect(uint64_t id, const std::function<void(Sequence&)>& damage, const std::string& text) {
    Sequence& sequence = At(id);
    const Sequence whole = sequence;
    damage(sequence);
    const absl::Status status = CheckInvariants(scheduler_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    sequence = whole;
    EXPECT_TRUE(CheckInvariants(scheduler_).ok()) << text;
  }

  static constexpr protocol::GroupId kOnly{0};
  static constexpr HarnessSetup kSetup = {.max_num_seqs = 2, .lanes = 2, .num_blocks = 6};
  scheduler::ClusterScheduler scheduler_;
  protocol::StepPlan in_flight_;
};

TEST_F(BrokenState, AWholeStatePasses) {
  ASSERT_EQ(scheduler_.num_running(), 2U);
  ASSERT_EQ(scheduler_.num_queued(), 1U);
  EXPECT_TRUE(CheckInvariants(scheduler_).ok());
}

TEST_F(BrokenState, BlocksWithWrongHoldersAreNamed) {
  Expect(
      1, [](Sequence& s) { s.blocks.clear(); },
      "scheduler invariant 1: block 0 has 1 references, tables and the cache hold 0");
  Expect(
      2, [](Sequence& s) { s.blocks.emplace_back(0U); },
      "scheduler invariant 1: block 0 has 1 references, tables and the cache hold 2");
  Expect(
      3, [](Sequence& s) { s.blocks.emplace_back(5U); },
      "scheduler invariant 1: block 5 has 0 references, tables and the cache hold 1");
}

TEST_F(BrokenState, SlotsAreNamed) {
  Expect(
      1, [](Sequence& s) { s.slot.reset(); },
      "scheduler invariant 2: running sequence 1 has no slot");
  Expect(
      1, [](Sequence& s) { s.slot = protocol::SlotId(1); },
      "scheduler invariant 2: slot 1 has two sequences");
}

TEST_F(BrokenState, CountersAreNamed) {
  Expect(
      2, [](Sequence& s) { s.planned = 9; },
      "scheduler invariant 3: sequence 2 computed 3, planned 9, has 4 tokens");
  Expect(
      2, [](Sequence& s) { s.computed = 4; },
      "scheduler invariant 3: sequence 2 computed 4, planned 3, has 4 tokens");
  Expect(
      2,
      [](Sequence& s) {
        s.tokens.assign(9, 1);
        s.planned = s.computed = 9;
      },
      "scheduler invariant 3: sequence 2 planned 9 tokens in 4");
}

TEST_F(BrokenState, QueueMembershipIsNamed) {
  Expect(
      3, [](Sequence& s) { s.slot = protocol::SlotId(0); },
      "scheduler invariant 4: queued sequence 3 holds a slot, blocks or a step");
  Expect(
      3, [](Sequence& s) { s.state = scheduler::SequenceState::kRunning; },
      "scheduler invariant 4: running sequence 3 is queued");
  Expect(
      2, [](Sequence& s) { s.state = scheduler::SequenceState::kQueued; },
      "scheduler invariant 4: queued sequence 2");
}

// Sequence 1 wants a third block, 2 has the others in flight.
TEST(WaitingForBlocks, WhoWaitsAndIsInFlightIsNamed) {
  GroupHarness harness({.budget = 6, .lanes = 2, .num_blocks = 4});
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 12, 2).ok());
  ASSERT_TRUE(harness.Plan(0));
  ASSERT_TRUE(harness.AddSimple(2, 6, 2).ok());
  ASSERT_TRUE(harness.Plan(1));
  ASSERT_TRUE(harness.Deliver(0).ok());
  ASSERT_FALSE(harness.Plan(0));
  Sequence& sequence = *harness.scheduler().sequences().at(protocol::SequenceId(1));
  ASSERT_EQ(harness.engine().starved(0), &sequence);
  sequence.in_flight = true;
  ++sequence.planned;
  EXPECT_EQ(CheckInvariants(harness.scheduler()).message(),
            "scheduler invariant 4: who waits for blocks in lane 0 of engine 0 does not run there, "
            "or is in flight");
  sequence.in_flight = false;
  --sequence.planned;
}

TEST_F(BrokenState, StepsInFlightAreNamed) {
  Expect(
      2, [](Sequence& s) { s.in_flight = true; },
      "scheduler invariant 6: sequence 2 in flight 1, computed 3, planned 3");
  Expect(
      1, [](Sequence& s) { s.lane = 1; },
      "scheduler invariant 6: the step of lane 0 names sequence 1");
  Expect(
      2,
      [](Sequence& s) {
        s.in_flight = true;
        s.planned = 4;
      },
      "scheduler invariant 6: sequence 2 is in flight in no step");
}

TEST_F(BrokenState, RowsOfStepsAreNamed) {
  auto& part =
      const_cast<scheduler::StepInFlight::Part&>(scheduler_.engine(0).in_flight(0).parts.front());
  const auto expect = [&](uint32_t& field, uint32_t value, const std::string& text) {
    const uint32_t whole = std::exchange(field, value);
    EXPECT_EQ(CheckInvariants(scheduler_).message(), text);
    field = whole;
    EXPECT_TRUE(CheckInvariants(scheduler_).ok()) << text;
  };
  expect(part.chunk, 2,
         "scheduler invariant 8: sequence 1 computed 0, planned 3, its step has 2 rows without "
         "drafts");
  const size_t room = At(1).blocks.size() * GeometryOf(kSetup).block_tokens;
  expect(part.depth, 1'000'000,
         "scheduler invariant 8: sequence 1 planned 3 tokens and 1000000 drafts in " +
             std::to_string(room));
}

TEST_F(BrokenState, FlowsAndTheirSequencesDisagree) {
  Expect(
      3, [](Sequence& s) { s.has_run = true; }, "scheduler invariant 12: flow \"\" has 1 of 3");
}

}  // namespace
}  // namespace skein::tests
