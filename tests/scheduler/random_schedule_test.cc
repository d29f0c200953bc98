// Random operations over tiny configurations: invariants after every call, every output equal to
// sequential decoding, and everything finished once faults stop. A seed names a run.
#include <random>
#include <span>

#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

// What a run is about.
enum class World : uint8_t {
  kPlain,
  kCached,       // with the prefix cache
  kColliding,    // whose hash is always the same
  kThreeBlocks,  // and one slot, with the prefix cache
  kRanks,        // several in a group, failed steps and deaths, with the prefix cache
};

class RandomRun {
 public:
  explicit RandomRun(uint32_t seed, World world = World::kPlain)
      : random_(seed),
        world_(world),
        caching_(world != World::kPlain),
        setup_(Setup()),
        harness_(setup_) {
    for (uint32_t group = 0; group < setup_.groups; ++group) harness_.Start(++epoch_, group);
  }

  // Of the first group.
  const scheduler::SchedulerCounters& Counters() { return harness_.engine().counters(); }

  void Run(int operations) {
    for (int i = 0; i < operations; ++i) Operate();
    Settle();
  }

 private:
  struct Expected {
    std::vector<int32_t> prompt;
    protocol::StopConditions stop;
    bool cancelled = false;
    bool unchecked = false;  // added while no geometry was known
  };

