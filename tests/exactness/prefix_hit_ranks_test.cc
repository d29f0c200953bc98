// Prefix hits in a group of two ranks, each with sequences of its own and half of the experts and
// tables: what a request gets there after a hit is what it gets cold on one rank that is whole,
// token for token and bit for bit of every logprob, with drafts and without. Without --full some
// hit lengths; with --full every one from 1 to 700. Thread: the test's.
#include <cstdint>

#include <gtest/gtest.h>

#include "tests/exactness/prefix_hit.h"

namespace skein::tests {
namespace {

// rule: P2
TEST(PrefixHitRanks, EqualsColdAtEveryLength) {
  HitsEqualCold({.checkpoint = kLong, .ranks = 2}, 131);
  HitsEqualCold({.checkpoint = kTiny, .ranks = 2}, 311);
}

TEST(PrefixHitRanks, EqualsColdAtEveryLengthWithDrafts) {
  HitsEqualCold({.checkpoint = kLong, .depth = 5, .ranks = 2}, 149);
  HitsEqualCold({.checkpoint = kTiny, .depth = 3, .ranks = 2, .lanes = 2}, 331);
}

TEST(PrefixHitRanks, EqualsColdAtEveryLengthByRecomputation) {
  HitsEqualCold({.checkpoint = kLong, .checkpoints = 0, .chunk = 48, .ranks = 2}, 167);
}

// One rank hits while the other, and then the other way round, computes a prompt of which it knows
// nothing, in parts.
void HitsBesideAColdPromptEqualCold(const HitSetup& setup, uint32_t stride) {
  for (const uint32_t shared : Lengths(1, stride)) {
    SCOPED_TRACE(NameOf(setup, shared));
    const uint32_t length = 704 - shared;
    const float temperature = TemperatureAt(shared);
    HitRun run(setup);
    for (uint32_t rank = 0; rank < setup.ranks; ++rank) run.Add(Prompt(setup, shared + 9), 0, 1);
    run.Finish();
    for (const bool hit_first : {true, false}) {
      const uint64_t hit = run.last_id() + (hit_first ? 1 : 2);
      const uint64_t other = run.last_id() + (hit_first ? 2 : 1);
      for (const bool is_hit : {hit_first, !hit_first}) {
        run.Add(is_hit ? Prompt(setup, shared + 3, shared, shared) : Prompt(setup, length, 0),
                temperature);
      }
      run.Finish();
      ExpectAnswer(run, hit, Cold(setup, shared + 3, shared, temperature));
      ExpectAnswer(run, other, Cold(setup, length, 0, temperature));
      EXPECT_EQ(run.cached(other), 0U);
      // The state at the end of the blocks that the first prompts left is there or recomputed.
      if (shared >= 2 * HitRun::kBlock + setup.chunk) {
        EXPECT_GT(run.cached(hit), 0U);
      }
      if (testing::Test::HasFailure()) return;
    }
    for (uint32_t rank = 0; rank < setup.ranks; ++rank) {
      EXPECT_EQ(run.counters(rank).drafts > 0, setup.depth > 0) << "rank " << rank;
    }
  }
}

TEST(PrefixHitRanks, EqualsColdBesideAColdPromptOfTheOtherRank) {
  HitsBesideAColdPromptEqualCold({.checkpoint = kLong, .chunk = 96, .ranks = 2}, 199);
  HitsBesideAColdPromptEqualCold({.checkpoint = kTiny, .depth = 3, .chunk = 96, .ranks = 2}, 421);
}

}  // namespace
}  // namespace skein::tests
