// Mixture of experts beside the products: gate, layout, activation, combine.
#include <algorithm>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/select.cuh"
#include "kernels/sm90/bf16_eights.cuh"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::kAllLanes;
using cuda::kWarp;

constexpr unsigned kThreads = 256;
constexpr unsigned kWideThreads = 128;  // of eight channels each
constexpr int kLayoutThreads = kWarp * kWarp;
constexpr int kMostExperts = 1024;
constexpr int kMostChosen = 32;

struct MoeGateParameters {
  const float* logits;
  int64_t logits_step;
  const float* bias;
  int32_t* index;
  int64_t index_step;
  float* weight;
  int64_t weight_step;
  int num_experts, k;
  float gate_temp, route_scale;
  bool normalise;
  uint32_t* defect;
};

// Key of what can no longer be chosen; below that of every number.
constexpr uint32_t kTakenKey = 0;

// Index of the largest of a warp's keys, the lowest of equal ones; lane l has those of l, l + 32,
// ... Takes it.
template <int kEach>
__device__ int TakeLargest(uint32_t (&key)[kEach]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t largest = key[0];
#pragma unroll
  for (int i = 1; i < kEach; ++i) largest = max(largest, key[i]);
  largest = __reduce_max_sync(kAllLanes, largest);
  unsigned first = kEach * kWarp;
#pragma unroll
  for (int i = kEach - 1; i >= 0; --i) {
    if (key[i] == largest) first = static_cast<unsigned>(i * kWarp + lane);
  }
  const int best = static_cast<int>(__reduce_min_sync(kAllLanes, first));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i * kWarp + lane == best) key[i] = kTakenKey;
  }
  return best;
}

// A block per row: all threads compute scores, the first warp chooses, `kEach` keys a lane.
template <int kEach>
__global__ void MoeGateKernel(MoeGateParameters p) {
  cuda::BeginAfterLast();
  __shared__ float score[kEach * kWarp];
  __shared__ uint32_t shared_key[kEach * kWarp];
  constexpr int kThreadsEach = (kEach * kWarp + static_cast<int>(kThreads) - 1) / kThreads;
  const int64_t t = blockIdx.x;
  float logit[kThreadsEach], bias[kThreadsEach];
#pragma unroll
  for (int i = 0; i < kThreadsEach; ++i) {
    const int e = i * static_cast<int>(kThreads) + static_cast<int>(threadIdx.x);
    logit[i] = e < p.num_experts ? p.logits[t * p.logits_step + e] : 0.0f;
    bias[i] = e < p.num_experts ? p.bias[e] : 0.0f;
  }
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kThreadsEach; ++i) {
    const int e = i * static_cast<int>(kThreads) + static_cast<int>(threadIdx.x);
    if (e >= kEach * kWarp) break;
    uint32_t ordered = kTakenKey;
    if (e < p.num_experts) {
      finite = finite && isfinite(logit[i]) && bias[i] == bias[i];
      const float x = logit[i] / p.gate_temp;
      score[e] = sqrtf(x > 20.0f ? x : log1pf(expf(x)));
      const float key = score[e] + bias[i];
      if (key == key) ordered = cuda::OrderedKey(key);
    }
    shared_key[e] = ordered;
  }
  if (!__syncthreads_and(finite)) {
    if (threadIdx.x == 0 && p.defect != nullptr) *p.defect = static_cast<uint32_t>(t) + 1;
    return;
  }
  if (threadIdx.x >= kWarp) return;
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t key[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) key[i] = shared_key[i * kWarp + lane];
  float chosen_score = 0;  // of choice `lane`
  int chosen = -1;
  float sum = 0;
  for (int j = 0; j < p.k; ++j) {
    const int best = TakeLargest(key);
    const float best_score = score[best];
    sum += best_score;
    if (lane == j) {
      chosen = best;
      chosen_score = best_score;
    }
  }
  if (lane >= p.k) return;
  const float share =
      p.normalise ? chosen_score / (sum + 1e-20f) * p.route_scale : chosen_score * p.route_scale;
  p.index[t * p.index_step + lane] = chosen;
  p.weight[t * p.weight_step + lane] = share;
}

