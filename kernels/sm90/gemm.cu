// Matrix products. bf16 outputs: operands decoded exactly to bf16 in shared memory (per-32 scales
// folded in, catalogue 13.3 K2), then tensor-core products with f32 accumulators, k ascending in
// steps of 16. f32 outputs: a warp per output column in f32. Neither order depends on the rows.
#include <algorithm>
#include <numeric>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/sm90/expert_fp4.cuh"
#include "kernels/sm90/family.cuh"
#include "kernels/sm90/grouped_fp8.cuh"
#include "kernels/sm90/linear_bf16.cuh"
#include "kernels/sm90/linear_fp8.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::kWarp;

constexpr int kTileN = 64;           // output channels of a block, 16 of a warp
constexpr int kChunk = 64;           // inputs that are staged at a time
constexpr int kStride = kChunk + 8;  // of a staged row: no bank conflicts
constexpr unsigned kThreads = 4 * kWarp;
constexpr int kUnit = 32;  // inputs under one activation scale
using fp4::ExpertTable;
using fp4::kMostExperts;

// A weight as stored, by value.
struct WeightView {
  const uint8_t* codes;
  int64_t codes_step;
  const uint8_t* scale;
  int64_t scale_step;
  WeightFormat format;
  int block;

  __device__ float Element(int64_t n, int64_t k) const {
    switch (format) {
      case WeightFormat::kBf16:
        return DecodeBf16(reinterpret_cast<const uint16_t*>(codes)[n * codes_step + k]);
      case WeightFormat::kF32:
        return reinterpret_cast<const float*>(codes)[n * codes_step + k];
      case WeightFormat::kE4m3Block:
        return DecodeE4m3(codes[n * codes_step + k]) *
               DecodeE8m0(scale[n / block * scale_step + k / block]);
      case WeightFormat::kE2m1Row32:
        return DecodeE2m1(codes[n * codes_step + k / 2] >> (k % 2 * 4) & 15) *
               DecodeE8m0(scale[n * scale_step + k / kUnit]);
    }
    return 0;
  }
};

WeightView MakeWeight(const Weight& w, WeightFormat format, int block) {
  WeightView out;
  out.codes = w.codes.as<uint8_t>();
  out.codes_step = w.codes.step(0);
  out.scale = w.scale.absent() ? nullptr : w.scale.as<uint8_t>();
  out.scale_step = w.scale.absent() ? 0 : w.scale.step(0);
  out.format = format;
  out.block = block;
  return out;
}

// Rows of activations, by value.
struct Activations {
  const void* data;
  DType dtype;
  int64_t step;
  const uint8_t* scale;
  int64_t scale_step;

  __device__ float Element(int64_t row, int64_t k) const {
    switch (dtype) {
      case DType::kE4m3:
        return DecodeE4m3(static_cast<const uint8_t*>(data)[row * step + k]) *
               DecodeE8m0(scale[row * scale_step + k / kUnit]);
      case DType::kBf16:
        return DecodeBf16(static_cast<const uint16_t*>(data)[row * step + k]);
      default:
        return static_cast<const float*>(data)[row * step + k];
    }
  }
};

Activations MakeActivations(const TensorView& x, const TensorView& x_scale) {
  Activations out;
  out.data = x.data;
  out.dtype = x.dtype;
  out.step = x.step(0);
  out.scale = x_scale.absent() ? nullptr : x_scale.as<uint8_t>();
  out.scale_step = x_scale.absent() ? 0 : x_scale.step(0);
  return out;
}

// ---- bf16 outputs

__device__ void Mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// What a block computes: rows [begin, end) of one weight's product.
struct TileWork {
  WeightView w;
  int64_t n, k;
  Activations x;
  const int32_t* source_row;  // null: row i reads x row i
  int64_t begin, end;
  uint16_t* y;
  int64_t y_step;
};

