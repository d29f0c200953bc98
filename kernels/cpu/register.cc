#include "kernels/cpu/register.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/cpu/family.h"

namespace skein::kernels {

bool CpuHasAvx2() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned int unused_a = 0, unused_b = 0, features = 0, unused_d = 0;
  __get_cpuid(1, &unused_a, &unused_b, &features, &unused_d);
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         (features & bit_F16C) != 0;
#else
  return false;
#endif
}

bool CpuHasAvx512() {
#if defined(__x86_64__)
  return CpuHasAvx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

CpuIsa BestCpuIsa() {
  if (CpuHasAvx512()) return CpuIsa::kAvx512;
  return CpuHasAvx2() ? CpuIsa::kAvx2 : CpuIsa::kScalar;
}

namespace cpu {

absl::Status CheckThreads(DeviceStream stream) {
  if (NumThreads(stream) <= kMaxThreads) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the thread pool has ", NumThreads(stream),
                                                 " threads, the cpu kernels take at most ",
                                                 kMaxThreads, "; start fewer"));
}

}  // namespace cpu

absl::Status RegisterCpuKernels(KernelRegistry& registry, CpuIsa isa) {
  if (isa == CpuIsa::kAvx2 && !CpuHasAvx2()) {
    return absl::FailedPreconditionError(
        "this processor lacks AVX2, FMA or F16C; choose the scalar or the automatic variant of the "
        "cpu kernels");
  }
  if (isa == CpuIsa::kAvx512 && !CpuHasAvx512()) {
    return absl::FailedPreconditionError(
        "this processor lacks AVX-512 F, BW, DQ, VL or VNNI; choose the avx2, scalar or "
        "automatic variant of the cpu kernels");
  }
  if (isa == CpuIsa::kAuto) isa = BestCpuIsa();
  using Family = absl::Status (*)(KernelRegistry&, CpuIsa);
  constexpr Family kFamilies[] = {
      cpu::RegisterQuant,           cpu::RegisterGemm,     cpu::RegisterNormRope,
      cpu::RegisterHyperConnection, cpu::RegisterMoe,      cpu::RegisterEngram,
      cpu::RegisterCompressor,      cpu::RegisterKvCache,  cpu::RegisterIndexer,
      cpu::RegisterAttention,       cpu::RegisterSampling, cpu::RegisterVerification,
      cpu::RegisterLogitEdits};
  for (Family family : kFamilies) {
    if (absl::Status status = family(registry, isa); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace skein::kernels