struct MoeGateOp {
  static absl::Status Supports(const MoeGate::Problem& problem) {
    return Support()
        .Is("wide", problem.wide, DType::kF32)
        .Positive("num_experts", problem.num_experts)
        .Want(problem.num_experts <= kMostExperts, "num_experts",
              std::to_string(problem.num_experts), "at most 1024")
        .Positive("k", problem.k)
        .Want(problem.k <= kMostChosen && problem.k <= problem.num_experts, "k",
              std::to_string(problem.k), "at most 32 and num_experts")
        .Take();
  }
  static size_t WorkspaceBytes(const MoeGate::Problem&) { return 0; }
  static absl::Status Run(const MoeGate::Problem& problem, const MoeGate::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    MoeGateParameters p;
    p.logits = args.logits.as<float>();
    p.logits_step = args.logits.step(0);
    p.bias = args.bias.as<float>();
    p.index = args.index.as<int32_t>();
    p.index_step = args.index.step(0);
    p.weight = args.weight.as<float>();
    p.weight_step = args.weight.step(0);
    p.num_experts = problem.num_experts;
    p.k = problem.k;
    p.gate_temp = args.gate_temp;
    p.route_scale = args.route_scale;
    p.normalise = args.normalise;
    p.defect = cuda::DefectWord(MoeGate::kId, stream);
    // As many keys a lane as the models of 256 and 384 experts have, or room for all.
    const auto kernel = problem.num_experts <= 8 * kWarp    ? MoeGateKernel<8>
                        : problem.num_experts <= 12 * kWarp ? MoeGateKernel<12>
                                                            : MoeGateKernel<kMostExperts / kWarp>;
    return cuda::Launch(MoeGate::kId, kernel, dim3(static_cast<unsigned>(args.logits.dim(0))),
                        kThreads, 0, stream, p);
  }
};

struct LayoutParameters {
  const int32_t* index;
  int64_t index_step;
  int k, num_experts;
  int assignments;
  int warps;  // that the assignments are dealt to
  int32_t* expert_offset;
  int32_t* assignment;
  int32_t* source_row;
  int32_t* place;
  int64_t place_step;
};

// Count of an assignment: of its expert, or the last one when no expert has it.
__device__ int Column(const LayoutParameters& p, int i) {
  const int chosen = p.index[i / p.k * p.index_step + i % p.k];
  return chosen < 0 || chosen >= p.num_experts ? p.num_experts : chosen;
}

// Turns the counts of `table` [warp][column] into the places where they begin: columns ascending,
// then warps.
__device__ void FindPlaces(const LayoutParameters& p, int* table, int* scratch) {
  const int columns = p.num_experts + 1;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int done = 0;
  for (int begin = 0; begin < columns; begin += kLayoutThreads) {
    const int column = begin + static_cast<int>(threadIdx.x);
    int count = 0;
    for (int w = 0; w < p.warps && column < columns; ++w) count += table[w * columns + column];
    int through = count;  // this column and those before it of the warp
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int before = __shfl_up_sync(kAllLanes, through, offset);
      if (lane >= offset) through += before;
    }
    if (lane == kWarp - 1) scratch[warp] = through;
    __syncthreads();
    // The warps before this one, and all.
    const int others = scratch[lane];
    int next = done + through - count + cuda::WarpSum(lane < warp ? others : 0);
    done += cuda::WarpSum(others);
    if (column < columns) p.expert_offset[column] = next;
    for (int w = 0; w < p.warps && column < columns; ++w) {
      const int of_warp = table[w * columns + column];
      table[w * columns + column] = next;
      next += of_warp;
    }
    __syncthreads();
  }
}

