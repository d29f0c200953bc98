// Mixture of experts beside the products: gate, layout, activation, combine.
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::kAllLanes;
using cuda::kWarp;
using cuda::LoadBf16;

constexpr unsigned kThreads = 256;
constexpr int64_t kWarpsPerBlock = kThreads / kWarp;
constexpr int kMostExperts = 1024;
constexpr int kMostChosen = 32;

// A warp per row. Keys lie in shared memory.
__global__ void MoeGateKernel(const float* logits, int64_t logits_step, const float* bias,
                              int32_t* index, int64_t index_step, float* weight,
                              int64_t weight_step, int num_experts, int k, float gate_temp,
                              float route_scale, bool normalise, uint32_t* defect) {
  extern __shared__ float shared[];
  float* score = shared;
  float* key = shared + num_experts;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t t = blockIdx.x;
  bool finite = true;
  for (int e = lane; e < num_experts; e += kWarp) {
    const float logit = logits[t * logits_step + e];
    finite = finite && isfinite(logit) && bias[e] == bias[e];
    const float x = logit / gate_temp;
    score[e] = sqrtf(x > 20.0f ? x : log1pf(expf(x)));
    key[e] = score[e] + bias[e];
  }
  if (!__all_sync(kAllLanes, finite)) {
    if (lane == 0 && defect != nullptr) *defect = static_cast<uint32_t>(t) + 1;
    return;
  }
  __syncwarp();
  float chosen_score = 0;  // of choice `lane`
  int chosen = -1;
  float sum = 0;
  for (int j = 0; j < k; ++j) {
    float best_key = -INFINITY;
    int best = num_experts;
    // A chosen one is NaN from then on, which is below everything.
    for (int e = lane; e < num_experts; e += kWarp) {
      if (key[e] > best_key || (best == num_experts && key[e] == key[e])) {
        best_key = key[e];
        best = e;
      }
    }
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const float other_key = __shfl_xor_sync(kAllLanes, best_key, offset);
      const int other = __shfl_xor_sync(kAllLanes, best, offset);
      const bool better = other_key > best_key || (other_key == best_key && other < best);
      if (other != num_experts && (best == num_experts || better)) {
        best_key = other_key;
        best = other;
      }
    }
    sum += score[best];
    if (lane == j) {
      chosen = best;
      chosen_score = score[best];
    }
    __syncwarp();
    if (lane == 0) key[best] = NAN;
    __syncwarp();
  }
  if (lane >= k) return;
  const float share =
      normalise ? chosen_score / (sum + 1e-20f) * route_scale : chosen_score * route_scale;
  index[t * index_step + lane] = chosen;
  weight[t * weight_step + lane] = share;
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
    const size_t shared = static_cast<size_t>(problem.num_experts) * 2 * sizeof(float);
    return cuda::Launch(MoeGate::kId, MoeGateKernel,
                        dim3(static_cast<unsigned>(args.logits.dim(0))), kWarp, shared, stream,
                        args.logits.as<float>(), args.logits.step(0), args.bias.as<float>(),
                        args.index.as<int32_t>(), args.index.step(0), args.weight.as<float>(),
                        args.weight.step(0), problem.num_experts, problem.k, args.gate_temp,
                        args.route_scale, args.normalise, cuda::DefectWord(MoeGate::kId, stream));
  }
};

// A warp per expert counts its assignments.
__global__ void CountKernel(const int32_t* index, int64_t step, int k, int64_t assignments,
                            int num_experts, int32_t* count) {
  const int e = static_cast<int>(blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp);
  if (e >= num_experts) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int mine = 0;
  for (int64_t i = lane; i < assignments; i += kWarp) {
    mine += index[i / k * step + i % k] == e ? 1 : 0;
  }
  mine = cuda::WarpSum(mine);
  if (lane == 0) count[e] = mine;
}

struct LayoutParameters {
  const int32_t* index;
  int64_t index_step;
  int k, num_experts;
  int64_t assignments;
  const int32_t* count;
  int32_t* expert_offset;
  int32_t* assignment;
  int32_t* source_row;
  int32_t* place;
  int64_t place_step;
};

// A warp per expert finds where its assignments begin and places them in token order; one more warp
// clears what no expert has.
__global__ void PlaceKernel(LayoutParameters p) {
  const int e = static_cast<int>(blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp);
  if (e > p.num_experts) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int before = 0;
  for (int i = lane; i < e; i += kWarp) before += p.count[i];
  int next = cuda::WarpSum(before);
  if (lane == 0) p.expert_offset[e] = next;
  for (int64_t begin = 0; begin < p.assignments; begin += kWarp) {
    const int64_t i = begin + lane;
    const bool exists = i < p.assignments;
    const int chosen = exists ? p.index[i / p.k * p.index_step + i % p.k] : -1;
    const bool nobody = exists && (chosen < 0 || chosen >= p.num_experts);
    const bool mine = e == p.num_experts ? nobody : exists && chosen == e;
    const unsigned mask = __ballot_sync(kAllLanes, mine);
    const int at = next + __popc(mask & ((1u << lane) - 1));
    next += __popc(mask);
    if (!mine) continue;
    p.place[i / p.k * p.place_step + i % p.k] = e == p.num_experts ? -1 : at;
    p.assignment[at] = e == p.num_experts ? -1 : static_cast<int32_t>(i);
    p.source_row[at] = e == p.num_experts ? -1 : static_cast<int32_t>(i / p.k);
  }
}

