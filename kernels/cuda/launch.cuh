// Queueing of kernels: every launch of a CUDA backend goes through Launch, which counts it and
// turns an error into a status that names the operator. Device code only; host side of .cu files.
#pragma once

#include <string>

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/order.cuh"
#include "kernels/op.h"
#include "kernels/sm90/register.h"

namespace skein::kernels::cuda {

// Blocks that cover `count` items of `per_block` each.
inline unsigned BlocksFor(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// Multiprocessors of the device; grids of blocks that stay may depend on it, results may not.
inline int Multiprocessors() {
  static const int count = [] {
    int device = 0, value = 0;
    const bool known =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
    return known ? value : 1;
  }();
  return count;
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

// How a kernel is launched.
struct LaunchShape {
  dim3 grid;
  unsigned threads = 0;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks along x
};

// Queues `kernel`; nothing for an empty grid. It may begin while the kernel before it still runs:
// every kernel waits itself (cuda/order.cuh).
template <typename... Parameters, typename... Arguments>
absl::Status LaunchAs(OpId op, void (*kernel)(Parameters...), const LaunchShape& shape,
                      DeviceStream device_stream, const Arguments&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return absl::OkStatus();
  Sm90Stream& stream = StreamOf(device_stream);
  if (shape.shared_bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) return CudaError(op, error);
  }
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
  }
  attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.stream);
  config.attrs = attributes;
  config.numAttrs = count;
  const cudaError_t error =
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  ++stream.launches;
  return error == cudaSuccess ? absl::OkStatus() : CudaError(op, error);
}

template <typename... Parameters, typename... Arguments>
absl::Status Launch(OpId op, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                    size_t shared_bytes, DeviceStream device_stream,
                    const Arguments&... arguments) {
  return LaunchAs(op, kernel, {grid, threads, shared_bytes}, device_stream, arguments...);
}

// The word in which a kernel of `op` reports a defect; null when nobody looks.
inline uint32_t* DefectWord(OpId op, DeviceStream stream) {
  uint32_t* words = StreamOf(stream).defects;
  return words == nullptr ? nullptr : words + static_cast<int>(op);
}

}  // namespace skein::kernels::cuda
