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
#include "kernels/ops/attention.h"
#include "kernels/ops/gemm.h"
#include "kernels/sm90/register.h"

namespace skein::kernels {
namespace {

constexpr int kCalls = 20;  // of a graph
constexpr double kRowError = 0x1p-7;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "sm90_bench: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "sm90_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

// Device memory until the end of the program.
uint8_t* Allocate(size_t bytes) {
  void* data = nullptr;
  Check(cudaMalloc(&data, bytes));
  return static_cast<uint8_t*>(data);
}

// Random bytes, or bytes around `centre` if it is given.
uint8_t* RandomBytes(size_t bytes, int centre = -1) {
  static std::mt19937_64 random(1);
  constexpr size_t kPiece = size_t{16} << 20;
  std::vector<uint8_t> piece(std::min(bytes, kPiece));
  for (uint8_t& byte : piece) {
    const auto value = static_cast<uint8_t>(random());
    byte = centre >= 0 ? static_cast<uint8_t>(centre + value % 5)
                       : static_cast<uint8_t>((value & 0x7F) == 0x7F ? 0x21 : value);
  }
  uint8_t* data = Allocate(bytes);
  for (size_t at = 0; at < bytes; at += piece.size()) {
    Check(cudaMemcpy(data + at, piece.data(), std::min(piece.size(), bytes - at),
                     cudaMemcpyHostToDevice));
  }
  return data;
}

template <typename T>
T* Upload(const std::vector<T>& values) {
  auto* data = reinterpret_cast<T*>(Allocate(values.size() * sizeof(T)));
  Check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

struct Setting {
  const KernelRegistry& registry;
  int reps;
  std::string prefix;
  double copy_gbs = 0;
  bool failed = false;
};

// The stream of all calls: graphs are captured on it.
Sm90Stream& Stream() {
  static Sm90Stream stream = [] {
    cudaStream_t created;
    Check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking));
    Sm90Stream out;
    out.stream = created;
    return out;
  }();
  return stream;
}

// Median time of one call in microseconds. Call i of the graph gets i.
double Time(int reps, const std::function<void(int)>& call) {
  const auto stream = static_cast<cudaStream_t>(Stream().stream);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < kCalls; ++i) call(i);
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&replay, graph, 0));
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = -2; i < reps; ++i) {
    Check(cudaEventRecord(begin, stream));
    Check(cudaGraphLaunch(replay, stream));
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 0) times.push_back(ms);
  }
  Check(cudaGraphExecDestroy(replay));
  Check(cudaGraphDestroy(graph));
  std::nth_element(times.begin(), times.begin() + reps / 2, times.end());
  return times[static_cast<size_t>(reps / 2)] * 1e3 / kCalls;
}

// Bytes read plus bytes written per second by a large copy on the device.
double CopyBandwidth() {
  constexpr size_t kBytes = size_t{2} << 30;
  uint8_t* from = Allocate(kBytes);
  uint8_t* to = Allocate(kBytes);
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  float best = HUGE_VALF;
  for (int i = 0; i < 10; ++i) {
    Check(cudaEventRecord(begin));
    Check(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice));
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    best = std::min(best, ms);
  }
  Check(cudaFree(from));
  Check(cudaFree(to));
  return 2.0 * kBytes / best * 1e-6;
}

bool Wanted(const Setting& setting, const std::string& name) {
  return name.starts_with(setting.prefix);
}

// Times a call whose output has a row error of `error`. The floor is that of its bytes, or what the
// caller knows of its products.
void Measure(Setting& setting, const std::string& name, double error, double bytes,
             const std::function<void(int)>& call, double product_us = 0) {
  if (!(error <= kRowError)) {
    std::fprintf(stderr, "sm90_bench: %s: row error %g\n", name.c_str(), error);
    setting.failed = true;
    return;
  }
  const double us = Time(setting.reps, call);
  const double floor = std::max(bytes / setting.copy_gbs * 1e-3, product_us);
  std::printf(
      "{\"bench\":\"sm90_bench\",\"case\":\"%s\",\"us_median\":%.2f,\"bytes\":%.0f,"
      "\"floor_us\":%.2f,\"pct\":%.1f,\"error\":%.2g,\"tolerance\":%.2g}\n",
      name.c_str(), us, bytes, floor, 100 * floor / us, error, kRowError);
  std::fflush(stdout);
}

// ---- products

constexpr int kSamples = 16;  // output channels that are checked, of some rows

std::vector<uint8_t> Download(const uint8_t* data, size_t bytes) {
  std::vector<uint8_t> out(bytes);
  Check(cudaMemcpy(out.data(), data, bytes, cudaMemcpyDeviceToHost));
  return out;
}

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

