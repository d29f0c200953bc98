// Boxes of tensors that the copy engine brings to shared memory in one instruction. The map travels
// as a kernel parameter. Host side builds it, device side copies.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/sm90/async_copy.cuh"

namespace skein::kernels::sm90 {

// A tensor of three dimensions, the first one contiguous, and the boxes that are copied; what lies
// outside arrives as zeros.
struct BoxedTensor {
  const void* data;
  CUtensorMapDataType type;
  cuuint64_t extent[3];
  cuuint64_t step[2];  // bytes, multiples of 16
  cuuint32_t box[3];
  // Rows of 128 bytes, piece c of row r at c ^ (r & 7): for warpgroup products.
  bool swizzled;
};

inline absl::Status MakeTensorMap(const BoxedTensor& tensor, CUtensorMap& map) {
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
  const cuuint32_t every[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, tensor.type, 3, const_cast<void*>(tensor.data), tensor.extent, tensor.step,
             tensor.box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
             tensor.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? absl::OkStatus()
                                : absl::InternalError(absl::StrCat("cuTensorMapEncodeTiled: error ",
                                                                   static_cast<int>(result)));
}

// Rows of bytes, `row_step` bytes apart, in boxes of 128 bytes by `box_rows` rows, swizzled; with
// several places, each `place_step` bytes from the one before it.
inline absl::Status MapRows(const void* data, int64_t width, int64_t rows, int64_t row_step,
                            uint32_t box_rows, CUtensorMap& map, uint64_t places = 1,
                            uint64_t place_step = 16) {
  const BoxedTensor tensor{data,
                           CU_TENSOR_MAP_DATA_TYPE_UINT8,
                           {static_cast<uint64_t>(width), places, static_cast<uint64_t>(rows)},
                           {place_step, static_cast<uint64_t>(row_step)},
                           {128, 1, box_rows},
                           true};
  return MakeTensorMap(tensor, map);
}

// The box that begins at element (i, j, k); `barrier` counts its bytes as they arrive.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int i, int j, int k,
                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(i), "r"(j), "r"(k), "r"(barrier)
      : "memory");
}

// `bytes` contiguous bytes, a multiple of 16, between addresses that are.
__device__ inline void CopyBytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ inline void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace skein::kernels::sm90
