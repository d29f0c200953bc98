#include "kernels/reference/register.h"

namespace skein::kernels {

absl::Status RegisterReferenceKernels(KernelRegistry& registry) {
  using Family = absl::Status (*)(KernelRegistry&);
  constexpr Family kFamilies[] = {reference::RegisterQuant,      reference::RegisterGemm,
                                  reference::RegisterNormRope,   reference::RegisterHyperConnection,
                                  reference::RegisterMoe,        reference::RegisterEngram,
                                  reference::RegisterCompressor, reference::RegisterKvCache,
                                  reference::RegisterIndexer,    reference::RegisterAttention,
                                  reference::RegisterSampling,   reference::RegisterLogitEdits};
  for (Family family : kFamilies) {
    if (absl::Status status = family(registry); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace skein::kernels
