// Times operators of the Hopper backend on shapes of V4.1 and of the kernel targets, beside the
// bandwidth of a copy in the same run: one JSON line per case. Inputs are random bytes on the
// device, weights more of them than the cache holds; a time is the median over replays of a graph
// of calls. Outputs are compared with f64 on the host before timing: a case that fails prints no
// time, and the program exits with 1. Prints why it skips without a Hopper GPU.
//   sm90_bench [--reps N] [--case PREFIX] [--commit ID]
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/formats.h"
#include "kernels/kernel_registry.h"
#include "kernels/ops/gemm.h"
#include "tests/bench/sm90_timing.h"

namespace skein::kernels {
namespace {

// ---- products

constexpr int kSamples = 16;  // output channels that are checked, of some rows

// Element k of a row of codes with a scale per 32 inputs.
double Decoded(const std::vector<uint8_t>& codes, const std::vector<uint8_t>& scale, bool packed,
               size_t k) {
  const double s = double{DecodeE8m0(scale[k / 32])};
  if (packed) return s * double{DecodeE2m1(codes[k / 2] >> (k % 2 * 4) & 15)};
  return s * double{DecodeE4m3(codes[k])};
}

// One row of an output that is to be checked.
struct RowCheck {
  const uint8_t* x;
  const uint8_t* x_scale;  // null: x is bf16
  const uint8_t* y;
};

// Row error of sampled outputs of a product.
double ProductError(const RowCheck& row, const Weight& w, int n, int k, bool packed) {
  const auto width = static_cast<size_t>(k);
  const size_t bytes = packed ? width / 2 : width;
  const bool coded = row.x_scale != nullptr;
  const std::vector<uint8_t> x = Download(row.x, coded ? width : 2 * width);
  const std::vector<uint8_t> x_scale =
      coded ? Download(row.x_scale, width / 32) : std::vector<uint8_t>();
  double worst = 0, largest = 0;
  for (int i = 0; i < kSamples; ++i) {
    const auto channel = static_cast<size_t>((i * 2654435761u + 17u) % static_cast<unsigned>(n));
    const auto* codes = w.codes.as<uint8_t>() + channel * bytes;
    const auto* scales = w.scale.as<uint8_t>() + (packed ? channel : channel / 32) * (width / 32);
    const std::vector<uint8_t> row_codes = Download(codes, bytes);
    const std::vector<uint8_t> row_scale = Download(scales, width / 32);
    double sum = 0;
    for (size_t at = 0; at < width; ++at) {
      const double input =
          coded ? Decoded(x, x_scale, false, at)
                : double{DecodeBf16(static_cast<uint16_t>(x[2 * at] | x[2 * at + 1] << 8))};
      sum += input * Decoded(row_codes, row_scale, packed, at);
    }
    const std::vector<uint8_t> y = Download(row.y + channel * 2, 2);
    const double got = double{DecodeBf16(static_cast<uint16_t>(y[0] | y[1] << 8))};
    worst = got == got ? std::max(worst, std::fabs(got - sum)) : HUGE_VAL;
    largest = std::max(largest, std::fabs(sum));
  }
  return worst / largest;
}

// Assignments of tokens to experts, by expert.
struct Routing {
  std::vector<int32_t> offset, source;
  int touched = 0;
};

Routing Layout(const std::vector<std::vector<int32_t>>& rows) {
  Routing out;
  for (const std::vector<int32_t>& expert : rows) {
    out.offset.push_back(static_cast<int32_t>(out.source.size()));
    out.source.insert(out.source.end(), expert.begin(), expert.end());
    out.touched += expert.empty() ? 0 : 1;
  }
  out.offset.push_back(static_cast<int32_t>(out.source.size()));
  return out;
}

// Each token goes to `chosen` distinct experts.
Routing Route(int experts, int tokens, int chosen) {
  std::mt19937 random(static_cast<unsigned>(tokens));
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(experts));
  std::vector<size_t> all(rows.size());
  for (size_t e = 0; e < all.size(); ++e) all[e] = e;
  for (int t = 0; t < tokens; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    for (size_t j = 0; j < static_cast<size_t>(chosen); ++j) rows[all[j]].push_back(t);
  }
  return Layout(rows);
}

struct Experts {
  int count, n, k;
  uint8_t* codes;
  uint8_t* scales;
  std::vector<Weight> weights;
};

Experts MakeExperts(int count, int n, int k) {
  Experts out{count, n, k, nullptr, nullptr, {}};
  const auto elements = static_cast<size_t>(n) * static_cast<size_t>(k);
  out.codes = RandomBytes(elements / 2 * static_cast<size_t>(count));
  out.scales = RandomBytes(elements / 32 * static_cast<size_t>(count), 117);
  for (size_t e = 0; e < static_cast<size_t>(count); ++e) {
    out.weights.push_back({MakeView(out.codes + e * (elements / 2), DType::kE2m1x2, {n, k / 2}),
                           MakeView(out.scales + e * (elements / 32), DType::kE8m0, {n, k / 32})});
  }
  return out;
}

// With a second product its weights are the second half of the experts'.
void BenchExperts(Setting& setting, const std::string& name, const Experts& experts, int tokens,
                  const Routing& routing, int products = 1) {
  if (!Wanted(setting, name)) return;
  const int n = experts.n, k = experts.k, count = experts.count / products;
  const auto rows = static_cast<int64_t>(routing.source.size());
  ExpertLinear::Args args;
  args.expert_offset = MakeView(Upload(routing.offset), DType::kI32, {count + 1});
  args.source_row = MakeView(Upload(routing.source), DType::kI32, {rows});
  args.x = MakeView(RandomBytes(static_cast<size_t>(tokens * k)), DType::kE4m3, {tokens, k});
  args.x_scale = MakeView(RandomBytes(static_cast<size_t>(tokens * k / 32), 117), DType::kE8m0,
                          {tokens, k / 32});
  args.w = std::span(experts.weights).first(static_cast<size_t>(count));
  args.y = MakeView(Allocate(static_cast<size_t>(rows * n) * 2), DType::kBf16, {rows, n});
  if (products == 2) {
    args.w_second = std::span(experts.weights).last(static_cast<size_t>(count));
    args.y_second = MakeView(Allocate(static_cast<size_t>(rows * n) * 2), DType::kBf16, {rows, n});
  }
  const WeightFormat format = WeightFormat::kE2m1Row32;
  const ExpertLinear::Problem problem{
      count, n, k, format, 32, DType::kE4m3, DType::kBf16, static_cast<int>(rows)};
  const auto* variant = setting.registry.Find<ExpertLinear>("sm90");
  Check(variant->supports(problem));
  const size_t scratch = variant->workspace_bytes(problem);
  const Workspace workspace{Allocate(scratch), scratch};
  const auto call = [&](int) { Check(variant->run(problem, args, workspace, {&Stream()})); };
  Check(cudaMemset(args.y.data, 0xFF, static_cast<size_t>(rows * n) * 2));
  call(0);
  Check(cudaDeviceSynchronize());
  double error = 0;
  for (int sample = 0; sample < 4; ++sample) {
    const auto i = static_cast<size_t>((rows - 1) * sample / 3);
    size_t e = 0;
    while (routing.offset[e + 1] <= static_cast<int32_t>(i)) ++e;
    const auto source = static_cast<size_t>(routing.source[i]) * static_cast<size_t>(k);
    const RowCheck row{args.x.as<uint8_t>() + source, args.x_scale.as<uint8_t>() + source / 32,
                       args.y.as<uint8_t>() + i * static_cast<size_t>(n) * 2};
    error = std::max(error, ProductError(row, experts.weights[e], n, k, true));
  }
  const double weight = static_cast<double>(n) * k * 17 / 32;
  Measure(setting, name, error, products * routing.touched * weight, call);
}

void BenchRouted(Setting& setting, int n, int k) {
  const std::string shape = std::to_string(n) + "x" + std::to_string(k);
  if (!Wanted(setting, "experts_fp4_" + shape)) return;
  constexpr int kExperts = 384;
  const Experts experts = MakeExperts(kExperts, n, k);
  for (const int tokens : {1, 4, 16, 64, 256, 1024}) {
    BenchExperts(setting, "experts_fp4_" + shape + "_t" + std::to_string(tokens), experts, tokens,
                 Route(kExperts, tokens, 6));
  }
  Check(cudaFree(experts.codes));
  Check(cudaFree(experts.scales));
}

// The same number of rows for each of few experts.
void BenchEven(Setting& setting, int count, int n, int k) {
  const Experts experts = MakeExperts(count, n, k);
  for (const int rows : {1, 8, 16, 32, 96}) {
    std::vector<std::vector<int32_t>> all(static_cast<size_t>(count));
    for (int t = 0; t < count * rows; ++t) all[static_cast<size_t>(t % count)].push_back(t);
    BenchExperts(setting,
                 "grouped_fp4_" + std::to_string(count) + "x" + std::to_string(n) + "x" +
                     std::to_string(k) + "_m" + std::to_string(rows),
                 experts, count * rows, Layout(all));
  }
  // Gate and up of half as many.
  for (const int rows : {1, 8, 16, 32}) {
    const int half = count / 2;
    std::vector<std::vector<int32_t>> all(static_cast<size_t>(half));
    for (int t = 0; t < half * rows; ++t) all[static_cast<size_t>(t % half)].push_back(t);
    BenchExperts(setting,
                 "grouped_fp4_" + std::to_string(half) + "x2x" + std::to_string(n) + "x" +
                     std::to_string(k) + "_m" + std::to_string(rows),
                 experts, half * rows, Layout(all), 2);
  }
  Check(cudaFree(experts.codes));
  Check(cudaFree(experts.scales));
}

void BenchLinear(Setting& setting, int n, int k) {
  const std::string shape = "linear_fp8_" + std::to_string(n) + "x" + std::to_string(k);
  if (!Wanted(setting, shape)) return;
  // Copies of the weight that together exceed the cache.
  const size_t code_bytes = static_cast<size_t>(n) * static_cast<size_t>(k);
  const size_t copies = std::max<size_t>(4, (size_t{256} << 20) / code_bytes);
  uint8_t* codes = RandomBytes(code_bytes * copies);
  uint8_t* scales = RandomBytes(code_bytes / 1024 * copies, 117);
  const auto* variant = setting.registry.Find<Linear>("sm90");
  for (const int tokens : {1, 8, 16, 32, 64, 384}) {
    Linear::Args args;
    args.x = MakeView(RandomBytes(static_cast<size_t>(tokens * k)), DType::kE4m3, {tokens, k});
    args.x_scale = MakeView(RandomBytes(static_cast<size_t>(tokens * k / 32), 117), DType::kE8m0,
                            {tokens, k / 32});
    args.y = MakeView(Allocate(static_cast<size_t>(tokens * n) * 2), DType::kBf16, {tokens, n});
    const Linear::Problem problem{
        n, k, WeightFormat::kE4m3Block, 32, DType::kE4m3, DType::kBf16, false, tokens};
    Check(variant->supports(problem));
    const auto call = [&](int i) {
      const size_t copy = static_cast<size_t>(i) % copies;
      args.w.codes = MakeView(codes + copy * code_bytes, DType::kE4m3, {n, k});
      args.w.scale = MakeView(scales + copy * (code_bytes / 1024), DType::kE8m0, {n / 32, k / 32});
      Check(variant->run(problem, args, {}, {&Stream()}));
    };
    Check(cudaMemset(args.y.data, 0xFF, static_cast<size_t>(tokens * n) * 2));
    call(0);
    Check(cudaDeviceSynchronize());
    const auto last = static_cast<size_t>(tokens - 1);
    const RowCheck row{args.x.as<uint8_t>() + last * static_cast<size_t>(k),
                       args.x_scale.as<uint8_t>() + last * static_cast<size_t>(k / 32),
                       args.y.as<uint8_t>() + last * static_cast<size_t>(n) * 2};
    const double error = ProductError(row, args.w, n, k, false);
    Measure(setting, shape + "_t" + std::to_string(tokens), error,
            static_cast<double>(code_bytes) * (1 + 1.0 / 1024), call);
  }
  Check(cudaFree(codes));
  Check(cudaFree(scales));
}

// The output projection of V4.1: eight groups of 4096 inputs and 1024 outputs.
void BenchGrouped(Setting& setting) {
  constexpr int kGroups = 8, kOutputs = 1024, kInputs = 4096;
  if (!Wanted(setting, "grouped_linear_fp8_")) return;
  constexpr size_t kCodeBytes = size_t{kGroups} * kOutputs * kInputs;
  constexpr size_t kCopies = 8;
  uint8_t* codes = RandomBytes(kCodeBytes * kCopies);
  uint8_t* scales = RandomBytes(kCodeBytes / 1024 * kCopies, 117);
  const auto* variant = setting.registry.Find<GroupedLinear>("sm90");
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const int tokens : {1, 16, 64}) {
    std::vector<uint16_t> x;
    for (int i = 0; i < tokens * kGroups * kInputs; ++i) x.push_back(EncodeBf16(normal(random)));
    GroupedLinear::Args args;
    args.x = MakeView(Upload(x), DType::kBf16, {tokens, kGroups, kInputs});
    const size_t y_bytes = static_cast<size_t>(tokens) * kGroups * kOutputs * 2;
    args.y = MakeView(Allocate(y_bytes), DType::kBf16, {tokens, kGroups, kOutputs});
    const GroupedLinear::Problem problem{
        kGroups, kOutputs,     kInputs,      WeightFormat::kE4m3Block,
        32,      DType::kBf16, DType::kBf16, tokens};
    Check(variant->supports(problem));
    const auto call = [&](int i) {
      const size_t copy = static_cast<size_t>(i) % kCopies;
      args.w.codes =
          MakeView(codes + copy * kCodeBytes, DType::kE4m3, {kGroups * kOutputs, kInputs});
      args.w.scale = MakeView(scales + copy * (kCodeBytes / 1024), DType::kE8m0,
                              {kGroups * kOutputs / 32, kInputs / 32});
      Check(variant->run(problem, args, {}, {&Stream()}));
    };
    call(0);
    Check(cudaDeviceSynchronize());
    // The last group of the last row.
    const auto last = static_cast<size_t>(tokens * kGroups - 1);
    const Weight w{MakeView(codes + size_t{kGroups - 1} * kOutputs * kInputs, DType::kE4m3,
                            {kOutputs, kInputs}),
                   MakeView(scales + size_t{kGroups - 1} * kOutputs * kInputs / 1024, DType::kE8m0,
                            {kOutputs / 32, kInputs / 32})};
    const RowCheck row{args.x.as<uint8_t>() + last * kInputs * 2, nullptr,
                       args.y.as<uint8_t>() + last * kOutputs * 2};
    Measure(setting, "grouped_linear_fp8_8x1024x4096_t" + std::to_string(tokens),
            ProductError(row, w, kOutputs, kInputs, false),
            static_cast<double>(kCodeBytes) * (1 + 1.0 / 1024), call);
  }
  Check(cudaFree(codes));
  Check(cudaFree(scales));
}

