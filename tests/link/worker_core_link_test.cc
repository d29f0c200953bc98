// Links worker_core alone: no model is loaded from nowhere, and a processor may be used.
#include "worker/preflight.h"
#include "worker/worker_actor.h"

int main() {
  using namespace skein;
  const kernels::KernelRegistry registry;
  worker::LoadOptions options;
  options.model_dir = "/nonexistent";
  const auto model = worker::LoadedModel::Load(registry, {}, options);
  const worker::WorkerActor actor({}, nullptr);
  return !model.ok() && actor.num_stale() == 0 && worker::UsableProcessors() > 0 ? 0 : 1;
}