// Stages `rows` rows of 64 inputs from `k0`; rows at or beyond `valid` and inputs beyond k are 0.
template <typename Element>
__device__ void Stage(uint16_t* tile, int rows, int64_t valid, int64_t k0, int64_t k,
                      const Element& element) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * kChunk; i += static_cast<int>(kThreads)) {
    const int row = i / kChunk;
    const int64_t at = k0 + i % kChunk;
    const bool there = row < valid && at < k;
    tile[row * kStride + i % kChunk] = there ? EncodeBf16(element(row, at)) : uint16_t{0};
  }
}

template <int kTileT>
__device__ void ComputeTile(const TileWork& work, int64_t n0, int64_t t0, uint16_t* w_tile,
                            uint16_t* x_tile) {
  constexpr int kColumns = kTileT / 8;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = warp * 16 + lane / 4;
  const int pair = lane % 4 * 2;
  float c[kColumns][4] = {};
  for (int64_t k0 = 0; k0 < work.k; k0 += kChunk) {
    __syncthreads();
    Stage(w_tile, kTileN, work.n - n0, k0, work.k,
          [&](int r, int64_t at) { return work.w.Element(n0 + r, at); });
    Stage(x_tile, kTileT, work.end - t0, k0, work.k, [&](int r, int64_t at) {
      const int64_t i = t0 + r;
      return work.x.Element(work.source_row == nullptr ? i : work.source_row[i], at);
    });
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < kChunk; kk += 16) {
      const uint16_t* a_row = w_tile + row * kStride + kk + pair;
      const uint32_t a[4] = {*reinterpret_cast<const uint32_t*>(a_row),
                             *reinterpret_cast<const uint32_t*>(a_row + 8 * kStride),
                             *reinterpret_cast<const uint32_t*>(a_row + 8),
                             *reinterpret_cast<const uint32_t*>(a_row + 8 * kStride + 8)};
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const uint16_t* b_row = x_tile + (column * 8 + lane / 4) * kStride + kk + pair;
        const uint32_t b[2] = {*reinterpret_cast<const uint32_t*>(b_row),
                               *reinterpret_cast<const uint32_t*>(b_row + 8)};
        Mma(c[column], a, b);
      }
    }
  }
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t n = n0 + row + i / 2 * 8;
      const int64_t t = t0 + column * 8 + pair + i % 2;
      if (n < work.n && t < work.end) work.y[t * work.y_step + n] = EncodeBf16(c[column][i]);
    }
  }
}

template <int kTileT>
__global__ void __launch_bounds__(kThreads)
    LinearTileKernel(TileWork work, int64_t x_group_step, int64_t y_group_step) {
  __shared__ uint16_t w_tile[kTileN * kStride];
  __shared__ uint16_t x_tile[kTileT * kStride];
  // Groups of a block-diagonal product: inputs, weight rows and outputs move along.
  const int64_t g = blockIdx.z;
  const int64_t width = work.x.dtype == DType::kE4m3 ? 1 : 2;
  work.x.data = static_cast<const uint8_t*>(work.x.data) + g * x_group_step * width;
  work.y += g * y_group_step;
  const int64_t n0 = int64_t{blockIdx.x} * kTileN;
  const int64_t first = g * work.n;
  if (g > 0) {
    const WeightView w = work.w;
    TileWork moved = work;
    // Rows of the group are a window of the weight; scales of blocks may start inside one.
    moved.w = w;
    moved.n = first + work.n;
    moved.y -= first;
    ComputeTile<kTileT>(moved, first + n0, int64_t{blockIdx.y} * kTileT, w_tile, x_tile);
    return;
  }
  ComputeTile<kTileT>(work, n0, int64_t{blockIdx.y} * kTileT, w_tile, x_tile);
}

// Runs `launch(tile of tokens)` with the tile that fits `rows`.
template <typename Launcher>
absl::Status WithTile(int64_t rows, const Launcher& launch) {
  if (rows <= 8) return launch(std::integral_constant<int, 8>());
  if (rows <= 32) return launch(std::integral_constant<int, 32>());
  return launch(std::integral_constant<int, 64>());
}

