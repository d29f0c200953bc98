// Prefix hits on models that the recordings describe: what a request gets after a hit of any length
// is what it gets cold, token for token and bit for bit of every logprob, with drafts and without,
// through checkpoints and through recomputation, after preemption, eviction and the loss of the
// worker, on one worker and lane and on two. Without --full some hit lengths; with --full every one
// from 1 to 700. Owns the models. Thread: the test's.
#include "tests/exactness/prefix_hit.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/audit.h"
#include "scheduler/batch_policy.h"
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
constexpr uint32_t kColdWorker = 2;  // computes what the others are compared with

using Token = scheduler::CommittedToken;

// What is asked of a model and its cache.
struct HitSetup {
  const char* checkpoint;
  uint32_t depth = 0;
  uint32_t num_blocks = 80;
  uint32_t checkpoints = kCheckpoints;  // that the scheduler may use
  bool recompute = true;                // without checkpoints
  uint32_t chunk = 1024;
  uint32_t workers = 1;       // each a group with a model of its own
  uint32_t first_worker = 0;  // number of its model
  uint32_t lanes = 1;
  scheduler::BlockHash hash = &scheduler::HashTokens;
};

class HitModel {
 public:
  explicit HitModel(const std::string& checkpoint) : threads_(2) {
    const TestBackend& backend = BackendOfTests();
    EXPECT_TRUE(kernels::RegisterCpuKernels(registry_, kernels::CpuIsa::kAuto).ok());
    EXPECT_TRUE(worker::RegisterGpuKernels(registry_).ok());
    worker::LoadOptions options = TinyOptions({.max_rows = 1024,
                                               .max_samples = kSlots * (1 + kDraftsMax),
                                               .max_model_len = kMaxModelLen,
                                               .num_blocks = 80,
                                               .num_slots = kSlots,
                                               .max_draft_requests = kSlots});
    options.model_dir = checkpoint;
    options.num_checkpoints = kCheckpoints;
    options.device = backend.device;
    if (options.device == nullptr) {
      options.device = std::make_shared<kernels::HostDevice>(kernels::DeviceStream{&threads_});
    }
    auto loaded = worker::LoadedModel::Load(
        registry_, kernels::KernelManifest::Uniform(backend.name), options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (loaded.ok()) model_ = *std::move(loaded);
  }
  worker::LoadedModel& model() { return *model_; }

 private:
  kernels::KernelRegistry registry_;
  kernels::cpu::ThreadPool threads_;
  std::unique_ptr<worker::LoadedModel> model_;
};

worker::LoadedModel& ModelOf(const std::string& checkpoint, uint32_t worker = 0) {
  static auto* models = new std::map<std::pair<std::string, uint32_t>, std::unique_ptr<HitModel>>();
  std::unique_ptr<HitModel>& model = (*models)[{checkpoint, worker}];
  if (model == nullptr) model = std::make_unique<HitModel>(checkpoint);
  return model->model();
}

// Groups with their models and the requests that follow one another there.
class HitRun {
 public:
  explicit HitRun(const HitSetup& setup, bool caching = true)
      : setup_(setup),
        scheduler_(LimitsOf(setup, caching, Model(0).draft() != nullptr), setup.workers),
        results_(size_t{setup.workers} * setup.lanes) {
    for (uint32_t worker = 0; worker < setup.workers; ++worker) StartEpoch(worker);
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

  // Every lane of every worker: what it ran is committed, and the next step planned and run.
  bool Step() {
    bool any = false;
    for (uint32_t worker = 0; worker < setup_.workers; ++worker) {
      for (uint32_t lane = 0; lane < setup_.lanes; ++lane) {
        std::optional<protocol::StepResult>& result = results_[worker * setup_.lanes + lane];
        if (result) {
          any = true;
          if (!Commit(worker, *std::exchange(result, std::nullopt))) return false;
        }
        const auto plans = scheduler_.PlanStep(protocol::GroupId(worker), lane);
        if (plans.empty()) continue;
        any = true;
        result = worker::RunPlan(Model(worker), plans.front());
      }
    }
    return any;
  }
  // Until all that was added ended; what the last one got.
  const std::vector<Token>& Finish() {
    while (!scheduler_.empty() && Step()) {
    }
    EXPECT_TRUE(scheduler_.empty());
    return tokens_[last_id_];
  }
  // The worker is lost with all that it held, and another one takes its place.
  void Restart(uint32_t worker) {
    for (uint32_t lane = 0; lane < setup_.lanes; ++lane) {
      results_[worker * setup_.lanes + lane].reset();
    }
    const auto gone =
        scheduler_.AbortInflight(protocol::GroupId(worker), scheduler::AbortCause::kWorkerLeft, 0);
    EXPECT_TRUE(gone.empty());
    StartEpoch(worker);
  }
  const std::vector<Token>& TokensOf(uint64_t id) { return tokens_[id]; }
  uint32_t cached(uint64_t id) { return cached_[id]; }
  uint64_t last_id() const { return last_id_; }
  const scheduler::SchedulerCounters& counters(uint32_t worker = 0) const {
    return scheduler_.engine(worker).counters();
  }

  static constexpr uint32_t kBlock = 32;

 private:
  static scheduler::SchedulerLimits LimitsOf(const HitSetup& setup, bool caching, bool drafts) {
    scheduler::SchedulerLimits limits;
    limits.max_num_seqs = kSlots;
    limits.max_num_batched_tokens = setup.chunk;
    limits.lanes = setup.lanes;
    limits.admission = {64, 1 << 20};
    limits.speculation = {drafts ? setup.depth : 0, scheduler::Adaptation::kFixed};
    limits.prefix_caching = caching;
    limits.cache_hash = setup.hash;
    return limits;
  }
  worker::LoadedModel& Model(uint32_t worker) const {
    return ModelOf(setup_.checkpoint, setup_.first_worker + worker);
  }

  void StartEpoch(uint32_t worker) {
    worker::LoadedModel& model = Model(worker);
    model.input().Reset();
    protocol::CacheGeometry geometry;
    geometry.block_tokens = kBlock;
    geometry.num_blocks = setup_.num_blocks;
    geometry.num_slots = kSlots;
    geometry.edits_logits = true;
    geometry.max_rows = 1024;
    geometry.max_model_len = kMaxModelLen;
    geometry.max_draft_tokens = model.draft() != nullptr ? kDraftsMax : 0;
    // Checkpoints are numbered behind the slots of the worker, so fewer of them may be used.
    geometry.num_checkpoints = setup_.checkpoints;
    geometry.recompute_tokens =
        setup_.recompute ? static_cast<uint32_t>(model.spec().recompute_tokens()) : 0;
    const auto gone = scheduler_.StartEpoch(protocol::GroupId(worker), protocol::Epoch(++epoch_),
                                            std::vector{geometry});
    EXPECT_TRUE(gone.empty());
  }

  bool Commit(uint32_t worker, const protocol::StepResult& result) {
    EXPECT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    EXPECT_TRUE(scheduler_.CommitStep(protocol::GroupId(worker), result, commit_).ok());
    const absl::Status status = scheduler::CheckInvariants(scheduler_);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(scheduler::AuditBlocks(scheduler_.engine(worker)), scheduler::AuditFindings{});
    for (const scheduler::SequenceDelta& delta : commit_.deltas) {
      EXPECT_TRUE(delta.error.ok()) << delta.error;
      const std::span<Token> tokens = commit_.TokensOf(delta);
      std::vector<Token>& all = tokens_[delta.sequence.value()];
      all.insert(all.end(), tokens.begin(), tokens.end());
      cached_[delta.sequence.value()] = delta.cached_tokens;
    }
    return result.status == protocol::StepStatus::kOk;
  }

  const HitSetup setup_;
  scheduler::ClusterScheduler scheduler_;
  std::vector<std::optional<protocol::StepResult>> results_;  // by worker and lane
  scheduler::StepCommit commit_;
  uint64_t epoch_ = 0;
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

// What a prompt of `length` tokens that shares `shared` of them gets alone, without cache and
// drafts. Kept, since many setups ask for the same.
const std::vector<Token>& Cold(const HitSetup& setup, uint32_t length, uint32_t shared,
                               float temperature, int32_t wanted = kTokensWanted) {
  using Key = std::tuple<std::string, uint32_t, uint32_t, float, int32_t>;
  static auto* known = new std::map<Key, std::vector<Token>>();
  std::vector<Token>& tokens = (*known)[{setup.checkpoint, length, shared, temperature, wanted}];
  if (tokens.empty()) {
    HitRun run({.checkpoint = setup.checkpoint, .first_worker = kColdWorker}, false);
    run.Add(Prompt(setup, length, shared, shared), temperature, wanted);
    tokens = run.Finish();
  }
  return tokens;
}

std::vector<uint32_t> Lengths(uint32_t from, uint32_t stride) {
  std::vector<uint32_t> lengths;
  for (uint32_t length = from; length <= 700; length += full ? 1 : stride) {
    lengths.push_back(length);
  }
  return lengths;
}

std::string NameOf(const HitSetup& setup, uint32_t shared) {
  return std::string(setup.checkpoint) + ", shared " + std::to_string(shared);
}

float TemperatureAt(uint32_t shared) { return shared % 2 == 0 ? 0.0F : 0.8F; }

uint64_t compared = 0;  // answers

// All that were added since `from` got what a prompt with so much shared gets cold.
void ExpectCold(HitRun& run, const HitSetup& setup, uint32_t shared, uint64_t from,
                uint32_t behind = 3) {
  const std::vector<Token>& cold = Cold(setup, shared + behind, shared, TemperatureAt(shared));
  for (uint64_t id = from; id <= run.last_id(); ++id) {
    ExpectSame(run.TokensOf(id), cold);
    EXPECT_LE(run.cached(id), (shared + behind - 1) / HitRun::kBlock * HitRun::kBlock);
    ++compared;
  }
}

// For each length: one prompt leaves its blocks on each worker, and another that shares so many
// tokens with it comes three times to each, which takes every way from nothing but blocks to a
// checkpoint at the end.
void HitsEqualCold(const HitSetup& setup, uint32_t stride) {
  uint64_t cached = 0;
  for (const uint32_t shared : Lengths(1, stride)) {
    SCOPED_TRACE(NameOf(setup, shared));
    const std::vector<int32_t> prompt = Prompt(setup, shared + 3, shared, shared);
    HitRun hit(setup);
    for (uint32_t i = 0; i < setup.workers; ++i) hit.Add(Prompt(setup, shared + 9), 0, 1);
    hit.Finish();
    for (int again = 0; again < 3; ++again) {
      const uint64_t from = hit.last_id() + 1;
      for (uint32_t i = 0; i < setup.workers; ++i) hit.Add(prompt, TemperatureAt(shared));
      hit.Finish();
      ExpectCold(hit, setup, shared, from);
      if (testing::Test::HasFailure()) return;
    }
    for (uint32_t i = 0; i < setup.workers; ++i) {
      const uint32_t whole = (shared + 2) / HitRun::kBlock * HitRun::kBlock;
      if (setup.checkpoints > 0) {
        EXPECT_EQ(hit.cached(hit.last_id() - i), whole);
      }
      cached += hit.cached(hit.last_id() - i);
      EXPECT_GT(hit.counters(i).cache_queries, 0U) << "worker " << i << " had nothing to do";
    }
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
        ExpectSame(run.TokensOf(1 + branch - shared),
                   Cold(setup, length, branch, TemperatureAt(branch), kWanted));
        ++compared;
      }
      preemptions += run.counters().preemptions[0];
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(preemptions, full ? 1000U : 5U);
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
  EXPECT_GT(evictions, full ? 5000U : 50U);
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

void RunEveryLength() { full = true; }
uint64_t NumCompared() { return compared; }

}  // namespace skein::tests
