// speculation_bench: what drafting gains, in process: the scheduler with its policy and the cpu
// backend, generating from recorded prompts without, with fixed and with adaptive depth, in
// alternating order; with --text easy only from the prompts whose continuation the head foresees
// best, which is where drafting can pay. One JSON line per number of streams and temperature, a
// table to stderr. Must never: print a figure when the greedy outputs of the three differ.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/cpu/register.h"
#include "kernels/cpu/thread_pool.h"
#include "protocol/base/status_macros.h"
#include "protocol/json/json.h"
#include "scheduler/cluster_scheduler.h"
#include "tests/bench/bench_line.h"
#include "worker/loaded_model.h"
#include "worker/preflight.h"
#include "worker/step_executor.h"

namespace skein::tests {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kBlockTokens = 64;
constexpr uint32_t kMaxLength = 512;
constexpr int32_t kGenerated = 96;
constexpr size_t kEasyPrompts = 8;
constexpr uint32_t kRows = 512;
constexpr int kDraftTokens = 5;

struct Options {
  std::string model = "deploy/models/tiny-v41";
  std::string prompts = "tests/data/tiny-v41-goldens/validation_prompts.jsonl";
  std::vector<int> streams = {1, 4, 16, 32};
  int threads = 0;
  bool is_easy = false;
  std::vector<float> temperatures = {0.0F, 1.0F};
  bench::RunIdentity run{.bench = "speculation_bench", .commit = "unknown", .seed = 1, .reps = 5};
};

struct Setup {
  kernels::KernelRegistry registry;
  std::unique_ptr<kernels::cpu::ThreadPool> pool;
  std::unique_ptr<worker::LoadedModel> model;
  std::vector<std::vector<int32_t>> prompts;
};

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadPrompts(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::vector<int32_t>> prompts;
  for (std::string line; std::getline(file, line);) {
    SKEIN_ASSIGN_OR_RETURN(const protocol::JsonValue json, protocol::ParseJson(line));
    SKEIN_ASSIGN_OR_RETURN(const protocol::JsonValue* ids, json.Require("ids", path));
    std::vector<int32_t>& prompt = prompts.emplace_back();
    for (const protocol::JsonValue& id : ids->elements()) {
      SKEIN_ASSIGN_OR_RETURN(const int64_t value, id.AsInt64("ids"));
      prompt.push_back(static_cast<int32_t>(value));
    }
  }
  if (prompts.empty()) return absl::NotFoundError(absl::StrCat(path, " has no prompts"));
  return prompts;
}

absl::StatusOr<std::unique_ptr<Setup>> Open(const Options& options) {
  auto setup = std::make_unique<Setup>();
  SKEIN_ASSIGN_OR_RETURN(setup->prompts, ReadPrompts(options.prompts));
  SKEIN_RETURN_IF_ERROR(RegisterCpuKernels(setup->registry, kernels::CpuIsa::kAuto));
  kernels::cpu::ThreadPoolOptions pool;
  pool.threads = options.threads > 0 ? options.threads : worker::UsableProcessors();
  setup->pool = std::make_unique<kernels::cpu::ThreadPool>(pool);
  const int most = *std::max_element(options.streams.begin(), options.streams.end());
  worker::LoadOptions load;
  load.model_dir = options.model;
  load.numerics = worker::Numerics::Model();
  load.limits.max_rows = static_cast<int>(kRows);
  load.limits.max_samples = std::min(most * (1 + kDraftTokens), static_cast<int>(kRows));
  load.limits.max_model_len = static_cast<int>(kMaxLength);
  load.limits.max_top = 0;
  load.limits.max_drafts = kDraftTokens;
  load.max_draft_requests = std::min(most, static_cast<int>(kRows) / kDraftTokens);
  load.block_tokens = static_cast<int>(kBlockTokens);
  load.num_slots = most;
  load.num_blocks = most * static_cast<int>(kMaxLength / kBlockTokens);
  load.device = std::make_shared<kernels::HostDevice>(kernels::DeviceStream{setup->pool.get()});
  SKEIN_ASSIGN_OR_RETURN(
      setup->model,
      worker::LoadedModel::Load(setup->registry, kernels::KernelManifest::Uniform("cpu"), load));
  return setup;
}

// One series of generations: how long it took and what came out.
struct Run {
  double tok_s = 0;
  double tokens_per_step = 0;  // of one sequence
  double depth = 0;            // drafts per step of a sequence
  std::map<uint64_t, std::vector<int32_t>> outputs;
  std::vector<double> q_cost;  // what the policy learnt: rows of a step over one row
  double draft_cost = 0;       // and of drafting for one sequence
};

scheduler::SchedulerLimits Limits(uint32_t streams, const scheduler::SpeculationSettings& how) {
  scheduler::SchedulerLimits limits;
  limits.max_num_seqs = streams;
  limits.max_num_batched_tokens = kRows;
  limits.admission = {1000, 1'000'000};
  limits.speculation = how;
  return limits;
}

absl::Status AddAll(scheduler::ClusterScheduler& group, const Setup& setup, uint32_t count,
                    float temperature) {
  for (uint32_t i = 0; i < count; ++i) {
    scheduler::NewSequence sequence;
    sequence.id = protocol::SequenceId(i + 1);
    sequence.prompt = setup.prompts[i % setup.prompts.size()];
    sequence.sampling.temperature = temperature;
    sequence.sampling.seed = i;
    sequence.stop.max_tokens = kGenerated;
    sequence.speculation.mode = temperature == 0 ? protocol::VerificationMode::kGreedy
                                                 : protocol::VerificationMode::kRejection;
    SKEIN_RETURN_IF_ERROR(group.AddSequence(std::move(sequence)));
  }
  return absl::OkStatus();
}

// Generates from `count` prompts, `streams` at a time.
absl::StatusOr<Run> Generate(Setup& setup, uint32_t streams, uint32_t count, float temperature,
                             const scheduler::SpeculationSettings& how) {
  setup.model->input().Reset();
  scheduler::ClusterScheduler group(Limits(streams, how), 1);
  const protocol::GroupId only(0);
  const protocol::CacheGeometry geometry[] = {{kBlockTokens, streams * (kMaxLength / kBlockTokens),
                                               streams, kRows, kMaxLength, kDraftTokens}};
  group.StartEpoch(only, protocol::Epoch(1), geometry);
  SKEIN_RETURN_IF_ERROR(AddAll(group, setup, count, temperature));
  Run run;
  scheduler::StepCommit commit;
  uint64_t sequence_steps = 0;
  uint64_t tokens = 0;
  const Clock::time_point begin = Clock::now();
  for (auto plans = group.PlanStep(only, 0); !plans.empty(); plans = group.PlanStep(only, 0)) {
    const protocol::StepResult result = worker::RunPlan(*setup.model, plans.front());
    if (result.status != protocol::StepStatus::kOk) return absl::InternalError(result.message);
    SKEIN_RETURN_IF_ERROR(group.CommitStep(only, result, commit));
    for (const scheduler::SequenceDelta& delta : commit.deltas) {
      for (const auto& token : commit.TokensOf(delta)) {
        run.outputs[delta.sequence.value()].push_back(token.token);
      }
      tokens += delta.num_tokens;
      sequence_steps += delta.num_tokens > 0 ? 1 : 0;
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  run.tok_s = static_cast<double>(tokens) / seconds;
  run.tokens_per_step = static_cast<double>(tokens) / static_cast<double>(sequence_steps);
  run.depth = static_cast<double>(group.engine(0).counters().draft_tokens) /
              static_cast<double>(sequence_steps);
  const scheduler::CostCurve& cost = group.engine(0).speculation().forward_cost();
  for (uint32_t rows = 1; rows <= 6; ++rows) {
    run.q_cost.push_back(cost.At(rows) / std::max(1.0, cost.At(1)));
  }
  run.draft_cost = group.engine(0).speculation().draft_cost().At(1) / std::max(1.0, cost.At(1));
  return run;
}

// Keeps the prompts that gave the most tokens per step at full depth, greedily.
absl::Status KeepEasyPrompts(Setup& setup) {
  const std::vector<std::vector<int32_t>> all = setup.prompts;
  std::vector<std::pair<double, size_t>> ease;
  for (size_t i = 0; i < all.size(); ++i) {
    setup.prompts = {all[i]};
    SKEIN_ASSIGN_OR_RETURN(const Run run,
                           Generate(setup, 1, 1, 0, {kDraftTokens, scheduler::Adaptation::kFixed}));
    ease.emplace_back(-run.tokens_per_step, i);
  }
  std::sort(ease.begin(), ease.end());
  ease.resize(std::min(ease.size(), kEasyPrompts));
  setup.prompts.clear();
  for (const auto& [tokens, i] : ease) setup.prompts.push_back(all[i]);
  return absl::OkStatus();
}

struct Series {
  std::vector<double> none, adaptive, fixed, gain_adaptive, gain_fixed;
  Run last_adaptive, last_fixed;
};

// Blocks of none, adaptive, fixed, adaptive, none, and with none and adaptive exchanged: drift
// cancels within each, and what it costs to be first over two.
absl::StatusOr<Series> Measure(Setup& setup, const Options& options, uint32_t streams,
                               float temperature) {
  const uint32_t count = std::max<uint32_t>(streams, 8);
  const scheduler::SpeculationSettings none{0, scheduler::Adaptation::kAdaptive};
  const scheduler::SpeculationSettings adaptive{kDraftTokens, scheduler::Adaptation::kAdaptive};
  const scheduler::SpeculationSettings fixed{kDraftTokens, scheduler::Adaptation::kFixed};
  Series series;
  for (int rep = 0; rep < options.run.reps; ++rep) {
    double sum[3] = {0, 0, 0};
    const int first = rep % 2;
    for (const int which : {first, 1 - first, 2, 1 - first, first}) {
      SKEIN_ASSIGN_OR_RETURN(Run run, Generate(setup, streams, count, temperature,
                                               which == 0   ? none
                                               : which == 1 ? adaptive
                                                            : fixed));
      sum[which] += which == 2 ? run.tok_s : run.tok_s / 2;
      if (temperature == 0) {
        static std::map<uint32_t, std::map<uint64_t, std::vector<int32_t>>> truth;
        if (!truth.contains(streams)) truth[streams] = run.outputs;
        if (run.outputs != truth[streams]) {
          return absl::InternalError("greedy output changes with the drafts");
        }
      }
      if (which == 1)
        series.last_adaptive = std::move(run);
      else if (which == 2)
        series.last_fixed = std::move(run);
    }
    series.none.push_back(sum[0]);
    series.adaptive.push_back(sum[1]);
    series.fixed.push_back(sum[2]);
    series.gain_adaptive.push_back(sum[1] / sum[0]);
    series.gain_fixed.push_back(sum[2] / sum[0]);
  }
  return series;
}

void Print(const Options& options, int streams, float temperature, Series series) {
  const auto median = [](std::vector<double>& values) { return bench::Percentile(values, 50); };
  std::vector<std::string> costs;
  for (const double cost : series.last_fixed.q_cost) costs.push_back(bench::JsonNumber(cost));
  const double none = median(series.none);
  const double adaptive = median(series.adaptive);
  const double fixed = median(series.fixed);
  const double gain = median(series.gain_adaptive);
  bench::PrintCase(
      options.run,
      absl::StrCat("streams_", streams, "_t", temperature, options.is_easy ? "_easy" : ""),
      {{"streams", std::to_string(streams)},
       {"temperature", bench::JsonNumber(static_cast<double>(temperature))},
       {"tok_s_none", bench::JsonNumber(none)},
       {"tok_s_adaptive", bench::JsonNumber(adaptive)},
       {"tok_s_fixed", bench::JsonNumber(fixed)},
       {"gain_adaptive", bench::JsonNumber(gain)},
       {"gain_fixed", bench::JsonNumber(median(series.gain_fixed))},
       {"depth_adaptive", bench::JsonNumber(series.last_adaptive.depth)},
       {"toks_per_step_adaptive", bench::JsonNumber(series.last_adaptive.tokens_per_step)},
       {"toks_per_step_fixed", bench::JsonNumber(series.last_fixed.tokens_per_step)},
       {"draft_cost", bench::JsonNumber(series.last_fixed.draft_cost)},
       {"q_cost", absl::StrCat("[", absl::StrJoin(costs, ","), "]")}},
      true);
  std::fprintf(stderr,
               "%3d streams T=%.1f: none %8.1f  adaptive %8.1f (%.3fx, depth %.2f)  "
               "fixed %8.1f (%.3fx)\n",
               streams, static_cast<double>(temperature), none, adaptive, gain,
               series.last_adaptive.depth, fixed, median(series.gain_fixed));
}

absl::Status Bench(const Options& options) {
  SKEIN_ASSIGN_OR_RETURN(const std::unique_ptr<Setup> setup, Open(options));
  if (options.is_easy) SKEIN_RETURN_IF_ERROR(KeepEasyPrompts(*setup));
  for (const float temperature : options.temperatures) {
    for (const int streams : options.streams) {
      SKEIN_ASSIGN_OR_RETURN(Series series,
                             Measure(*setup, options, static_cast<uint32_t>(streams), temperature));
      Print(options, streams, temperature, std::move(series));
    }
  }
  return absl::OkStatus();
}

// Flags come in pairs; false for anything else.
bool ReadOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const std::string value = argv[i + 1];
    int number = 0;
    if (flag == "--model") {
      options->model = value;
    } else if (flag == "--commit") {
      options->run.commit = value;
    } else if (flag == "--text" && (value == "all" || value == "easy")) {
      options->is_easy = value == "easy";
    } else if (flag == "--temperature" && (value == "0" || value == "1")) {
      options->temperatures = {value == "0" ? 0.0F : 1.0F};
    } else if (flag == "--streams") {
      options->streams.clear();
      for (const auto part : absl::StrSplit(value, ',')) {
        if (!absl::SimpleAtoi(part, &number) || number < 1) return false;
        options->streams.push_back(number);
      }
    } else if (!absl::SimpleAtoi(value, &number) || number < 1) {
      return false;
    } else if (flag == "--threads") {
      options->threads = number;
    } else if (flag == "--reps") {
      options->run.reps = number;
    } else {
      return false;
    }
  }
  return argc % 2 == 1;
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) {
  skein::tests::Options options;
  if (!skein::tests::ReadOptions(argc, argv, &options)) {
    std::cerr << "usage: speculation_bench [--model DIR] [--streams 1,4,16,32] [--threads N] "
                 "[--reps N] [--text all|easy] [--temperature 0|1] [--commit ID]\n";
    return 64;
  }
  const absl::Status status = skein::tests::Bench(options);
  if (!status.ok()) std::cerr << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