struct MoeLayoutOp {
  static absl::Status Supports(const MoeLayout::Problem& problem) {
    return Support().Positive("num_experts", problem.num_experts).Positive("k", problem.k).Take();
  }
  static size_t WorkspaceBytes(const MoeLayout::Problem& problem) {
    return static_cast<size_t>(problem.num_experts) * sizeof(int32_t);
  }
  static absl::Status Run(const MoeLayout::Problem& problem, const MoeLayout::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckWorkspace(MoeLayout::kId, workspace, WorkspaceBytes(problem));
        !status.ok()) {
      return status;
    }
    LayoutParameters p;
    p.index = args.index.as<int32_t>();
    p.index_step = args.index.step(0);
    p.k = problem.k;
    p.num_experts = problem.num_experts;
    p.assignments = args.index.dim(0) * problem.k;
    p.count = static_cast<int32_t*>(workspace.data);
    p.expert_offset = args.expert_offset.as<int32_t>();
    p.assignment = args.assignment.as<int32_t>();
    p.source_row = args.source_row.as<int32_t>();
    p.place = args.place.as<int32_t>();
    p.place_step = args.place.step(0);
    const dim3 counting(BlocksFor(problem.num_experts, kWarpsPerBlock));
    absl::Status status = cuda::Launch(MoeLayout::kId, CountKernel, counting, kThreads, 0, stream,
                                       p.index, p.index_step, p.k, p.assignments, p.num_experts,
                                       static_cast<int32_t*>(workspace.data));
    if (!status.ok()) return status;
    const dim3 placing(BlocksFor(int64_t{problem.num_experts} + 1, kWarpsPerBlock));
    return cuda::Launch(MoeLayout::kId, PlaceKernel, placing, kThreads, 0, stream, p);
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
  int64_t weight_step, weight_width;
  float limit;
  int channels;
  int64_t count;
};

__global__ void SwiGluKernel(SwiGluParameters p) {
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= p.count) return;
  const int64_t i = item / p.channels;
  const int64_t c = item % p.channels;
  const int32_t place = p.assignment == nullptr ? 0 : p.assignment[i];
  if (place < 0) return;
  float g = LoadBf16(p.gate, i * p.gate_step + c);
  float u = LoadBf16(p.up, i * p.up_step + c);
  if (p.limit > 0) {
    g = ClampHigh(g, p.limit);
    u = ClampLow(ClampHigh(u, p.limit), p.limit);
  }
  float value = g / (1.0f + expf(-g)) * u;
  if (p.weight != nullptr) {
    value *= p.weight[place / p.weight_width * p.weight_step + place % p.weight_width];
  }
  p.y[i * p.y_step + c] = EncodeBf16(value);
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
    p.weight_width = args.weight.rank == 2 ? args.weight.dim(1) : 1;
    p.limit = args.limit;
    p.channels = problem.channels;
    p.count = args.y.dim(0) * problem.channels;
    return cuda::Launch(SwiGlu::kId, SwiGluKernel, dim3(BlocksFor(p.count, kThreads)), kThreads, 0,
                        stream, p);
  }
};

__global__ void MoeCombineKernel(const uint16_t* routed, int64_t routed_step, const int32_t* place,
                                 int64_t place_step, int k, const uint16_t* shared_rows,
                                 int64_t shared_step, uint16_t* y, int64_t y_step, int channels,
                                 int64_t count) {
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t t = item / channels;
  const int64_t c = item % channels;
  float sum = 0;
  for (int j = 0; j < k; ++j) {
    const int32_t at = place[t * place_step + j];
    if (at >= 0) sum += LoadBf16(routed, at * routed_step + c);
  }
  if (shared_rows != nullptr) sum += LoadBf16(shared_rows, t * shared_step + c);
  y[t * y_step + c] = EncodeBf16(sum);
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
    const int64_t count = args.y.dim(0) * problem.channels;
    const bool has_shared = !args.shared.absent();
    return cuda::Launch(MoeCombine::kId, MoeCombineKernel, dim3(BlocksFor(count, kThreads)),
                        kThreads, 0, stream, args.routed.as<uint16_t>(), args.routed.step(0),
                        args.place.as<int32_t>(), args.place.step(0), problem.k,
                        has_shared ? args.shared.as<uint16_t>() : nullptr,
                        has_shared ? args.shared.step(0) : int64_t{0}, args.y.as<uint16_t>(),
                        args.y.step(0), problem.channels, count);
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
  return status;
}

}  // namespace skein::kernels::sm90
