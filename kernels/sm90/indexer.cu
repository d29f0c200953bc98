// Scores of compressed rows, on tensor cores for the model's keys, a warp per column for others;
// candidate blocks and top-k, a block per row.
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/select.cuh"
#include "kernels/sm90/family.cuh"
#include "kernels/sm90/index_scores.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::kAllLanes;
using cuda::kWarp;

constexpr unsigned kThreads = 256;
constexpr int64_t kWarpsPerBlock = kThreads / kWarp;
constexpr unsigned kSelectThreads = 1024;
constexpr int kMostDim = 256;

__device__ bool IsCandidate(const index_scores::Parameters& p, int64_t t, int64_t column) {
  if (p.candidates == nullptr) return true;
  const int32_t block = static_cast<int32_t>(column / p.candidate_block);
  const int32_t* list = p.candidates + t * p.candidates_step;
  bool found = false;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < p.num_candidates; i += kWarp) {
    found = found || list[i] == block;
  }
  return __any_sync(kAllLanes, found);
}

__global__ void IndexScoresKernel(index_scores::Parameters p, int head_dim) {
  cuda::BeginAfterLast();
  const int64_t t = blockIdx.y;
  const int64_t column = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp;
  if (column >= p.num_columns || p.rows.sequence[t] < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float* out = p.score + t * p.score_step + column;
  const bool visible = column < p.rows.Visible(t, p.ratio, p.num_columns);
  if (!visible || !IsCandidate(p, t, column)) {
    if (lane == 0) *out = -INFINITY;
    return;
  }
  const int64_t row = p.rows.HistoryRow(p.rows.sequence[t], p.ratio, column);
  const uint8_t* data = p.keys.RowData(row);
  const uint8_t* scale = p.keys.RowScale(row);
  float key[kMostDim / kWarp];
#pragma unroll
  for (int i = 0; i < kMostDim / kWarp; ++i) {
    const int c = i * kWarp + lane;
    key[i] = c < head_dim ? p.keys.Element(data, scale, c) : 0.0f;
  }
  float sum = 0;
  for (int h = 0; h < p.heads; ++h) {
    const uint16_t* q = p.q + t * p.q_step + h * p.q_head_step;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kMostDim / kWarp; ++i) {
      const int c = i * kWarp + lane;
      if (c < head_dim) dot = fmaf(DecodeBf16(q[c]), key[i], dot);
    }
    dot = cuda::WarpSum(dot);
    const float scaled = DecodeBf16(p.weight[t * p.weight_step + h]) * p.weight_scale;
    // A NaN must stay one: only what is smaller than zero becomes zero.
    sum = fmaf(DecodeBf16(EncodeBf16(scaled)), dot < 0 ? 0.0f : dot, sum);
  }
  if (lane == 0) *out = sum;
}

struct IndexScoresOp {
  static absl::Status Supports(const IndexScores::Problem& problem) {
    return Support()
        .Is("q", problem.dtype, DType::kBf16)
        .Is("wide", problem.wide, DType::kF32)
        .Want(problem.format != KvFormat::kF64, "keys", KvFormatName(problem.format),
              "every format but f64")
        .Positive("heads", problem.heads)
        .Positive("head_dim", problem.head_dim)
        .Want(problem.head_dim <= kMostDim, "head_dim", std::to_string(problem.head_dim),
              "at most 256")
        .Positive("ratio", problem.ratio)
        .Take();
  }
  static size_t WorkspaceBytes(const IndexScores::Problem&) { return 0; }
  // Of the problem alone, so that the order of sums is.
  static bool IsFp4(const IndexScores::Problem& problem) {
    return problem.format == KvFormat::kFp4Group32 && problem.head_dim == index_scores::kDim &&
           problem.heads <= index_scores::kMostHeads;
  }
  static absl::Status Run(const IndexScores::Problem& problem, const IndexScores::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    index_scores::Parameters p;
    p.rows = cuda::MakeRows(args.rows);
    p.q = args.q.as<uint16_t>();
    p.q_step = args.q.step(0);
    p.q_head_step = args.q.step(1);
    p.weight = args.weight.as<uint16_t>();
    p.weight_step = args.weight.step(0);
    p.weight_scale = args.weight_scale;
    p.keys = cuda::MakePool(args.keys);
    const bool restricted = !args.candidates.absent();
    p.candidates = restricted ? args.candidates.as<int32_t>() : nullptr;
    p.candidates_step = restricted ? args.candidates.step(0) : 0;
    p.num_candidates = restricted ? static_cast<int>(args.candidates.dim(1)) : 0;
    p.candidate_block = args.candidate_block;
    p.score = args.score.as<float>();
    p.score_step = args.score.step(0);
    p.num_columns = args.score.dim(1);
    p.heads = problem.heads;
    p.ratio = problem.ratio;
    const auto rows = static_cast<unsigned>(args.q.dim(0));
    if (IsFp4(problem)) {
      const uintptr_t at = reinterpret_cast<uintptr_t>(args.keys.data) |
                           static_cast<uintptr_t>(args.keys.page_bytes);
      if (at % 4 != 0) {
        return absl::InvalidArgumentError(
            "index_scores: pages of 128 e2m1 codes a key must be aligned to four bytes");
      }
      p.aligned = at % 16 == 0;
      const dim3 grid(BlocksFor(p.num_columns, index_scores::kColumns), rows);
      return cuda::Launch(IndexScores::kId, index_scores::IndexScoresFp4Kernel, grid,
                          index_scores::kThreads, 0, stream, p);
    }
    const dim3 grid(BlocksFor(p.num_columns, kWarpsPerBlock), rows);
    return cuda::Launch(IndexScores::kId, IndexScoresKernel, grid, kThreads, 0, stream, p,
                        problem.head_dim);
  }
};

