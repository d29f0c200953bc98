// Registration of the reference backend: plain C++ in the order of operations of the catalogue, the
// oracle of every other backend. Twice: "reference" computes in double whatever the model calls
// fp32, "reference-float" in float with plain sequential sums (the naive baseline of tolerances).
// Kernels ignore the stream and the workspace and run in the calling thread.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel_registry.h"

namespace skein::kernels {

// Registers every operator under both names. AlreadyExists if called twice on one registry.
absl::Status RegisterReferenceKernels(KernelRegistry& registry);

namespace reference {

// One call per operator family; each registers under both names.
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

}  // namespace reference
}  // namespace skein::kernels