  uint32_t Pick(uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random_);
  }

  HarnessSetup Setup() {
    HarnessSetup setup;
    setup.max_num_seqs = Pick(1, 3);
    setup.budget = Pick(1, 8);
    setup.lanes = Pick(1, 2);
    setup.block_tokens = Pick(1, 4);
    setup.num_blocks = Pick(1, 4);
    setup.max_model_len = Pick(2, 20);
    setup.queued_requests_max = Pick(1, 6);
    setup.queued_tokens_max = Pick(4, 40);
    setup.groups = Pick(1, 3);
    if (world_ == World::kRanks) setup.ranks = Pick(2, 4);
    setup.max_draft_tokens = std::min(Pick(0, 5), setup.budget);
    setup.speculation.max_depth = Pick(0, 5);
    setup.speculation.adaptation =
        Pick(0, 1) == 0 ? scheduler::Adaptation::kAdaptive : scheduler::Adaptation::kFixed;
    setup.prefix_caching = caching_;
    if (caching_ && Pick(0, 1) == 0) {
      // Long sequences in few small blocks: many hits and evictions.
      setup.block_tokens = Pick(1, 2);
      setup.num_blocks = Pick(3, 12);
      setup.max_model_len = Pick(12, 20);
      setup.queued_tokens_max = 400;
    }
    if (world_ == World::kColliding) {
      setup.hash = [](uint64_t, std::span<const int32_t>) { return uint64_t{7}; };
    }
    if (world_ == World::kThreeBlocks) {
      setup.num_blocks = 3;
      setup.max_num_seqs = 1;
      setup.block_tokens = Pick(1, 6);
      setup.max_model_len = Pick(2, 20);
    }
    setup.num_checkpoints = caching_ ? Pick(0, 3) : 0;
    setup.recompute_tokens = caching_ && Pick(0, 2) == 0 ? Pick(1, 6) : 0;
    return setup;
  }

  void Operate() {
    const uint32_t lane = Pick(0, setup_.lanes - 1);
    const uint32_t group = Pick(0, setup_.groups - 1);
    const uint32_t engine =
        group * setup_.ranks + (setup_.ranks > 1 ? Pick(0, setup_.ranks - 1) : 0);
    const uint32_t what = Pick(0, 99);
    if (what < 20) {
      Add();
    } else if (what < 58) {
      harness_.Plan(lane, group);
    } else if (what < 90) {
      if (harness_.waiting(lane, engine)) {
        EXPECT_TRUE(harness_.Deliver(lane, engine).ok());
      }
    } else if (what < 94) {
      if (last_id_ > 0) Cancel(Pick(1, last_id_));
    } else if (what < 97) {
      if (harness_.waiting(lane, engine)) Refuse(lane, engine);
    } else if (!caching_ || Pick(0, 9) == 0) {
      ChangeEpoch(group);  // which empties the cache
    }
  }

  void Add() {
    Expected expected;
    const uint32_t length = Pick(0, 6);
    for (uint32_t i = 0; i < length; ++i) {
      expected.prompt.push_back(static_cast<int32_t>(Pick(0, caching_ ? 1 : 49)));
    }
    // What was generated before comes again, as in the turns of a chat.
    if (caching_ && !expected_.empty() && Pick(0, 1) == 0) {
      const uint32_t earlier = Pick(1, last_id_);
      std::vector<int32_t> turn = expected_[earlier].prompt;
      const std::vector<int32_t>& answer = harness_.outcome(earlier).tokens;
      turn.insert(turn.end(), answer.begin(), answer.end());
      turn.insert(turn.end(), expected.prompt.begin(), expected.prompt.end());
      turn.resize(std::min<size_t>(turn.size(), setup_.max_model_len));
      expected.prompt = std::move(turn);
    }
    expected.stop.max_tokens = static_cast<int32_t>(Pick(0, 8));
    expected.stop.min_tokens = static_cast<int32_t>(Pick(0, 3));
    for (uint32_t i = Pick(0, 4); i > 0; --i) {
      expected.stop.stop_token_ids.push_back(static_cast<int32_t>(Pick(0, 49)));
    }
    protocol::SpeculationParams speculation;
    speculation.enabled = Pick(0, 5) != 0;
    speculation.max_draft_tokens = Pick(0, 6);
    speculation.mode = static_cast<protocol::VerificationMode>(Pick(0, 2));
    const size_t before = harness_.scheduler().sequences().size();
    const absl::Status status = harness_.Add(last_id_ + 1, expected.prompt, expected.stop,
                                             static_cast<int32_t>(Pick(0, 2)) - 1, speculation,
                                             caching_ && Pick(0, 3) == 0 ? "other" : "");
    if (!status.ok()) {
      EXPECT_EQ(harness_.scheduler().sequences().size(), before);
      return;
    }
    expected.unchecked = true;
    for (uint32_t group = 0; group < setup_.groups; ++group) {
      if (HasEpoch(group)) expected.unchecked = false;
    }
    expected_[++last_id_] = std::move(expected);
  }

  void Cancel(uint32_t id) {
    if (harness_.outcome(id).over()) return;
    harness_.Cancel(id);
    expected_[id].cancelled = true;
  }

  // A result that answers another plan changes nothing.
  void Refuse(uint32_t lane, uint32_t engine) {
    protocol::StepResult wrong = harness_.result(lane, engine);
    switch (Pick(0, 2)) {
      case 0:
        wrong.step = wrong.step.Next();
        break;
      case 1:
        wrong.epoch = wrong.epoch.Next();
        break;
      default:
        wrong.sequences.emplace_back();
    }
    EXPECT_EQ(harness_.Commit(wrong, engine / setup_.ranks).code(),
              absl::StatusCode::kInvalidArgument);
  }

  // The worker of a group is lost. Sometimes the next one comes at once, sometimes the others have
  // to do for a while, sometimes all are lost.
  void ChangeEpoch(uint32_t group) {
    if (!HasEpoch(group)) return Revive(group);
    Abort(group);
    // Sometimes another worker takes over, with a smaller or larger cache.
    if (Pick(0, 3) == 0) {
      resized_ = true;
      harness_.Resize(Pick(1, 4), setup_.max_model_len);
    }
    if (Pick(0, 1) == 0) Add();
    if (Pick(0, 1) == 0) Revive(group);
  }
  void Revive(uint32_t group) { harness_.Start(++epoch_, group); }
  bool HasEpoch(uint32_t group) { return harness_.scheduler().has_epoch(protocol::GroupId(group)); }

  // With several ranks requests are blamed, too: for steps that failed, and for deaths.
  void Abort(uint32_t group) {
    if (world_ != World::kRanks || Pick(0, 1) == 0) return harness_.Abort(group);
    if (Pick(0, 1) == 0) {
      return harness_.Abort(group, scheduler::AbortCause::kStepFailed, 0,
                            Pick(0, setup_.lanes - 1));
    }
    harness_.Die(group);
    if (Pick(0, 1) == 0) harness_.Settle(group, Pick(0, 1) == 0);
  }

  // Faults stop: everything ends within a bound, with the tokens of sequential decoding.
  void Settle() {
    for (uint32_t group = 0; group < setup_.groups; ++group) {
      for (int death = 0; death < 10; ++death) harness_.Settle(group, false);
      if (!HasEpoch(group)) Revive(group);
    }
    ASSERT_TRUE(harness_.Finish(20'000)) << "something never finishes";
    for (uint32_t engine = 0; engine < setup_.groups * setup_.ranks; ++engine) {
      const scheduler::BlockPool* blocks = harness_.engine(engine).block_pool();
      EXPECT_EQ(harness_.engine(engine).num_free_blocks(), blocks->num_blocks());
      EXPECT_EQ(harness_.engine(engine).outstanding_tokens(), 0U);
    }
    EXPECT_EQ(harness_.scheduler().num_queued(), 0U);
    for (const auto& [id, expected] : expected_) {
      const Outcome& outcome = harness_.outcome(id);
      const std::vector<int32_t> alone =
          DecodeAlone(expected.prompt, expected.stop, setup_.max_model_len);
      if (expected.cancelled || !outcome.error.ok()) {
        EXPECT_TRUE(expected.cancelled || expected.unchecked || resized_ || world_ == World::kRanks)
            << outcome.error;
        ASSERT_LE(outcome.tokens.size(), alone.size()) << "sequence " << id;
        EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), alone.begin()));
        continue;
      }
      EXPECT_TRUE(outcome.ended.has_value()) << "sequence " << id;
      EXPECT_EQ(outcome.tokens, alone) << "sequence " << id;
    }
  }

  std::mt19937 random_;
  const World world_;
  const bool caching_;
  const HarnessSetup setup_;
  GroupHarness harness_;
  uint64_t epoch_ = 0;
  uint32_t last_id_ = 0;
  bool resized_ = false;
  std::map<uint64_t, Expected> expected_;
};

