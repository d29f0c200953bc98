// The lane kernels in plain C++: the base that every processor runs.
#include "kernels/cpu/lane_bodies.h"

namespace skein::kernels::cpu {

const LaneKernels& ScalarLaneKernels() { return LaneBodies<ScalarLanes>::kTable; }

}  // namespace skein::kernels::cpu
