// Where a row of a cache lies and how it becomes floats, for the cpu operators that read caches.
// Any thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/family.h"
#include "kernels/ops/step_rows.h"

namespace skein::kernels::cpu {

// Rows of a pool as floats. Remembers the page of the last row, so that neighbours cost no
// division.
class PoolReader {
 public:
  explicit PoolReader(const KvPool& pool)
      : pool_(pool),
        data_bytes_(KvDataBytes(pool.format, pool.dim)),
        scale_bytes_(KvScaleBytes(pool.format, pool.dim)) {}

  template <CpuIsa isa>
  void Load(int64_t row, float* out) {
    if (row < first_ || row >= end_) {
      const int64_t page = row / pool_.page_rows;
      first_ = page * pool_.page_rows;
      end_ = first_ + pool_.page_rows;
      data_ = static_cast<const uint8_t*>(pool_.data) + page * pool_.page_bytes;
    }
    const uint8_t* scales = data_ + pool_.page_rows * data_bytes_;
    Lanes<isa>().decode_kv(pool_.format, data_ + (row - first_) * data_bytes_,
                           scales + (row - first_) * scale_bytes_, pool_.dim, out);
  }

 private:
  const KvPool& pool_;
  int64_t data_bytes_;
  int64_t scale_bytes_;
  int64_t first_ = 0;
  int64_t end_ = 0;
  const uint8_t* data_ = nullptr;
};

// Compressed rows of one sequence: number -> row of the pool. Remembers the block of the last one.
class HistoryRows {
 public:
  HistoryRows(const StepRows& rows, int64_t sequence, int ratio)
      : blocks_(rows.block_table.as<int32_t>() + sequence * rows.block_table.step(0)),
        rows_per_block_(rows.block_tokens / ratio) {}
  int64_t Find(int64_t j) {
    if (j < begin_ || j >= begin_ + rows_per_block_ || offset_ == kNone) {
      const int64_t block = j / rows_per_block_;
      begin_ = block * rows_per_block_;
      offset_ = int64_t{blocks_[block]} * rows_per_block_ - begin_;
    }
    return j + offset_;
  }

 private:
  static constexpr int64_t kNone = INT64_MIN;
  const int32_t* blocks_;
  int64_t rows_per_block_;
  int64_t begin_ = 0;
  int64_t offset_ = kNone;
};

}  // namespace skein::kernels::cpu
