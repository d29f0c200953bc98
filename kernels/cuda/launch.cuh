// Queueing of kernels: every launch of a CUDA backend goes through Launch, which counts it and
// turns an error into a status that names the operator. Device code only; host side of .cu files.
#pragma once

#include <string>

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/op.h"
#include "kernels/sm90/register.h"

namespace skein::kernels::cuda {

// Blocks that cover `count` items of `per_block` each.
inline unsigned BlocksFor(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

inline Sm90Stream& StreamOf(DeviceStream stream) {
  static Sm90Stream none;  // the default stream, without defect words
  return stream.handle == nullptr ? none : *static_cast<Sm90Stream*>(stream.handle);
}

inline absl::Status CudaError(OpId op, cudaError_t error) {
  const std::string_view name = OpName(op);
  return absl::InternalError(absl::StrCat(absl::string_view(name.data(), name.size()), ": ",
                                          cudaGetErrorName(error), ": ",
                                          cudaGetErrorString(error)));
}

// Queues `kernel`; nothing for an empty grid.
template <typename... Parameters, typename... Arguments>
absl::Status Launch(OpId op, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                    size_t shared_bytes, DeviceStream device_stream,
                    const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return absl::OkStatus();
  Sm90Stream& stream = StreamOf(device_stream);
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return CudaError(op, error);
  }
  kernel<<<grid, threads, shared_bytes, static_cast<cudaStream_t>(stream.stream)>>>(
      static_cast<Parameters>(arguments)...);
  ++stream.launches;
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? absl::OkStatus() : CudaError(op, error);
}

// The word in which a kernel of `op` reports a defect; null when nobody looks.
inline uint32_t* DefectWord(OpId op, DeviceStream stream) {
  uint32_t* words = StreamOf(stream).defects;
  return words == nullptr ? nullptr : words + static_cast<int>(op);
}

}  // namespace skein::kernels::cuda
