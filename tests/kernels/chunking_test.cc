// A sequence in one step, in chunks, or row by row: attention, pooling and index scores give the
// same bits, whether an earlier token is read from this step or from the ring.
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/cpu/register.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/compressor.h"
#include "kernels/reference/register.h"
#include "tests/kernels/pools.h"

namespace skein::kernels {
namespace {

constexpr int kTokens = 12;
constexpr int kRing = 7;
constexpr int kSlot = 2;

class Chunking : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(RegisterReferenceKernels(registry_).ok());
    ASSERT_TRUE(RegisterCpuKernels(registry_, CpuIsa::kAuto).ok());
  }
  KernelRegistry registry_;
};

INSTANTIATE_TEST_SUITE_P(Backends, Chunking, ::testing::Values("cpu", "reference"),
                         [](const auto& backend) { return backend.param; });

// The integers of a step of `count` rows of one sequence from position `first` on.
struct StepIntegers {
  StepIntegers(int32_t first, int32_t count) {
    for (int32_t r = 0; r < count; ++r) {
      position.push_back(first + r);
      sequence.push_back(0);
    }
    first_position = {first};
    rows.position = MakeView(position.data(), DType::kI32, {count});
    rows.sequence = MakeView(sequence.data(), DType::kI32, {count});
    rows.first_row = MakeView(first_row.data(), DType::kI32, {1});
    rows.first_position = MakeView(first_position.data(), DType::kI32, {1});
    rows.slot = MakeView(slot.data(), DType::kI32, {1});
  }
  StepIntegers(const StepIntegers&) = delete;
  std::vector<int32_t> position, sequence, first_position;
  std::vector<int32_t> first_row = {0};
  std::vector<int32_t> slot = {kSlot};
  StepRows rows;
};

// Bytes of token t in a pool of single-row pages.
std::vector<uint8_t> TokenRow(KvFormat format, int dim, int token) {
  std::vector<uint8_t> bytes;
  TestRandom random(55, static_cast<uint32_t>(token));
  for (int64_t at = 0; at < KvRowBytes(format, dim); ++at) {
    bytes.push_back(PoolByte(format, dim, 1, at, random));
  }
  return bytes;
}

// Runs `step(first, count, fresh rows, ring)` over all tokens in chunks and collects its outputs.
template <typename Step>
std::vector<uint16_t> InChunks(KvFormat format, int dim, int chunk, const Step& step) {
  const int64_t row_bytes = KvRowBytes(format, dim);
  std::vector<uint8_t> ring(static_cast<size_t>(row_bytes * kRing * (kSlot + 1)), 0xFF);
  std::vector<uint16_t> all;
  for (int first = 0; first < kTokens; first += chunk) {
    const int count = std::min(chunk, kTokens - first);
    std::vector<uint8_t> fresh;
    for (int t = first; t < first + count; ++t) {
      const std::vector<uint8_t> row = TokenRow(format, dim, t);
      fresh.insert(fresh.end(), row.begin(), row.end());
    }
    const KvPool ring_pool{ring.data(), format, dim, 1, row_bytes, kRing * (kSlot + 1)};
    const std::vector<uint16_t> out = step(first, count, fresh, ring_pool);
    all.insert(all.end(), out.begin(), out.end());
    for (int t = first; t < first + count; ++t) {
      const std::vector<uint8_t> row = TokenRow(format, dim, t);
      std::copy(row.begin(), row.end(), ring.begin() + row_bytes * (kSlot * kRing + t % kRing));
    }
  }
  return all;
}

