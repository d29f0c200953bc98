// Reference cache rows: store, load, copy, and the gather of table rows. Plain code in the calling
// thread; a row at -1 is never touched.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/pool_row.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

float LargestMagnitude(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(values[i])) return values[i];
    largest = std::max(largest, std::fabs(values[i]));
  }
  return largest;
}

// Quantises one row into its codes and scales.
void EncodeRow(KvFormat kv_format, const std::vector<float>& x, uint8_t* codes, uint8_t* scale) {
  const CodeFormat format = CodesOf(kv_format);
  const int64_t dim = static_cast<int64_t>(x.size());
  const int64_t group = GroupOf(kv_format);
  for (int64_t begin = 0; begin < dim; begin += group) {
    const int64_t count = std::min(group, dim - begin);
    const GroupScale s = ScaleOfGroup(format, LargestMagnitude(x.data() + begin, count));
    scale[begin / group] = s.byte;
    for (int64_t i = begin; i < begin + count; ++i) {
      const uint8_t code = EncodeInGroup(format, x[static_cast<size_t>(i)], s.value);
      if (format == CodeFormat::kE4m3Ue8m0) {
        codes[i] = code;
      } else if (i % 2 == 0) {
        codes[i / 2] = code;
      } else {
        codes[i / 2] = static_cast<uint8_t>(codes[i / 2] | (code << 4));
      }
    }
  }
}

struct StoreKvKernel {
  static absl::Status Run(const StoreKv::Problem& problem, const StoreKv::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const DType plain = PlainDType(problem.format);
    for (int64_t i = 0; i < args.x.dim(0); ++i) {
      const int64_t target = args.target.as<int64_t>()[i];
      if (target < 0 || target >= args.pool.num_rows) continue;
      void* data = args.pool.row_data(target);
      if (plain != DType::kU8) {
        const std::vector<double> x = LoadRow<double>(args.x, i);
        for (int64_t c = 0; c < problem.dim; ++c) {
          StoreAt(data, plain, c, x[static_cast<size_t>(c)]);
        }
        continue;
      }
      EncodeRow(problem.format, LoadRow<float>(args.x, i), static_cast<uint8_t*>(data),
                reinterpret_cast<uint8_t*>(args.pool.row_scale(target)));
    }
    return absl::OkStatus();
  }
};

absl::Status StoreKvSupports(const StoreKv::Problem& problem) {
  const bool packed =
      problem.format == KvFormat::kFp4Group16 || problem.format == KvFormat::kFp4Group32;
  return Requirements()
      .Activation("x", problem.x_dtype)
      .Positive("dim", problem.dim)
      .Want(!packed || problem.dim % 2 == 0, "dim", std::to_string(problem.dim),
            "even numbers in fp4 pools")
      .Take();
}

struct LoadKvKernel {
  static absl::Status Run(const LoadKv::Problem& problem, const LoadKv::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    std::vector<double> row(static_cast<size_t>(problem.dim));
    for (int64_t i = 0; i < args.y.dim(0); ++i) {
      const int64_t source = args.source.as<int64_t>()[i];
      std::fill(row.begin(), row.end(), 0.0);
      if (source >= 0 && source < args.pool.num_rows) LoadPoolRow(args.pool, source, row.data());
      StoreSpan(args.y, i * args.y.step(0), problem.dim, row.data());
    }
    return absl::OkStatus();
  }
};

absl::Status LoadKvSupports(const LoadKv::Problem& problem) {
  return Requirements().Activation("y", problem.y_dtype).Positive("dim", problem.dim).Take();
}

struct CopyKvRowsKernel {
  static absl::Status Run(const CopyKvRows::Problem& problem, const CopyKvRows::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const size_t data_bytes = static_cast<size_t>(KvDataBytes(problem.format, problem.dim));
    const size_t scale_bytes = static_cast<size_t>(KvScaleBytes(problem.format, problem.dim));
    for (int64_t i = 0; i < args.source.dim(0); ++i) {
      const int64_t source = args.source.as<int64_t>()[i];
      const int64_t target = args.target.as<int64_t>()[i];
      if (source < 0 || target < 0) continue;
      if (source >= args.from.num_rows || target >= args.to.num_rows) continue;
      std::memmove(args.to.row_data(target), args.from.row_data(source), data_bytes);
      std::memmove(args.to.row_scale(target), args.from.row_scale(source), scale_bytes);
    }
    return absl::OkStatus();
  }
};

absl::Status CopyKvRowsSupports(const CopyKvRows::Problem& problem) {
  return Requirements().Positive("dim", problem.dim).Take();
}

struct GatherRowsKernel {
  static absl::Status Run(const GatherRows::Problem& problem, const GatherRows::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t i = 0; i < args.y.dim(0); ++i) {
      const int64_t index = IndexAt(args.index, i);
      std::vector<double> row(static_cast<size_t>(problem.channels));
      if (index >= 0 && index < args.table.dim(0)) row = LoadRow<double>(args.table, index);
      StoreSpan(args.y, i * args.y.step(0), problem.channels, row.data());
    }
    return absl::OkStatus();
  }
};

absl::Status GatherRowsSupports(const GatherRows::Problem& problem) {
  return Requirements()
      .Activation("table", problem.table_dtype)
      .Activation("y", problem.y_dtype)
      .Want(DTypeBytes(problem.y_dtype) >= DTypeBytes(problem.table_dtype), "y",
            DTypeName(problem.y_dtype), "types at least as wide as the table's")
      .Positive("channels", problem.channels)
      .Take();
}

}  // namespace

absl::Status RegisterKvCache(KernelRegistry& registry) {
  constexpr DeterminismClass kBits = DeterminismClass::kBitwise;
  absl::Status status =
      RegisterBoth<StoreKv, StoreKvKernel, StoreKvKernel>(registry, kBits, &StoreKvSupports);
  if (status.ok()) {
    status = RegisterBoth<LoadKv, LoadKvKernel, LoadKvKernel>(registry, kBits, &LoadKvSupports);
  }
  if (status.ok()) {
    status = RegisterBoth<CopyKvRows, CopyKvRowsKernel, CopyKvRowsKernel>(registry, kBits,
                                                                          &CopyKvRowsSupports);
  }
  if (status.ok()) {
    status = RegisterBoth<GatherRows, GatherRowsKernel, GatherRowsKernel>(registry, kBits,
                                                                          &GatherRowsSupports);
  }
  return status;
}

}  // namespace skein::kernels::reference
