// The lane kernels for AVX2, FMA and F16C: the one file of the tree that is compiled for them. Only
// reached after CpuHasAvx2 said yes; must not define anything that other files could link to.
#include "kernels/cpu/lane_bodies.h"

namespace skein::kernels::cpu {

#if defined(SKEIN_AVX2_LANES)
const LaneKernels& Avx2LaneKernels() { return LaneBodies<Avx2Lanes>::kTable; }
#else
const LaneKernels& Avx2LaneKernels() { return ScalarLaneKernels(); }
#endif

}  // namespace skein::kernels::cpu
