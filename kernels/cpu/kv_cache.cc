// Cache rows: quantise and store, decode, copy; and the gather of table rows. A row at -1 is never
// touched. Targets of one call are distinct, so rows are shared over the threads.
#include <cmath>
#include <cstring>

#include "kernels/cpu/family.h"

namespace skein::kernels::cpu {
namespace {

// Rows move between buffers of the same or a wider float type.
void ConvertRow(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype,
                int64_t count) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<size_t>(count) * DTypeBytes(to_dtype));
    return;
  }
  if (from_dtype == DType::kBf16) {
    const uint16_t* x = reinterpret_cast<const uint16_t*>(from);
    for (int64_t i = 0; i < count; ++i) reinterpret_cast<float*>(to)[i] = DecodeBf16(x[i]);
    return;
  }
  const float* x = reinterpret_cast<const float*>(from);
  for (int64_t i = 0; i < count; ++i) reinterpret_cast<uint16_t*>(to)[i] = EncodeBf16(x[i]);
}

bool IsPlain(KvFormat format) { return format == KvFormat::kBf16 || format == KvFormat::kF32; }

DType PlainDType(KvFormat format) { return format == KvFormat::kBf16 ? DType::kBf16 : DType::kF32; }

// Quantises a row to e2m1 codes in groups of 16 or 32.
void EncodeFp4Row(KvFormat format, const std::byte* x, DType x_dtype, int64_t dim, uint8_t* codes,
                  uint8_t* scale) {
  const bool narrow = format == KvFormat::kFp4Group16;
  const CodeFormat code_format = narrow ? CodeFormat::kE2m1E4m3 : CodeFormat::kE2m1Ue8m0;
  const int64_t group = narrow ? 16 : 32;
  for (int64_t begin = 0; begin < dim; begin += group) {
    const int64_t count = group < dim - begin ? group : dim - begin;
    float values[32];
    float largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      values[i] = x_dtype == DType::kBf16
                      ? DecodeBf16(reinterpret_cast<const uint16_t*>(x)[begin + i])
                      : reinterpret_cast<const float*>(x)[begin + i];
      const float magnitude = std::fabs(values[i]);
      // Once NaN, always NaN.
      if (!(magnitude <= largest) && !std::isnan(largest)) largest = magnitude;
    }
    const GroupScale s = ScaleOfGroup(code_format, largest);
    scale[begin / group] = s.byte;
    for (int64_t i = 0; i < count; i += 2) {
      const uint8_t low = EncodeInGroup(code_format, values[i], s.value);
      const uint8_t high = EncodeInGroup(code_format, values[i + 1], s.value);
      codes[(begin + i) / 2] = static_cast<uint8_t>(low | (high << 4));
    }
  }
}

template <CpuIsa isa>
struct StoreKvKernel : WithoutWorkspace<StoreKv> {
  static absl::Status Supports(const StoreKv::Problem& problem) {
    const bool packed =
        problem.format == KvFormat::kFp4Group16 || problem.format == KvFormat::kFp4Group32;
    return Support()
        .Float("x", problem.x_dtype)
        .Want(problem.format != KvFormat::kF64, "format", KvFormatName(problem.format),
              "all but f64")
        .Positive("dim", problem.dim)
        .Want(!packed || problem.dim % 2 == 0, "dim", std::to_string(problem.dim),
              "even numbers in fp4 pools")
        .Take();
  }
  static absl::Status Run(const StoreKv::Problem& problem, const StoreKv::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    ForEachTask(stream, args.x.dim(0), args.x.size() * 48, [&](int64_t i, int) {
      const int64_t target = args.target.as<int64_t>()[i];
      if (target < 0 || target >= args.pool.num_rows) return;
      const std::byte* x = args.x.row(i);
      std::byte* data = args.pool.row_data(target);
      uint8_t* codes = reinterpret_cast<uint8_t*>(data);
      if (IsPlain(problem.format)) {
        ConvertRow(x, problem.x_dtype, data, PlainDType(problem.format), problem.dim);
        return;
      }
      uint8_t* scale = reinterpret_cast<uint8_t*>(args.pool.row_scale(target));
      if (problem.format != KvFormat::kFp8Group32) {
        EncodeFp4Row(problem.format, x, problem.x_dtype, problem.dim, codes, scale);
      } else if (problem.x_dtype == DType::kBf16) {
        Lanes<isa>().cast_bf16(reinterpret_cast<const uint16_t*>(x), problem.dim, 32, codes, scale);
      } else {
        Lanes<isa>().cast_f32(reinterpret_cast<const float*>(x), problem.dim, 32, codes, scale);
      }
    });
    return absl::OkStatus();
  }
};

