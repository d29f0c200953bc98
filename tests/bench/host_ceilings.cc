#include "tests/bench/host_ceilings.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace skein::tests {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr size_t kBufferBytes = size_t{1} << 30;
constexpr int64_t kParts = 256;

// Sums 64-bit words so that every byte must arrive.
uint64_t ReadPart(const uint64_t* from, size_t words) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i + 8 <= words; i += 8) {
    for (size_t j = 0; j < 8; ++j) sum[j] += from[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t part : sum) total += part;
  return total;
}

constexpr int64_t kRounds = 1 << 22;
constexpr int kChains = 12;

// Each returns something of every chain; `width` lanes a chain.
float ScalarChains() {
  float sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = static_cast<float>(i);
  for (int64_t round = 0; round < kRounds / 64; ++round) {
    for (float& chain : sum) chain = std::fma(chain, 0.5f, 1.0f);
  }
  float total = 0;
  for (const float chain : sum) total += chain;
  return total;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float Avx2Chains() {
  __m256 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 half = _mm256_set1_ps(0.5f);
  const __m256 one = _mm256_set1_ps(1.0f);
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm256_fmadd_ps(sum[i], half, one);
  }
  float total = 0;
  for (const __m256& chain : sum) total += _mm256_cvtss_f32(chain);
  return total;
}

__attribute__((target("avx512f"))) float Avx512Chains() {
  __m512 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 half = _mm512_set1_ps(0.5f);
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_fmadd_ps(sum[i], half, one);
  }
  float total = 0;
  for (const __m512& chain : sum) total += _mm512_cvtss_f32(chain);
  return total;
}
#endif

}  // namespace

double ReadBandwidth(kernels::cpu::ThreadPool& pool, int reps) {
  std::vector<uint64_t> buffer(kBufferBytes / sizeof(uint64_t));
  const size_t part = buffer.size() / kParts;
  pool.ParallelFor(kParts, [&](int64_t task, int) {
    std::memset(buffer.data() + static_cast<size_t>(task) * part, 1, part * sizeof(uint64_t));
  });
  std::vector<uint64_t> sums(kParts);
  double best = 0;
  for (int rep = 0; rep < reps; ++rep) {
    const Clock::time_point begin = Clock::now();
    pool.ParallelFor(kParts, [&](int64_t task, int) {
      sums[static_cast<size_t>(task)] =
          ReadPart(buffer.data() + static_cast<size_t>(task) * part, part);
    });
    best = std::max(best, static_cast<double>(kBufferBytes) / Seconds(begin));
  }
  // Used, so that it cannot be dropped.
  return sums[0] == 0 ? 0 : best;
}

double DotPeak(kernels::cpu::ThreadPool& pool, kernels::CpuIsa isa) {
  float (*chains)() = &ScalarChains;
  double flops = 2.0 * kChains * static_cast<double>(kRounds / 64);
#if defined(__x86_64__)
  if (isa == kernels::CpuIsa::kAvx2) chains = &Avx2Chains;
  if (isa == kernels::CpuIsa::kAvx512) chains = &Avx512Chains;
  if (isa != kernels::CpuIsa::kScalar) {
    const double lanes = isa == kernels::CpuIsa::kAvx2 ? 8 : 16;
    flops = 2.0 * kChains * lanes * static_cast<double>(kRounds);
  }
#endif
  std::vector<float> out(static_cast<size_t>(pool.threads()));
  double best = 0;
  for (int rep = 0; rep < 5; ++rep) {
    const Clock::time_point begin = Clock::now();
    const int64_t tasks = int64_t{pool.threads()} * 4;
    pool.ParallelFor(tasks,
                     [&](int64_t, int thread) { out[static_cast<size_t>(thread)] = chains(); });
    best = std::max(best, flops * static_cast<double>(tasks) / Seconds(begin));
  }
  return std::isfinite(out[0]) ? best : 0;
}

}  // namespace skein::tests
