// Sparse latent attention. Shapes of the model take latent_attention.cuh; others a block per row
// and eight heads, a warp per head: entries are decoded in tiles of shared memory, and each warp
// runs one softmax over them in order.
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/family.cuh"
#include "kernels/sm90/latent_attention.cuh"
#include "kernels/sm90/latent_spread.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::kWarp;

constexpr int kHeadsPerBlock = 8;
constexpr unsigned kThreads = kHeadsPerBlock * kWarp;
constexpr int kTile = 32;  // entries
constexpr int kMostDim = 512;
constexpr int kPerLane = kMostDim / kWarp;

struct AttentionParameters {
  cuda::Rows rows;
  const uint16_t* q;
  int64_t q_step, q_head_step;
  const int32_t* window_begin;
  const int32_t* window_end;
  cuda::Pool fresh, ring, history;
  int ring_rows;
  const int32_t* selected;
  int64_t selected_step;
  int num_selected, ratio;
  const float* sink;
  uint16_t* out;
  int64_t out_step, out_head_step;
  float scale;
  int heads, dim;
};

// One entry of the row's list: a row of a pool, or nothing.
struct Entry {
  const cuda::Pool* pool = nullptr;
  int64_t row = 0;
};

__device__ Entry EntryOf(const AttentionParameters& p, int64_t t, int64_t index, int64_t window) {
  const int sequence = p.rows.sequence[t];
  if (index < window) {
    const int64_t position = p.window_begin[t] + index;
    const int64_t first = p.rows.first_position[sequence];
    if (position >= first) return {&p.fresh, p.rows.first_row[sequence] + position - first};
    const int64_t slot = p.rows.slot[sequence];
    return {&p.ring, slot * p.ring_rows + position % p.ring_rows};
  }
  const int32_t j = p.selected[t * p.selected_step + (index - window)];
  if (j < 0) return {};
  return {&p.history, p.rows.HistoryRow(sequence, p.ratio, j)};
}

// Decodes a tile of entries; absent ones are marked in `present`.
__device__ void LoadTile(const AttentionParameters& p, int64_t t, int64_t begin, int count,
                         int64_t window, float* tile, int* present) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = warp; i < count; i += kHeadsPerBlock) {
    const Entry entry = EntryOf(p, t, begin + i, window);
    if (lane == 0) present[i] = entry.pool != nullptr ? 1 : 0;
    if (entry.pool == nullptr) continue;
    const uint8_t* data = entry.pool->RowData(entry.row);
    const uint8_t* scale = entry.pool->RowScale(entry.row);
    for (int c = lane; c < p.dim; c += kWarp) {
      tile[i * p.dim + c] = entry.pool->Element(data, scale, c);
    }
  }
}

__global__ void SparseAttentionKernel(AttentionParameters p) {
  cuda::BeginAfterLast();
  extern __shared__ float tile[];
  __shared__ int present[kTile];
  const int64_t t = blockIdx.x;
  if (p.rows.sequence[t] < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head =
      static_cast<int>(blockIdx.y) * kHeadsPerBlock + static_cast<int>(threadIdx.x) / kWarp;
  const bool active = head < p.heads;
  float q[kPerLane], sum[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int c = i * kWarp + lane;
    q[i] = active && c < p.dim ? DecodeBf16(p.q[t * p.q_step + head * p.q_head_step + c]) : 0.0f;
    sum[i] = 0;
  }
  const int64_t window = max(p.window_end[t] - p.window_begin[t], 0);
  const int64_t total = window + (p.selected == nullptr ? 0 : p.num_selected);
  const float sink = active ? p.sink[head] : 0.0f;
  float largest = sink;
  float weights = sink == -INFINITY ? 0.0f : 1.0f;
  bool any = false;
  for (int64_t begin = 0; begin < total; begin += kTile) {
    const int count = static_cast<int>(min(int64_t{kTile}, total - begin));
    __syncthreads();
    LoadTile(p, t, begin, count, window, tile, present);
    __syncthreads();
    for (int j = 0; active && j < count; ++j) {
      if (present[j] == 0) continue;
      const float* entry = tile + j * p.dim;
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int c = i * kWarp + lane;
        if (c < p.dim) dot = fmaf(q[i], entry[c], dot);
      }
      const float score = cuda::WarpSum(dot) * p.scale;
      const float larger = score > largest || !any && largest == -INFINITY ? score : largest;
      const float keep = larger == largest ? 1.0f : expf(largest - larger);
      const float w = expf(score - larger);
      weights = fmaf(weights, keep, w);
      largest = larger;
      any = true;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int c = i * kWarp + lane;
        if (c < p.dim) sum[i] = fmaf(w, entry[c], sum[i] * keep);
      }
    }
  }
  if (!active) return;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int c = i * kWarp + lane;
    if (c >= p.dim) continue;
    const float value = any ? sum[i] / weights : 0.0f;
    p.out[t * p.out_step + head * p.out_head_step + c] = EncodeBf16(value);
  }
}

