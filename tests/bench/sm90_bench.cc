// Times operators of the Hopper backend on shapes of V4.1, beside the bandwidth of a copy in the
// same run: one JSON line per case. Weights are random bytes on the device, more of them than the
// cache holds; medians over events. Prints why it skips without a Hopper GPU.
//   sm90_bench [--reps N]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/kernel_registry.h"
#include "kernels/ops/gemm.h"
#include "kernels/sm90/register.h"

namespace skein::kernels {
namespace {

constexpr int kExperts = 384;
constexpr int kChosen = 6;

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

// Median time of one call in microseconds, after three that are not counted.
double Time(int reps, const std::function<void(int)>& call) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = -3; i < reps; ++i) {
    Check(cudaEventRecord(begin));
    call(i + 3);
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 0) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + reps / 2, times.end());
  return times[static_cast<size_t>(reps / 2)] * 1e3;
}

struct Setting {
  const KernelRegistry& registry;
  double copy_gbs;
  int reps;
};

void Print(const Setting& setting, const std::string& name, double us, double bytes) {
  const double gbs = bytes / us * 1e-3;
  std::printf(
      "{\"bench\":\"sm90_bench\",\"case\":\"%s\",\"us_median\":%.2f,\"bytes\":%.0f,"
      "\"gbs\":%.0f,\"copy_gbs\":%.0f,\"pct_of_copy\":%.1f}\n",
      name.c_str(), us, bytes, gbs, setting.copy_gbs, 100 * gbs / setting.copy_gbs);
  std::fflush(stdout);
}

// Bytes read plus bytes written per second by a large copy on the device.
double CopyBandwidth(int reps) {
  constexpr size_t kBytes = size_t{2} << 30;
  uint8_t* from = Allocate(kBytes);
  uint8_t* to = Allocate(kBytes);
  const double us =
      Time(reps, [&](int) { Check(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice)); });
  Check(cudaFree(from));
  Check(cudaFree(to));
  return 2.0 * kBytes / us * 1e-3;
}

// Assignments of `tokens` tokens to six distinct experts each, by expert.
struct Routing {
  std::vector<int32_t> offset, source;
  int touched = 0;
};

Routing Route(int tokens) {
  std::mt19937 random(static_cast<unsigned>(tokens));
  std::vector<std::vector<int32_t>> rows(kExperts);
  for (int t = 0; t < tokens; ++t) {
    std::vector<int> all(kExperts);
    for (int e = 0; e < kExperts; ++e) all[static_cast<size_t>(e)] = e;
    std::shuffle(all.begin(), all.end(), random);
    for (int j = 0; j < kChosen; ++j)
      rows[static_cast<size_t>(all[static_cast<size_t>(j)])].push_back(t);
  }
  Routing out;
  for (const std::vector<int32_t>& expert : rows) {
    out.offset.push_back(static_cast<int32_t>(out.source.size()));
    out.source.insert(out.source.end(), expert.begin(), expert.end());
    out.touched += expert.empty() ? 0 : 1;
  }
  out.offset.push_back(static_cast<int32_t>(out.source.size()));
  return out;
}

