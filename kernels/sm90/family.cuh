// What every family file of the Hopper backend shares: the wording of refusals, registration, and
// scratch from a workspace. Host side of .cu files.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/arg_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/kernel_registry.h"
#include "kernels/sm90/register.h"

namespace skein::kernels::sm90 {

inline constexpr std::string_view kBackend = "sm90";

// Requirements of a problem; the first that is missed is named.
class Support {
 public:
  Support& Want(bool good, std::string_view name, std::string_view got,
                std::string_view supported) {
    if (!good && status_.ok()) {
      status_ = absl::UnimplementedError(
          absl::StrCat(Text(name), " is ", Text(got), "; sm90 supports ", Text(supported)));
    }
    return *this;
  }
  Support& Is(std::string_view name, DType dtype, DType wanted) {
    return Want(dtype == wanted, name, DTypeName(dtype), DTypeName(wanted));
  }
  Support& Positive(std::string_view name, int64_t value) {
    return Want(value > 0, name, std::to_string(value), "a positive number");
  }
  absl::Status Take() { return status_; }

 private:
  static absl::string_view Text(std::string_view text) { return {text.data(), text.size()}; }
  absl::Status status_;
};

// Registers Kernel::{Supports, WorkspaceBytes, Run} for Op.
template <typename Op, typename Kernel>
absl::Status RegisterKernel(KernelRegistry& registry, DeterminismClass determinism) {
  KernelVariant<Op> variant;
  variant.backend = kBackend;
  variant.traits = {.arch = "sm_90a", .capturable = true, .determinism = determinism};
  variant.supports = &Kernel::Supports;
  variant.workspace_bytes = &Kernel::WorkspaceBytes;
  variant.run = &Kernel::Run;
  return registry.Register(variant);
}

// Refuses a workspace that is too small.
inline absl::Status CheckWorkspace(OpId op, Workspace workspace, size_t wanted) {
  if (workspace.bytes >= wanted) return absl::OkStatus();
  const std::string_view name = OpName(op);
  return absl::InvalidArgumentError(absl::StrCat(absl::string_view(name.data(), name.size()),
                                                 ": workspace has ", workspace.bytes,
                                                 " bytes, needed ", wanted));
}

absl::Status RegisterQuant(KernelRegistry& registry);
absl::Status RegisterGemm(KernelRegistry& registry);
absl::Status RegisterNormRope(KernelRegistry& registry);
absl::Status RegisterHyperConnection(KernelRegistry& registry);
absl::Status RegisterMoe(KernelRegistry& registry);
absl::Status RegisterEngram(KernelRegistry& registry);
absl::Status RegisterCompressor(KernelRegistry& registry);
absl::Status RegisterKvCache(KernelRegistry& registry);
absl::Status RegisterIndexer(KernelRegistry& registry);
absl::Status RegisterAttention(KernelRegistry& registry);
absl::Status RegisterSampling(KernelRegistry& registry);
absl::Status RegisterLogitEdits(KernelRegistry& registry);

}  // namespace skein::kernels::sm90
