// Prefix hits on models that the recordings describe: what a request gets after a hit of any length
// is what it gets cold, token for token and bit for bit of every logprob, with drafts and without,
// through checkpoints and through recomputation, after preemption and after eviction. Without
// --full some hit lengths; with --full every one from 1 to 700. Owns the models. Thread: the
// test's.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/cluster_scheduler.h"
#include "scheduler/invariants.h"
#include "tests/worker/tiny_model.h"
#include "worker/step_executor.h"

namespace skein::tests {
namespace {

bool full = false;  // --full

constexpr uint32_t kMaxModelLen = 760;
constexpr uint32_t kSlots = 3;
constexpr uint32_t kCheckpoints = 4;
constexpr uint32_t kDraftsMax = 5;
constexpr int32_t kTokensWanted = 12;

using Token = scheduler::CommittedToken;

// What is asked of a model and its cache.
struct HitSetup {
  const char* checkpoint;
  uint32_t depth = 0;
  uint32_t num_blocks = 80;
  uint32_t checkpoints = kCheckpoints;  // that the scheduler may use
  bool recompute = true;                // without checkpoints
  uint32_t chunk = 1024;
};

class HitModel {
 public:
  explicit HitModel(const std::string& checkpoint) : threads_(2) {
    EXPECT_TRUE(kernels::RegisterCpuKernels(registry_, kernels::CpuIsa::kAuto).ok());
    worker::LoadOptions options = TinyOptions({.max_rows = 1024,
                                               .max_samples = kSlots * (1 + kDraftsMax),
                                               .max_model_len = kMaxModelLen,
                                               .num_blocks = 80,
                                               .num_slots = kSlots,
                                               .max_draft_requests = kSlots});
    options.model_dir = checkpoint;
    options.num_checkpoints = kCheckpoints;
    options.device = std::make_shared<kernels::HostDevice>(kernels::DeviceStream{&threads_});
    auto loaded =
        worker::LoadedModel::Load(registry_, kernels::KernelManifest::Uniform("cpu"), options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (loaded.ok()) model_ = *std::move(loaded);
  }
  worker::LoadedModel& model() { return *model_; }

 private:
  kernels::KernelRegistry registry_;
  kernels::cpu::ThreadPool threads_;
  std::unique_ptr<worker::LoadedModel> model_;
};

worker::LoadedModel& ModelOf(const std::string& checkpoint) {
  static auto* models = new std::map<std::string, std::unique_ptr<HitModel>>();
  std::unique_ptr<HitModel>& model = (*models)[checkpoint];
  if (model == nullptr) model = std::make_unique<HitModel>(checkpoint);
  return model->model();
}

// One group with its model and the requests that follow one another there.
class HitRun {
 public:
  explicit HitRun(const HitSetup& setup, bool caching = true)
      : model_(ModelOf(setup.checkpoint)),
        scheduler_(LimitsOf(setup, caching, model_.draft() != nullptr), 1) {
    model_.input().Reset();
    protocol::CacheGeometry geometry;
    geometry.block_tokens = kBlock;
    geometry.num_blocks = setup.num_blocks;
    geometry.num_slots = kSlots;
    geometry.edits_logits = true;
    geometry.max_rows = 1024;
    geometry.max_model_len = kMaxModelLen;
    geometry.max_draft_tokens = model_.draft() != nullptr ? kDraftsMax : 0;
    // Checkpoints are numbered behind the slots of the worker, so fewer of them may be used.
    geometry.num_checkpoints = setup.checkpoints;
    geometry.recompute_tokens =
        setup.recompute ? static_cast<uint32_t>(model_.spec().recompute_tokens()) : 0;
    scheduler_.StartEpoch(protocol::GroupId(0), protocol::RankId(0), protocol::Epoch(1), geometry);
  }

