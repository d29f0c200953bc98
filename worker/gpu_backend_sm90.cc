#include "kernels/sm90/register.h"
#include "worker/gpu_backend.h"

namespace skein::worker {

bool IsGpuBackend(std::string_view backend) { return backend == "sm90"; }

absl::Status RegisterGpuKernels(kernels::KernelRegistry& registry) {
  return kernels::RegisterSm90Kernels(registry);
}

absl::StatusOr<std::shared_ptr<kernels::Device>> OpenGpu(std::string_view, int ordinal) {
  return kernels::OpenSm90Device(ordinal);
}

}  // namespace skein::worker
