// Pooling of a completed group of tokens: a thread per channel of a group.
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;

constexpr unsigned kThreads = 256;

struct CompressParameters {
  cuda::Rows rows;
  const float* fresh;
  int64_t fresh_step;
  cuda::Pool ring;
  int ring_rows;
  const int32_t* group_row;
  uint16_t* latent;
  int64_t latent_step;
  int dim, ratio;
  int64_t count;
};

// Row of 2 * dim numbers of the token at `position`: kv, then gate.
__device__ const float* TokenRow(const CompressParameters& p, int sequence, int64_t position) {
  const int64_t first = p.rows.first_position[sequence];
  if (position >= first) {
    return p.fresh + (p.rows.first_row[sequence] + position - first) * p.fresh_step;
  }
  const int64_t slot = p.rows.slot[sequence];
  return reinterpret_cast<const float*>(
      p.ring.RowData(slot * p.ring_rows + position % p.ring_rows));
}

__global__ void CompressKernel(CompressParameters p) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= p.count) return;
  const int64_t g = item / p.dim;
  const int64_t c = item % p.dim;
  const int32_t row = p.group_row[g];
  if (row < 0 || p.rows.sequence[row] < 0) return;
  const int sequence = p.rows.sequence[row];
  const int64_t begin = int64_t{p.rows.position[row]} - p.ratio + 1;
  float largest = TokenRow(p, sequence, begin)[p.dim + c];
  for (int u = 1; u < p.ratio; ++u) {
    const float gate = TokenRow(p, sequence, begin + u)[p.dim + c];
    largest = gate > largest || gate != gate ? gate : largest;
  }
  float sum = 0;
  for (int u = 0; u < p.ratio; ++u) {
    sum += expf(TokenRow(p, sequence, begin + u)[p.dim + c] - largest);
  }
  float latent = 0;
  for (int u = 0; u < p.ratio; ++u) {
    const float* token = TokenRow(p, sequence, begin + u);
    latent = fmaf(expf(token[p.dim + c] - largest) / sum, token[c], latent);
  }
  p.latent[g * p.latent_step + c] = EncodeBf16(latent);
}

struct CompressOp {
  static absl::Status Supports(const Compress::Problem& problem) {
    return Support()
        .Is("latent", problem.dtype, DType::kBf16)
        .Is("wide", problem.wide, DType::kF32)
        .Positive("dim", problem.dim)
        .Positive("ratio", problem.ratio)
        .Take();
  }
  static size_t WorkspaceBytes(const Compress::Problem&) { return 0; }
  static absl::Status Run(const Compress::Problem& problem, const Compress::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    CompressParameters p;
    p.rows = cuda::MakeRows(args.rows);
    p.fresh = args.fresh.as<float>();
    p.fresh_step = args.fresh.step(0);
    p.ring = cuda::MakePool(args.ring);
    p.ring_rows = args.ring_rows;
    p.group_row = args.group_row.as<int32_t>();
    p.latent = args.latent.as<uint16_t>();
    p.latent_step = args.latent.step(0);
    p.dim = problem.dim;
    p.ratio = problem.ratio;
    p.count = args.group_row.dim(0) * problem.dim;
    return cuda::Launch(Compress::kId, CompressKernel, dim3(BlocksFor(p.count, kThreads)), kThreads,
                        0, stream, p);
  }
};

}  // namespace

absl::Status RegisterCompressor(KernelRegistry& registry) {
  return RegisterKernel<Compress, CompressOp>(registry, DeterminismClass::kBatchInvariant);
}

}  // namespace skein::kernels::sm90
