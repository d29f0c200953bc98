// The attention part of sm90_bench: one query a sequence, window and selected rows of random bytes.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/formats.h"
#include "kernels/ops/attention.h"
#include "tests/bench/sm90_timing.h"

namespace skein::kernels {
namespace {

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

// kSelected of `count` rows, ascending.
std::vector<int32_t> SomeRows(int count, std::mt19937& random) {
  std::vector<int32_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(kSelected);
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

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
    const std::vector<int32_t> some = SomeRows(kRowsEach, random);
    selected.insert(selected.end(), some.begin(), some.end());
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

}  // namespace skein::kernels
