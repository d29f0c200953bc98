// The Hopper backend: registration, and what its stream handle points to. Host code without CUDA
// headers. main() registers, any thread may run kernels on streams of its own.
// Must never fall back to another backend: what is not supported says so.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/kernel_registry.h"

namespace skein::kernels {

// DeviceStream::handle of this backend points to one. Views hold device addresses, or host memory
// that the device can read. A call returns when its kernels are queued.
struct Sm90Stream {
  void* stream = nullptr;  // cudaStream_t; null: the default stream
  // kNumOps words that the device can write, zero at first. A kernel that finds what the contract
  // answers with Internal (NaN scores or logits) stores 1 + the row in the word of its operator and
  // leaves that row's outputs undefined. The caller looks after the step.
  uint32_t* defects = nullptr;
  uint64_t launches = 0;  // kernels that were queued
};

// Registers every operator of this backend as "sm90". Does not need a device.
absl::Status RegisterSm90Kernels(KernelRegistry& registry);

// The GPU of that number as the driver counts. FailedPrecondition says why there is none to use,
// and what to do: no driver, too old a driver, no such GPU, not a Hopper GPU.
absl::StatusOr<std::shared_ptr<Device>> OpenSm90Device(int ordinal);

}  // namespace skein::kernels
