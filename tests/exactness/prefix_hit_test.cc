// Prefix hits on models that the recordings describe: what a request gets after a hit of any length
// is what it gets cold, token for token and bit for bit of every logprob, with drafts and without,
// through checkpoints and through recomputation, after preemption, eviction and the loss of the
// worker, on one worker and lane and on two. Without --full some hit lengths; with --full every one
// from 1 to 700. Thread: the test's.
#include "tests/exactness/prefix_hit.h"

#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/batch_policy.h"

namespace skein::tests {
namespace {

// rule: P2, P3
TEST(PrefixHit, EqualsColdAtEveryLengthThroughCheckpoints) {
  HitsEqualCold({.checkpoint = kLong, .recompute = false}, 61);
  HitsEqualCold({.checkpoint = kMixed, .recompute = false}, 139);
  HitsEqualCold({.checkpoint = kTiny, .recompute = false}, 229);
}

TEST(PrefixHit, EqualsColdAtEveryLengthByRecomputation) {
  HitsEqualCold({.checkpoint = kLong, .checkpoints = 0}, 83);
  HitsEqualCold({.checkpoint = kMixed, .checkpoints = 0, .chunk = 48}, 167);
  HitsEqualCold({.checkpoint = kDraft, .depth = 5, .checkpoints = 0}, 149);
}

TEST(PrefixHit, EqualsColdAtEveryLengthOnTwoWorkersAndLanes) {
  HitsEqualCold({.checkpoint = kLong, .workers = 2, .lanes = 2}, 241);
  HitsEqualCold({.checkpoint = kTiny, .depth = 3, .workers = 2, .lanes = 2}, 311);
}

uint32_t BlocksFor(uint32_t tokens) { return scheduler::BlocksFor(tokens, HitRun::kBlock); }

// Two that share so much and differ behind it, in blocks for their prompts: the second is served
// before the first and takes what it needs from it.
TEST(PrefixHit, EqualsColdAfterPreemption) {
  constexpr uint32_t kBehind = 40;
  constexpr int32_t kWanted = 40;
  uint64_t preemptions = 0;
  for (const char* checkpoint : {kLong, kTiny}) {
    for (const uint32_t shared : Lengths(2, checkpoint == kLong ? 171 : 431)) {
      const uint32_t length = shared + kBehind;
      if (length + kWanted > kMaxModelLen) break;
      HitSetup setup{.checkpoint = checkpoint, .depth = shared % 4};
      SCOPED_TRACE(NameOf(setup, shared));
      setup.num_blocks = BlocksFor(length) + BlocksFor(shared % HitRun::kBlock + kBehind);
      HitRun run(setup);
      for (const uint32_t branch : {shared, shared + 1}) {
        run.Add(Prompt(setup, length, branch, branch), TemperatureAt(branch), kWanted,
                branch == shared ? 0 : -1);
        if (branch == shared) run.Step();
      }
      run.Finish();
      for (const uint32_t branch : {shared, shared + 1}) {
        ExpectAnswer(run, 1 + branch - shared,
                     Cold(setup, length, branch, TemperatureAt(branch), kWanted));
      }
      preemptions += run.counters().preemptions[0];
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(preemptions, EveryLength() ? 1000U : 5U);
}

// Blocks for little more than one: what comes between evicts some or all of what is shared.
TEST(PrefixHit, EqualsColdAfterEviction) {
  uint64_t evictions = 0;
  for (const char* checkpoint : {kLong, kTiny}) {
    for (const uint32_t shared : Lengths(1, checkpoint == kLong ? 173 : 347)) {
      HitSetup setup{.checkpoint = checkpoint, .depth = shared % 4};
      SCOPED_TRACE(NameOf(setup, shared));
      setup.num_blocks = (shared + 9 + kTokensWanted) / HitRun::kBlock + 2;
      HitRun run(setup);
      run.Add(Prompt(setup, shared + 9), 0, 1);
      run.Finish();
      for (int again = 0; again < 2; ++again) {
        run.Add(Prompt(setup, 1 + shared * 2 / 3, 0, 1), 0, 1);
        run.Finish();
        run.Add(Prompt(setup, shared + 3, shared, shared), TemperatureAt(shared));
        run.Finish();
        ExpectCold(run, setup, shared, run.last_id());
      }
      evictions += run.counters().cache_evictions;
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(evictions, EveryLength() ? 5000U : 50U);
}

// The worker is lost before, in the middle of and after what hits, on one worker and on two.
TEST(PrefixHit, EqualsColdAfterTheLossOfTheWorker) {
  uint64_t replays = 0;
  for (const uint32_t shared : Lengths(1, 173)) {
    const HitSetup setup{.checkpoint = shared % 3 == 0 ? kTiny : kLong,
                         .depth = shared % 4,
                         .workers = 1 + shared % 2,
                         .lanes = 1 + shared / 2 % 2};
    SCOPED_TRACE(NameOf(setup, shared));
    HitRun run(setup);
    for (uint32_t i = 0; i < setup.workers; ++i) run.Add(Prompt(setup, shared + 9), 0, 1);
    run.Finish();
    const uint64_t from = run.last_id() + 1;
    for (uint32_t lost = 0; lost < 3; ++lost) {
      for (uint32_t i = 0; i < setup.workers; ++i) {
        run.Add(Prompt(setup, shared + 3, shared, shared), TemperatureAt(shared));
      }
      for (uint32_t step = 0; step < lost * (1 + shared % 5); ++step) run.Step();
      run.Restart(shared % setup.workers);
      run.Finish();
    }
    ExpectCold(run, setup, shared, from);
    replays += run.counters().replays + (setup.workers > 1 ? run.counters(1).replays : 0);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(replays, 3U);
}

// Every block is looked for where every other one is.
TEST(PrefixHit, EqualsColdWithAHashThatAlwaysCollides) {
  const scheduler::BlockHash same = [](uint64_t, std::span<const int32_t>) { return uint64_t{7}; };
  HitsEqualCold({.checkpoint = kTiny, .depth = 3, .hash = same}, 311);
}

TEST(PrefixHit, PenaltiesCountWhatAHitSkips) {
  protocol::LogitEdits edits;
  edits.repetition_penalty = 1.8F;
  edits.presence_penalty = 1;
  const HitSetup setup{.checkpoint = kLong};
  HitRun plain(setup, false);
  plain.Add(Prompt(setup, 300));
  const std::vector<Token> without = plain.Finish();
  HitRun cold(setup, false);
  cold.UseEdits(edits);
  cold.Add(Prompt(setup, 300));
  const std::vector<Token> want = cold.Finish();
  bool differ = false;
  for (size_t i = 0; i < want.size(); ++i) differ = differ || want[i].token != without[i].token;
  EXPECT_TRUE(differ) << "the edits do nothing here";
  HitRun run(setup);
  run.Add(Prompt(setup, 300));
  run.Finish();
  run.UseEdits(edits);
  run.Add(Prompt(setup, 300));
  ExpectSame(run.Finish(), want);
  EXPECT_EQ(run.cached(2), 288U);
}

TEST(PrefixHit, RootsShareNothing) {
  const HitSetup setup{.checkpoint = kLong};
  HitRun run(setup);
  for (const char* root : {"a", "b", "a"}) {
    run.UseRoot(root);
    run.Add(Prompt(setup, 300));
    run.Finish();
  }
  EXPECT_EQ(run.cached(1), 0U);
  EXPECT_EQ(run.cached(2), 0U);
  EXPECT_EQ(run.cached(3), 288U);
  ExpectSame(run.TokensOf(2), run.TokensOf(1));
  ExpectSame(run.TokensOf(3), run.TokensOf(1));
}

TEST(PrefixHit, EqualsColdAtEveryLengthWithDrafts) {
  HitsEqualCold({.checkpoint = kDraft, .depth = 5}, 131);
  HitsEqualCold({.checkpoint = kTiny, .depth = 3, .chunk = 100}, 311);
}

}  // namespace

}  // namespace skein::tests