// Value i of a quantised row, exact.
float DecodeAt(KvFormat format, const uint8_t* codes, const uint8_t* scale, int64_t i) {
  if (format == KvFormat::kFp8Group32) return kE4m3Values[codes[i]] * DecodeE8m0(scale[i / 32]);
  const float value = DecodeE2m1(static_cast<uint8_t>((codes[i / 2] >> (i % 2 * 4)) & 15));
  return format == KvFormat::kFp4Group16 ? value * kE4m3Values[scale[i / 16]]
                                         : value * DecodeE8m0(scale[i / 32]);
}

template <CpuIsa isa>
struct LoadKvKernel : WithoutWorkspace<LoadKv> {
  static absl::Status Supports(const LoadKv::Problem& problem) {
    return Support()
        .Float("y", problem.y_dtype)
        .Want(problem.format != KvFormat::kF64, "format", KvFormatName(problem.format),
              "all but f64")
        .Positive("dim", problem.dim)
        .Take();
  }
  static absl::Status Run(const LoadKv::Problem& problem, const LoadKv::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    ForEachTask(stream, args.y.dim(0), args.y.size(), [&](int64_t i, int) {
      const int64_t source = args.source.as<int64_t>()[i];
      std::byte* y = args.y.row(i);
      if (source < 0 || source >= args.pool.num_rows) {
        std::memset(y, 0, static_cast<size_t>(problem.dim) * DTypeBytes(problem.y_dtype));
        return;
      }
      const std::byte* data = args.pool.row_data(source);
      if (IsPlain(problem.format)) {
        ConvertRow(data, PlainDType(problem.format), y, problem.y_dtype, problem.dim);
        return;
      }
      const uint8_t* scale = reinterpret_cast<const uint8_t*>(args.pool.row_scale(source));
      for (int64_t c = 0; c < problem.dim; ++c) {
        const float value =
            DecodeAt(problem.format, reinterpret_cast<const uint8_t*>(data), scale, c);
        if (problem.y_dtype == DType::kBf16) {
          reinterpret_cast<uint16_t*>(y)[c] = EncodeBf16(value);
        } else {
          reinterpret_cast<float*>(y)[c] = value;
        }
      }
    });
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct CopyKvRowsKernel : WithoutWorkspace<CopyKvRows> {
  static absl::Status Supports(const CopyKvRows::Problem& problem) {
    return Support().Positive("dim", problem.dim).Take();
  }
  static absl::Status Run(const CopyKvRows::Problem& problem, const CopyKvRows::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const size_t data_bytes = static_cast<size_t>(KvDataBytes(problem.format, problem.dim));
    const size_t scale_bytes = static_cast<size_t>(KvScaleBytes(problem.format, problem.dim));
    // In order and in one thread: a row may be a source and, later, a target.
    for (int64_t i = 0; i < args.source.dim(0); ++i) {
      const int64_t source = args.source.as<int64_t>()[i];
      const int64_t target = args.target.as<int64_t>()[i];
      if (source < 0 || source >= args.from.num_rows) continue;
      if (target < 0 || target >= args.to.num_rows) continue;
      std::memmove(args.to.row_data(target), args.from.row_data(source), data_bytes);
      std::memmove(args.to.row_scale(target), args.from.row_scale(source), scale_bytes);
    }
    return absl::OkStatus();
  }
};

template <CpuIsa isa>
struct GatherRowsKernel : WithoutWorkspace<GatherRows> {
  static absl::Status Supports(const GatherRows::Problem& problem) {
    return Support()
        .Float("table", problem.table_dtype)
        .Float("y", problem.y_dtype)
        .Want(DTypeBytes(problem.y_dtype) >= DTypeBytes(problem.table_dtype), "y",
              DTypeName(problem.y_dtype), "types at least as wide as the table's")
        .Positive("channels", problem.channels)
        .Take();
  }
  static absl::Status Run(const GatherRows::Problem& problem, const GatherRows::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    ForEachTask(stream, args.y.dim(0), args.y.size(), [&](int64_t i, int) {
      const int64_t index = IndexAt(args.index, i);
      std::byte* y = args.y.row(i);
      if (index < 0 || index >= args.table.dim(0)) {
        std::memset(y, 0, static_cast<size_t>(problem.channels) * DTypeBytes(problem.y_dtype));
        return;
      }
      ConvertRow(args.table.row(index), problem.table_dtype, y, problem.y_dtype, problem.channels);
    });
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status RegisterKvCache(KernelRegistry& registry, CpuIsa isa) {
  constexpr DeterminismClass kBits = DeterminismClass::kBitwise;
  absl::Status status = RegisterFor<StoreKv, StoreKvKernel>(registry, isa, kBits);
  if (status.ok()) status = RegisterFor<LoadKv, LoadKvKernel>(registry, isa, kBits);
  if (status.ok()) status = RegisterFor<CopyKvRows, CopyKvRowsKernel>(registry, isa, kBits);
  if (status.ok()) status = RegisterFor<GatherRows, GatherRowsKernel>(registry, isa, kBits);
  return status;
}

}  // namespace skein::kernels::cpu
