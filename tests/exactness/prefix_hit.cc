#include "tests/exactness/prefix_hit.h"

#include <span>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "scheduler/audit.h"
#include "scheduler/invariants.h"
#include "tests/worker/rank_meeting.h"
#include "tests/worker/tiny_model.h"
#include "worker/step_executor.h"

namespace skein::tests {
namespace {

constexpr uint32_t kSlots = 3;
constexpr uint32_t kDraftsMax = 5;
constexpr uint32_t kColdWorker = 2;  // computes what the others are compared with

bool full = false;      // --full
uint64_t compared = 0;  // answers

class HitModel {
 public:
  HitModel(const std::string& checkpoint, const worker::Shard& shard)
      : threads_(shard.whole() ? 2 : 1) {
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
    options.shard = shard;
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

worker::LoadedModel& ModelOf(const std::string& checkpoint, uint32_t worker = 0,
                             const worker::Shard& shard = {}) {
  using Key = std::tuple<std::string, uint32_t, int, int>;
  static auto* models = new std::map<Key, std::unique_ptr<HitModel>>();
  std::unique_ptr<HitModel>& model = (*models)[{checkpoint, worker, shard.rank, shard.num_ranks}];
  if (model == nullptr) model = std::make_unique<HitModel>(checkpoint, shard);
  return model->model();
}

}  // namespace

void RunEveryLength() { full = true; }
bool EveryLength() { return full; }
uint64_t NumCompared() { return compared; }

HitRun::HitRun(const HitSetup& setup, bool caching)
    : setup_(setup),
      scheduler_(LimitsOf(setup, caching, Models(0).front()->draft() != nullptr), setup.workers,
                 setup.ranks),
      groups_(setup.workers),
      results_(size_t{setup.workers} * setup.lanes) {
  for (uint32_t worker = 0; worker < setup.workers; ++worker) StartEpoch(worker);
}

void HitRun::Add(std::vector<int32_t> prompt, float temperature, int32_t wanted, int32_t priority) {
  scheduler::NewSequence sequence;
  sequence.id = protocol::SequenceId(++last_id_);
  sequence.prompt = std::move(prompt);
  sequence.sampling.temperature = temperature;
  sequence.sampling.seed = 17;
  sequence.sampling.num_top_logprobs = 3;
  sequence.speculation.mode =
      temperature == 0 ? protocol::VerificationMode::kGreedy : protocol::VerificationMode::kCoupled;
  sequence.stop.max_tokens = wanted;
  sequence.priority = priority;
  sequence.cache_root = root_;
  sequence.sampling.edits = edits_;
  const absl::Status status = scheduler_.AddSequence(std::move(sequence));
  EXPECT_TRUE(status.ok()) << status;
}

bool HitRun::Step() {
  bool any = false;
  for (uint32_t worker = 0; worker < setup_.workers; ++worker) {
    for (uint32_t lane = 0; lane < setup_.lanes; ++lane) {
      std::vector<protocol::StepResult>& results = results_[worker * setup_.lanes + lane];
      for (const protocol::StepResult& result : std::exchange(results, {})) {
        any = true;
        if (!Commit(worker, result)) return false;
      }
      const auto plans = scheduler_.PlanStep(protocol::GroupId(worker), lane);
      if (plans.empty()) continue;
      any = true;
      results = RunPlans(worker, plans);
    }
  }
  return any;
}

const std::vector<Token>& HitRun::Finish() {
  while (!scheduler_.empty() && Step()) {
  }
  EXPECT_TRUE(scheduler_.empty());
  return tokens_[last_id_];
}

void HitRun::Restart(uint32_t worker) {
  for (uint32_t lane = 0; lane < setup_.lanes; ++lane) {
    results_[worker * setup_.lanes + lane].clear();
  }
  const auto gone =
      scheduler_.AbortInflight(protocol::GroupId(worker), scheduler::AbortCause::kWorkerLeft, 0);
  EXPECT_TRUE(gone.empty());
  StartEpoch(worker);
}

scheduler::SchedulerLimits HitRun::LimitsOf(const HitSetup& setup, bool caching, bool drafts) {
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

std::vector<worker::LoadedModel*> HitRun::Models(uint32_t worker) const {
  std::vector<worker::LoadedModel*> models;
  const auto ranks = static_cast<int>(setup_.ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    models.push_back(&ModelOf(setup_.checkpoint, setup_.first_worker + worker, {rank, ranks}));
  }
  return models;
}

void HitRun::StartEpoch(uint32_t worker) {
  const std::vector<worker::LoadedModel*> models = Models(worker);
  for (worker::LoadedModel* model : models) model->input().Reset();
  groups_[worker].clear();
  groups_[worker] = MeetRanks(models);
  worker::LoadedModel& model = *models.front();
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
                                          std::vector(setup_.ranks, geometry));
  EXPECT_TRUE(gone.empty());
}

std::vector<protocol::StepResult> HitRun::RunPlans(uint32_t worker,
                                                   const std::vector<protocol::StepPlan>& plans) {
  const std::vector<worker::LoadedModel*> models = Models(worker);
  EXPECT_EQ(plans.size(), models.size());
  std::vector<protocol::StepResult> results(models.size());
  ForEachRank(models.size(),
              [&](size_t rank) { results[rank] = worker::RunPlan(*models[rank], plans[rank]); });
  return results;
}

bool HitRun::Commit(uint32_t worker, const protocol::StepResult& result) {
  const protocol::GroupId group(worker);
  EXPECT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
  EXPECT_TRUE(scheduler_.CommitStep(group, result, commit_).ok());
  const absl::Status status = scheduler::CheckInvariants(scheduler_);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(scheduler::AuditBlocks(scheduler_.engine(scheduler_.EngineOf(group, result.rank))),
            scheduler::AuditFindings{});
  for (const scheduler::SequenceDelta& delta : commit_.deltas) {
    EXPECT_TRUE(delta.error.ok()) << delta.error;
    const std::span<Token> tokens = commit_.TokensOf(delta);
    std::vector<Token>& all = tokens_[delta.sequence.value()];
    all.insert(all.end(), tokens.begin(), tokens.end());
    cached_[delta.sequence.value()] = delta.cached_tokens;
  }
  return result.status == protocol::StepStatus::kOk;
}

std::vector<int32_t> Prompt(const HitSetup& setup, uint32_t length, uint32_t branch,
                            uint32_t variant) {
  const auto vocab = static_cast<uint32_t>(ModelOf(setup.checkpoint).spec().vocab);
  std::vector<int32_t> tokens;
  for (uint32_t i = 0; i < length; ++i) {
    const uint32_t salt = i >= branch ? 7919 * (variant + 1) : 0;
    tokens.push_back(static_cast<int32_t>((i * 2654435761U + salt + i / 13) % (vocab - 8) + 4));
  }
  return tokens;
}

const std::vector<Token>& Cold(const HitSetup& setup, uint32_t length, uint32_t shared,
                               float temperature, int32_t wanted) {
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

void ExpectSame(const std::vector<Token>& got, const std::vector<Token>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].token == want[i].token && got[i].logprob == want[i].logprob &&
                got[i].top == want[i].top)
        << "token " << i << ": " << got[i].token << " at " << got[i].logprob << ", cold "
        << want[i].token << " at " << want[i].logprob;
  }
}

void ExpectAnswer(HitRun& run, uint64_t id, const std::vector<Token>& cold) {
  ExpectSame(run.TokensOf(id), cold);
  ++compared;
}

void ExpectCold(HitRun& run, const HitSetup& setup, uint32_t shared, uint64_t from,
                uint32_t behind) {
  const std::vector<Token>& cold = Cold(setup, shared + behind, shared, TemperatureAt(shared));
  for (uint64_t id = from; id <= run.last_id(); ++id) {
    ExpectAnswer(run, id, cold);
    EXPECT_LE(run.cached(id), (shared + behind - 1) / HitRun::kBlock * HitRun::kBlock);
  }
}

void HitsEqualCold(const HitSetup& setup, uint32_t stride) {
  uint64_t cached = 0;
  for (const uint32_t shared : Lengths(1, stride)) {
    SCOPED_TRACE(NameOf(setup, shared));
    const std::vector<int32_t> prompt = Prompt(setup, shared + 3, shared, shared);
    HitRun hit(setup);
    for (uint32_t i = 0; i < setup.engines(); ++i) hit.Add(Prompt(setup, shared + 9), 0, 1);
    hit.Finish();
    for (int again = 0; again < 3; ++again) {
      const uint64_t from = hit.last_id() + 1;
      for (uint32_t i = 0; i < setup.engines(); ++i) hit.Add(prompt, TemperatureAt(shared));
      hit.Finish();
      ExpectCold(hit, setup, shared, from);
      if (testing::Test::HasFailure()) return;
    }
    for (uint32_t i = 0; i < setup.engines(); ++i) {
      const uint32_t whole = (shared + 2) / HitRun::kBlock * HitRun::kBlock;
      if (setup.checkpoints > 0) {
        EXPECT_EQ(hit.cached(hit.last_id() - i), whole);
      }
      cached += hit.cached(hit.last_id() - i);
      EXPECT_GT(hit.counters(i).cache_queries, 0U) << "engine " << i << " had nothing to do";
      EXPECT_EQ(hit.counters(i).drafts > 0, setup.depth > 0) << "engine " << i;
    }
  }
  EXPECT_GT(cached, 0U);
}

}  // namespace skein::tests
