#include "absl/strings/str_cat.h"
#include "protocol/base/strings.h"
#include "worker/gpu_backend.h"

namespace skein::worker {

bool IsGpuBackend(std::string_view) { return false; }

absl::Status RegisterGpuKernels(kernels::KernelRegistry&) { return absl::OkStatus(); }

absl::StatusOr<std::shared_ptr<kernels::Device>> OpenGpu(std::string_view backend, int) {
  return absl::FailedPreconditionError(
      absl::StrCat("backend ", protocol::ToAbsl(backend),
                   " is not in this build; build it where "
                   "the CUDA compiler is, or name another backend (--backend cpu)"));
}

}  // namespace skein::worker
