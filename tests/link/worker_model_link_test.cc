// Links worker_model alone: an empty kernel set is finished, a missing model is named.
#include "worker/cache/kv_cache.h"
#include "worker/model/kernel_set.h"
#include "worker/model/weight_loader.h"

int main() {
  using namespace skein;
  const kernels::KernelRegistry registry;
  const kernels::KernelManifest manifest;
  worker::KernelSet set(registry, manifest, {});
  const bool missing = absl::IsNotFound(worker::ModelSpec::Load("/nonexistent").status());
  const uint64_t bytes = worker::KvCache::BlockBytes({}, worker::Numerics::Model(), 32);
  worker::Arena arena;
  return set.Finish(arena).ok() && missing && bytes == 0 ? 0 : 1;
}
