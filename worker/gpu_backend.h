// The GPU backend of this build, if it contains one: which of the two sources is linked is decided
// when the build is configured. main() calls these once.
// Must never choose: a name comes in, and what cannot be had is an error.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/kernel_registry.h"

namespace skein::worker {

// True if `backend` runs on a GPU in this build.
bool IsGpuBackend(std::string_view backend);

// Registers the kernels of the GPU backend; nothing in a build without.
absl::Status RegisterGpuKernels(kernels::KernelRegistry& registry);

// The GPU of that number. FailedPrecondition with the remedy when there is none to use.
absl::StatusOr<std::shared_ptr<kernels::Device>> OpenGpu(std::string_view backend, int ordinal);

}  // namespace skein::worker
