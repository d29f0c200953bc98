// Every operator of a model resolved once: plain function pointers with their problem and one
// shared workspace. Build with Add while the layers are made, then Finish, which reports every
// operator that cannot be served in one status. After Finish a Kernel call neither looks up nor
// allocates. Thread: one caller at a time (the device thread), since the workspace is shared.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/kernel_registry.h"
#include "worker/model/activations.h"

namespace skein::worker {

// What the kernels of one set share.
struct KernelRuntime {
  kernels::Workspace workspace;
  kernels::DeviceStream stream;
};

// One resolved operator for one problem. Valid while its KernelSet lives.
template <typename Op>
class Kernel {
 public:
  Kernel() = default;
  Kernel(const kernels::KernelVariant<Op>* variant, typename Op::Problem problem,
         const KernelRuntime* runtime)
      : variant_(variant), problem_(std::move(problem)), runtime_(runtime) {}

  absl::Status operator()(const typename Op::Args& args) const {
    return variant_->run(problem_, args, runtime_->workspace, runtime_->stream);
  }
  const typename Op::Problem& problem() const { return problem_; }

 private:
  const kernels::KernelVariant<Op>* variant_ = nullptr;
  typename Op::Problem problem_;
  const KernelRuntime* runtime_ = nullptr;
};

class KernelSet {
 public:
  // Both are borrowed: the manifest until Finish, the registry as long as its kernels are called.
  KernelSet(const kernels::KernelRegistry& registry, const kernels::KernelManifest& manifest,
            kernels::DeviceStream stream)
      : registry_(registry), manifest_(manifest), runtime_(std::make_unique<KernelRuntime>()) {
    runtime_->stream = stream;
  }

  template <typename Op>
  Kernel<Op> Add(const typename Op::Problem& problem) {
    const auto* variant = registry_.Resolve<Op>(manifest_, kernels::Need<Op>{{problem}}, defects_);
    if (variant != nullptr) {
      workspace_bytes_ = std::max(workspace_bytes_, variant->workspace_bytes(problem));
    }
    return Kernel<Op>(variant, problem, runtime_.get());
  }

  // Unimplemented, listing each defect once, or OK with the workspace taken from `arena`.
  absl::Status Finish(Arena& arena);

  size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  const kernels::KernelRegistry& registry_;
  const kernels::KernelManifest& manifest_;
  std::unique_ptr<KernelRuntime> runtime_;
  std::vector<std::string> defects_;
  size_t workspace_bytes_ = 0;
};

}  // namespace skein::worker