// ---- f32 outputs

constexpr int kWideRows = 4;  // rows that share one decoding of the weight

__global__ void WideLinearKernel(WeightView w, Activations x, int64_t x_group_step, int64_t n,
                                 int64_t k, int64_t rows, void* y, DType y_dtype, int64_t y_step,
                                 int64_t y_group_step, bool accumulate) {
  const int64_t column = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (column >= n) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t g = blockIdx.z;
  const int64_t width = x.dtype == DType::kE4m3 ? 1 : x.dtype == DType::kBf16 ? 2 : 4;
  x.data = static_cast<const uint8_t*>(x.data) + g * x_group_step * width;
  const int64_t t0 = int64_t{blockIdx.y} * kWideRows;
  float sum[kWideRows] = {};
  for (int64_t at = lane; at < k; at += kWarp) {
    const float weight = w.Element(g * n + column, at);
#pragma unroll
    for (int i = 0; i < kWideRows; ++i) {
      if (t0 + i < rows) sum[i] = fmaf(x.Element(t0 + i, at), weight, sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kWideRows; ++i) {
    const float total = cuda::WarpSum(sum[i]);
    if (lane != 0 || t0 + i >= rows) continue;
    const int64_t at = g * y_group_step + (t0 + i) * y_step + column;
    cuda::StoreFloat(y, y_dtype, at, accumulate ? cuda::LoadFloat(y, y_dtype, at) + total : total);
  }
}

// ---- operators

// f32 outputs and f32 weights: more bits than a tensor-core product keeps.
template <typename Problem>
bool InF32(const Problem& problem) {
  return problem.y_dtype == DType::kF32 || problem.format == WeightFormat::kF32;
}

template <typename Problem>
absl::Status SupportsProduct(const Problem& problem) {
  const bool wide = InF32(problem);
  const bool x = problem.x_dtype == DType::kE4m3 || problem.x_dtype == DType::kBf16 ||
                 (wide && problem.x_dtype == DType::kF32);
  Support want;
  want.Want(wide || problem.y_dtype == DType::kBf16, "y", DTypeName(problem.y_dtype), "bf16 or f32")
      .Want(x, "x", DTypeName(problem.x_dtype), "e4m3, bf16, and f32 where the product is in f32")
      .Positive("n", problem.n)
      .Positive("k", problem.k);
  if (problem.format == WeightFormat::kE4m3Block) want.Positive("block", problem.block);
  return want.Take();
}

// Scaled e4m3 on both sides and whole slices of inputs: of the problem alone, so that the order of
// sums is.
bool IsFp8(const Linear::Problem& problem) {
  return problem.format == WeightFormat::kE4m3Block && problem.block == fp8::kUnit &&
         problem.x_dtype == DType::kE4m3 && problem.y_dtype == DType::kBf16 &&
         problem.k % fp8::kSlice == 0;
}

absl::Status RunFp8(const Linear::Problem& problem, const Linear::Args& args, DeviceStream stream) {
  fp8::Parameters p;
  p.w_scale = args.w.scale.as<uint8_t>();
  p.w_scale_step = args.w.scale.step(0);
  p.x = args.x.as<uint8_t>();
  p.x_step = args.x.step(0);
  p.x_scale = args.x_scale.as<uint8_t>();
  p.x_scale_step = args.x_scale.step(0);
  p.y = args.y.as<uint16_t>();
  p.y_step = args.y.step(0);
  p.n = problem.n;
  p.k = problem.k;
  p.rows = static_cast<int>(args.x.dim(0));
  p.x_aligned = p.x_step % 16 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
  p.x_scale_aligned = p.x_scale_step % 4 == 0 && reinterpret_cast<uintptr_t>(p.x_scale) % 4 == 0;
  const auto w_step = static_cast<uint64_t>(args.w.codes.step(0));
  if (w_step % 16 != 0 || reinterpret_cast<uintptr_t>(args.w.codes.data) % 16 != 0) {
    return absl::InvalidArgumentError(
        "linear: e4m3 rows of whole 256 inputs must be aligned to 16 bytes");
  }
  absl::Status status =
      MapRows(args.w.codes.data, p.k, p.n, args.w.codes.step(0), fp8::kChannels, p.w);
  if (!status.ok()) return status;
  const auto parts = static_cast<unsigned>(fp8::PartsOf(problem.n, problem.k));
  const auto launch = [&](auto tile) {
    if (p.x_aligned) {
      status = MapRows(args.x.data, p.k, p.rows, p.x_step, tile(), p.x_map);
      if (!status.ok()) return status;
    }
    p.row_tiles = static_cast<int>(BlocksFor(p.rows, tile()));
    const dim3 grid(BlocksFor(problem.n, fp8::kChannels) * BlocksFor(p.rows, tile()) * parts);
    const size_t shared = sizeof(fp8::Shared<tile()>) + fp8::kAlignment;
    return cuda::LaunchAs(Linear::kId, fp8::LinearFp8Kernel<tile()>,
                          {grid, fp8::kThreads, shared, parts}, stream, p);
  };
  if (p.rows <= 8) return launch(std::integral_constant<int, 8>());
  if (p.rows <= 16) return launch(std::integral_constant<int, 16>());
  if (p.rows <= 32) return launch(std::integral_constant<int, 32>());
  return launch(std::integral_constant<int, 64>());
}

// bf16 on both sides and rows of weights that the copy engine can read: of the problem alone.
bool IsBf16(const Linear::Problem& problem) {
  return problem.format == WeightFormat::kBf16 && problem.x_dtype == DType::kBf16 &&
         problem.k % 8 == 0;
}

template <int kChannels>
absl::Status LaunchBf16(bf16::Parameters& p, const Linear::Args& args, DeviceStream stream) {
  const auto parts = static_cast<unsigned>(bf16::PartsOf(p.n, p.k));
  const auto launch = [&](auto rows) {
    using Tile = bf16::Tile<kChannels, rows()>;
    if (p.x_aligned) {
      absl::Status status = MapRows(args.x.data, 2 * p.k, p.rows, 2 * p.x_step, rows(), p.x_map);
      if (!status.ok()) return status;
    }
    p.row_tiles = static_cast<int>(BlocksFor(p.rows, rows()));
    const dim3 grid(BlocksFor(p.n, kChannels) * BlocksFor(p.rows, rows()) * parts);
    const size_t shared = sizeof(typename Tile::Shared) + bf16::kAlignment;
    return cuda::LaunchAs(Linear::kId, bf16::LinearBf16Kernel<kChannels, rows()>,
                          {grid, Tile::kThreads, shared, parts}, stream, p);
  };
  if (p.rows <= 8) return launch(std::integral_constant<int, 8>());
  if (p.rows <= 16) return launch(std::integral_constant<int, 16>());
  if (p.rows <= 32) return launch(std::integral_constant<int, 32>());
  return launch(std::integral_constant<int, 64>());
}

absl::Status RunBf16(const Linear::Problem& problem, const Linear::Args& args,
                     DeviceStream stream) {
  bf16::Parameters p;
  p.x = args.x.as<uint16_t>();
  p.x_step = args.x.step(0);
  p.y = problem.y_dtype == DType::kBf16 ? args.y.as<uint16_t>() : nullptr;
  p.wide = problem.y_dtype == DType::kF32 ? args.y.as<float>() : nullptr;
  p.y_step = args.y.step(0);
  p.n = problem.n;
  p.k = problem.k;
  p.rows = static_cast<int>(args.x.dim(0));
  p.x_aligned = p.x_step % 8 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
  p.accumulate = problem.accumulate;
  if (args.w.codes.step(0) % 8 != 0 || reinterpret_cast<uintptr_t>(args.w.codes.data) % 16 != 0) {
    return absl::InvalidArgumentError(
        "linear: bf16 rows of whole 8 inputs must be aligned to 16 bytes");
  }
  const int channels = bf16::ChannelsOf(problem.n);
  absl::Status status = MapRows(args.w.codes.data, 2 * p.k, p.n, 2 * args.w.codes.step(0),
                                static_cast<uint32_t>(channels), p.w);
  if (!status.ok()) return status;
  return channels == 64 ? LaunchBf16<64>(p, args, stream) : LaunchBf16<128>(p, args, stream);
}

struct LinearOp {
  static absl::Status Supports(const Linear::Problem& problem) {
    if (absl::Status status = SupportsProduct(problem); !status.ok()) return status;
    return Support()
        .Want(!problem.accumulate || problem.y_dtype == DType::kF32, "accumulation into y",
              DTypeName(problem.y_dtype), "f32")
        .Take();
  }
  static size_t WorkspaceBytes(const Linear::Problem&) { return 0; }
  static absl::Status Run(const Linear::Problem& problem, const Linear::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (IsFp8(problem)) return RunFp8(problem, args, stream);
    if (IsBf16(problem)) return RunBf16(problem, args, stream);
    const int64_t rows = args.x.dim(0);
    const WeightView w = MakeWeight(args.w, problem.format, problem.block);
    const Activations x = MakeActivations(args.x, args.x_scale);
    if (InF32(problem)) {
      const dim3 grid(BlocksFor(problem.n, kThreads / kWarp), BlocksFor(rows, kWideRows));
      return cuda::Launch(Linear::kId, WideLinearKernel, grid, kThreads, 0, stream, w, x, 0,
                          problem.n, problem.k, rows, args.y.data, problem.y_dtype, args.y.step(0),
                          0, problem.accumulate);
    }
    const TileWork work{
        w, problem.n, problem.k, x, nullptr, 0, rows, args.y.as<uint16_t>(), args.y.step(0)};
    return WithTile(rows, [&](auto tile) {
      const dim3 grid(BlocksFor(problem.n, kTileN), BlocksFor(rows, tile()));
      return cuda::Launch(Linear::kId, LinearTileKernel<tile()>, grid, kThreads, 0, stream, work, 0,
                          0);
    });
  }
};

// bf16 activations, scaled e4m3 weights, whole steps of inputs for every warp and blocks of
// channels that no scale divides: of the problem alone, so that the order of sums is.
bool IsGroupedFp8(const GroupedLinear::Problem& problem) {
  return problem.format == WeightFormat::kE4m3Block && problem.block == grouped::kUnit &&
         problem.x_dtype == DType::kBf16 && problem.y_dtype == DType::kBf16 &&
         problem.n % grouped::kChannels == 0 && problem.k % (grouped::kStep * grouped::kWarps) == 0;
}

absl::Status RunGroupedFp8(const GroupedLinear::Problem& problem, const GroupedLinear::Args& args,
                           DeviceStream stream) {
  grouped::Parameters p;
  p.w = args.w.codes.as<uint8_t>();
  p.w_step = args.w.codes.step(0);
  p.w_scale = args.w.scale.as<uint8_t>();
  p.w_scale_step = args.w.scale.step(0);
  p.x = args.x.as<uint16_t>();
  p.x_step = args.x.step(0);
  p.x_group_step = args.x.step(1);
  p.y = args.y.as<uint16_t>();
  p.y_step = args.y.step(0);
  p.y_group_step = args.y.step(1);
  p.n = problem.n;
  p.k = problem.k;
  p.rows = static_cast<int>(args.x.dim(0));
  p.x_aligned =
      p.x_step % 4 == 0 && p.x_group_step % 4 == 0 && reinterpret_cast<uintptr_t>(p.x) % 8 == 0;
  if (p.w_step % 16 != 0 || reinterpret_cast<uintptr_t>(p.w) % 16 != 0) {
    return absl::InvalidArgumentError(
        "grouped_linear: e4m3 rows of whole 512 inputs must be aligned to 16 bytes");
  }
  const auto launch = [&](auto tiles) {
    const dim3 grid(BlocksFor(problem.n, grouped::kChannels), BlocksFor(p.rows, tiles() * 8),
                    static_cast<unsigned>(problem.groups));
    return cuda::Launch(GroupedLinear::kId, grouped::GroupedFp8Kernel<tiles()>, grid,
                        grouped::kWarps * kWarp, 0, stream, p);
  };
  if (p.rows <= 8) return launch(std::integral_constant<int, 1>());
  if (p.rows <= 16) return launch(std::integral_constant<int, 2>());
  return launch(std::integral_constant<int, 4>());
}

struct GroupedLinearOp {
  static absl::Status Supports(const GroupedLinear::Problem& problem) {
    if (absl::Status status = SupportsProduct(problem); !status.ok()) return status;
    return Support().Positive("groups", problem.groups).Take();
  }
  static size_t WorkspaceBytes(const GroupedLinear::Problem&) { return 0; }
  static absl::Status Run(const GroupedLinear::Problem& problem, const GroupedLinear::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (IsGroupedFp8(problem)) return RunGroupedFp8(problem, args, stream);
    const int64_t rows = args.x.dim(0);
    const WeightView w = MakeWeight(args.w, problem.format, problem.block);
    const Activations x = MakeActivations(args.x, {});
    const auto groups = static_cast<unsigned>(problem.groups);
    if (InF32(problem)) {
      const dim3 grid(BlocksFor(problem.n, kThreads / kWarp), BlocksFor(rows, kWideRows), groups);
      return cuda::Launch(GroupedLinear::kId, WideLinearKernel, grid, kThreads, 0, stream, w, x,
                          args.x.step(1), problem.n, problem.k, rows, args.y.data, problem.y_dtype,
                          args.y.step(0), args.y.step(1), false);
    }
    const TileWork work{
        w, problem.n, problem.k, x, nullptr, 0, rows, args.y.as<uint16_t>(), args.y.step(0)};
    return WithTile(rows, [&](auto tile) {
      const dim3 grid(BlocksFor(problem.n, kTileN), BlocksFor(rows, tile()), groups);
      return cuda::Launch(GroupedLinear::kId, LinearTileKernel<tile()>, grid, kThreads, 0, stream,
                          work, args.x.step(1), args.y.step(1));
    });
  }
};

// A block per expert and tile of channels goes over the expert's rows.
template <int kTileT>
__global__ void __launch_bounds__(kThreads)
    ExpertTileKernel(const __grid_constant__ ExpertTable table, TileWork work,
                     const int32_t* expert_offset) {
  __shared__ uint16_t w_tile[kTileN * kStride];
  __shared__ uint16_t x_tile[kTileT * kStride];
  const int e = static_cast<int>(blockIdx.y);
  work.begin = expert_offset[e];
  work.end = expert_offset[e + 1];
  work.w.codes = table.codes[e];
  work.w.scale = table.scale[e];
  for (int64_t t0 = work.begin; t0 < work.end; t0 += kTileT) {
    ComputeTile<kTileT>(work, int64_t{blockIdx.x} * kTileN, t0, w_tile, x_tile);
  }
}

struct ExpertLinearOp {
  static absl::Status Supports(const ExpertLinear::Problem& problem) {
    if (absl::Status status = SupportsProduct(problem); !status.ok()) return status;
    return Support()
        .Want(!InF32(problem), "y", DTypeName(problem.y_dtype), "bf16, with weights below f32")
        .Positive("num_experts", problem.num_experts)
        .Want(problem.num_experts <= kMostExperts, "num_experts",
              std::to_string(problem.num_experts), "at most 512")
        .Take();
  }
  static size_t WorkspaceBytes(const ExpertLinear::Problem& problem) {
    if (!IsFp4(problem)) return 0;
    return fp4::ArrangedBytes(fp4::PlacesOf(problem.max_rows, problem.num_experts), problem.k);
  }
  // Of the problem alone, so that the order of sums is.
  static bool IsFp4(const ExpertLinear::Problem& problem) {
    return problem.format == WeightFormat::kE2m1Row32 && problem.x_dtype == DType::kE4m3 &&
           problem.k % (4 * fp4::kGroup) == 0 && fp4::ScaleBuffers(problem.k) > 0;
  }
  static absl::Status CheckAligned(const ExpertTable& table, size_t experts, int k,
                                   const WeightView& first) {
    auto all = static_cast<uintptr_t>(first.codes_step);
    for (size_t e = 0; e < experts; ++e) {
      all |= reinterpret_cast<uintptr_t>(table.codes[e]);
      all |= reinterpret_cast<uintptr_t>(table.scale[e]);
    }
    return all % 16 == 0 && first.scale_step == k / fp4::kGroup
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     "expert_linear: e2m1 rows of whole 128 inputs and scales must be aligned to "
                     "16 bytes, scales without gaps");
  }
  // One map for all experts: each is at a multiple of a step that divides all distances and the
  // distance of rows.
  static absl::Status MapCodes(const ExpertLinear::Problem& problem, const ExpertTable& table,
                               size_t experts, int64_t codes_step, fp4::Parameters& p) {
    const uint8_t* lowest = *std::min_element(table.codes, table.codes + experts);
    auto step = static_cast<uint64_t>(codes_step);
    uint64_t farthest = 0;
    for (size_t e = 0; e < experts; ++e) {
      const auto distance = static_cast<uint64_t>(table.codes[e] - lowest);
      step = std::gcd(step, distance);
      farthest = std::max(farthest, distance);
    }
    if (farthest / step >= uint64_t{1} << 31) {
      return absl::InvalidArgumentError("expert_linear: experts lie too far apart");
    }
    for (size_t e = 0; e < experts; ++e) {
      p.place[e] = static_cast<int32_t>(static_cast<uint64_t>(table.codes[e] - lowest) / step);
    }
    return MapRows(lowest, problem.k / 2, problem.n, codes_step, fp4::kBlockRows, p.codes,
                   farthest / step + 1, step);
  }
  // Brings the activations into the workspace.
  static absl::Status Arrange(const ExpertLinear::Problem& problem, const ExpertLinear::Args& args,
                              const fp4::Arranged& to, DeviceStream stream) {
    fp4::Source from;
    from.x = args.x.as<uint8_t>();
    from.x_step = args.x.step(0);
    from.scale = args.x_scale.as<uint8_t>();
    from.scale_step = args.x_scale.step(0);
    from.row = args.source_row.absent() ? nullptr : args.source_row.as<int32_t>();
    from.expert_offset = args.expert_offset.as<int32_t>();
    from.num_experts = problem.num_experts;
    from.groups = problem.k / fp4::kGroup;
    from.assignments = static_cast<int>(args.y.dim(0));
    from.aligned = from.x_step % 16 == 0 && reinterpret_cast<uintptr_t>(from.x) % 16 == 0;
    const dim3 grid(BlocksFor(from.assignments, fp4::kArrangeWarps));
    return cuda::Launch(ExpertLinear::kId, fp4::ArrangeKernel, grid, fp4::kArrangeWarps * kWarp, 0,
                        stream, from, to);
  }
  static absl::Status RunFp4(const ExpertLinear::Problem& problem, const ExpertLinear::Args& args,
                             const ExpertTable& table, const TileWork& work, Workspace workspace,
                             DeviceStream stream) {
    if (absl::Status status = CheckAligned(table, args.w.size(), problem.k, work.w); !status.ok()) {
      return status;
    }
    fp4::Parameters p;
    if (absl::Status status = MapCodes(problem, table, args.w.size(), work.w.codes_step, p);
        !status.ok()) {
      return status;
    }
    std::copy(table.scale, table.scale + args.w.size(), p.scale);
    p.expert_offset = args.expert_offset.as<int32_t>();
    p.y = work.y;
    p.y_step = work.y_step;
    p.n = problem.n;
    p.k = problem.k;
    p.num_experts = problem.num_experts;
    p.scale_buffers = fp4::ScaleBuffers(problem.k);
    const int64_t places = fp4::PlacesOf(args.y.dim(0), problem.num_experts);
    absl::Status status =
        CheckWorkspace(ExpertLinear::kId, workspace, fp4::ArrangedBytes(places, problem.k));
    if (!status.ok()) return status;
    p.x.codes = static_cast<uint8_t*>(workspace.data);
    p.x.scale = reinterpret_cast<float*>(p.x.codes + places * problem.k);
    status = Arrange(problem, args, p.x, stream);
    if (!status.ok()) return status;
    const int64_t most = int64_t{problem.num_experts} * BlocksFor(problem.n, fp4::kBlockRows);
    const int64_t resident = 2 * int64_t{cuda::Multiprocessors()};
    const dim3 grid(static_cast<unsigned>(std::min(most, resident)));
    const size_t shared =
        sizeof(fp4::Shared) + fp4::kAlignment +
        static_cast<size_t>(p.scale_buffers) * static_cast<size_t>(fp4::ScaleBytes(problem.k));
    return cuda::LaunchAs(ExpertLinear::kId, fp4::ExpertFp4Kernel,
                          {grid, fp4::kThreads, shared, 1, /*early=*/true}, stream, p);
  }
  static absl::Status Run(const ExpertLinear::Problem& problem, const ExpertLinear::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t assignments = args.y.dim(0);
    if (assignments == 0) return absl::OkStatus();
    ExpertTable table = {};
    const WeightView first = MakeWeight(args.w[0], problem.format, problem.block);
    for (size_t e = 0; e < args.w.size(); ++e) {
      const WeightView w = MakeWeight(args.w[e], problem.format, problem.block);
      if (w.codes_step != first.codes_step || w.scale_step != first.scale_step) {
        return absl::InvalidArgumentError("expert_linear: experts have different row strides");
      }
      table.codes[e] = w.codes;
      table.scale[e] = w.scale;
    }
    const TileWork work{first,
                        problem.n,
                        problem.k,
                        MakeActivations(args.x, args.x_scale),
                        args.source_row.absent() ? nullptr : args.source_row.as<int32_t>(),
                        0,
                        0,
                        args.y.as<uint16_t>(),
                        args.y.step(0)};
    const int64_t per_expert = assignments / problem.num_experts + 1;
    if (IsFp4(problem)) return RunFp4(problem, args, table, work, workspace, stream);
    return WithTile(per_expert, [&](auto tile) {
      const dim3 grid(BlocksFor(problem.n, kTileN), static_cast<unsigned>(problem.num_experts));
      return cuda::Launch(ExpertLinear::kId, ExpertTileKernel<tile()>, grid, kThreads, 0, stream,
                          table, work, args.expert_offset.as<int32_t>());
    });
  }
};

}  // namespace

absl::Status RegisterGemm(KernelRegistry& registry) {
  constexpr DeterminismClass kRows = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterKernel<Linear, LinearOp>(registry, kRows);
  if (status.ok()) status = RegisterKernel<GroupedLinear, GroupedLinearOp>(registry, kRows);
  if (status.ok()) status = RegisterKernel<ExpertLinear, ExpertLinearOp>(registry, kRows);
  return status;
}

}  // namespace skein::kernels::sm90
