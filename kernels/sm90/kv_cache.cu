// Cache rows: store (a warp per group of channels), load, copy, and the gather of table rows.
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::kWarp;
using cuda::LoadFloat;
using cuda::Pool;

constexpr unsigned kThreads = 256;
constexpr int64_t kWarpsPerBlock = kThreads / kWarp;

bool IsPlain(KvFormat format) { return format == KvFormat::kBf16 || format == KvFormat::kF32; }

Support WantPool(KvFormat format, int dim) {
  Support want;
  want.Want(format != KvFormat::kF64, "pool", KvFormatName(format), "every format but f64")
      .Positive("dim", dim);
  return want;
}

__global__ void StorePlainKernel(const void* x, DType dtype, int64_t x_step, const int64_t* target,
                                 Pool pool, int64_t count) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t i = item / pool.dim;
  const int64_t c = item % pool.dim;
  const int64_t row = target[i];
  if (row < 0 || row >= pool.num_rows) return;
  const DType stored = pool.format == KvFormat::kBf16 ? DType::kBf16 : DType::kF32;
  cuda::StoreFloat(pool.RowData(row), stored, c, LoadFloat(x, dtype, i * x_step + c));
}

__device__ CodeFormat CodesOf(KvFormat format) {
  return format == KvFormat::kFp4Group16   ? CodeFormat::kE2m1E4m3
         : format == KvFormat::kFp4Group32 ? CodeFormat::kE2m1Ue8m0
                                           : CodeFormat::kE4m3Ue8m0;
}

__global__ void StoreCodesKernel(const void* x, DType dtype, int64_t x_step, const int64_t* target,
                                 Pool pool, int64_t num_groups) {
  cuda::BeginAfterLast();
  const int64_t item = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp;
  if (item >= num_groups) return;
  const int per_row = (pool.dim + pool.group - 1) / pool.group;
  const int64_t row = target[item / per_row];
  if (row < 0 || row >= pool.num_rows) return;
  const int group = static_cast<int>(item % per_row);
  const int begin = group * pool.group;
  const int count = min(pool.group, pool.dim - begin);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool mine = lane < count;  // groups have at most 32 channels
  const float value = mine ? LoadFloat(x, dtype, item / per_row * x_step + begin + lane) : 0.0f;
  const float amax = cuda::WarpReduce(fabsf(value), cuda::LargerOrNan());
  const CodeFormat format = CodesOf(pool.format);
  const GroupScale s = ScaleOfGroup(format, amax);
  if (lane == 0) pool.RowScale(row)[group] = s.byte;
  const unsigned code = mine ? EncodeInGroup(format, value, s.value) : 0;
  uint8_t* data = pool.RowData(row);
  if (format == CodeFormat::kE4m3Ue8m0) {
    if (mine) data[begin + lane] = static_cast<uint8_t>(code);
    return;
  }
  const unsigned upper = __shfl_down_sync(cuda::kAllLanes, code, 1);
  if (mine && lane % 2 == 0) data[(begin + lane) / 2] = static_cast<uint8_t>(code | upper << 4);
}

struct StoreKvOp {
  static absl::Status Supports(const StoreKv::Problem& problem) {
    const bool known = problem.x_dtype == DType::kBf16 || problem.x_dtype == DType::kF32;
    const bool packed =
        problem.format == KvFormat::kFp4Group16 || problem.format == KvFormat::kFp4Group32;
    return WantPool(problem.format, problem.dim)
        .Want(known, "x", DTypeName(problem.x_dtype), "bf16 or f32")
        .Want(!packed || problem.dim % 2 == 0, "dim", std::to_string(problem.dim),
              "even numbers in fp4 pools")
        .Take();
  }
  static size_t WorkspaceBytes(const StoreKv::Problem&) { return 0; }
  static absl::Status Run(const StoreKv::Problem& problem, const StoreKv::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const Pool pool = cuda::MakePool(args.pool);
    const int64_t* target = args.target.as<int64_t>();
    if (IsPlain(problem.format)) {
      const int64_t count = args.x.dim(0) * problem.dim;
      return cuda::Launch(StoreKv::kId, StorePlainKernel, dim3(BlocksFor(count, kThreads)),
                          kThreads, 0, stream, args.x.data, problem.x_dtype, args.x.step(0), target,
                          pool, count);
    }
    const int64_t groups = args.x.dim(0) * ((problem.dim + pool.group - 1) / pool.group);
    return cuda::Launch(StoreKv::kId, StoreCodesKernel, dim3(BlocksFor(groups, kWarpsPerBlock)),
                        kThreads, 0, stream, args.x.data, problem.x_dtype, args.x.step(0), target,
                        pool, groups);
  }
};

__global__ void LoadKvKernel(Pool pool, const int64_t* source, void* y, DType y_dtype,
                             int64_t y_step, int64_t count) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t i = item / pool.dim;
  const int c = static_cast<int>(item % pool.dim);
  const int64_t row = source[i];
  float value = 0;
  if (row >= 0 && row < pool.num_rows) {
    value = pool.Element(pool.RowData(row), pool.RowScale(row), c);
  }
  cuda::StoreFloat(y, y_dtype, i * y_step + c, value);
}

