// Matrix products: activations decoded once per call into f32, weights expanded a few rows at a
// time, threads share output columns and experts. The sum of one output runs over K in eight lanes,
// so it depends on K alone; K is never split over threads.
#include <algorithm>
#include <atomic>

#include "kernels/cpu/family.h"
#include "kernels/cpu/lanes.h"

namespace skein::kernels::cpu {
namespace {

// Output columns of one task: enough work to be worth a counter, small enough to balance. Long rows
// make larger tasks, so that little of what is prefetched belongs to another thread's task.
constexpr int64_t kTaskColumns = 16;
constexpr int64_t kMostTaskColumns = 64;
constexpr int64_t kTaskChannels = 1 << 16;
// Tasks per thread that a call should have, so that no thread waits long for the last one.
constexpr int64_t kThreadTasks = 4;

// Columns of a task of a call with `columns` in all, k channels each.
int64_t TaskColumns(int64_t k, int64_t columns, int64_t threads) {
  const int64_t most = std::min(kTaskChannels / k, columns / (threads * kThreadTasks));
  return std::clamp(most / kTaskColumns * kTaskColumns, kTaskColumns, kMostTaskColumns);
}

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

// The rows of x as a product wants them: scaled floats, and beside or instead of them codes, raw
// with factors or as integers.
struct ProductRows {
  float* floats = nullptr;
  int64_t padded = 0;  // floats of a row
  IntegerRows integers;
  bool use_integers = false;
  bool use_raw = false;  // instead of scaled floats; factors in `integers`
};

// Whether the lanes multiply codes of x with codes of weights.
template <CpuIsa isa>
bool UsesCodes(DType x_dtype) {
  return Lanes<isa>().pack_row != nullptr && x_dtype == DType::kE4m3;
}

int64_t FactorStep(int64_t k) { return (RoundUpToUnit(k) / kUnit + 7) / 8 * 8; }

size_t RowBytes(int64_t rows, int64_t k) {
  const int64_t units = RoundUpToUnit(k) / kUnit;
  return Scratch::Bytes<float>(rows * RoundUpToUnit(k)) +
         Scratch::Bytes<int16_t>(rows * units * 64) + Scratch::Bytes<float>(rows * FactorStep(k)) +
         Scratch::Bytes<uint8_t>(rows * FactorStep(k));
}

// `direct`: no call has more than MostDirectRows(k) rows.
template <CpuIsa isa>
ProductRows TakeRows(Scratch& scratch, int64_t rows, int64_t k, DType x_dtype, WeightFormat format,
                     bool direct) {
  ProductRows out;
  out.padded = RoundUpToUnit(k);
  out.floats = scratch.Take<float>(rows * out.padded);
  if (!UsesCodes<isa>(x_dtype)) return out;
  out.use_integers = format == WeightFormat::kE2m1Row32;
  out.use_raw = format == WeightFormat::kE4m3Block && direct;
  if (!out.use_integers && !out.use_raw) return out;
  out.integers.units = out.padded / kUnit;
  out.integers.factor_step = FactorStep(k);
  out.integers.factor = scratch.Take<float>(rows * out.integers.factor_step);
  if (!out.use_integers) return out;
  out.integers.parts = scratch.Take<int16_t>(rows * out.integers.units * 64);
  out.integers.has_low = scratch.Take<uint8_t>(rows * out.integers.factor_step);
  return out;
}

// Row `row` of x, k channels, into its place of `out`, k padded by zeros.
template <CpuIsa isa>
void DecodeFloats(const TensorView& x, const TensorView& x_scale, int64_t row, int64_t k,
                  WeightFormat format, float* to) {
  const int64_t padded = RoundUpToUnit(k);
  const bool permuted = format == WeightFormat::kE2m1Row32;
  const std::byte* from = x.row(row);
  if (x.dtype == DType::kE4m3) {
    const uint8_t* scale = x_scale.as<uint8_t>() + row * x_scale.step(0);
    Lanes<isa>().decode_product_row(reinterpret_cast<const uint8_t*>(from), scale, k, permuted, to);
    return;
  }
  if (x.dtype == DType::kBf16) {
    Lanes<isa>().widen(reinterpret_cast<const uint16_t*>(from), k, to);
  } else {
    std::memcpy(to, from, static_cast<size_t>(k) * sizeof(float));
  }
  std::fill(to + k, to + padded, 0.0f);
  if (!permuted) return;
  for (float* unit = to; unit < to + padded; unit += kUnit) {
    float natural[kUnit];
    std::memcpy(natural, unit, sizeof(natural));
    for (int64_t i = 0; i < kUnit; ++i) {
      unit[i] = natural[i % kLanes * kLanesPerUnit + i / kLanes];
    }
  }
}

// Decodes `count` rows of x into rows [first, first + count) of `out`; integers only if `direct`.
template <CpuIsa isa>
void DecodeRows(const TensorView& x, const TensorView& x_scale, int64_t count, int64_t k,
                WeightFormat format, bool direct, const ProductRows& out, int64_t first,
                DeviceStream stream) {
  ForEachTask(stream, count, count * out.padded * 4, [&](int64_t row, int) {
    float* floats = out.floats + (first + row) * out.padded;
    if (!out.use_raw && !(out.use_integers && direct)) {
      DecodeFloats<isa>(x, x_scale, row, k, format, floats);
    }
    if (!out.use_raw && !out.use_integers) return;
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(x.row(row));
    const uint8_t* scale = x_scale.as<uint8_t>() + row * x_scale.step(0);
    if (out.use_raw) {
      Lanes<isa>().raw_row(codes, scale, k, floats,
                           out.integers.factor + (first + row) * out.integers.factor_step);
    } else {
      Lanes<isa>().pack_row(codes, scale, k, out.integers, first + row);
    }
  });
}

// The activations' part of a call.
void SetRows(const ProductRows& x, int64_t k, GemmCall& call) {
  call.x = x.floats;
  call.x_step = x.padded;
  if (x.use_raw) {
    call.x_factor = x.integers.factor;
    call.x_factor_step = x.integers.factor_step;
  }
  call.x_integers = x.use_integers ? &x.integers : nullptr;
  call.k = k;
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

// Runs one task's columns of [0, n).
template <CpuIsa isa>
void RunColumns(const GemmCall& call, int64_t task, int64_t columns, int64_t n, float* panel) {
  const int64_t begin = task * columns;
  Lanes<isa>().gemm(call, begin, std::min(n, begin + columns), panel);
}

// Largest weight of which every thread reads all, in values.
constexpr int64_t kSharedWeight = 1 << 17;

// Rows of a task where threads share rows and not columns, 0 where they do not: with short rows and
// a tile of them for each thread that costs nothing more, and rows stay in the caches where the
// calls before left them.
int64_t TaskRows(int64_t rows, int64_t n, int64_t k, WeightFormat format, int64_t threads) {
  const int64_t some = CeilDiv(rows, threads);
  const bool whole = k <= kShortRow && format != WeightFormat::kE2m1Row32 && n * k <= kSharedWeight;
  return whole && threads > 1 && some >= kTileRows && some <= kMostShortRows ? some : 0;
}

// Where rows of a product come from, and where they are decoded to.
struct RowSource {
  const TensorView& x;
  const TensorView& scale;
  const ProductRows& decoded;
};
struct RowRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// Decodes some rows of x, as far as the call has them, and runs all of [0, n) on them.
template <CpuIsa isa>
void RunRows(const RowSource& from, GemmCall call, RowRange range, int64_t n, float* panel) {
  call.rows = std::min(range.count, call.rows - range.begin);
  for (int64_t row = range.begin; row < range.begin + call.rows; ++row) {
    DecodeFloats<isa>(from.x, from.scale, row, call.k, call.format,
                      from.decoded.floats + (call.x_first + row) * from.decoded.padded);
  }
  call.x_first += range.begin;
  call.y += range.begin * call.y_step;
  Lanes<isa>().gemm(call, 0, n, panel);
}

int64_t PanelFloats(int64_t k) { return kPanelRows * RoundUpToUnit(k); }

size_t GemmBytes(int64_t x_rows, int64_t k) {
  return RowBytes(x_rows, k) + Scratch::Bytes<float>(PanelFloats(k) * kMaxThreads);
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
    Scratch scratch(workspace);
    const bool direct = rows <= MostDirectRows(problem.k, problem.format);
    const ProductRows x =
        TakeRows<isa>(scratch, rows, problem.k, args.x.dtype, problem.format, direct);
    float* panel = scratch.Take<float>(PanelFloats(problem.k) * NumThreads(stream));
    if (absl::Status status = scratch.Check(Linear::kId); !status.ok()) return status;
    const int64_t some = TaskRows(rows, problem.n, problem.k, problem.format, NumThreads(stream));
    if (some == 0) {
      DecodeRows<isa>(args.x, args.x_scale, rows, problem.k, problem.format, direct, x, 0, stream);
    }
    GemmCall call;
    SetRows(x, problem.k, call);
    call.rows = rows;
    SetWeight(args.w, problem.format, problem.block, call);
    SetOutput(args.y, call);
    call.accumulate = problem.accumulate;
    const int64_t n = problem.n;
    if (some > 0) {
      ForEachTask(stream, CeilDiv(rows, some), rows * n * problem.k, [&](int64_t task, int thread) {
        RunRows<isa>({args.x, args.x_scale, x}, call, {task * some, some}, n,
                     panel + PanelFloats(problem.k) * thread);
      });
      return absl::OkStatus();
    }
    const int64_t columns = TaskColumns(problem.k, n, NumThreads(stream));
    ForEachTask(stream, CeilDiv(n, columns), rows * n * problem.k, [&](int64_t task, int thread) {
      RunColumns<isa>(call, task, columns, n, panel + PanelFloats(problem.k) * thread);
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
    Scratch scratch(workspace);
    const ProductRows x = TakeRows<isa>(scratch, rows * problem.groups, problem.k, args.x.dtype,
                                        problem.format, true);
    float* panel = scratch.Take<float>(PanelFloats(problem.k) * NumThreads(stream));
    if (absl::Status status = scratch.Check(GroupedLinear::kId); !status.ok()) return status;
    const auto call_of = [&](int64_t g) {
      GemmCall call;
      SetRows(x, problem.k, call);
      call.x_first = g * rows;
      call.rows = rows;
      SetWeight(args.w, problem.format, problem.block, call);
      SetOutput(args.y, call);
      call.y += g * args.y.step(1) * static_cast<int64_t>(DTypeBytes(args.y.dtype));
      call.first_row = g * problem.n;
      return call;
    };
    const int64_t work = rows * problem.groups * problem.n * problem.k;
    const int64_t some =
        TaskRows(rows, problem.n * problem.groups, problem.k, problem.format, NumThreads(stream));
    if (some > 0) {
      ForEachTask(stream, CeilDiv(rows, some), work, [&](int64_t task, int thread) {
        for (int64_t g = 0; g < problem.groups; ++g) {
          RunRows<isa>({GroupOf(args.x, g), {}, x}, call_of(g), {task * some, some}, problem.n,
                       panel + PanelFloats(problem.k) * thread);
        }
      });
      return absl::OkStatus();
    }
    for (int64_t g = 0; g < problem.groups; ++g) {
      DecodeRows<isa>(GroupOf(args.x, g), {}, rows, problem.k, problem.format, true, x, g * rows,
                      stream);
    }
    const int64_t columns = TaskColumns(problem.k, problem.n * problem.groups, NumThreads(stream));
    const int64_t tasks_per_group = CeilDiv(problem.n, columns);
    ForEachTask(stream, problem.groups * tasks_per_group, work, [&](int64_t task, int thread) {
      RunColumns<isa>(call_of(task / tasks_per_group), task % tasks_per_group, columns, problem.n,
                      panel + PanelFloats(problem.k) * thread);
    });
    return absl::OkStatus();
  }
  static TensorView GroupOf(const TensorView& x, int64_t g) {
    TensorView group = x;
    group.data =
        static_cast<std::byte*>(x.data) + static_cast<size_t>(g * x.step(1)) * DTypeBytes(x.dtype);
    return group;
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
    return GemmBytes(problem.max_rows, problem.k) + Scratch::Bytes<int32_t>(problem.num_experts);
  }
  static absl::Status Run(const ExpertLinear::Problem& problem, const ExpertLinear::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    const int64_t x_rows = args.x.dim(0);
    Scratch scratch(workspace);
    const int32_t* offsets = args.expert_offset.as<int32_t>();
    bool direct = true;
    for (int e = 0; e < problem.num_experts; ++e) {
      direct = direct && offsets[e + 1] - offsets[e] <= MostDirectRows(problem.k, problem.format);
    }
    const ProductRows x =
        TakeRows<isa>(scratch, x_rows, problem.k, args.x.dtype, problem.format, direct);
    float* panel = scratch.Take<float>(PanelFloats(problem.k) * NumThreads(stream));
    int32_t* used = scratch.Take<int32_t>(problem.num_experts);  // experts that have rows
    if (absl::Status status = scratch.Check(ExpertLinear::kId); !status.ok()) return status;
    if (x_rows == 0) return absl::OkStatus();
    int64_t num_used = 0;
    for (int e = 0; e < problem.num_experts; ++e) {
      if (offsets[e + 1] > offsets[e]) used[num_used++] = e;
    }
    DecodeRows<isa>(args.x, args.x_scale, x_rows, problem.k, problem.format, direct, x, 0, stream);
    const int64_t products = args.y_second.absent() ? 1 : 2;
    const int64_t outputs = products * problem.n;  // of an expert
    const int64_t columns = TaskColumns(problem.k, outputs * num_used, NumThreads(stream));
    const int64_t per_product = CeilDiv(problem.n, columns);
    const int64_t tasks = num_used * products * per_product;
    const int64_t work = int64_t{offsets[problem.num_experts]} * outputs * problem.k;
    ForEachTask(stream, tasks, work, [&](int64_t task, int thread) {
      const int64_t product = task / per_product;
      const int64_t e = used[product / products];
      const bool second = product % products == 1;
      const int64_t begin = offsets[e];
      GemmCall call;
      call.rows = offsets[e + 1] - begin;
      SetRows(x, problem.k, call);
      call.x_first = begin;
      call.x_row = args.source_row.absent() ? nullptr : args.source_row.as<int32_t>() + begin;
      SetWeight((second ? args.w_second : args.w)[static_cast<size_t>(e)], problem.format,
                problem.block, call);
      SetOutput(second ? args.y_second : args.y, call);
      call.y += begin * call.y_step;
      RunColumns<isa>(call, task % per_product, columns, problem.n,
                      panel + PanelFloats(problem.k) * thread);
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
