// Registration of the Hopper backend.
#include "kernels/sm90/family.cuh"
#include "kernels/sm90/register.h"

namespace skein::kernels {

absl::Status RegisterSm90Kernels(KernelRegistry& registry) {
  for (absl::Status (*family)(KernelRegistry&) :
       {&sm90::RegisterQuant, &sm90::RegisterGemm, &sm90::RegisterNormRope,
        &sm90::RegisterHyperConnection, &sm90::RegisterMoe, &sm90::RegisterEngram,
        &sm90::RegisterCompressor, &sm90::RegisterKvCache, &sm90::RegisterIndexer,
        &sm90::RegisterAttention, &sm90::RegisterSampling, &sm90::RegisterLogitEdits}) {
    if (absl::Status status = family(registry); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace skein::kernels
