// Conformance of the cpu backend: no device, nothing to wait for.
#include "kernels/cpu/register.h"
#include "tests/kernels/judged_backends.h"

namespace skein::kernels {

absl::Status RegisterJudged(KernelRegistry& registry) {
  return RegisterCpuKernels(registry, CpuIsa::kAuto);
}

DeviceStream JudgedStream(std::string_view) { return {}; }

absl::Status FinishCall(std::string_view) { return absl::OkStatus(); }

}  // namespace skein::kernels
