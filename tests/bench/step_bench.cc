// step_bench: whole decode steps of V4.1-Flash cut to the layers that one H200 holds, recorded as
// the worker records them, with random weights made on the device: one JSON line per case. What a
// step must read at least is counted from its shapes and from the experts that a step of this size
// chose. Caches hold zeros. Owns the model. Thread: main's. Must never: print a time of a failed
// step.
//   step_bench [--reps N] [--commit HASH] [--batches 1,16,64,256] [--contexts 1024,8192]
//              [--depths 0,5]
//   step_bench --write-model DIR    config.json and Engram map, for skein serve --load-format dummy
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "protocol/base/clock.h"
#include "protocol/base/status_macros.h"
#include "tests/bench/bench_line.h"
#include "tests/bench/engram_rows.h"
#include "tests/bench/v41_cut_config.h"
#include "worker/gpu_backend.h"
#include "worker/loaded_model.h"
#include "worker/model/dummy_weights.h"

namespace skein::tests {
namespace {

namespace fs = std::filesystem;
using kernels::TensorView;
using worker::DecodeShape;

constexpr int kBlockTokens = 64;
constexpr int kContextMax = 8192;
constexpr double kFp4Bytes = 17.0 / 32;  // of a weight with its scale

struct Options {
  bench::RunIdentity run{.bench = "step_bench", .seed = 1, .reps = 20};
  std::vector<int> batches = {1, 16, 64, 256};
  std::vector<int> contexts = {1024, 8192};
  std::vector<int> depths = {0, 5};
};

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments) {
  Options options;
  const std::map<std::string, std::vector<int>*> lists = {{"--batches", &options.batches},
                                                          {"--contexts", &options.contexts},
                                                          {"--depths", &options.depths}};
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    const std::string& value = arguments[i + 1];
    if (const auto list = lists.find(arguments[i]); list != lists.end()) {
      list->second->clear();
      for (const auto part : absl::StrSplit(value, ',')) {
        int number = 0;
        if (!absl::SimpleAtoi(part, &number)) {
          return absl::InvalidArgumentError(absl::StrCat(arguments[i], " ", value));
        }
        list->second->push_back(number);
      }
    } else if (arguments[i] == "--commit") {
      options.run.commit = value;
    } else if (arguments[i] != "--reps" || !absl::SimpleAtoi(value, &options.run.reps)) {
      return absl::InvalidArgumentError(absl::StrCat(arguments[i], " is not known"));
    }
  }
  return options;
}