TEST(RandomSchedule, EveryOutputEqualsSequentialDecoding) {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun(seed).Run(150);
    if (::testing::Test::HasFailure()) return;
  }
}

// Runs of 150 operations each with the prefix cache.
scheduler::SchedulerCounters RunCached(uint32_t runs, World world) {
  scheduler::SchedulerCounters sum;
  for (uint32_t seed = 1; seed <= runs; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run(seed, world);
    run.Run(150);
    if (::testing::Test::HasFailure()) return sum;
    sum.cache_hits += run.Counters().cache_hits;
    sum.cache_evictions += run.Counters().cache_evictions;
    sum.preemptions[0] += run.Counters().preemptions[0];
  }
  EXPECT_GT(sum.cache_hits, runs / 4);
  EXPECT_GT(sum.cache_evictions, runs / 2);
  return sum;
}

constexpr uint32_t kMillionOperations = 6700;

TEST(RandomSchedule, EveryOutputEqualsSequentialDecodingWithThePrefixCache) {
  EXPECT_GT(RunCached(kMillionOperations, World::kCached).preemptions[0], kMillionOperations / 10);
}

TEST(RandomSchedule, EveryOutputEqualsSequentialDecodingInThreeBlocksAndOneSlot) {
  RunCached(kMillionOperations, World::kThreeBlocks);
}

TEST(RandomSchedule, EveryOutputEqualsSequentialDecodingWhenAllHashesCollide) {
  RunCached(1000, World::kColliding);
}

TEST(RandomSchedule, EveryOutputEqualsSequentialDecodingOnGroupsOfSeveralRanks) {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun(seed, World::kRanks).Run(150);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RandomSchedule, LongRunsInOneConfiguration) {
  for (uint32_t seed = 1001; seed <= 1010; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun(seed).Run(3000);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace skein::tests
