#include "tests/bench/sm90_timing.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace skein::kernels {
namespace {

constexpr int kCalls = 20;  // of a graph
constexpr double kRowError = 0x1p-7;
}  // namespace

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

uint8_t* Allocate(size_t bytes) {
  void* data = nullptr;
  Check(cudaMalloc(&data, bytes));
  return static_cast<uint8_t*>(data);
}

uint8_t* RandomBytes(size_t bytes, int centre) {
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

namespace {

// Median time of one call in microseconds.
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

}  // namespace

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

void Measure(Setting& setting, const std::string& name, double error, double bytes,
             const std::function<void(int)>& call, double product_us) {
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

std::vector<uint8_t> Download(const uint8_t* data, size_t bytes) {
  std::vector<uint8_t> out(bytes);
  Check(cudaMemcpy(out.data(), data, bytes, cudaMemcpyDeviceToHost));
  return out;
}

}  // namespace skein::kernels