int Main(int argc, char** argv) {
  int reps = 15;
  std::string prefix, commit;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--reps") == 0) {
      reps = std::max(1, static_cast<int>(std::strtol(argv[i + 1], nullptr, 10)));
    } else if (std::strcmp(argv[i], "--case") == 0) {
      prefix = argv[i + 1];
    } else if (std::strcmp(argv[i], "--commit") == 0) {
      commit = argv[i + 1];
    }
  }
  int devices = 0;
  cudaDeviceProp properties{};
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 ||
      cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9) {
    std::printf("skipped: there is no Hopper GPU here\n");
    return 0;
  }
  KernelRegistry registry;
  Check(RegisterSm90Kernels(registry));
  Setting setting{registry, reps, prefix};
  setting.copy_gbs = CopyBandwidth();
  char date[16] = {};
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
  std::printf(
      "{\"bench\":\"sm90_bench\",\"device\":\"%s\",\"date\":\"%s\",\"commit\":\"%s\","
      "\"copy_gbs\":%.0f,\"reps\":%d}\n",
      properties.name, date, commit.c_str(), setting.copy_gbs, reps);
  BenchEven(setting, 32, 4096, 4096);
  BenchRouted(setting, 2304, 5120);
  BenchRouted(setting, 5120, 2304);
  for (const auto& [n, k] :
       {std::pair{32768, 1024}, std::pair{4096, 8192}, std::pair{1024, 4096}, std::pair{1280, 5120},
        std::pair{32768, 1280}, std::pair{5120, 8192}}) {
    BenchLinear(setting, n, k);
  }
  BenchGrouped(setting);
  for (const int batch : {1, 16, 30, 64, 256}) BenchAttention(setting, batch);
  return setting.failed ? 1 : 0;
}

}  // namespace
}  // namespace skein::kernels

int main(int argc, char** argv) { return skein::kernels::Main(argc, argv); }