  void Add(std::vector<int32_t> prompt, float temperature = 0, int32_t wanted = kTokensWanted,
           int32_t priority = 0) {
    scheduler::NewSequence sequence;
    sequence.id = protocol::SequenceId(++last_id_);
    sequence.prompt = std::move(prompt);
    sequence.sampling.temperature = temperature;
    sequence.sampling.seed = 17;
    sequence.sampling.num_top_logprobs = 3;
    sequence.speculation.mode = temperature == 0 ? protocol::VerificationMode::kGreedy
                                                 : protocol::VerificationMode::kCoupled;
    sequence.stop.max_tokens = wanted;
    sequence.priority = priority;
    sequence.cache_root = root_;
    sequence.sampling.edits = edits_;
    const absl::Status status = scheduler_.AddSequence(std::move(sequence));
    EXPECT_TRUE(status.ok()) << status;
  }
  void UseRoot(std::string root) { root_ = std::move(root); }
  void UseEdits(const protocol::LogitEdits& edits) {
    edits_ = std::make_shared<const protocol::LogitEdits>(edits);
  }

  bool Step() {
    const auto plan = scheduler_.PlanStep(protocol::GroupId(0), 0);
    if (!plan) return false;
    const protocol::StepResult result = worker::RunPlan(model_, *plan);
    EXPECT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    EXPECT_TRUE(scheduler_.CommitStep(protocol::GroupId(0), result, commit_).ok());
    const absl::Status status = scheduler::CheckInvariants(scheduler_);
    EXPECT_TRUE(status.ok()) << status;
    for (const scheduler::SequenceDelta& delta : commit_.deltas) {
      EXPECT_TRUE(delta.error.ok()) << delta.error;
      const std::span<Token> tokens = commit_.TokensOf(delta);
      std::vector<Token>& all = tokens_[delta.sequence.value()];
      all.insert(all.end(), tokens.begin(), tokens.end());
      cached_[delta.sequence.value()] = delta.cached_tokens;
    }
    return result.status == protocol::StepStatus::kOk;
  }
  // Until all that was added ended; what the last one got.
  const std::vector<Token>& Finish() {
    while (!scheduler_.empty() && Step()) {
    }
    EXPECT_TRUE(scheduler_.empty());
    return tokens_[last_id_];
  }
  const std::vector<Token>& TokensOf(uint64_t id) { return tokens_[id]; }
  uint32_t cached(uint64_t id) { return cached_[id]; }
  uint64_t last_id() const { return last_id_; }
  const scheduler::SchedulerCounters& counters() const {
    return scheduler_.group(protocol::GroupId(0)).counters();
  }

  static constexpr uint32_t kBlock = 32;

 private:
  static scheduler::SchedulerLimits LimitsOf(const HitSetup& setup, bool caching, bool drafts) {
    scheduler::SchedulerLimits limits;
    limits.max_num_seqs = kSlots;
    limits.max_num_batched_tokens = setup.chunk;
    limits.lanes = 1;
    limits.admission = {64, 1 << 20};
    limits.speculation = {drafts ? setup.depth : 0, scheduler::Adaptation::kFixed};
    limits.prefix_caching = caching;
    return limits;
  }

  worker::LoadedModel& model_;
  scheduler::ClusterScheduler scheduler_;
  scheduler::StepCommit commit_;
  std::map<uint64_t, std::vector<Token>> tokens_;
  std::map<uint64_t, uint32_t> cached_;
  uint64_t last_id_ = 0;
  std::string root_;
  std::shared_ptr<const protocol::LogitEdits> edits_;
};

// `length` tokens; those from `branch` on are of `variant`.
std::vector<int32_t> Prompt(const HitSetup& setup, uint32_t length, uint32_t branch = ~0U,
                            uint32_t variant = 0) {
  const auto vocab = static_cast<uint32_t>(ModelOf(setup.checkpoint).spec().vocab);
  std::vector<int32_t> tokens;
  for (uint32_t i = 0; i < length; ++i) {
    const uint32_t salt = i >= branch ? 7919 * (variant + 1) : 0;
    tokens.push_back(static_cast<int32_t>((i * 2654435761U + salt + i / 13) % (vocab - 8) + 4));
  }
  return tokens;
}

void ExpectSame(const std::vector<Token>& got, const std::vector<Token>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].token == want[i].token && got[i].logprob == want[i].logprob &&
                got[i].top == want[i].top)
        << "token " << i << ": " << got[i].token << " at " << got[i].logprob << ", cold "
        << want[i].token << " at " << want[i].logprob;
  }
}

std::vector<Token> Cold(const HitSetup& setup, const std::vector<int32_t>& prompt,
                        float temperature) {
  HitSetup plain = setup;
  plain.depth = 0;
  HitRun run(plain, false);
  run.Add(prompt, temperature);
  return run.Finish();
}

