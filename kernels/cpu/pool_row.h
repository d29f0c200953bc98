// Where a row of a cache lies and how it becomes floats, for the cpu operators that read caches.
// Any thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/family.h"
#include "kernels/ops/step_rows.h"

namespace skein::kernels::cpu {

template <CpuIsa isa>
void LoadPoolRow(const KvPool& pool, int64_t row, float* out) {
  Lanes<isa>().decode_kv(pool.format, reinterpret_cast<const uint8_t*>(pool.row_data(row)),
                         reinterpret_cast<const uint8_t*>(pool.row_scale(row)), pool.dim, out);
}

// Compressed rows of one sequence: number -> row of the pool.
class HistoryRows {
 public:
  HistoryRows(const StepRows& rows, int64_t sequence, int ratio)
      : blocks_(rows.block_table.as<int32_t>() + sequence * rows.block_table.step(0)),
        rows_per_block_(rows.block_tokens / ratio) {}
  int64_t operator()(int64_t j) const {
    return blocks_[j / rows_per_block_] * rows_per_block_ + j % rows_per_block_;
  }

 private:
  const int32_t* blocks_;
  int64_t rows_per_block_;
};

}  // namespace skein::kernels::cpu
