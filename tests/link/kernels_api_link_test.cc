// Links kernels_api alone and asks it for something real.
#include "kernels/device.h"
#include "kernels/kernel_registry.h"

int main() {
  using namespace skein::kernels;
  const bool good = OpName(OpId::kLinear) == "linear" && HostProperties().num_cores > 0 &&
                    KernelRegistry().Backends().empty();
  return good ? 0 : 1;
}
