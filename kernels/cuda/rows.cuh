// Device-side forms of what operators take: pools, step rows, element access. Plain values that
// travel as kernel parameters. Device code.
#pragma once

#include <cstdint>

#include "kernels/formats.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/step_rows.h"
#include "kernels/tensor_view.h"

namespace skein::kernels::cuda {

__device__ inline float LoadBf16(const uint16_t* data, int64_t index) {
  return DecodeBf16(data[index]);
}

// An element of a bf16 or f32 tensor as f32.
__device__ inline float LoadFloat(const void* data, DType dtype, int64_t index) {
  return dtype == DType::kBf16 ? DecodeBf16(static_cast<const uint16_t*>(data)[index])
                               : static_cast<const float*>(data)[index];
}

__device__ inline void StoreFloat(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kBf16) {
    static_cast<uint16_t*>(data)[index] = EncodeBf16(value);
  } else {
    static_cast<float*>(data)[index] = value;
  }
}

// A KvPool by value, with its addresses computed on the device.
struct Pool {
  uint8_t* data = nullptr;
  KvFormat format = KvFormat::kBf16;
  int dim = 0;
  int group = 32;
  int64_t page_rows = 1, page_bytes = 0, num_rows = 0, data_bytes = 0, scale_bytes = 0;

  __device__ uint8_t* RowData(int64_t row) const {
    return data + row / page_rows * page_bytes + row % page_rows * data_bytes;
  }
  __device__ uint8_t* RowScale(int64_t row) const {
    return data + row / page_rows * page_bytes + page_rows * data_bytes +
           row % page_rows * scale_bytes;
  }
  // Element i of a row as f32; exact for every format.
  __device__ float Element(const uint8_t* row, const uint8_t* scale, int i) const {
    switch (format) {
      case KvFormat::kBf16:
        return DecodeBf16(reinterpret_cast<const uint16_t*>(row)[i]);
      case KvFormat::kF32:
        return reinterpret_cast<const float*>(row)[i];
      case KvFormat::kFp8Group32:
        return DecodeE4m3(row[i]) * DecodeE8m0(scale[i / 32]);
      case KvFormat::kFp4Group16:
        return DecodeE2m1(row[i / 2] >> (i % 2 * 4) & 15) * DecodeE4m3(scale[i / 16]);
      case KvFormat::kFp4Group32:
        return DecodeE2m1(row[i / 2] >> (i % 2 * 4) & 15) * DecodeE8m0(scale[i / 32]);
      case KvFormat::kF64:
        break;
    }
    return 0;
  }
};

inline Pool MakePool(const KvPool& pool) {
  Pool out;
  out.data = static_cast<uint8_t*>(pool.data);
  out.format = pool.format;
  out.dim = pool.dim;
  out.group = pool.format == KvFormat::kFp4Group16 ? 16 : 32;
  out.page_rows = pool.page_rows;
  out.page_bytes = pool.page_bytes;
  out.num_rows = pool.num_rows;
  out.data_bytes = KvDataBytes(pool.format, pool.dim);
  out.scale_bytes = KvScaleBytes(pool.format, pool.dim);
  return out;
}

// StepRows by value.
struct Rows {
  const int32_t* position = nullptr;
  const int32_t* sequence = nullptr;
  const int32_t* first_row = nullptr;
  const int32_t* first_position = nullptr;
  const int32_t* slot = nullptr;
  const int32_t* block_table = nullptr;
  int64_t block_step = 0;
  int block_tokens = 0;

  // Pool row of compressed row j of a sequence.
  __device__ int64_t HistoryRow(int sequence_index, int ratio, int64_t j) const {
    const int64_t rows_per_block = block_tokens / ratio;
    const int64_t block = block_table[sequence_index * block_step + j / rows_per_block];
    return block * rows_per_block + j % rows_per_block;
  }
  // Columns of a row that are visible and exist.
  __device__ int64_t Visible(int64_t t, int ratio, int64_t num_columns) const {
    const int64_t visible = (int64_t{position[t]} + 1) / ratio;
    return visible < num_columns ? visible : num_columns;
  }
};

inline Rows MakeRows(const StepRows& rows) {
  Rows out;
  out.position = rows.position.as<int32_t>();
  out.sequence = rows.sequence.as<int32_t>();
  out.first_row = rows.first_row.as<int32_t>();
  out.first_position = rows.first_position.as<int32_t>();
  out.slot = rows.slot.as<int32_t>();
  out.block_table = rows.block_table.as<int32_t>();
  out.block_step = rows.block_table.step(0);
  out.block_tokens = rows.block_tokens;
  return out;
}

}  // namespace skein::kernels::cuda
