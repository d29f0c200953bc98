// The exactness grid: the scheduler and loaded models together, over batch, chunks, threads,
// workers, lanes, draft depth and instruction sets. Every sequence gets in every cell the tokens
// and the bits of every logprob that it gets alone and without drafts. Without --full a set of
// cells in which every pair of values occurs; with --full all of them. Owns the models. Thread: the
// test's.
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/json/json.h"
#include "scheduler/cluster_scheduler.h"
#include "tests/worker/tiny_model.h"
#include "worker/step_executor.h"

namespace skein::tests {
namespace {

bool full = false;  // --full

constexpr uint32_t kBlockTokens = 32;
constexpr uint32_t kAll = 2048;
constexpr uint32_t kMaxModelLen = 256;
constexpr uint32_t kBatchMax = 17;
constexpr uint32_t kDraftsMax = 5;  // of the demo model's head
constexpr int32_t kTokensWanted = 8;

// ---- the grid

struct Isa {
  const char* name;
  kernels::CpuIsa isa;
  bool (*available)();
};

constexpr Isa kIsas[] = {
    {"scalar", kernels::CpuIsa::kScalar, [] { return true; }},
    {"avx2", kernels::CpuIsa::kAvx2, &kernels::CpuHasAvx2},
    {"avx512", kernels::CpuIsa::kAvx512, &kernels::CpuHasAvx512},
};

struct Axis {
  const char* name;
  std::vector<uint32_t> values;
};

enum AxisIndex : size_t { kBatch, kChunk, kThreads, kWorkers, kLanes, kDepth, kIsa, kNumAxes };
using Cell = std::array<uint32_t, kNumAxes>;

std::vector<Axis> MakeAxes() {
  std::vector<Axis> axes = {{"batch", {1, 4, kBatchMax}},
                            {"chunk", {1, 7, 64, kAll}},
                            {"threads", {1, 2}},
                            {"workers", {1, 2}},
                            {"lanes", {1, 2}},
                            {"depth", {0, 1, kDraftsMax}},
                            {"isa", {}}};
  for (uint32_t i = 0; i < std::size(kIsas); ++i) {
    if (kIsas[i].available()) {
      axes[kIsa].values.push_back(i);
    } else {
      std::printf("skipped: %s, this processor does not have it\n", kIsas[i].name);
    }
  }
  return axes;
}

const std::vector<Axis>& Axes() {
  static const auto* axes = new std::vector<Axis>(MakeAxes());
  return *axes;
}

std::vector<Cell> AllCells(const std::vector<Axis>& axes) {
  std::vector<Cell> cells = {Cell{}};
  for (size_t axis = 0; axis < kNumAxes; ++axis) {
    std::vector<Cell> longer;
    for (const Cell& cell : cells) {
      for (const uint32_t value : axes[axis].values) {
        longer.push_back(cell);
        longer.back()[axis] = value;
      }
    }
    cells = std::move(longer);
  }
  return cells;
}

// Two values on two axes.
using Pair = std::array<uint32_t, 4>;

std::vector<Pair> PairsOf(const Cell& cell) {
  std::vector<Pair> pairs;
  for (uint32_t a = 0; a < kNumAxes; ++a) {
    for (uint32_t b = a + 1; b < kNumAxes; ++b) pairs.push_back({a, b, cell[a], cell[b]});
  }
  return pairs;
}

// Few cells that have every pair: again and again the one with the most pairs that are missing.
std::vector<Cell> PairwiseCells(const std::vector<Cell>& all) {
  std::set<Pair> missing;
  for (const Cell& cell : all) {
    for (const Pair& pair : PairsOf(cell)) missing.insert(pair);
  }
  std::vector<Cell> chosen;
  while (!missing.empty()) {
    size_t best = 0;
    size_t best_count = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const std::vector<Pair> pairs = PairsOf(all[i]);
      const auto count = static_cast<size_t>(std::count_if(
          pairs.begin(), pairs.end(), [&](const Pair& pair) { return missing.contains(pair); }));
      if (count > best_count) std::tie(best, best_count) = std::pair(i, count);
    }
    chosen.push_back(all[best]);
    for (const Pair& pair : PairsOf(all[best])) missing.erase(pair);
  }
  return chosen;
}

std::string NameOf(const Cell& cell) {
  return "batch " + std::to_string(cell[kBatch]) + ", chunk " + std::to_string(cell[kChunk]) +
         ", threads " + std::to_string(cell[kThreads]) + ", workers " +
         std::to_string(cell[kWorkers]) + ", lanes " + std::to_string(cell[kLanes]) + ", depth " +
         std::to_string(cell[kDepth]) + ", " + kIsas[cell[kIsa]].name;
}

// ---- sequences

struct Request {
  std::vector<int32_t> prompt;
  protocol::SamplingParams sampling;
};

// Prompts of the recordings; every second one is drawn with a temperature.
std::vector<Request> ReadRequests() {
  std::ifstream stream("tests/data/tiny-v41-goldens/goldens.json");
  std::stringstream text;
  text << stream.rdbuf();
  const auto json = protocol::ParseJson(text.str());
  EXPECT_TRUE(json.ok()) << json.status();
  constexpr size_t kLongest = 24;
  std::vector<std::vector<int32_t>> prompts;
  for (const protocol::JsonValue& entry : json->Find("prompts")->elements()) {
    std::vector<int32_t>& prompt = prompts.emplace_back();
    for (const protocol::JsonValue& id : entry.Find("ids")->elements()) {
      prompt.push_back(static_cast<int32_t>(*id.AsInt64("id")));
    }
  }
  std::vector<Request> requests;
  for (uint32_t i = 0; i < kBatchMax; ++i) {
    Request& request = requests.emplace_back();
    request.prompt = prompts[i % prompts.size()];
    // Lengths differ, so that sequences are in different phases.
    request.prompt.resize(std::min(request.prompt.size(), kLongest - i % 5));
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.8F;
    request.sampling.seed = 1000 + i;
    request.sampling.num_top_logprobs = 3;
  }
  return requests;
}

const std::vector<Request>& Requests() {
  static const auto* requests = new std::vector<Request>(ReadRequests());
  return *requests;
}

// ---- models

struct ModelKey {
  uint32_t isa = 0;
  uint32_t threads = 0;
  uint32_t worker = 0;
  auto operator<=>(const ModelKey&) const = default;
};

class GridModel {
 public:
  explicit GridModel(const ModelKey& key) : threads_(static_cast<int>(key.threads)) {
    EXPECT_TRUE(kernels::RegisterCpuKernels(registry_, kIsas[key.isa].isa).ok());
    worker::LoadOptions options = TinyOptions({.max_rows = static_cast<int>(kAll),
                                               .max_samples = kBatchMax * (1 + kDraftsMax),
                                               .max_model_len = kMaxModelLen,
                                               .num_blocks = 8 * kBatchMax,
                                               .num_slots = kBatchMax,
                                               .max_draft_requests = kBatchMax});
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

worker::LoadedModel& ModelOf(const ModelKey& key) {
  static auto* models = new std::map<ModelKey, std::unique_ptr<GridModel>>();
  std::unique_ptr<GridModel>& model = (*models)[key];
  if (model == nullptr) model = std::make_unique<GridModel>(key);
  return model->model();
}

// ---- one cell

using Token = scheduler::CommittedToken;
using Tokens = std::map<uint64_t, std::vector<Token>>;  // by sequence

// Floats compare by value; none is NaN or a zero of either sign among logprobs below 0.
bool Same(const Token& a, const Token& b) {
  return a.token == b.token && a.logprob == b.logprob && a.top == b.top;
}

class CellRun {
 public:
  explicit CellRun(const Cell& cell)
      : cell_(cell),
        scheduler_({.max_num_seqs = kBatchMax,
                    .max_num_batched_tokens = cell[kChunk],
                    .lanes = cell[kLanes],
                    .admission = {kBatchMax, 1 << 20},
                    .speculation = {cell[kDepth], scheduler::Adaptation::kFixed}},
                   cell[kWorkers]),
        results_(size_t{cell[kWorkers]} * cell[kLanes]) {
    for (uint32_t worker = 0; worker < cell[kWorkers]; ++worker) {
      Model(worker).input().Reset();
      const protocol::CacheGeometry geometry[] = {
          {kBlockTokens, 8 * kBatchMax, kBatchMax, kAll, kMaxModelLen, kDraftsMax}};
      scheduler_.StartEpoch(protocol::GroupId(worker), protocol::Epoch(worker + 1), geometry);
    }
  }

  void Add(uint64_t id) {
    scheduler::NewSequence sequence;
    sequence.id = protocol::SequenceId(id);
    sequence.prompt = Requests()[id].prompt;
    sequence.sampling = Requests()[id].sampling;
    sequence.speculation.mode = sequence.sampling.temperature == 0
                                    ? protocol::VerificationMode::kGreedy
                                    : protocol::VerificationMode::kCoupled;
    sequence.stop.max_tokens = kTokensWanted;
    ASSERT_TRUE(scheduler_.AddSequence(std::move(sequence)).ok());
  }

  // Until every sequence ended. Lanes overlap: each is committed when the other was planned.
  Tokens Run() {
    for (int i = 0; i < 100'000 && !scheduler_.empty(); ++i) {
      for (uint32_t worker = 0; worker < cell_[kWorkers]; ++worker) {
        for (uint32_t lane = 0; lane < cell_[kLanes]; ++lane) {
          if (!Step(worker, lane)) return {};
        }
      }
    }
    EXPECT_TRUE(scheduler_.empty()) << "the cell does not end";
    return std::move(tokens_);
  }
  // Workers that ran a step.
  size_t workers_used() const { return used_.size(); }
  // Drafts that were kept.
  uint64_t accepted() const {
    uint64_t sum = 0;
    for (uint32_t worker = 0; worker < cell_[kWorkers]; ++worker) {
      for (const uint64_t count : scheduler_.engine(worker).counters().accepted) {
        sum += count;
      }
    }
    return sum;
  }

 private:
  worker::LoadedModel& Model(uint32_t worker) {
    return ModelOf({cell_[kIsa], cell_[kThreads], worker});
  }

  bool Step(uint32_t worker, uint32_t lane) {
    const protocol::GroupId group(worker);
    std::optional<protocol::StepResult>& result = results_[worker * cell_[kLanes] + lane];
    if (result) {
      const absl::Status status = scheduler_.CommitStep(group, *result, commit_);
      EXPECT_TRUE(status.ok()) << status;
      for (const scheduler::SequenceDelta& delta : commit_.deltas) {
        EXPECT_TRUE(delta.error.ok()) << delta.error;
        const std::span<Token> tokens = commit_.TokensOf(delta);
        std::vector<Token>& all = tokens_[delta.sequence.value()];
        all.insert(all.end(), tokens.begin(), tokens.end());
      }
      result.reset();
    }
    const auto plans = scheduler_.PlanStep(group, lane);
    if (plans.empty()) return true;
    used_.insert(worker);
    result = worker::RunPlan(Model(worker), plans.front());
    EXPECT_EQ(result->status, protocol::StepStatus::kOk) << result->message;
    return result->status == protocol::StepStatus::kOk;
  }

  const Cell cell_;
  scheduler::ClusterScheduler scheduler_;
  std::vector<std::optional<protocol::StepResult>> results_;  // by worker and lane
  scheduler::StepCommit commit_;
  std::set<uint32_t> used_;
  Tokens tokens_;
};

// Each sequence alone, its prompt in one step, one thread, one worker, no drafts, the widest
// instructions.
Tokens RunAlone() {
  const uint32_t isa = Axes()[kIsa].values.back();
  Tokens tokens;
  for (uint64_t id = 0; id < kBatchMax; ++id) {
    CellRun run({1, kAll, 1, 1, 1, 0, isa});
    run.Add(id);
    tokens.merge(run.Run());
  }
  return tokens;
}

const Tokens& Alone() {
  static const auto* tokens = new Tokens(RunAlone());
  return *tokens;
}

// ---- tests

TEST(ExactnessGrid, TheShortGridHasEveryPairOfValues) {
  const std::vector<Axis>& axes = Axes();
  const std::vector<Cell> all = AllCells(axes);
  size_t product = 1;
  for (const Axis& axis : axes) product *= axis.values.size();
  EXPECT_EQ(all.size(), product);
  std::set<Pair> pairs;
  const std::vector<Cell> cells = PairwiseCells(all);
  EXPECT_LT(cells.size(), all.size() / 4);
  for (const Cell& cell : cells) {
    for (const Pair& pair : PairsOf(cell)) pairs.insert(pair);
  }
  size_t wanted = 0;
  for (size_t a = 0; a < kNumAxes; ++a) {
    for (size_t b = a + 1; b < kNumAxes; ++b)
      wanted += axes[a].values.size() * axes[b].values.size();
  }
  EXPECT_EQ(pairs.size(), wanted);
}

TEST(ExactnessGrid, NoCellChangesABit) {
  const std::vector<Cell> all = AllCells(Axes());
  const std::vector<Cell> cells = full ? all : PairwiseCells(all);
  const Tokens& alone = Alone();
  ASSERT_EQ(alone.size(), kBatchMax);
  size_t compared = 0;
  uint64_t accepted = 0;
  for (const Cell& cell : cells) {
    SCOPED_TRACE(NameOf(cell));
    CellRun run(cell);
    for (uint64_t id = 0; id < cell[kBatch]; ++id) run.Add(id);
    const Tokens tokens = run.Run();
    ASSERT_EQ(tokens.size(), cell[kBatch]);
    accepted += run.accepted();
    const bool drafts = cell[kDepth] > 0 && cell[kChunk] > 1;
    EXPECT_TRUE(drafts || run.accepted() == 0) << run.accepted() << " drafts without rows";
    EXPECT_EQ(run.workers_used(), std::min(cell[kWorkers], cell[kBatch]));
    for (const auto& [id, got] : tokens) {
      const std::vector<Token>& want = alone.at(id);
      ASSERT_EQ(got.size(), size_t{kTokensWanted});
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(Same(got[i], want[i]))
            << "sequence " << id << ", token " << i << ": " << got[i].token << " at "
            << got[i].logprob << ", alone " << want[i].token << " at " << want[i].logprob;
        ++compared;
      }
    }
    if (full) {
      std::printf("equal: %s\n", NameOf(cell).c_str());
      std::fflush(stdout);
    }
  }
  EXPECT_GT(accepted, cells.size()) << "drafts are kept all over the grid";
  std::printf("cells %zu of %zu, tokens compared %zu, drafts kept %llu\n", cells.size(), all.size(),
              compared, static_cast<unsigned long long>(accepted));
}

// The comparison is worth something: answers differ between sequences, and drawing does something.
TEST(ExactnessGrid, TheAnswersAreNotDegenerate) {
  std::set<std::vector<int32_t>> answers;
  size_t drawn = 0;
  for (const auto& [id, tokens] : Alone()) {
    std::vector<int32_t> ids;
    for (const Token& token : tokens) {
      ids.push_back(token.token);
      ASSERT_EQ(token.top.size(), 3U);
      EXPECT_LT(token.logprob, 0);
      drawn += token.token != token.top[0].token ? 1 : 0;
    }
    answers.insert(ids);
  }
  EXPECT_GE(answers.size(), 12U);
  EXPECT_GT(drawn, 0U);
}

}  // namespace

void RunFullGrid() { full = true; }

}  // namespace skein::tests

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::string_view(argv[1]) == "--full") {
    skein::tests::RunFullGrid();
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: exactness_grid_test [--full]\n");
    return 64;
  }
  return RUN_ALL_TESTS();
}
