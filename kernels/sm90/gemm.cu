// Matrix products: which kernel takes which problem. Never by the number of rows, on which the
// order of a sum must not depend.
#include <algorithm>
#include <numeric>

#include "kernels/sm90/expert_fp4.cuh"
#include "kernels/sm90/family.cuh"
#include "kernels/sm90/grouped_fp8.cuh"
#include "kernels/sm90/linear_any.cuh"
#include "kernels/sm90/linear_bf16.cuh"
#include "kernels/sm90/linear_fp8.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::BlocksFor;
using cuda::kWarp;

using any::Activations;
using any::kThreads;
using any::kTileN;
using any::kWideRows;
using any::MakeActivations;
using any::MakeWeight;
using any::TileWork;
using any::WeightView;
using fp4::ExpertTable;
using fp4::kMostExperts;

// Runs `launch(tile of tokens)` with the tile that fits `rows`.
template <typename Launcher>
absl::Status WithTile(int64_t rows, const Launcher& launch) {
  if (rows <= 8) return launch(std::integral_constant<int, 8>());
  if (rows <= 32) return launch(std::integral_constant<int, 32>());
  return launch(std::integral_constant<int, 64>());
}

// Runs `launch(tile of rows)` for the kernels that bring rows to shared memory.
template <typename Launcher>
absl::Status WithRows(int rows, const Launcher& launch) {
  if (rows <= 8) return launch(std::integral_constant<int, 8>());
  if (rows <= 16) return launch(std::integral_constant<int, 16>());
  if (rows <= 32) return launch(std::integral_constant<int, 32>());
  return launch(std::integral_constant<int, 64>());
}

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
  p.y_aligned = p.y_step % 2 == 0 && reinterpret_cast<uintptr_t>(p.y) % 4 == 0;
  const auto w_step = static_cast<uint64_t>(args.w.codes.step(0));
  if (w_step % 16 != 0 || reinterpret_cast<uintptr_t>(args.w.codes.data) % 16 != 0) {
    return absl::InvalidArgumentError(
        "linear: e4m3 rows of whole 256 inputs must be aligned to 16 bytes");
  }
  absl::Status status =
      MapRows(args.w.codes.data, p.k, p.n, args.w.codes.step(0), fp8::kChannels, p.w);
  if (!status.ok()) return status;
  p.parts = fp8::PartsOf(problem.n, problem.k);
  auto blocks = static_cast<unsigned>(p.parts);  // of a cluster
  const auto launch = [&](auto tile) {
    if (p.x_aligned) {
      status = MapRows(args.x.data, p.k, p.rows, p.x_step, tile(), p.x_map);
      if (!status.ok()) return status;
    }
    p.row_tiles = static_cast<int>(BlocksFor(p.rows, tile()));
    unsigned tiles = BlocksFor(problem.n, fp8::kChannels) * BlocksFor(p.rows, tile());
    p.tiles = static_cast<int>(tiles);
    // Enough for all multiprocessors: each takes all inputs, part by part.
    if (tile() > 64 && tiles >= 80) blocks = 1;
    if (fp8::Stays(tile()) && blocks == 1) {
      const int at_once = cuda::Multiprocessors() * fp8::BlocksOf(tile());
      tiles = std::min(tiles, static_cast<unsigned>(at_once));
    }
    const size_t shared = sizeof(fp8::Shared<tile()>) + fp8::kAlignment;
    return cuda::LaunchAs(Linear::kId, fp8::LinearFp8Kernel<tile()>,
                          {dim3(tiles * blocks), fp8::kThreads, shared, blocks}, stream, p);
  };
  if (p.rows > 64) return launch(std::integral_constant<int, 128>());
  return WithRows(p.rows, launch);
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
  return WithRows(p.rows, launch);
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
    if (args.x.dim(0) == 0) return absl::OkStatus();
    if (IsFp8(problem)) return RunFp8(problem, args, stream);
    if (IsBf16(problem)) return RunBf16(problem, args, stream);
    const int64_t rows = args.x.dim(0);
    const WeightView w = MakeWeight(args.w, problem.format, problem.block);
    const Activations x = MakeActivations(args.x, args.x_scale);
    if (InF32(problem)) {
      const dim3 grid(BlocksFor(problem.n, kThreads / kWarp), BlocksFor(rows, kWideRows));
      return cuda::Launch(Linear::kId, any::WideLinearKernel, grid, kThreads, 0, stream, w, x, 0,
                          problem.n, problem.k, rows, args.y.data, problem.y_dtype, args.y.step(0),
                          0, problem.accumulate);
    }
    const TileWork work{
        w, problem.n, problem.k, x, nullptr, 0, rows, args.y.as<uint16_t>(), args.y.step(0)};
    return WithTile(rows, [&](auto tile) {
      const dim3 grid(BlocksFor(problem.n, kTileN), BlocksFor(rows, tile()));
      return cuda::Launch(Linear::kId, any::LinearTileKernel<tile()>, grid, kThreads, 0, stream,
                          work, 0, 0);
    });
  }
};

