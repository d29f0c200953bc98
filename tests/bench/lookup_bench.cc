#include "tests/bench/lookup_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/prefix_cache.h"

namespace skein::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kBlockTokens = 64;
constexpr uint32_t kBlocks = 100'000;
constexpr size_t kLookups = 2'000;

// A cache that is full of prompts of one length, which nobody uses.
class FullCache {
 public:
  FullCache(uint32_t prompt, uint64_t seed)
      : whole_(prompt / kBlockTokens),
        pool_(kBlocks),
        cache_(pool_, kBlockTokens, 0, 0),
        random_(seed) {
    while (pool_.num_free() >= whole_) Fill(prompt);
  }

  std::vector<std::vector<int32_t>>& prompts() { return prompts_; }
  const scheduler::PrefixCache& cache() const { return cache_; }
  uint32_t whole() const { return whole_; }  // blocks of a prompt
  std::mt19937_64& random() { return random_; }

 private:
  void Fill(uint32_t length) {
    std::vector<int32_t>& prompt = prompts_.emplace_back(length);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random_() % 100'000);
    scheduler::CacheChain chain;
    scheduler::BlockTable blocks;
    cache_.Hold("", {}, chain);
    pool_.Allocate(whole_, blocks);
    for (uint32_t i = 0; i < whole_; ++i) {
      cache_.Publish(chain, std::span(prompt).subspan(i * kBlockTokens, kBlockTokens), blocks[i]);
    }
    cache_.Release(chain);
    pool_.Release(blocks);
  }

  const uint32_t whole_;
  scheduler::BlockPool pool_;
  scheduler::PrefixCache cache_;
  std::mt19937_64 random_;
  std::vector<std::vector<int32_t>> prompts_;
};

}  // namespace

// Each lookup is of another prompt than the one before, so little of it is in the caches of the
// processor.
bool RunLookup(const LookupCase& bench, const RunIdentity& identity) {
  FullCache full(bench.prompt, identity.seed);
  std::vector<const std::vector<int32_t>*> order;
  for (std::vector<int32_t>& prompt : full.prompts()) {
    if (!bench.hit) prompt[kBlockTokens / 2] = 100'000;
    order.push_back(&prompt);
  }
  std::vector<double> us;
  scheduler::PrefixCache::Match match;
  bool valid = true;
  while (us.size() < kLookups) {
    std::shuffle(order.begin(), order.end(), full.random());
    for (const std::vector<int32_t>* prompt : order) {
      const Clock::time_point begin = Clock::now();
      full.cache().Find("", *prompt, full.whole(), match);
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
      valid = valid && match.nodes.size() == (bench.hit ? full.whole() : 0);
    }
  }
  const double median = Percentile(us, 50);
  const double p99 = Percentile(us, 99);
  RunIdentity run = identity;
  run.reps = static_cast<int>(us.size());
  const uint32_t blocks = full.cache().num_blocks();
  PrintCase(run, absl::StrCat("lookup_", bench.hit ? "hit" : "miss", "_prompt", bench.prompt),
            {{"blocks", JsonNumber(blocks)},
             {"prompt", JsonNumber(bench.prompt)},
             {"us_median", JsonNumber(median)},
             {"us_p99", JsonNumber(p99)}},
            valid);
  std::fprintf(stderr, "lookup     %s of %6u tokens in %u blocks  %9.2f us, p99 %9.2f  %s\n",
               bench.hit ? "hit " : "miss", bench.prompt, blocks, median, p99,
               valid ? "" : "INVALID");
  return valid;
}

}  // namespace skein::bench