void BenchExperts(const Setting& setting, int n, int k, WeightFormat format) {
  const bool packed = format == WeightFormat::kE2m1Row32;
  const size_t code_bytes = static_cast<size_t>(n) * static_cast<size_t>(packed ? k / 2 : k);
  const int64_t scale_rows = packed ? n : n / 32;
  const size_t scale_bytes = static_cast<size_t>(scale_rows) * static_cast<size_t>(k / 32);
  uint8_t* codes = RandomBytes(code_bytes * kExperts);
  uint8_t* scales = RandomBytes(scale_bytes * kExperts, 117);
  std::vector<Weight> weights;
  for (size_t e = 0; e < kExperts; ++e) {
    weights.push_back({MakeView(codes + e * code_bytes, packed ? DType::kE2m1x2 : DType::kE4m3,
                                {n, packed ? k / 2 : k}),
                       MakeView(scales + e * scale_bytes, DType::kE8m0, {scale_rows, k / 32})});
  }
  const auto* variant = setting.registry.Find<ExpertLinear>("sm90");
  for (const int tokens : {1, 4, 16, 64, 256, 1024}) {
    const Routing routing = Route(tokens);
    const auto rows = static_cast<int64_t>(routing.source.size());
    ExpertLinear::Args args;
    args.expert_offset = MakeView(Upload(routing.offset), DType::kI32, {kExperts + 1});
    args.source_row = MakeView(Upload(routing.source), DType::kI32, {rows});
    args.x = MakeView(RandomBytes(static_cast<size_t>(tokens * k)), DType::kE4m3, {tokens, k});
    args.x_scale = MakeView(RandomBytes(static_cast<size_t>(tokens * k / 32), 117), DType::kE8m0,
                            {tokens, k / 32});
    args.w = weights;
    args.y = MakeView(Allocate(static_cast<size_t>(rows * n) * 2), DType::kBf16, {rows, n});
    const ExpertLinear::Problem problem{
        kExperts, n, k, format, 32, DType::kE4m3, DType::kBf16, static_cast<int>(rows)};
    Check(variant->supports(problem));
    const double us = Time(setting.reps, [&](int) { Check(variant->run(problem, args, {}, {})); });
    const double bytes = routing.touched * static_cast<double>(code_bytes + scale_bytes);
    Print(setting,
          std::string(packed ? "experts_fp4_" : "experts_fp8_") + std::to_string(n) + "x" +
              std::to_string(k) + "_t" + std::to_string(tokens),
          us, bytes);
  }
  Check(cudaFree(codes));
  Check(cudaFree(scales));
}

void BenchLinear(const Setting& setting, int n, int k) {
  // Copies of the weight that together exceed the cache.
  const size_t code_bytes = static_cast<size_t>(n) * static_cast<size_t>(k);
  const int copies = std::max<int>(1, static_cast<int>((size_t{256} << 20) / code_bytes));
  uint8_t* codes = RandomBytes(code_bytes * static_cast<size_t>(copies));
  uint8_t* scales = RandomBytes(code_bytes / 1024 * static_cast<size_t>(copies), 117);
  const auto* variant = setting.registry.Find<Linear>("sm90");
  for (const int tokens : {1, 16, 64}) {
    Linear::Args args;
    args.x = MakeView(RandomBytes(static_cast<size_t>(tokens * k)), DType::kE4m3, {tokens, k});
    args.x_scale = MakeView(RandomBytes(static_cast<size_t>(tokens * k / 32), 117), DType::kE8m0,
                            {tokens, k / 32});
    args.y = MakeView(Allocate(static_cast<size_t>(tokens * n) * 2), DType::kBf16, {tokens, n});
    const Linear::Problem problem{
        n, k, WeightFormat::kE4m3Block, 32, DType::kE4m3, DType::kBf16, false, tokens};
    Check(variant->supports(problem));
    const double us = Time(setting.reps, [&](int i) {
      const auto copy = static_cast<size_t>(i % copies);
      args.w.codes = MakeView(codes + copy * code_bytes, DType::kE4m3, {n, k});
      args.w.scale = MakeView(scales + copy * (code_bytes / 1024), DType::kE8m0, {n / 32, k / 32});
      Check(variant->run(problem, args, {}, {}));
    });
    Print(
        setting,
        "linear_fp8_" + std::to_string(n) + "x" + std::to_string(k) + "_t" + std::to_string(tokens),
        us, static_cast<double>(code_bytes) * (1 + 1.0 / 1024));
  }
  Check(cudaFree(codes));
  Check(cudaFree(scales));
}

int Main(int argc, char** argv) {
  int reps = 30;
  if (argc == 3 && std::strcmp(argv[1], "--reps") == 0) {
    reps = std::max(1, static_cast<int>(std::strtol(argv[2], nullptr, 10)));
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: sm90_bench [--reps N]\n");
    return 64;
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
  const Setting setting{registry, CopyBandwidth(10), reps};
  std::printf("{\"bench\":\"sm90_bench\",\"device\":\"%s\",\"copy_gbs\":%.0f}\n", properties.name,
              setting.copy_gbs);
  BenchExperts(setting, 2304, 5120, WeightFormat::kE2m1Row32);
  BenchExperts(setting, 5120, 2304, WeightFormat::kE2m1Row32);
  for (const auto& [n, k] :
       {std::pair{1280, 5120}, std::pair{32768, 1280}, std::pair{5120, 8192}}) {
    BenchLinear(setting, n, k);
  }
  return 0;
}

}  // namespace
}  // namespace skein::kernels

int main(int argc, char** argv) { return skein::kernels::Main(argc, argv); }
