// Cache rows: storing, loading, copying; and the plain gather of table rows. Class B.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// How a row of `dim` channels is stored.
enum class KvFormat : uint8_t {
  kFp8Group32,  // dim e4m3 codes, then dim/32 ue8m0 scales        (window)
  kFp4Group16,  // dim/2 bytes of e2m1, then dim/16 e4m3 scales    (compressed rows)
  kFp4Group32,  // dim/2 bytes of e2m1, then dim/32 ue8m0 scales   (index keys)
  kBf16,
  kF32,  // open compressor groups
  kF64,  // the reference's double mode
};

constexpr int64_t KvDataBytes(KvFormat format, int64_t dim) {
  switch (format) {
    case KvFormat::kFp8Group32:
      return dim;
    case KvFormat::kFp4Group16:
    case KvFormat::kFp4Group32:
      return dim / 2;
    case KvFormat::kBf16:
      return dim * 2;
    case KvFormat::kF32:
      return dim * 4;
    case KvFormat::kF64:
      return dim * 8;
  }
  return 0;
}

constexpr int64_t KvScaleBytes(KvFormat format, int64_t dim) {
  switch (format) {
    case KvFormat::kFp8Group32:
    case KvFormat::kFp4Group32:
      return (dim + 31) / 32;
    case KvFormat::kFp4Group16:
      return (dim + 15) / 16;
    case KvFormat::kBf16:
    case KvFormat::kF32:
    case KvFormat::kF64:
      return 0;
  }
  return 0;
}

// A pool of rows in pages: each page holds the data of its rows, then their scales.
// Row r is row r % page_rows of page r / page_rows.
struct KvPool {
  void* data = nullptr;
  KvFormat format = KvFormat::kBf16;
  int dim = 0;
  int64_t page_rows = 1;
  int64_t page_bytes =
      0;  // >= page_rows * (data + scale bytes); whole elements of kBf16, kF32, kF64
  int64_t num_rows = 0;

  std::byte* row_data(int64_t row) const {
    return static_cast<std::byte*>(data) + (row / page_rows) * page_bytes +
           (row % page_rows) * KvDataBytes(format, dim);
  }
  std::byte* row_scale(int64_t row) const {
    return static_cast<std::byte*>(data) + (row / page_rows) * page_bytes +
           page_rows * KvDataBytes(format, dim) + (row % page_rows) * KvScaleBytes(format, dim);
  }
};

// Quantises x[i] into row target[i] of the pool.  x [N, dim];  target [N] i64, -1: skip, else
// distinct. Code rules: CodeFormat of quant.h (window e4m3/32, compressed e2m1/16 with e4m3 scale,
// index key e2m1/32); kBf16, kF32, kF64 round once.
struct StoreKv {
  static constexpr OpId kId = OpId::kStoreKv;
  struct Problem {
    KvFormat format = KvFormat::kBf16;
    int dim = 0;
    DType x_dtype = DType::kBf16;
  };
  struct Args {
    TensorView x, target;
    KvPool pool;
  };
};

// y[i] = dequantised row source[i] (-1: zeros).  source [N] i64;  y [N, dim]
struct LoadKv {
  static constexpr OpId kId = OpId::kLoadKv;
  struct Problem {
    KvFormat format = KvFormat::kBf16;
    int dim = 0;
    DType y_dtype = DType::kBf16;
  };
  struct Args {
    KvPool pool;
    TensorView source, y;
  };
};

// Copies row source[i] of one pool to row target[i] of another of the same format, byte for byte.
// source, target [N] i64; an entry with either at -1 is skipped. Targets are distinct.
struct CopyKvRows {
  static constexpr OpId kId = OpId::kCopyKvRows;
  struct Problem {
    KvFormat format = KvFormat::kBf16;
    int dim = 0;
  };
  struct Args {
    KvPool from, to;
    TensorView source, target;
  };
};

// y[i] = table[index[i]], converted to y's dtype (exact widening or copy); -1: zeros.
//   table [V, h] bf16, f32 or f64;  index [N] i32;  y [N, h]
struct GatherRows {
  static constexpr OpId kId = OpId::kGatherRows;
  struct Problem {
    int channels = 0;
    DType table_dtype = DType::kBf16;
    DType y_dtype = DType::kBf16;
  };
  struct Args {
    TensorView table, index, y;
  };
};

}  // namespace skein::kernels
