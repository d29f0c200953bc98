// Decoding one row of a cache pool, for the reference operators that read pools. Any thread.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/ops/step_rows.h"
#include "kernels/reference/element.h"

namespace skein::kernels::reference {

inline CodeFormat CodesOf(KvFormat format) {
  switch (format) {
    case KvFormat::kFp4Group16:
      return CodeFormat::kE2m1E4m3;
    case KvFormat::kFp4Group32:
      return CodeFormat::kE2m1Ue8m0;
    default:
      return CodeFormat::kE4m3Ue8m0;
  }
}

// DType of a pool that stores plain numbers; kU8 for one that stores codes.
inline DType PlainDType(KvFormat format) {
  switch (format) {
    case KvFormat::kBf16:
      return DType::kBf16;
    case KvFormat::kF32:
      return DType::kF32;
    case KvFormat::kF64:
      return DType::kF64;
    default:
      return DType::kU8;
  }
}

inline int64_t GroupOf(KvFormat format) { return format == KvFormat::kFp4Group16 ? 16 : 32; }

template <typename Acc>
void LoadPoolRow(const KvPool& pool, int64_t row, Acc* out) {
  const void* data = pool.row_data(row);
  const DType plain = PlainDType(pool.format);
  if (plain != DType::kU8) {
    for (int64_t i = 0; i < pool.dim; ++i) out[i] = LoadAt<Acc>(data, plain, i);
    return;
  }
  const CodeFormat format = CodesOf(pool.format);
  const uint8_t* codes = static_cast<const uint8_t*>(data);
  const uint8_t* scale = reinterpret_cast<const uint8_t*>(pool.row_scale(row));
  for (int64_t i = 0; i < pool.dim; ++i) {
    const uint8_t byte = scale[i / GroupOf(pool.format)];
    const Acc s = format == CodeFormat::kE2m1E4m3 ? DecodeE4m3(byte) : DecodeE8m0(byte);
    const uint8_t code = format == CodeFormat::kE4m3Ue8m0
                             ? codes[i]
                             : static_cast<uint8_t>((codes[i / 2] >> (i % 2 * 4)) & 15);
    out[i] = static_cast<Acc>(DecodeCode(format, code)) * s;
  }
}

// Element i of a rank-1 i32 view.
inline int64_t IndexAt(const TensorView& view, int64_t i) { return view.as<int32_t>()[i]; }

// Pool row of compressed row j of a sequence.
inline int64_t HistoryRow(const StepRows& rows, int64_t sequence, int ratio, int64_t j) {
  const int64_t rows_per_block = rows.block_tokens / ratio;
  const int64_t block =
      IndexAt(rows.block_table, sequence * rows.block_table.step(0) + j / rows_per_block);
  return block * rows_per_block + j % rows_per_block;
}

}  // namespace skein::kernels::reference