// Gives assignment i of `column`, or nothing where that is -1, its place; lanes are in order.
__device__ void PlaceOne(const LayoutParameters& p, int i, int column, int* next) {
  const bool exists = column >= 0;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned same = __match_any_sync(kAllLanes, column);
  const int begin = exists ? next[column] : 0;
  __syncwarp();
  if (exists && lane == __ffs(static_cast<int>(same)) - 1) next[column] = begin + __popc(same);
  __syncwarp();
  if (!exists) return;
  const bool nobody = column == p.num_experts;
  const int at = begin + __popc(same & ((1u << lane) - 1));
  const int row = i / p.k;
  p.place[row * p.place_step + i % p.k] = nobody ? -1 : at;
  p.assignment[at] = nobody ? -1 : i;
  p.source_row[at] = nobody ? -1 : row;
}

// A stable counting sort by one block. Assignments are dealt in runs, one to a warp, which has a
// row of `table`: a count for each expert and one for what no expert has, later the next place of
// each.
__global__ void __launch_bounds__(kLayoutThreads) LayoutKernel(LayoutParameters p) {
  cuda::BeginAfterLast();
  extern __shared__ int table[];
  __shared__ int scratch[kLayoutThreads / kWarp];
  const int columns = p.num_experts + 1;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int i = static_cast<int>(threadIdx.x); i < p.warps * columns; i += kLayoutThreads) {
    table[i] = 0;
  }
  __syncthreads();
  int* mine = table + warp * columns;
  const int steps = (p.assignments + kWarp - 1) / kWarp;
  const int steps_each = (steps + p.warps - 1) / p.warps;
  const int begin = min(warp * steps_each, steps) * kWarp;
  const int end = warp < p.warps ? min((warp + 1) * steps_each * kWarp, p.assignments) : begin;
  for (int i = begin + lane; i < end; i += kWarp) atomicAdd(mine + Column(p, i), 1);
  __syncthreads();
  FindPlaces(p, table, scratch);
  int column = begin + lane < end ? Column(p, begin + lane) : -1;
  for (int i = begin + lane; i - lane < end; i += kWarp) {
    const int following = i + kWarp < end ? Column(p, i + kWarp) : -1;
    PlaceOne(p, i, column, mine);
    column = following;
  }
}

struct MoeLayoutOp {
  static absl::Status Supports(const MoeLayout::Problem& problem) {
    return Support()
        .Positive("num_experts", problem.num_experts)
        .Want(problem.num_experts <= kMostExperts, "num_experts",
              std::to_string(problem.num_experts), "at most 1024")
        .Positive("k", problem.k)
        .Take();
  }
  static size_t WorkspaceBytes(const MoeLayout::Problem&) { return 0; }
  static absl::Status Run(const MoeLayout::Problem& problem, const MoeLayout::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    LayoutParameters p;
    p.index = args.index.as<int32_t>();
    p.index_step = args.index.step(0);
    p.k = problem.k;
    p.num_experts = problem.num_experts;
    p.assignments = static_cast<int>(args.index.dim(0) * problem.k);
    p.warps = std::clamp((p.assignments + kWarp - 1) / kWarp, 1, kLayoutThreads / kWarp);
    p.expert_offset = args.expert_offset.as<int32_t>();
    p.assignment = args.assignment.as<int32_t>();
    p.source_row = args.source_row.as<int32_t>();
    p.place = args.place.as<int32_t>();
    p.place_step = args.place.step(0);
    const size_t bytes =
        static_cast<size_t>(p.warps) * static_cast<size_t>(problem.num_experts + 1) * sizeof(int);
    return cuda::LaunchAs(MoeLayout::kId, LayoutKernel,
                          {.grid = dim3(1), .threads = kLayoutThreads, .shared_bytes = bytes},
                          stream, p);
  }
};

__device__ float ClampLow(float value, float limit) { return value < -limit ? -limit : value; }
__device__ float ClampHigh(float value, float limit) { return value > limit ? limit : value; }

struct SwiGluParameters {
  const uint16_t* gate;
  int64_t gate_step;
  const uint16_t* up;
  int64_t up_step;
  uint16_t* y;
  int64_t y_step;
  const int32_t* assignment;
  const float* weight;
  int64_t weight_step;
  int weight_width;
  float limit;
  int channels;
  int64_t items;
};