struct SparseAttentionOp {
  static absl::Status Supports(const SparseAttention::Problem& problem) {
    const bool formats =
        problem.window_format != KvFormat::kF64 && problem.history_format != KvFormat::kF64;
    return Support()
        .Is("q", problem.dtype, DType::kBf16)
        .Want(formats, "pools", "f64", "every format but f64")
        .Positive("heads", problem.heads)
        .Positive("head_dim", problem.head_dim)
        .Want(problem.head_dim <= kMostDim, "head_dim", std::to_string(problem.head_dim),
              "at most 512")
        .Positive("ratio", problem.ratio)
        .Take();
  }
  static size_t WorkspaceBytes(const SparseAttention::Problem&) { return 0; }
  // Of the problem alone, so that the order of sums is.
  static bool IsLatent(const SparseAttention::Problem& problem) {
    const auto known = [](KvFormat format) {
      return format == KvFormat::kFp8Group32 || format == KvFormat::kFp4Group16;
    };
    return problem.head_dim == latent::kDim && problem.heads <= latent::kHeads &&
           known(problem.window_format) && (problem.selected == 0 || known(problem.history_format));
  }
  static absl::Status RunLatent(const AttentionParameters& from, int window, int64_t rows,
                                DeviceStream stream) {
    for (const cuda::Pool* pool : {&from.fresh, &from.ring, &from.history}) {
      if (pool->page_bytes % 16 != 0 || reinterpret_cast<uintptr_t>(pool->data) % 16 != 0) {
        return absl::InvalidArgumentError(
            "sparse_attention: pages of 512 channels must be aligned to 16 bytes");
      }
    }
    latent::Parameters p;
    p.rows = from.rows;
    p.q = from.q;
    p.q_step = from.q_step;
    p.q_head_step = from.q_head_step;
    p.window_begin = from.window_begin;
    p.window_end = from.window_end;
    p.fresh = from.fresh;
    p.ring = from.ring;
    p.history = from.history;
    p.ring_rows = from.ring_rows;
    p.selected = from.selected;
    p.selected_step = from.selected_step;
    p.window = window;
    p.num_selected = from.selected == nullptr ? 0 : from.num_selected;
    p.ratio = from.ratio;
    p.sink = from.sink;
    p.out = from.out;
    p.out_step = from.out_step;
    p.out_head_step = from.out_head_step;
    p.scale = from.scale;
    p.heads = from.heads;
    p.q_aligned =
        p.q_step % 8 == 0 && p.q_head_step % 8 == 0 && reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
    p.out_aligned = p.out_step % 8 == 0 && p.out_head_step % 8 == 0 &&
                    reinterpret_cast<uintptr_t>(p.out) % 16 == 0;
    p.by_ring_rows = latent::Divisor(p.ring_rows);
    p.by_fresh_page = latent::Divisor(p.fresh.page_rows);
    p.by_ring_page = latent::Divisor(p.ring.page_rows);
    p.by_history_page = latent::Divisor(p.history.page_rows);
    p.by_block_rows = latent::Divisor(p.rows.block_tokens / p.ratio);
    const latent::Division division =
        latent::DivisionOf(latent::TilesOf(window) + latent::TilesOf(from.num_selected));
    p.tiles = division.tiles;
    if (rows <= latent::spread::kMostRows) {
      const auto blocks = static_cast<unsigned>(2 * division.parts);
      return cuda::LaunchAs(SparseAttention::kId, latent::spread::SpreadAttentionKernel,
                            {dim3(static_cast<unsigned>(rows) * blocks), latent::spread::kThreads,
                             sizeof(latent::spread::Shared) + latent::kAlignment, blocks},
                            stream, p);
    }
    const dim3 grid(static_cast<unsigned>(rows * division.parts));
    return cuda::LaunchAs(SparseAttention::kId, latent::LatentAttentionKernel,
                          {grid, latent::kThreads, sizeof(latent::Shared) + latent::kAlignment,
                           static_cast<unsigned>(division.parts)},
                          stream, p);
  }
  static absl::Status Run(const SparseAttention::Problem& problem,
                          const SparseAttention::Args& args, Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    AttentionParameters p;
    p.rows = cuda::MakeRows(args.rows);
    p.q = args.q.as<uint16_t>();
    p.q_step = args.q.step(0);
    p.q_head_step = args.q.step(1);
    p.window_begin = args.window_begin.as<int32_t>();
    p.window_end = args.window_end.as<int32_t>();
    p.fresh = cuda::MakePool(args.fresh);
    p.ring = cuda::MakePool(args.ring);
    p.history = cuda::MakePool(args.history);
    p.ring_rows = args.ring_rows;
    p.selected = args.selected.absent() ? nullptr : args.selected.as<int32_t>();
    p.selected_step = args.selected.absent() ? 0 : args.selected.step(0);
    p.num_selected = problem.selected;
    p.ratio = problem.ratio;
    p.sink = args.sink.as<float>();
    p.out = args.out.as<uint16_t>();
    p.out_step = args.out.step(0);
    p.out_head_step = args.out.step(1);
    p.scale = args.scale;
    p.heads = problem.heads;
    p.dim = problem.head_dim;
    if (IsLatent(problem)) return RunLatent(p, problem.window, args.q.dim(0), stream);
    const dim3 grid(static_cast<unsigned>(args.q.dim(0)),
                    cuda::BlocksFor(problem.heads, kHeadsPerBlock));
    const size_t shared = static_cast<size_t>(kTile * problem.head_dim) * sizeof(float);
    return cuda::Launch(SparseAttention::kId, SparseAttentionKernel, grid, kThreads, shared, stream,
                        p);
  }
};

}  // namespace

absl::Status RegisterAttention(KernelRegistry& registry) {
  return RegisterKernel<SparseAttention, SparseAttentionOp>(registry,
                                                            DeterminismClass::kBatchInvariant);
}

}  // namespace skein::kernels::sm90
