// Links kernels_cpu alone: every operator registers, and a pool runs every task once.
#include <atomic>

#include "kernels/cpu/register.h"
#include "kernels/cpu/thread_pool.h"

int main() {
  using namespace skein::kernels;
  KernelRegistry registry;
  if (!RegisterCpuKernels(registry, CpuIsa::kAuto).ok()) return 1;
  cpu::ThreadPool pool(2);
  std::atomic<int64_t> sum = 0;
  pool.ParallelFor(10, [&sum](int64_t task, int) { sum += task; });
  return registry.Operators("cpu").size() == static_cast<size_t>(kNumOps) && sum == 45 ? 0 : 1;
}
