// What this host can do at most, measured in the same run as what is compared with it: bytes read
// from memory and f32 multiply-adds per second, all threads of a pool together. Owns its buffer for
// the call alone. Must never: be called while something else of the process computes.
#pragma once

#include "kernels/cpu/register.h"
#include "kernels/cpu/thread_pool.h"

namespace skein::tests {

// Best of `reps` passes over a buffer of 1 GiB, in bytes per second.
double ReadBandwidth(kernels::cpu::ThreadPool& pool, int reps);

// Multiply-adds in registers with the widest vectors of `isa` (resolved, not kAuto); floating-point
// operations per second, two for each multiply-add.
double DotPeak(kernels::cpu::ThreadPool& pool, kernels::CpuIsa isa);

}  // namespace skein::tests