// Bytes per second of a copy, reading and writing counted.
double CopyBandwidth() {
  constexpr size_t kBytes = size_t{1} << 30;
  void* data = nullptr;
  cudaEvent_t begin, end;
  if (cudaMalloc(&data, 2 * kBytes) != cudaSuccess) return 0;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  auto* bytes = static_cast<std::byte*>(data);
  float best = 1e9F;
  for (int i = 0; i < 8; ++i) {
    cudaEventRecord(begin);
    cudaMemcpyAsync(bytes + kBytes, bytes, kBytes, cudaMemcpyDeviceToDevice);
    cudaEventRecord(end);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    best = std::min(best, ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaFree(data);
  return 2.0 * kBytes / (static_cast<double>(best) * 1e-3);
}

// What a model directory needs beside weights and tokenizer.
void WriteModel(const fs::path& dir) {
  fs::create_directories(dir);
  std::ofstream(dir / "config.json") << WithEngramRows(kV41CutConfig, 131'072, 24);
  std::vector<int32_t> map(129'280);
  for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<int32_t>(i % 99'092);
  std::ofstream(dir / "engram_token_map.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(map.data()),
             static_cast<std::streamsize>(map.size() * sizeof(int32_t)));
}

class StepBench {
 public:
  explicit StepBench(const Options& options) : options_(options) {}

  absl::Status Load() {
    SKEIN_ASSIGN_OR_RETURN(device_, worker::OpenGpu("sm90", 0));
    SKEIN_RETURN_IF_ERROR(worker::RegisterGpuKernels(registry_));
    bandwidth_ = CopyBandwidth();
    dir_ = fs::temp_directory_path() / absl::StrCat("skein_step_bench_", getpid());
    WriteModel(dir_);
    SKEIN_ASSIGN_OR_RETURN(const worker::ModelSpec spec, worker::ModelSpec::Load(dir_));
    tensors_ = worker::dummy::TensorsOf(spec);
    const int most = *std::max_element(options_.batches.begin(), options_.batches.end());
    const int depth = *std::max_element(options_.depths.begin(), options_.depths.end());
    worker::LoadOptions load;
    load.model_dir = dir_;
    load.device = device_;
    load.limits = {.max_rows = std::max(most * (1 + depth), 64),
                   .max_samples = std::max(most * (1 + depth), 64),
                   .max_model_len = kContextMax + kBlockTokens,
                   .max_top = 20,
                   .max_drafts = depth};
    load.block_tokens = kBlockTokens;
    load.num_blocks = most * BlocksEach();
    load.num_slots = most;
    load.max_draft_requests = depth > 0 ? most : 0;
    load.record_steps = true;
    load.make_tensor = worker::dummy::MakerOf(spec);
    const absl::Time begin = protocol::MonotonicNow();
    SKEIN_ASSIGN_OR_RETURN(model_, worker::LoadedModel::Load(
                                       registry_, kernels::KernelManifest::Uniform("sm90"), load));
    std::fprintf(stderr, "loaded and recorded %zu shapes, %lu nodes, in %.1f s; %lu MiB free\n",
                 model_->graphs()->size(), model_->graphs()->num_nodes(),
                 absl::ToDoubleSeconds(protocol::MonotonicNow() - begin),
                 device_->properties().free_bytes >> 20);
    return absl::OkStatus();
  }

  absl::Status Run() {
    for (const int context : options_.contexts) {
      for (const int batch : options_.batches) {
        double first = 0;
        for (const int depth : options_.depths) {
          SKEIN_RETURN_IF_ERROR(RunCase(batch, context, depth, first));
        }
      }
    }
    return absl::OkStatus();
  }
  ~StepBench() {
    std::error_code error;
    fs::remove_all(dir_, error);
  }

 private:
  static int BlocksEach() { return kContextMax / kBlockTokens + 1; }

  // Every sequence with `context` computed tokens, one decided token and drafts of the head.
  protocol::StepPlan Plan(int batch, int context, int depth) {
    protocol::StepPlan plan;
    for (int i = 0; i < batch; ++i) {
      protocol::SequenceStep& step = plan.sequences.emplace_back();
      step.sequence = protocol::SequenceId(static_cast<uint64_t>(i + 1));
      step.slot = protocol::SlotId(static_cast<uint32_t>(i));
      step.fresh_slot = true;
      step.first_position = static_cast<uint32_t>(context);
      step.tokens.push_back(static_cast<int32_t>(random_() % 128'000));
      step.sample = true;
      step.mode = protocol::VerificationMode::kGreedy;
      step.draft_depth = static_cast<uint32_t>(depth);
      step.feed_drafter = depth > 0;
      for (int b = 0; b * kBlockTokens < context + depth + 1; ++b) {
        step.new_blocks.emplace_back(static_cast<uint32_t>(i * BlocksEach() + b));
      }
    }
    return plan;
  }

  // Experts per layer that the tokens of such a step choose, mean over the layers.
  absl::StatusOr<double> Touched(const protocol::StepPlan& plan, int depth) {
    std::vector<worker::SequenceDrafts> drafts(plan.sequences.size());
    for (worker::SequenceDrafts& one : drafts) {
      for (int j = 0; j < depth; ++j) {
        one.tokens.push_back(static_cast<int32_t>(random_() % 128'000));
        one.confidence.push_back(1);
      }
    }
    const worker::ModelBatch& batch = model_->input().Build(plan, drafts);
    SKEIN_RETURN_IF_ERROR(model_->input().Upload());
    SKEIN_RETURN_IF_ERROR(model_->model().Embed(batch));
    double touched = 0;
    for (int layer = 0; layer < model_->spec().num_layers; ++layer) {
      SKEIN_RETURN_IF_ERROR(model_->model().RunLayer(layer, batch));
      const TensorView chosen = model_->model().experts(layer, batch.num_rows);
      std::vector<int32_t> host(static_cast<size_t>(chosen.size()));
      SKEIN_RETURN_IF_ERROR(
          device_->CopyOut(host.data(), chosen.data, host.size() * sizeof(int32_t)));
      SKEIN_RETURN_IF_ERROR(device_->Wait());
      touched += static_cast<double>(std::set<int32_t>(host.begin(), host.end()).size());
    }
    return touched / model_->spec().num_layers;
  }

  // What the main forward must read (performance formulas): weights once, chosen experts alone.
  double BytesOf(int batch, int context, double touched) const {
    double bytes = 0;
    for (const worker::dummy::Tensor& tensor : tensors_) {
      const std::string& name = tensor.name;
      const bool layer = name.starts_with("layers.") && name.find(".experts.") == name.npos &&
                         name.find("engram.embed") == name.npos;
      if (layer || name.starts_with("head.")) bytes += static_cast<double>(tensor.bytes());
    }
    const worker::ModelSpec& spec = model_->spec();
    bytes += spec.num_layers * touched * 3.0 * spec.hidden * spec.expert_inner * kFp4Bytes;
    for (const worker::LayerSpec& layer : spec.layers) {
      double each = std::min(context, spec.window) * 528.0;
      if (layer.ratio > 0) {
        each += std::min(context / layer.ratio, spec.index_topk) * 288.0;
        if (layer.index_source) each += context / layer.ratio * 68.0;
      }
      bytes += each * batch;
    }
    return bytes;
  }

  absl::Status RunCase(int batch, int context, int depth, double& first) {
    const DecodeShape shape{batch, depth, depth > 0};
    const protocol::StepPlan plan = Plan(batch, context, depth);
    SKEIN_ASSIGN_OR_RETURN(const double touched, Touched(plan, depth));
    std::vector<worker::DraftRequest> requests;
    for (const protocol::SequenceStep& step : plan.sequences) {
      requests.push_back({.slot = static_cast<int>(step.slot.value()),
                          .position = context - 1,
                          .token = step.tokens[0],
                          .fed_from = std::max(0, context - model_->spec().window),
                          .depth = depth,
                          .mode = step.mode,
                          .sampling = step.sampling});
    }
    model_->input().BuildDecode(plan, shape);
    if (depth > 0) model_->draft()->Fill(requests, batch);
    std::vector<double> single;
    for (int i = -2; i < options_.run.reps; ++i) {
      const absl::Time begin = protocol::MonotonicNow();
      SKEIN_RETURN_IF_ERROR(model_->graphs()->Launch(shape));
      SKEIN_RETURN_IF_ERROR(device_->Wait());
      if (i >= 0) single.push_back(absl::ToDoubleMilliseconds(protocol::MonotonicNow() - begin));
    }
    const absl::Time begin = protocol::MonotonicNow();
    for (int i = 0; i < options_.run.reps; ++i) {
      SKEIN_RETURN_IF_ERROR(model_->graphs()->Launch(shape));
    }
    SKEIN_RETURN_IF_ERROR(device_->Wait());
    const double step_ms =
        absl::ToDoubleMilliseconds(protocol::MonotonicNow() - begin) / options_.run.reps;
    if (first == 0) first = step_ms;
    const double bytes = BytesOf(batch, context, touched);
    const double bound_ms = bytes / bandwidth_ * 1e3;
    using bench::JsonNumber;
    bench::PrintCase(options_.run, absl::StrCat("b", batch, "_ctx", context, "_q", 1 + depth),
                     {{"model", bench::JsonText("v4.1-17L")},
                      {"gpu", bench::JsonText(device_->properties().name)},
                      {"B", JsonNumber(batch)},
                      {"ctx", JsonNumber(context)},
                      {"q", JsonNumber(1 + depth)},
                      {"step_ms", JsonNumber(step_ms)},
                      {"step_and_wait_ms_p50", JsonNumber(bench::Percentile(single, 50))},
                      {"q_cost", JsonNumber(step_ms / first)},
                      {"copy_tbs", JsonNumber(bandwidth_ * 1e-12)},
                      {"touched", JsonNumber(touched)},
                      {"lb_ms", JsonNumber(bound_ms)},
                      {"pct_lb", JsonNumber(100 * bound_ms / step_ms)},
                      {"graph", "true"}},
                     true);
    return absl::OkStatus();
  }

  const Options& options_;
  kernels::KernelRegistry registry_;
  std::shared_ptr<kernels::Device> device_;
  std::vector<worker::dummy::Tensor> tensors_;
  std::unique_ptr<worker::LoadedModel> model_;
  fs::path dir_;
  double bandwidth_ = 0;
  std::mt19937 random_{11};
};

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "--write-model") {
    WriteModel(arguments[1]);
    return 0;
  }
  const auto options = ParseOptions(arguments);
  if (!options.ok()) {
    std::fprintf(stderr, "step_bench: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  StepBench bench(*options);
  absl::Status status = bench.Load();
  if (absl::IsFailedPrecondition(status)) {
    std::printf("skipped: %s\n", std::string(status.message()).c_str());
    return 0;
  }
  if (status.ok()) status = bench.Run();
  if (!status.ok()) std::fprintf(stderr, "step_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main({argv + 1, argv + argc}); }