template <int kWidth>
__global__ void SwiGluKernel(SwiGluParameters p) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= p.items) return;
  const auto [i, c] = PlaceOf<kWidth>(item, p.channels);
  const int32_t place = p.assignment == nullptr ? 0 : p.assignment[i];
  if (place < 0) return;
  const Span<kWidth> gate = Span<kWidth>::Load(p.gate + i * p.gate_step + c);
  const Span<kWidth> up = Span<kWidth>::Load(p.up + i * p.up_step + c);
  const float weight =
      p.weight == nullptr
          ? 0
          : p.weight[place / p.weight_width * p.weight_step + place % p.weight_width];
  Span<kWidth> y;
#pragma unroll
  for (int n = 0; n < kWidth; ++n) {
    float g = gate.value[n];
    float u = up.value[n];
    if (p.limit > 0) {
      g = ClampHigh(g, p.limit);
      u = ClampLow(ClampHigh(u, p.limit), p.limit);
    }
    y.value[n] = g / (1.0f + expf(-g)) * u;
    if (p.weight != nullptr) y.value[n] *= weight;
  }
  y.Store(p.y + i * p.y_step + c);
}

struct SwiGluOp {
  static absl::Status Supports(const SwiGlu::Problem& problem) {
    return Support()
        .Is("gate", problem.dtype, DType::kBf16)
        .Is("wide", problem.wide, DType::kF32)
        .Positive("channels", problem.channels)
        .Take();
  }
  static size_t WorkspaceBytes(const SwiGlu::Problem&) { return 0; }
  static absl::Status Run(const SwiGlu::Problem& problem, const SwiGlu::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    SwiGluParameters p;
    p.gate = args.gate.as<uint16_t>();
    p.gate_step = args.gate.step(0);
    p.up = args.up.as<uint16_t>();
    p.up_step = args.up.step(0);
    p.y = args.y.as<uint16_t>();
    p.y_step = args.y.step(0);
    p.assignment = args.assignment.absent() ? nullptr : args.assignment.as<int32_t>();
    p.weight = args.weight.absent() ? nullptr : args.weight.as<float>();
    p.weight_step = args.weight.absent() ? 0 : args.weight.step(0);
    p.weight_width = args.weight.rank == 2 ? static_cast<int>(args.weight.dim(1)) : 1;
    p.limit = args.limit;
    p.channels = problem.channels;
    const int width = WidthOf(problem.channels, {args.gate, args.up, args.y});
    p.items = args.y.dim(0) * (problem.channels / width);
    const unsigned threads = width == 8 ? kWideThreads : kThreads;
    return cuda::Launch(SwiGlu::kId, width == 8 ? SwiGluKernel<8> : SwiGluKernel<1>,
                        dim3(BlocksFor(p.items, threads)), threads, 0, stream, p);
  }
};

struct MoeCombineParameters {
  const uint16_t* routed;
  int64_t routed_step;
  const int32_t* place;
  int64_t place_step;
  int k;
  const uint16_t* shared_rows;
  int64_t shared_step;
  uint16_t* y;
  int64_t y_step;
  int channels;
  int64_t items;
};

template <int kWidth>
__global__ void MoeCombineKernel(MoeCombineParameters p) {
  cuda::BeginAfterLast();
  constexpr int kTogether = 8;  // rows under way
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= p.items) return;
  const auto [t, c] = PlaceOf<kWidth>(item, p.channels);
  Span<kWidth> last = {};
  if (p.shared_rows != nullptr) {
    last = Span<kWidth>::Load(p.shared_rows + t * p.shared_step + c);
  }
  Span<kWidth> sum = {};
  for (int begin = 0; begin < p.k; begin += kTogether) {
    int at[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      at[j] = begin + j < p.k ? p.place[t * p.place_step + begin + j] : -1;
    }
    typename Span<kWidth>::Bits bits[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      bits[j] = {};
      if (at[j] >= 0) bits[j] = Span<kWidth>::LoadBits(p.routed + at[j] * p.routed_step + c);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (at[j] < 0) continue;
      const Span<kWidth> row = Span<kWidth>::Decode(bits[j]);
#pragma unroll
      for (int n = 0; n < kWidth; ++n) sum.value[n] += row.value[n];
    }
  }
  if (p.shared_rows != nullptr) {
#pragma unroll
    for (int n = 0; n < kWidth; ++n) sum.value[n] += last.value[n];
  }
  sum.Store(p.y + t * p.y_step + c);
}

