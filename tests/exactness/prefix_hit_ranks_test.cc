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

// A rank hits while the other one computes a prompt of which it knows nothing, in parts; in turns,
// so that each hits twice: what others left, and the second time a checkpoint at the end.
void HitsBesideAColdPromptEqualCold(const HitSetup& setup, uint32_t stride) {
  for (const uint32_t shared : Lengths(1, stride)) {
    SCOPED_TRACE(NameOf(setup, shared));
    const uint32_t length = 704 - shared;
    const float temperature = TemperatureAt(shared);
    HitRun run(setup);
    for (uint32_t rank = 0; rank < setup.ranks; ++rank) run.Add(Prompt(setup, shared + 9), 0, 1);
    run.Finish();
    for (uint32_t round = 0; round < 2 * setup.ranks; ++round) {
      const uint64_t first = run.last_id() + 1;
      const uint64_t hit = first + round % setup.ranks;
      for (uint64_t id = first; id < first + setup.ranks; ++id) {
        // They share `round` tokens with the others, which is no block.
        run.Add(id == hit ? Prompt(setup, shared + 3, shared, shared)
                          : Prompt(setup, length, round, round),
                temperature);
      }
      run.Finish();
      for (uint64_t id = first; id < first + setup.ranks; ++id) {
        ExpectAnswer(run, id,
                     id == hit ? Cold(setup, shared + 3, shared, temperature)
                               : Cold(setup, length, round, temperature));
        if (id != hit) {
          EXPECT_EQ(run.cached(id), 0U);
        }
      }
      if (round >= setup.ranks) {
        EXPECT_EQ(run.cached(hit), (shared + 2) / HitRun::kBlock * HitRun::kBlock);
      }
      if (testing::Test::HasFailure()) return;
    }
    for (uint32_t rank = 0; rank < setup.ranks; ++rank) {
      EXPECT_EQ(run.counters(rank).drafts > 0, setup.depth > 0) << "rank " << rank;
    }
  }
}

TEST(PrefixHitRanks, EqualsColdBesideAColdPromptOfTheOtherRank) {
  HitsBesideAColdPromptEqualCold({.checkpoint = kLong, .chunk = 96, .ranks = 2}, 233);
}

TEST(PrefixHitRanks, EqualsColdBesideAColdPromptOfTheOtherRankWithDrafts) {
  HitsBesideAColdPromptEqualCold({.checkpoint = kTiny, .depth = 3, .chunk = 96, .ranks = 2}, 431);
}

}  // namespace
}  // namespace skein::tests
