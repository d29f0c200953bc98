// Order between kernels of a stream. Each may be set up while the one before it still runs, and
// waits before it touches what that one reads or writes. Device code.
// A kernel lets the next one begin only after its own wait: so when a kernel begins, all but the
// one before it have ended, and it may read at once what others left.
#pragma once

namespace skein::kernels::cuda {

// Until the kernel before this one has ended and its writes are visible.
__device__ inline void WaitForLast() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The kernel after this one may begin once all blocks have said so or ended.
__device__ inline void LetNextBegin() { asm volatile("griddepcontrol.launch_dependents;"); }

// The first statement of a kernel that has nothing to do before.
__device__ inline void BeginAfterLast() {
  WaitForLast();
  LetNextBegin();
}

}  // namespace skein::kernels::cuda