struct MoeCombineOp {
  static absl::Status Supports(const MoeCombine::Problem& problem) {
    return Support()
        .Is("routed", problem.dtype, DType::kBf16)
        .Positive("channels", problem.channels)
        .Positive("k", problem.k)
        .Take();
  }
  static size_t WorkspaceBytes(const MoeCombine::Problem&) { return 0; }
  static absl::Status Run(const MoeCombine::Problem& problem, const MoeCombine::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const bool has_shared = !args.shared.absent();
    MoeCombineParameters p;
    p.routed = args.routed.as<uint16_t>();
    p.routed_step = args.routed.step(0);
    p.place = args.place.as<int32_t>();
    p.place_step = args.place.step(0);
    p.k = problem.k;
    p.shared_rows = has_shared ? args.shared.as<uint16_t>() : nullptr;
    p.shared_step = has_shared ? args.shared.step(0) : 0;
    p.y = args.y.as<uint16_t>();
    p.y_step = args.y.step(0);
    p.channels = problem.channels;
    const int width = WidthOf(problem.channels, {args.routed, args.shared, args.y});
    p.items = args.y.dim(0) * (problem.channels / width);
    const unsigned threads = width == 8 ? kWideThreads : kThreads;
    return cuda::Launch(MoeCombine::kId, width == 8 ? MoeCombineKernel<8> : MoeCombineKernel<1>,
                        dim3(BlocksFor(p.items, threads)), threads, 0, stream, p);
  }
};

struct MapParameters {
  const int32_t* index;
  int64_t index_step;
  const int32_t* table;
  int32_t* to;
  int64_t to_step;
  int num_experts, k, stride, count;
  bool numbered;
};

__global__ void MapExpertsKernel(MapParameters p) {
  cuda::BeginAfterLast();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= p.count) return;
  const int32_t expert = p.index[i / p.k * p.index_step + i % p.k];
  const int32_t found = expert >= 0 && expert < p.num_experts ? p.table[expert] : -1;
  p.to[i / p.k * p.to_step + i % p.k] = found < 0 ? -1 : found * p.stride + (p.numbered ? i : 0);
}

struct MapExpertsOp {
  static absl::Status Supports(const MapExperts::Problem& problem) {
    return Support().Positive("num_experts", problem.num_experts).Positive("k", problem.k).Take();
  }
  static size_t WorkspaceBytes(const MapExperts::Problem&) { return 0; }
  static absl::Status Run(const MapExperts::Problem& problem, const MapExperts::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    MapParameters p;
    p.index = args.index.as<int32_t>();
    p.index_step = args.index.step(0);
    p.table = args.table.as<int32_t>();
    p.to = args.to.as<int32_t>();
    p.to_step = args.to.step(0);
    p.num_experts = problem.num_experts;
    p.k = problem.k;
    p.stride = args.stride;
    p.count = static_cast<int>(args.index.dim(0) * problem.k);
    p.numbered = args.numbered;
    return cuda::Launch(MapExperts::kId, MapExpertsKernel, dim3(BlocksFor(p.count, kThreads)),
                        kThreads, 0, stream, p);
  }
};

}  // namespace

absl::Status RegisterMoe(KernelRegistry& registry) {
  constexpr DeterminismClass kRows = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterKernel<MoeGate, MoeGateOp>(registry, kRows);
  if (status.ok()) {
    status = RegisterKernel<MoeLayout, MoeLayoutOp>(registry, DeterminismClass::kBitwise);
  }
  if (status.ok()) status = RegisterKernel<SwiGlu, SwiGluOp>(registry, kRows);
  if (status.ok()) status = RegisterKernel<MoeCombine, MoeCombineOp>(registry, kRows);
  if (status.ok()) {
    status = RegisterKernel<MapExperts, MapExpertsOp>(registry, DeterminismClass::kBitwise);
  }
  return status;
}

}  // namespace skein::kernels::sm90