struct LoadKvOp {
  static absl::Status Supports(const LoadKv::Problem& problem) {
    const bool known = problem.y_dtype == DType::kBf16 || problem.y_dtype == DType::kF32;
    return WantPool(problem.format, problem.dim)
        .Want(known, "y", DTypeName(problem.y_dtype), "bf16 or f32")
        .Take();
  }
  static size_t WorkspaceBytes(const LoadKv::Problem&) { return 0; }
  static absl::Status Run(const LoadKv::Problem& problem, const LoadKv::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t count = args.y.dim(0) * problem.dim;
    return cuda::Launch(LoadKv::kId, LoadKvKernel, dim3(BlocksFor(count, kThreads)), kThreads, 0,
                        stream, cuda::MakePool(args.pool), args.source.as<int64_t>(), args.y.data,
                        problem.y_dtype, args.y.step(0), count);
  }
};

// A block per row.
__global__ void CopyKvRowsKernel(Pool from, Pool to, const int64_t* source, const int64_t* target) {
  cuda::BeginAfterLast();
  const int64_t a = source[blockIdx.x];
  const int64_t b = target[blockIdx.x];
  if (a < 0 || b < 0 || a >= from.num_rows || b >= to.num_rows) return;
  const uint8_t* data = from.RowData(a);
  const uint8_t* scale = from.RowScale(a);
  uint8_t* data_to = to.RowData(b);
  uint8_t* scale_to = to.RowScale(b);
  for (int64_t i = threadIdx.x; i < from.data_bytes; i += blockDim.x) data_to[i] = data[i];
  for (int64_t i = threadIdx.x; i < from.scale_bytes; i += blockDim.x) scale_to[i] = scale[i];
}

struct CopyKvRowsOp {
  static absl::Status Supports(const CopyKvRows::Problem& problem) {
    return WantPool(problem.format, problem.dim).Take();
  }
  static size_t WorkspaceBytes(const CopyKvRows::Problem&) { return 0; }
  static absl::Status Run(const CopyKvRows::Problem& problem, const CopyKvRows::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    return cuda::Launch(CopyKvRows::kId, CopyKvRowsKernel,
                        dim3(static_cast<unsigned>(args.source.dim(0))), kThreads, 0, stream,
                        cuda::MakePool(args.from), cuda::MakePool(args.to),
                        args.source.as<int64_t>(), args.target.as<int64_t>());
  }
};

__global__ void GatherRowsKernel(const void* table, DType table_dtype, int64_t table_step,
                                 int64_t num_rows, const int32_t* index, void* y, DType y_dtype,
                                 int64_t y_step, int channels, int64_t count) {
  cuda::BeginAfterLast();
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= count) return;
  const int64_t i = item / channels;
  const int64_t c = item % channels;
  const int64_t row = index[i];
  const bool there = row >= 0 && row < num_rows;
  cuda::StoreFloat(y, y_dtype, i * y_step + c,
                   there ? LoadFloat(table, table_dtype, row * table_step + c) : 0.0f);
}

struct GatherRowsOp {
  static absl::Status Supports(const GatherRows::Problem& problem) {
    const bool table = problem.table_dtype == DType::kBf16 || problem.table_dtype == DType::kF32;
    const bool y = problem.y_dtype == DType::kBf16 || problem.y_dtype == DType::kF32;
    return Support()
        .Want(table, "table", DTypeName(problem.table_dtype), "bf16 or f32")
        .Want(y && DTypeBytes(problem.y_dtype) >= DTypeBytes(problem.table_dtype), "y",
              DTypeName(problem.y_dtype), "bf16 or f32, at least as wide as the table")
        .Positive("channels", problem.channels)
        .Take();
  }
  static size_t WorkspaceBytes(const GatherRows::Problem&) { return 0; }
  static absl::Status Run(const GatherRows::Problem& problem, const GatherRows::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t count = args.y.dim(0) * problem.channels;
    return cuda::Launch(GatherRows::kId, GatherRowsKernel, dim3(BlocksFor(count, kThreads)),
                        kThreads, 0, stream, args.table.data, problem.table_dtype,
                        args.table.step(0), args.table.dim(0), args.index.as<int32_t>(),
                        args.y.data, problem.y_dtype, args.y.step(0), problem.channels, count);
  }
};

}  // namespace

absl::Status RegisterKvCache(KernelRegistry& registry) {
  constexpr DeterminismClass kBits = DeterminismClass::kBitwise;
  absl::Status status = RegisterKernel<StoreKv, StoreKvOp>(registry, kBits);
  if (status.ok()) status = RegisterKernel<LoadKv, LoadKvOp>(registry, kBits);
  if (status.ok()) status = RegisterKernel<CopyKvRows, CopyKvRowsOp>(registry, kBits);
  if (status.ok()) status = RegisterKernel<GatherRows, GatherRowsOp>(registry, kBits);
  return status;
}

}  // namespace skein::kernels::sm90
