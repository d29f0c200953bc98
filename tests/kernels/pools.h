// Cache pools with plausible content for operator tests.
#pragma once

#include "kernels/ops/kv_cache.h"
#include "tests/kernels/conformance.h"

namespace skein::kernels {

inline int64_t KvRowBytes(KvFormat format, int64_t dim) {
  return KvDataBytes(format, dim) + KvScaleBytes(format, dim);
}

// Byte `at` of a page of `page_rows` rows: codes or numbers first, then scales.
inline uint8_t PoolByte(KvFormat format, int64_t dim, int64_t page_rows, int64_t at,
                        TestRandom& random) {
  const int64_t byte = random.Below(256);
  const bool is_scale = at >= page_rows * KvDataBytes(format, dim);
  switch (format) {
    case KvFormat::kFp8Group32:
      if (is_scale) return static_cast<uint8_t>(117 + byte % 5);
      return static_cast<uint8_t>((byte & 0x7F) == 0x7F ? 0x30 : byte);
    case KvFormat::kFp4Group32:
      return static_cast<uint8_t>(is_scale ? 122 + byte % 5 : byte);
    case KvFormat::kFp4Group16:
      return static_cast<uint8_t>(is_scale ? 0x20 + byte % 32 : byte);
    case KvFormat::kBf16:
      // High bytes near 1 with either sign, low bytes anything.
      return static_cast<uint8_t>(at % 2 == 1 ? (0x3F ^ (byte & 0x80)) : byte);
    case KvFormat::kF32:
      return static_cast<uint8_t>(at % 4 == 3 ? (0x3F ^ (byte & 0x80)) : byte);
    case KvFormat::kF64:
      return 0;
  }
  return 0;
}

// A pool of `num_rows` rows, the same for every call.
inline KvPool SharedPool(CallBuilder& call, KvFormat format, int dim, int64_t num_rows,
                         int64_t page_rows) {
  const int64_t page_bytes = page_rows * KvRowBytes(format, dim);
  const int64_t pages = (num_rows + page_rows - 1) / page_rows;
  TestRandom random(91, static_cast<uint32_t>(format));
  const TensorView bytes = call.SharedBy(DType::kU8, {pages, page_bytes}, [&](int64_t flat) {
    return static_cast<double>(PoolByte(format, dim, page_rows, flat % page_bytes, random));
  });
  return {bytes.data, format, dim, page_rows, page_bytes, num_rows};
}

// A pool with one row per row of the call, in pages of one.
inline KvPool RowPool(CallBuilder& call, KvFormat format, int dim) {
  const int64_t row_bytes = KvRowBytes(format, dim);
  const std::set<uint32_t> poisoned = call.rows().poisoned;
  const TensorView bytes = call.InBy(DType::kU8, {row_bytes}, [&](uint32_t id, int64_t at) {
    TestRandom random(17, id * 4096 + static_cast<uint32_t>(at));
    return poisoned.count(id) != 0 ? 255.0
                                   : static_cast<double>(PoolByte(format, dim, 1, at, random));
  });
  return {bytes.data, format, dim, 1, row_bytes, call.rows().size()};
}

}  // namespace skein::kernels