TEST_P(Chunking, AttentionReadsRingAndStepAlike) {
  constexpr int kHeads = 3;
  constexpr int kDim = 64;
  constexpr int kWindow = 5;
  const KvFormat format = KvFormat::kFp8Group32;
  const auto step = [&](int first, int count, std::vector<uint8_t>& fresh, const KvPool& ring) {
    const StepIntegers step_rows(first, count);
    std::vector<uint16_t> q, out(static_cast<size_t>(count * kHeads * kDim));
    std::vector<int32_t> begin, end;
    for (int t = first; t < first + count; ++t) {
      TestRandom random(3, static_cast<uint32_t>(t));
      for (int i = 0; i < kHeads * kDim; ++i) q.push_back(EncodeBf16(random.Bell()));
      begin.push_back(std::max(0, t + 1 - kWindow));
      end.push_back(t + 1);
    }
    const std::vector<float> sink = {0.5f, -1, 2};
    SparseAttention::Args args;
    args.rows = step_rows.rows;
    args.q = MakeView(q.data(), DType::kBf16, {count, kHeads, kDim});
    args.out = MakeView(out.data(), DType::kBf16, {count, kHeads, kDim});
    args.window_begin = MakeView(begin.data(), DType::kI32, {count});
    args.window_end = MakeView(end.data(), DType::kI32, {count});
    args.fresh = {fresh.data(), format, kDim, 1, KvRowBytes(format, kDim), count};
    args.ring = ring;
    args.ring_rows = kRing;
    args.sink = MakeView(sink.data(), DType::kF32, {kHeads});
    args.scale = 0.1f;
    const SparseAttention::Problem problem{kHeads, kDim,   kWindow,      0,    1,
                                           format, format, DType::kBf16, count};
    const auto* variant = registry_.Find<SparseAttention>(GetParam());
    TestWorkspace workspace(variant->workspace_bytes(problem));
    const absl::Status status = variant->run(problem, args, workspace.get(), {});
    EXPECT_TRUE(status.ok()) << status;
    return out;
  };
  const std::vector<uint16_t> whole = InChunks(format, kDim, kTokens, step);
  for (const int chunk : {1, 2, 5}) EXPECT_EQ(InChunks(format, kDim, chunk, step), whole) << chunk;
}

TEST_P(Chunking, CompressReadsRingAndStepAlike) {
  constexpr int kDim = 40;
  const auto step = [&](int first, int count, std::vector<uint8_t>& fresh, const KvPool& ring) {
    const StepIntegers step_rows(first, count);
    std::vector<int32_t> group_row;
    for (int r = 0; r < count; ++r) {
      if ((first + r + 1) % 4 == 0) group_row.push_back(r);
    }
    const int64_t groups = static_cast<int64_t>(group_row.size());
    std::vector<uint16_t> latent(static_cast<size_t>(groups * kDim));
    Compress::Args args;
    args.rows = step_rows.rows;
    args.fresh = MakeView(fresh.data(), DType::kF32, {count, 2 * kDim});
    args.ring = ring;
    args.ring_rows = kRing;
    args.group_row = MakeView(group_row.data(), DType::kI32, {groups});
    args.latent = MakeView(latent.data(), DType::kBf16, {groups, kDim});
    const absl::Status status = registry_.Find<Compress>(GetParam())
                                    ->run({kDim, 4, DType::kF32, DType::kBf16}, args, {}, {});
    EXPECT_TRUE(status.ok()) << status;
    return latent;
  };
  const std::vector<uint16_t> whole = InChunks(KvFormat::kF32, 2 * kDim, kTokens, step);
  EXPECT_EQ(whole.size(), 3u * kDim);
  for (const int chunk : {1, 3, 5}) {
    EXPECT_EQ(InChunks(KvFormat::kF32, 2 * kDim, chunk, step), whole) << chunk;
  }
}

// The reference has no bound on the window.
TEST(CpuChunking, AWindowLargerThanTheProblemIsRefused) {
  KernelRegistry registry;
  ASSERT_TRUE(RegisterCpuKernels(registry, CpuIsa::kAuto).ok());
  const StepIntegers step_rows(9, 1);
  const int32_t begin = 0;
  const int32_t end = 10;
  std::vector<uint16_t> q(8), out(8);
  const float sink = 0;
  SparseAttention::Args args;
  args.rows = step_rows.rows;
  args.q = MakeView(q.data(), DType::kBf16, {1, 1, 8});
  args.out = MakeView(out.data(), DType::kBf16, {1, 1, 8});
  args.window_begin = MakeView(&begin, DType::kI32, {1});
  args.window_end = MakeView(&end, DType::kI32, {1});
  args.fresh = {q.data(), KvFormat::kBf16, 8, 1, 16, 1};
  args.sink = MakeView(&sink, DType::kF32, {1});
  const SparseAttention::Problem problem{
      1, 8, 4, 0, 1, KvFormat::kBf16, KvFormat::kBf16, DType::kBf16, 1};
  EXPECT_EQ(registry.Find<SparseAttention>("cpu")->run(problem, args, {}, {}).message(),
            "sparse_attention: row 0 has 10 window entries, the problem allows 4");
}

}  // namespace
}  // namespace skein::kernels
