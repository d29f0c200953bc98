// Links kernels_sm90 alone.
#include "kernels/sm90/register.h"

int main() {
  skein::kernels::KernelRegistry registry;
  return skein::kernels::RegisterSm90Kernels(registry).ok() ? 0 : 1;
}