// bf16 activations, scaled e4m3 weights, whole steps of inputs for every warp and blocks of
// channels that no scale divides: of the problem alone, so that the order of sums is.
bool IsGroupedFp8(const GroupedLinear::Problem& problem) {
  return problem.format == WeightFormat::kE4m3Block && problem.block == grouped::kUnit &&
         problem.x_dtype == DType::kBf16 && problem.y_dtype == DType::kBf16 &&
         problem.n % grouped::kChannels == 0 && problem.k % grouped::kSlice == 0;
}

absl::Status RunGroupedFp8(const GroupedLinear::Problem& problem, const GroupedLinear::Args& args,
                           DeviceStream stream) {
  grouped::Parameters p;
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
      p.x_step % 8 == 0 && p.x_group_step % 8 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
  const int64_t w_step = args.w.codes.step(0);
  if (w_step % 16 != 0 || reinterpret_cast<uintptr_t>(args.w.codes.data) % 16 != 0) {
    return absl::InvalidArgumentError(
        "grouped_linear: e4m3 rows of whole 128 inputs must be aligned to 16 bytes");
  }
  absl::Status status = MapRows(args.w.codes.data, p.k, int64_t{problem.groups} * p.n, w_step,
                                grouped::kChannels, p.w);
  if (!status.ok()) return status;
  const auto parts = static_cast<unsigned>(grouped::PartsOf(problem.groups, p.n, p.k));
  const auto launch = [&](auto rows) {
    if (p.x_aligned) {
      status =
          MapRows(args.x.data, 2 * p.k, p.rows, 2 * p.x_step, rows(), p.x_map,
                  static_cast<uint64_t>(problem.groups), static_cast<uint64_t>(2 * p.x_group_step));
      if (!status.ok()) return status;
    }
    p.row_tiles = static_cast<int>(BlocksFor(p.rows, rows()));
    const auto tiles = static_cast<unsigned>(problem.groups * p.n / grouped::kChannels);
    const size_t shared = sizeof(typename grouped::Tile<rows()>::Shared) + grouped::kAlignment;
    return cuda::LaunchAs(
        GroupedLinear::kId, grouped::GroupedFp8Kernel<rows()>,
        {dim3(tiles * BlocksFor(p.rows, rows()) * parts), grouped::kThreads, shared, parts}, stream,
        p);
  };
  return WithRows(p.rows, launch);
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
    if (args.x.dim(0) == 0) return absl::OkStatus();
    if (IsGroupedFp8(problem)) return RunGroupedFp8(problem, args, stream);
    const int64_t rows = args.x.dim(0);
    const WeightView w = MakeWeight(args.w, problem.format, problem.block);
    const Activations x = MakeActivations(args.x, {});
    const auto groups = static_cast<unsigned>(problem.groups);
    if (InF32(problem)) {
      const dim3 grid(BlocksFor(problem.n, kThreads / kWarp), BlocksFor(rows, kWideRows), groups);
      return cuda::Launch(GroupedLinear::kId, any::WideLinearKernel, grid, kThreads, 0, stream, w,
                          x, args.x.step(1), problem.n, problem.k, rows, args.y.data,
                          problem.y_dtype, args.y.step(0), args.y.step(1), false);
    }
    const TileWork work{
        w, problem.n, problem.k, x, nullptr, 0, rows, args.y.as<uint16_t>(), args.y.step(0)};
    return WithTile(rows, [&](auto tile) {
      const dim3 grid(BlocksFor(problem.n, kTileN), BlocksFor(rows, tile()), groups);
      return cuda::Launch(GroupedLinear::kId, any::LinearTileKernel<tile()>, grid, kThreads, 0,
                          stream, work, args.x.step(1), args.y.step(1));
    });
  }
};

// Where the second product goes.
struct Output {
  uint16_t* y;
  int64_t step;
};

