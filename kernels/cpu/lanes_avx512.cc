// The lane kernels for AVX-512: compiled for F, BW, DQ, VL and VNNI beside AVX2. Only reached after
// CpuHasAvx512 said yes; must not define anything that other files could link to.
#include "kernels/cpu/lane_bodies.h"

namespace skein::kernels::cpu {

#if defined(SKEIN_AVX512_LANES)
const LaneKernels& Avx512LaneKernels() { return LaneBodies<Avx512Lanes>::kTable; }
#else
const LaneKernels& Avx512LaneKernels() { return ScalarLaneKernels(); }
#endif

}  // namespace skein::kernels::cpu