std::vector<uint32_t> Lengths(uint32_t from, uint32_t stride) {
  std::vector<uint32_t> lengths;
  for (uint32_t length = from; length <= 700; length += full ? 1 : stride) {
    lengths.push_back(length);
  }
  return lengths;
}

// For each length: one prompt leaves its blocks, and another that shares so many tokens with it
// comes three times, which takes every way from nothing but blocks to a checkpoint at the end.
void HitsEqualCold(const HitSetup& setup, uint32_t stride) {
  uint64_t cached = 0;
  for (const uint32_t shared : Lengths(1, stride)) {
    SCOPED_TRACE(std::string(setup.checkpoint) + ", shared " + std::to_string(shared));
    const float temperature = shared % 2 == 0 ? 0.0F : 0.8F;
    const std::vector<int32_t> prompt = Prompt(setup, shared + 3, shared, shared);
    const std::vector<Token> cold = Cold(setup, prompt, temperature);
    HitRun hit(setup);
    hit.Add(Prompt(setup, shared + 9));
    hit.Finish();
    for (int again = 0; again < 3; ++again) {
      hit.Add(prompt, temperature);
      ExpectSame(hit.Finish(), cold);
      EXPECT_LT(hit.cached(hit.last_id()), prompt.size());
      if (testing::Test::HasFailure()) return;
    }
    const uint32_t whole = (shared + 2) / HitRun::kBlock * HitRun::kBlock;
    if (setup.checkpoints > 0) {
      EXPECT_EQ(hit.cached(hit.last_id()), whole);
    }
    cached += hit.cached(hit.last_id());
  }
  EXPECT_GT(cached, 0U);
}

constexpr char kLong[] = "tests/data/conformance-v41/long700";
constexpr char kDraft[] = "tests/data/conformance-v41/dspark";
constexpr char kMixed[] = "tests/data/conformance-v41/mixed_engram";
constexpr char kTiny[] = "deploy/models/tiny-v41";

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

TEST(PrefixHit, EqualsColdAfterPreemption) {
  const HitSetup setup{.checkpoint = kLong, .num_blocks = 14, .recompute = false};
  const std::vector<int32_t> first = Prompt(setup, 190);
  const std::vector<int32_t> second = Prompt(setup, 190, 100, 1);
  const std::vector<Token> first_cold = [&] {
    HitRun run({.checkpoint = kLong}, false);
    run.Add(first, 0, 80);
    return run.Finish();
  }();
  const std::vector<Token> second_cold = [&] {
    HitRun run({.checkpoint = kLong}, false);
    run.Add(second, 0, 80);
    return run.Finish();
  }();
  HitRun run(setup);
  run.Add(first, 0, 80);
  run.Add(second, 0, 80);
  run.Finish();
  EXPECT_GT(run.counters().preemptions, 0U);
  ExpectSame(run.TokensOf(1), first_cold);
  ExpectSame(run.TokensOf(2), second_cold);
}

TEST(PrefixHit, EqualsColdAfterEviction) {
  const HitSetup setup{.checkpoint = kLong, .num_blocks = 24};
  HitRun run(setup);
  std::vector<std::vector<Token>> got;
  for (uint32_t i = 0; i < 12; ++i) {
    run.Add(Prompt(setup, 300, 64 * (i % 4), i % 3));
    got.push_back(run.Finish());
  }
  EXPECT_GT(run.counters().cache_evictions, 0U);
  EXPECT_GT(run.counters().cache_hits, 0U);
  for (uint32_t i = 0; i < 12; ++i) {
    ExpectSame(got[i], Cold(setup, Prompt(setup, 300, 64 * (i % 4), i % 3), 0));
  }
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
  HitsEqualCold({.checkpoint = kDraft, .depth = 5}, 97);
  HitsEqualCold({.checkpoint = kTiny, .depth = 3, .chunk = 100}, 233);
}

}  // namespace

void RunEveryLength() { full = true; }

}  // namespace skein::tests

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::string_view(argv[1]) == "--full") {
    skein::tests::RunEveryLength();
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: prefix_hit_test [--full]\n");
    return 64;
  }
  return RUN_ALL_TESTS();
}
