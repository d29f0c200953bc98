// Boxes of matrices that the copy engine brings to shared memory in one instruction, swizzled for
// warpgroup products: rows of 128 bytes, piece c of row r at c ^ (r & 7). The map travels as a
// kernel parameter. Host side builds it, device side copies.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/sm90/async_copy.cuh"

namespace skein::kernels::sm90 {

inline constexpr uint32_t kBoxBytes = 128;  // of a row of a box

// A matrix of bytes that stands at several places: rows `row_step` bytes apart, and places at
// multiples of `place_step` bytes from `data`.
struct MatrixOfBytes {
  const void* data;
  uint64_t width, rows, row_step;
  uint64_t places = 1, place_step = 16;
};

// Boxes of 128 bytes by `box_rows` rows; what lies outside the matrix arrives as zeros.
inline absl::Status MakeTensorMap(const MatrixOfBytes& m, uint32_t box_rows, CUtensorMap& map) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                               12000, cudaEnableDefault, &result);
    const bool good = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return good ? reinterpret_cast<Encode>(found) : nullptr;
  }();
  if (encode == nullptr) return absl::InternalError("the driver has no cuTensorMapEncodeTiled");
  const cuuint64_t extents[3] = {m.width, m.places, m.rows};
  const cuuint64_t steps[2] = {m.place_step, m.row_step};
  const cuuint32_t box[3] = {kBoxBytes, 1, box_rows};
  const cuuint32_t every[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<void*>(m.data), extents, steps, box,
             every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? absl::OkStatus()
                                : absl::InternalError(absl::StrCat("cuTensorMapEncodeTiled: error ",
                                                                   static_cast<int>(result)));
}

// The box at byte `column` of row `row` of a place; `barrier` counts its bytes as they arrive.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int column, int place, int row,
                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(column), "r"(place), "r"(row), "r"(barrier)
      : "memory");
}

__device__ inline void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace skein::kernels::sm90