// True in every thread if one of the visible scores is NaN.
__device__ bool AnyNan(const float* score, int64_t count) {
  bool nan = false;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) nan = nan || score[i] != score[i];
  return __syncthreads_or(nan ? 1 : 0) != 0;
}

__global__ void TopKKernel(cuda::Rows rows, const float* score, int64_t score_step,
                           int64_t num_columns, int ratio, int32_t* selected, int64_t selected_step,
                           int k, uint32_t* defect) {
  cuda::BeginAfterLast();
  __shared__ cuda::CountScratch scratch;
  __shared__ unsigned counts[cuda::kWarp];
  const int64_t t = blockIdx.x;
  if (rows.sequence[t] < 0) return;
  const float* row = score + t * score_step;
  const int64_t visible = rows.Visible(t, ratio, num_columns);
  if (AnyNan(row, visible)) {
    if (threadIdx.x == 0 && defect != nullptr) *defect = static_cast<uint32_t>(t) + 1;
    return;
  }
  cuda::SelectLargest(
      visible, k, cuda::kMinusInfinityKey, [&](int64_t i) { return cuda::OrderedKey(row[i]); },
      selected + t * selected_step, k, scratch, counts);
}

struct TopKOp {
  static absl::Status Supports(const TopK::Problem& problem) {
    return Support()
        .Is("wide", problem.wide, DType::kF32)
        .Positive("k", problem.k)
        .Positive("ratio", problem.ratio)
        .Take();
  }
  static size_t WorkspaceBytes(const TopK::Problem&) { return 0; }
  static absl::Status Run(const TopK::Problem& problem, const TopK::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    return cuda::Launch(TopK::kId, TopKKernel, dim3(static_cast<unsigned>(args.score.dim(0))),
                        kSelectThreads, 0, stream, cuda::MakeRows(args.rows),
                        args.score.as<float>(), args.score.step(0), args.score.dim(1),
                        problem.ratio, args.selected.as<int32_t>(), args.selected.step(0),
                        problem.k, cuda::DefectWord(TopK::kId, stream));
  }
};

__global__ void CandidateBlocksKernel(cuda::Rows rows, const float* score, int64_t score_step,
                                      int64_t num_columns, int ratio, int block, int32_t* out,
                                      int64_t out_step, int count, uint32_t* defect) {
  cuda::BeginAfterLast();
  __shared__ cuda::CountScratch scratch;
  __shared__ unsigned counts[cuda::kWarp];
  const int64_t t = blockIdx.x;
  if (rows.sequence[t] < 0) return;
  const float* row = score + t * score_step;
  const int64_t visible = rows.Visible(t, ratio, num_columns);
  if (AnyNan(row, visible)) {
    if (threadIdx.x == 0 && defect != nullptr) *defect = static_cast<uint32_t>(t) + 1;
    return;
  }
  const int64_t blocks = (visible + block - 1) / block;
  const auto key = [&](int64_t b) {
    if (b == blocks - 1) return 0xFFFFFFFFu;  // the newest column's block is always chosen
    float largest = -INFINITY;
    for (int i = 0; i < block; ++i) largest = fmaxf(largest, row[b * block + i]);
    return cuda::OrderedKey(largest);
  };
  cuda::SelectLargest(blocks, count, cuda::kMinusInfinityKey, key, out + t * out_step, count,
                      scratch, counts);
}

struct CandidateBlocksOp {
  static absl::Status Supports(const CandidateBlocks::Problem& problem) {
    return Support()
        .Is("wide", problem.wide, DType::kF32)
        .Positive("block", problem.block)
        .Positive("count", problem.count)
        .Positive("ratio", problem.ratio)
        .Take();
  }
  static size_t WorkspaceBytes(const CandidateBlocks::Problem&) { return 0; }
  static absl::Status Run(const CandidateBlocks::Problem& problem,
                          const CandidateBlocks::Args& args, Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    return cuda::Launch(CandidateBlocks::kId, CandidateBlocksKernel,
                        dim3(static_cast<unsigned>(args.score.dim(0))), kSelectThreads, 0, stream,
                        cuda::MakeRows(args.rows), args.score.as<float>(), args.score.step(0),
                        args.score.dim(1), problem.ratio, problem.block,
                        args.candidates.as<int32_t>(), args.candidates.step(0), problem.count,
                        cuda::DefectWord(CandidateBlocks::kId, stream));
  }
};

}  // namespace

absl::Status RegisterIndexer(KernelRegistry& registry) {
  constexpr DeterminismClass kBits = DeterminismClass::kBitwise;
  absl::Status status =
      RegisterKernel<IndexScores, IndexScoresOp>(registry, DeterminismClass::kBatchInvariant);
  if (status.ok()) status = RegisterKernel<CandidateBlocks, CandidateBlocksOp>(registry, kBits);
  if (status.ok()) status = RegisterKernel<TopK, TopKOp>(registry, kBits);
  return status;
}

}  // namespace skein::kernels::sm90