void BenchExperts(Setting& setting, const std::string& name, const Experts& experts, int tokens,
                  const Routing& routing) {
  if (!Wanted(setting, name)) return;
  const int n = experts.n, k = experts.k;
  const auto rows = static_cast<int64_t>(routing.source.size());
  ExpertLinear::Args args;
  args.expert_offset = MakeView(Upload(routing.offset), DType::kI32, {experts.count + 1});
  args.source_row = MakeView(Upload(routing.source), DType::kI32, {rows});
  args.x = MakeView(RandomBytes(static_cast<size_t>(tokens * k)), DType::kE4m3, {tokens, k});
  args.x_scale = MakeView(RandomBytes(static_cast<size_t>(tokens * k / 32), 117), DType::kE8m0,
                          {tokens, k / 32});
  args.w = experts.weights;
  args.y = MakeView(Allocate(static_cast<size_t>(rows * n) * 2), DType::kBf16, {rows, n});
  const WeightFormat format = WeightFormat::kE2m1Row32;
  const ExpertLinear::Problem problem{
      experts.count, n, k, format, 32, DType::kE4m3, DType::kBf16, static_cast<int>(rows)};
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
  Measure(setting, name, error, routing.touched * weight, call);
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
  for (const int tokens : {1, 8, 16, 32, 64}) {
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

// ---- attention

constexpr int kHeads = 64, kDim = 512, kWindow = 128, kSelected = 512, kBlockTokens = 256;
constexpr double kBf16Flops = 795e12;  // measured on this chip: spec/performance.md section 2

struct Pools {
  KvPool fresh, ring, history;
  std::vector<uint8_t> ring_bytes, history_bytes;
};

// Pages of codes, then scales around `centre`.
KvPool MakePool(KvFormat format, int64_t rows, int64_t page_rows, int centre,
                std::vector<uint8_t>& bytes) {
  static std::mt19937 random(5);
  const int64_t data = KvDataBytes(format, kDim), scale = KvScaleBytes(format, kDim);
  const int64_t page = page_rows * (data + scale);
  bytes.resize(static_cast<size_t>(rows / page_rows * page));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto value = static_cast<uint8_t>(random());
    const bool is_scale = static_cast<int64_t>(i) % page >= page_rows * data;
    bytes[i] = is_scale ? static_cast<uint8_t>(centre + value % 4)
                        : static_cast<uint8_t>((value & 0x7F) == 0x7F ? 0x30 : value);
  }
  return {Upload(bytes), format, kDim, page_rows, page, rows};
}

// Element c of a row of a pool.
double PoolElement(const KvPool& pool, const std::vector<uint8_t>& bytes, int64_t row, int c) {
  const int64_t data = KvDataBytes(pool.format, kDim), scale = KvScaleBytes(pool.format, kDim);
  const int64_t page = row / pool.page_rows * pool.page_bytes;
  const int64_t at = page + row % pool.page_rows * data;
  const int64_t scales = page + pool.page_rows * data + row % pool.page_rows * scale;
  if (pool.format == KvFormat::kFp8Group32) {
    return double{DecodeE4m3(bytes[static_cast<size_t>(at + c)])} *
           double{DecodeE8m0(bytes[static_cast<size_t>(scales + c / 32)])};
  }
  return double{DecodeE2m1(bytes[static_cast<size_t>(at + c / 2)] >> (c % 2 * 4) & 15)} *
         double{DecodeE4m3(bytes[static_cast<size_t>(scales + c / 16)])};
}

// Row error of one head of one row; `rows` are pool rows of the ring, then of the history.
double AttentionError(const Pools& pools, const SparseAttention::Args& args, int64_t t, int head,
                      const std::vector<int64_t>& ring, const std::vector<int64_t>& history) {
  const auto at = static_cast<size_t>((t * kHeads + head) * kDim);
  const auto q = Download(args.q.as<uint8_t>() + at * 2, kDim * 2);
  const auto out = Download(args.out.as<uint8_t>() + at * 2, kDim * 2);
  const auto half = [](const std::vector<uint8_t>& data, int c) {
    const auto i = static_cast<size_t>(c) * 2;
    return double{DecodeBf16(static_cast<uint16_t>(data[i] | data[i + 1] << 8))};
  };
  std::vector<std::vector<double>> places;
  for (const int64_t row : ring) {
    places.emplace_back();
    for (int c = 0; c < kDim; ++c) {
      places.back().push_back(PoolElement(pools.ring, pools.ring_bytes, row, c));
    }
  }
  for (const int64_t row : history) {
    places.emplace_back();
    for (int c = 0; c < kDim; ++c) {
      places.back().push_back(PoolElement(pools.history, pools.history_bytes, row, c));
    }
  }
  double total = 1;  // of a sink of 0
  std::vector<double> sum(kDim);
  for (const std::vector<double>& place : places) {
    double dot = 0;
    for (int c = 0; c < kDim; ++c) dot += half(q, c) * place[static_cast<size_t>(c)];
    const double weight = std::exp(dot * double{args.scale});
    total += weight;
    for (size_t c = 0; c < kDim; ++c) sum[c] += weight * place[c];
  }
  double worst = 0, largest = 0;
  for (int c = 0; c < kDim; ++c) {
    const double wanted = sum[static_cast<size_t>(c)] / total;
    const double got = half(out, c);
    worst = got == got ? std::max(worst, std::fabs(got - wanted)) : HUGE_VAL;
    largest = std::max(largest, std::fabs(wanted));
  }
  return worst / largest;
}

template <typename T>
TensorView Ints(const std::vector<T>& values, int64_t columns = 0) {
  const auto count = static_cast<int64_t>(values.size());
  T* data = Upload(values);
  return columns == 0 ? MakeView(data, DType::kI32, {count})
                      : MakeView(data, DType::kI32, {count / columns, columns});
}

void BenchAttention(Setting& setting, int batch) {
  const std::string name = "attention_64x512_128_512_b" + std::to_string(batch);
  if (!Wanted(setting, name)) return;
  constexpr int kBlocksEach = 32;  // 8,192 tokens, half as many rows
  constexpr int kRowsEach = kBlocksEach * kBlockTokens / 2;
  std::mt19937 random(static_cast<unsigned>(batch));
  std::normal_distribution<float> normal;
  Pools pools;
  pools.ring =
      MakePool(KvFormat::kFp8Group32, int64_t{batch} * kWindow, kWindow, 117, pools.ring_bytes);
  pools.history = MakePool(KvFormat::kFp4Group16, int64_t{batch} * kRowsEach, kBlockTokens / 2,
                           0x20, pools.history_bytes);
  std::vector<int32_t> ids, position, begin, end, table, selected;
  std::vector<uint16_t> q;
  for (int t = 0; t < batch; ++t) {
    ids.push_back(t);
    position.push_back(2 * kRowsEach - 1);
    begin.push_back(2 * kRowsEach - kWindow);
    end.push_back(2 * kRowsEach);
    for (int b = 0; b < kBlocksEach; ++b) table.push_back(t * kBlocksEach + b);
    std::vector<int32_t> all(kRowsEach);
    for (int i = 0; i < kRowsEach; ++i) all[static_cast<size_t>(i)] = i;
    std::shuffle(all.begin(), all.end(), random);
    std::sort(all.begin(), all.begin() + kSelected);
    selected.insert(selected.end(), all.begin(), all.begin() + kSelected);
  }
  for (int i = 0; i < batch * kHeads * kDim; ++i) q.push_back(EncodeBf16(normal(random)));
  SparseAttention::Args args;
  args.rows = {Ints(position), Ints(ids),
               Ints(ids),      Ints(std::vector<int32_t>(ids.size(), 1 << 30)),
               Ints(ids),      Ints(table, kBlocksEach),
               kBlockTokens};
  args.q = MakeView(Upload(q), DType::kBf16, {batch, kHeads, kDim});
  args.window_begin = Ints(begin);
  args.window_end = Ints(end);
  pools.fresh = pools.ring;
  args.fresh = pools.fresh;
  args.ring = pools.ring;
  args.ring_rows = kWindow;
  args.selected = Ints(selected, kSelected);
  args.history = pools.history;
  args.sink = MakeView(Upload(std::vector<float>(kHeads, 0.0f)), DType::kF32, {kHeads});
  args.out = MakeView(Allocate(q.size() * 2), DType::kBf16, {batch, kHeads, kDim});
  args.scale = 0.02f;
  const SparseAttention::Problem problem{
      kHeads,       kDim, kWindow, kSelected, 2, KvFormat::kFp8Group32, KvFormat::kFp4Group16,
      DType::kBf16, batch};
  const auto* variant = setting.registry.Find<SparseAttention>("sm90");
  Check(variant->supports(problem));
  const auto call = [&](int) { Check(variant->run(problem, args, {}, {&Stream()})); };
  call(0);
  Check(cudaDeviceSynchronize());
  const int t = batch - 1;
  std::vector<int64_t> ring, history;
  for (int i = 0; i < kWindow; ++i) ring.push_back(t * kWindow + i);
  for (int i = 0; i < kSelected; ++i) {
    history.push_back(int64_t{t} * kRowsEach + selected[static_cast<size_t>(t * kSelected + i)]);
  }
  const double error = AttentionError(pools, args, t, 5, ring, history);
  const double places = kWindow + kSelected;
  Measure(setting, name, error, batch * (kWindow * 528.0 + kSelected * 288.0), call,
          4e6 * batch * places * kHeads * kDim / kBf16Flops);
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
  for (const int batch : {1, 16, 64, 256}) BenchAttention(setting, batch);
  return setting.failed ? 1 : 0;
}

}  // namespace
}  // namespace skein::kernels

int main(int argc, char** argv) { return skein::kernels::Main(argc, argv); }
