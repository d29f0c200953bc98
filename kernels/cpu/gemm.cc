// Matrix products: activations decoded once per call into f32, weights expanded a few rows at a
// time, threads share output columns and experts. The sum of one output runs over K in eight lanes,
// so it depends on K alone; K is never split over threads.
#include <algorithm>
#include <atomic>

#include "kernels/cpu/family.h"
#include "kernels/cpu/lanes.h"

namespace skein::kernels::cpu {
namespace {

// Output columns of one task: enough work to be worth a counter, small enough to balance.
constexpr int64_t kTaskColumns = 16;

int64_t CeilDiv(int64_t value, int64_t by) { return (value + by - 1) / by; }

Support Formats(DType x_dtype, DType y_dtype, WeightFormat format, int block) {
  Support support;
  support.Want(x_dtype == DType::kE4m3 || x_dtype == DType::kBf16 || x_dtype == DType::kF32, "x",
               DTypeName(x_dtype), "e4m3, bf16 or f32");
  support.Float("y", y_dtype);
  if (format == WeightFormat::kE4m3Block) {
    support.Want(block >= kUnit && (block & (block - 1)) == 0, "block", std::to_string(block),
                 "powers of two from 32");
  }
  return support;
}

// Decodes `count` rows of x, k channels each, into `out` with k padded by zeros.
template <CpuIsa isa>
void DecodeRows(const TensorView& x, const TensorView& x_scale, int64_t count, int64_t k,
                float* out, DeviceStream stream) {
  const int64_t padded = RoundUpToUnit(k);
  ForEachTask(stream, count, count * padded, [&](int64_t row, int) {
    float* to = out + row * padded;
    const std::byte* from = x.row(row);
    if (x.dtype == DType::kE4m3) {
      const uint8_t* scale = x_scale.as<uint8_t>() + row * x_scale.step(0);
      Lanes<isa>().decode_e4m3(reinterpret_cast<const uint8_t*>(from), scale, k, to);
    } else if (x.dtype == DType::kBf16) {
      Lanes<isa>().widen(reinterpret_cast<const uint16_t*>(from), k, to);
    } else {
      std::memcpy(to, from, static_cast<size_t>(k) * sizeof(float));
    }
    std::fill(to + k, to + padded, 0.0f);
  });
}

// The weight's part of a call.
void SetWeight(const Weight& w, WeightFormat format, int block, GemmCall& call) {
  call.format = format;
  call.codes = w.codes.as<uint8_t>();
  call.codes_step = w.codes.step(0) * static_cast<int64_t>(DTypeBytes(w.codes.dtype));
  call.block = block;
  if (w.scale.absent()) return;
  call.scale = w.scale.as<uint8_t>();
  call.scale_step = w.scale.step(0);
}

void SetOutput(const TensorView& y, GemmCall& call) {
  call.y = y.as<uint8_t>();
  call.y_step = y.step(0) * static_cast<int64_t>(DTypeBytes(y.dtype));
  call.y_is_bf16 = y.dtype == DType::kBf16;
}

// Runs columns [0, n) of a call in tasks of kTaskColumns.
template <CpuIsa isa>
void RunColumns(const GemmCall& call, int64_t task, int64_t n, float* panel) {
  const int64_t begin = task * kTaskColumns;
  Lanes<isa>().gemm(call, begin, std::min(n, begin + kTaskColumns), panel);
}

int64_t PanelFloats(int64_t k) { return kPanelRows * RoundUpToUnit(k); }

size_t GemmBytes(int64_t x_rows, int64_t k) {
  return Scratch::Bytes<float>(x_rows * RoundUpToUnit(k)) +
         Scratch::Bytes<float>(PanelFloats(k) * kMaxThreads);
}

template <CpuIsa isa>
struct LinearKernel {
  static absl::Status Supports(const Linear::Problem& problem) {
    return Formats(problem.x_dtype, problem.y_dtype, problem.format, problem.block)
        .Positive("n", problem.n)
        .Positive("k", problem.k)
        .Want(!problem.accumulate || problem.y_dtype == DType::kF32, "accumulation into y",
              DTypeName(problem.y_dtype), "f32")
        .Take();
  }
  static size_t WorkspaceBytes(const Linear::Problem& problem) {
    return GemmBytes(problem.max_rows, problem.k);
  }
  static absl::Status Run(const Linear::Problem& problem, const Linear::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    const int64_t rows = args.x.dim(0);
    if (rows == 0) return absl::OkStatus();
    const int64_t padded = RoundUpToUnit(problem.k);
    Scratch scratch(workspace);
    float* x = scratch.Take<float>(rows * padded);
    float* panel = scratch.Take<float>(PanelFloats(problem.k) * NumThreads(stream));
    if (absl::Status status = scratch.Check(Linear::kId); !status.ok()) return status;
    DecodeRows<isa>(args.x, args.x_scale, rows, problem.k, x, stream);
    GemmCall call;
    call.x = x;
    call.x_step = padded;
    call.rows = rows;
    call.k = problem.k;
    SetWeight(args.w, problem.format, problem.block, call);
    SetOutput(args.y, call);
    call.accumulate = problem.accumulate;
    const int64_t n = problem.n;
    ForEachTask(stream, CeilDiv(n, kTaskColumns), rows * n * problem.k,
                [&](int64_t task, int thread) {
                  RunColumns<isa>(call, task, n, panel + PanelFloats(problem.k) * thread);
                });
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct GroupedLinearKernel {
  static absl::Status Supports(const GroupedLinear::Problem& problem) {
    return Formats(problem.x_dtype, problem.y_dtype, problem.format, problem.block)
        .Float("x", problem.x_dtype)
        .Positive("groups", problem.groups)
        .Positive("n", problem.n)
        .Positive("k", problem.k)
        .Take();
  }
  static size_t WorkspaceBytes(const GroupedLinear::Problem& problem) {
    return GemmBytes(int64_t{problem.max_rows} * problem.groups, problem.k);
  }
  static absl::Status Run(const GroupedLinear::Problem& problem, const GroupedLinear::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    const int64_t rows = args.x.dim(0);
    if (rows == 0) return absl::OkStatus();
    const int64_t padded = RoundUpToUnit(problem.k);
    Scratch scratch(workspace);
    float* x = scratch.Take<float>(rows * problem.groups * padded);
    float* panel = scratch.Take<float>(PanelFloats(problem.k) * NumThreads(stream));
    if (absl::Status status = scratch.Check(GroupedLinear::kId); !status.ok()) return status;
    for (int64_t g = 0; g < problem.groups; ++g) {
      TensorView group = args.x;
      group.data = static_cast<std::byte*>(args.x.data) +
                   static_cast<size_t>(g * args.x.step(1)) * DTypeBytes(args.x.dtype);
      DecodeRows<isa>(group, {}, rows, problem.k, x + g * rows * padded, stream);
    }
    const int64_t tasks_per_group = CeilDiv(problem.n, kTaskColumns);
    ForEachTask(stream, problem.groups * tasks_per_group,
                rows * problem.groups * problem.n * problem.k, [&](int64_t task, int thread) {
                  const int64_t g = task / tasks_per_group;
                  GemmCall call;
                  call.x = x + g * rows * padded;
                  call.x_step = padded;
                  call.rows = rows;
                  call.k = problem.k;
                  SetWeight(args.w, problem.format, problem.block, call);
                  SetOutput(args.y, call);
                  call.y += g * args.y.step(1) * static_cast<int64_t>(DTypeBytes(args.y.dtype));
                  call.first_row = g * problem.n;
                  RunColumns<isa>(call, task % tasks_per_group, problem.n,
                                  panel + PanelFloats(problem.k) * thread);
                });
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct ExpertLinearKernel {
  static absl::Status Supports(const ExpertLinear::Problem& problem) {
    return Formats(problem.x_dtype, problem.y_dtype, problem.format, problem.block)
        .Positive("num_experts", problem.num_experts)
        .Positive("n", problem.n)
        .Positive("k", problem.k)
        .Take();
  }
  static size_t WorkspaceBytes(const ExpertLinear::Problem& problem) {
    return GemmBytes(problem.max_rows, problem.k);
  }
  static absl::Status Run(const ExpertLinear::Problem& problem, const ExpertLinear::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    const int64_t x_rows = args.x.dim(0);
    const int64_t padded = RoundUpToUnit(problem.k);
    Scratch scratch(workspace);
    float* x = scratch.Take<float>(x_rows * padded);
    float* panel = scratch.Take<float>(PanelFloats(problem.k) * NumThreads(stream));
    if (absl::Status status = scratch.Check(ExpertLinear::kId); !status.ok()) return status;
    if (x_rows == 0) return absl::OkStatus();
    DecodeRows<isa>(args.x, args.x_scale, x_rows, problem.k, x, stream);
    const int32_t* offsets = args.expert_offset.as<int32_t>();
    const int64_t per_expert = CeilDiv(problem.n, kTaskColumns);
    const int64_t work = int64_t{offsets[problem.num_experts]} * problem.n * problem.k;
    ForEachTask(stream, problem.num_experts * per_expert, work, [&](int64_t task, int thread) {
      const int64_t e = task / per_expert;
      const int64_t begin = offsets[e];
      GemmCall call;
      call.rows = offsets[e + 1] - begin;
      if (call.rows <= 0) return;
      call.x = args.source_row.absent() ? x + begin * padded : x;
      call.x_step = padded;
      call.x_row = args.source_row.absent() ? nullptr : args.source_row.as<int32_t>() + begin;
      call.k = problem.k;
      SetWeight(args.w[static_cast<size_t>(e)], problem.format, problem.block, call);
      SetOutput(args.y, call);
      call.y += begin * call.y_step;
      RunColumns<isa>(call, task % per_expert, problem.n, panel + PanelFloats(problem.k) * thread);
    });
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status RegisterGemm(KernelRegistry& registry, CpuIsa isa) {
  constexpr DeterminismClass kClass = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterFor<Linear, LinearKernel>(registry, isa, kClass);
  if (status.ok()) status = RegisterFor<GroupedLinear, GroupedLinearKernel>(registry, isa, kClass);
  if (status.ok()) status = RegisterFor<ExpertLinear, ExpertLinearKernel>(registry, isa, kClass);
  return status;
}

}  // namespace skein::kernels::cpu