// A block per expert, product and tile of channels goes over the expert's rows.
template <int kTileT>
__global__ void __launch_bounds__(kThreads)
    ExpertTileKernel(const __grid_constant__ ExpertTable table, TileWork work, Output second,
                     const int32_t* expert_offset) {
  cuda::BeginAfterLast();
  __shared__ uint16_t w_tile[kTileN * any::kStride];
  __shared__ uint16_t x_tile[kTileT * any::kStride];
  const int e = static_cast<int>(blockIdx.y);
  const int weight = e + static_cast<int>(blockIdx.z * gridDim.y);
  work.begin = expert_offset[e];
  work.end = expert_offset[e + 1];
  work.w.codes = table.codes[weight];
  work.w.scale = table.scale[weight];
  if (blockIdx.z == 1) {
    work.y = second.y;
    work.y_step = second.step;
  }
  for (int64_t t0 = work.begin; t0 < work.end; t0 += kTileT) {
    any::ComputeTile<kTileT>(work, int64_t{blockIdx.x} * kTileN, t0, w_tile, x_tile);
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
  static absl::Status CheckAligned(const ExpertTable& table, int k, const WeightView& first) {
    auto all = static_cast<uintptr_t>(first.codes_step);
    for (int i = 0; i < table.count; ++i) {
      all |= reinterpret_cast<uintptr_t>(table.codes[i]);
      all |= reinterpret_cast<uintptr_t>(table.scale[i]);
    }
    return all % 16 == 0 && first.scale_step == k / fp4::kGroup
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     "expert_linear: e2m1 rows of whole 128 inputs and scales must be aligned to "
                     "16 bytes, scales without gaps");
  }
  // One map for all weights: each is at a multiple of a step that divides all distances and the
  // distance of rows.
  static absl::Status MapCodes(const ExpertLinear::Problem& problem, const ExpertTable& table,
                               int64_t codes_step, fp4::Parameters& p) {
    const uint8_t* lowest = *std::min_element(table.codes, table.codes + table.count);
    auto step = static_cast<uint64_t>(codes_step);
    uint64_t farthest = 0;
    for (int i = 0; i < table.count; ++i) {
      const auto distance = static_cast<uint64_t>(table.codes[i] - lowest);
      step = std::gcd(step, distance);
      farthest = std::max(farthest, distance);
    }
    if (farthest / step >= uint64_t{1} << 31) {
      return absl::InvalidArgumentError("expert_linear: experts lie too far apart");
    }
    for (int i = 0; i < table.count; ++i) {
      p.place[i] = static_cast<int32_t>(static_cast<uint64_t>(table.codes[i] - lowest) / step);
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
    const dim3 grid(BlocksFor(from.assignments, fp4::kTileRows),
                    BlocksFor(from.groups, fp4::kArrangeGroups));
    return cuda::Launch(ExpertLinear::kId, fp4::ArrangeKernel, grid, fp4::kArrangeThreads, 0,
                        stream, from, to);
  }
  static absl::Status RunFp4(const ExpertLinear::Problem& problem, const ExpertLinear::Args& args,
                             const ExpertTable& table, const TileWork& work, Output second,
                             Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckAligned(table, problem.k, work.w); !status.ok()) return status;
    fp4::Parameters p;
    if (absl::Status status = MapCodes(problem, table, work.w.codes_step, p); !status.ok()) {
      return status;
    }
    std::copy(table.scale, table.scale + table.count, p.scale);
    p.expert_offset = args.expert_offset.as<int32_t>();
    p.num_products = table.count / problem.num_experts;
    p.y[0] = work.y;
    p.y_step[0] = work.y_step;
    p.y[1] = second.y;
    p.y_step[1] = second.step;
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
    const int64_t most = int64_t{table.count} * BlocksFor(problem.n, fp4::kBlockRows);
    const int64_t resident = 2 * int64_t{cuda::Multiprocessors()};
    const dim3 grid(static_cast<unsigned>(std::min(most, resident)));
    const size_t shared =
        sizeof(fp4::Shared) + fp4::kAlignment +
        static_cast<size_t>(p.scale_buffers) * static_cast<size_t>(fp4::ScaleBytes(problem.k));
    return cuda::LaunchAs(ExpertLinear::kId, fp4::ExpertFp4Kernel, {grid, fp4::kThreads, shared},
                          stream, p);
  }
  static absl::Status Run(const ExpertLinear::Problem& problem, const ExpertLinear::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t assignments = args.y.dim(0);
    if (assignments == 0) return absl::OkStatus();
    ExpertTable table = {};
    const WeightView first = MakeWeight(args.w[0], problem.format, problem.block);
    for (const std::span<const Weight> weights : {args.w, args.w_second}) {
      for (const Weight& weight : weights) {
        const WeightView w = MakeWeight(weight, problem.format, problem.block);
        if (w.codes_step != first.codes_step || w.scale_step != first.scale_step) {
          return absl::InvalidArgumentError("expert_linear: experts have different row strides");
        }
        table.codes[table.count] = w.codes;
        table.scale[table.count++] = w.scale;
      }
    }
    Output second = {};
    if (!args.y_second.absent()) second = {args.y_second.as<uint16_t>(), args.y_second.step(0)};
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
    if (IsFp4(problem)) return RunFp4(problem, args, table, work, second, workspace, stream);
    return WithTile(per_expert, [&](auto tile) {
      const dim3 grid(BlocksFor(problem.n, kTileN), static_cast<unsigned>(problem.num_experts),
                      static_cast<unsigned>(table.count / problem.num_experts));
      return cuda::Launch(ExpertLinear::kId, ExpertTileKernel<tile()>, grid, kThreads, 0, stream,
                          table, work, second, args.expert_offset.as<int32_t>());
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
