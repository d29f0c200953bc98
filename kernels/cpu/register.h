// Registration of the cpu backend: production kernels for hosts, bf16 activations and f32 for what
// the model calls fp32, weights kept in FP8 and FP4 and expanded in registers. DeviceStream.handle
// is a cpu::ThreadPool* or null (the calling thread alone). Results depend on neither the
// instruction set, nor the threads, nor the other rows of a call.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/kernel_registry.h"

namespace skein::kernels {

enum class CpuIsa : uint8_t {
  kAuto,    // the widest that the processor has
  kScalar,  // plain C++
  kAvx2,    // AVX2, FMA and F16C
  kAvx512,  // AVX-512 F, BW, DQ, VL and VNNI beside those
};

// Whether this processor and its operating system run the AVX2 (AVX-512) kernels.
bool CpuHasAvx2();
bool CpuHasAvx512();
// What kAuto means here.
CpuIsa BestCpuIsa();

// Registers every operator as "cpu". FailedPrecondition if `isa` is asked of a processor without
// it.
absl::Status RegisterCpuKernels(KernelRegistry& registry, CpuIsa isa);

namespace cpu {

// One call per operator family.
absl::Status RegisterQuant(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterGemm(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterNormRope(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterHyperConnection(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterMoe(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterEngram(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterCompressor(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterKvCache(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterIndexer(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterAttention(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterSampling(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterVerification(KernelRegistry& registry, CpuIsa isa);
absl::Status RegisterLogitEdits(KernelRegistry& registry, CpuIsa isa);

}  // namespace cpu
}  // namespace skein::kernels
