// Links kernels_reference alone: every operator registers under both names.
#include "kernels/reference/register.h"

int main() {
  using namespace skein::kernels;
  KernelRegistry registry;
  if (!RegisterReferenceKernels(registry).ok()) return 1;
  const size_t all = static_cast<size_t>(kNumOps);
  return registry.Operators("reference").size() == all &&
                 registry.Operators("reference-float").size() == all
             ? 0
             : 1;
}
