// What must hold before a worker registers: the configuration fits the model, the operators can be
// served, the memory is there. Everything that is wrong is found before serving starts.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/kernel_registry.h"
#include "protocol/config/config.h"
#include "protocol/messages/step.h"
#include "worker/loaded_model.h"

namespace skein::worker {

// Threads for worker.threads = 0: the processors this process may use, as many as a backend takes.
int UsableProcessors();

// Sizes of caches and activations from configuration and model, for the part of it that this rank
// has. InvalidArgument names key and
// value; ResourceExhausted when the memory that is free on `device` does not hold them.
absl::StatusOr<LoadOptions> PlanLoad(const protocol::Config& config, const ModelSpec& spec,
                                     const kernels::DeviceProperties& device,
                                     const Shard& shard = {});

// Why a worker loaded with `options` drafts nothing, with the remedy; empty when it drafts.
std::string WhyNoDrafts(const protocol::Config& config, const ModelSpec& spec,
                        const LoadOptions& options);

// Names of what must be equal for two workers to continue each other's work: the bits of results,
// and the bytes of cache blocks.
std::string NumericsId(const protocol::Config& config);
std::string CacheLayoutId(const protocol::Config& config, const ModelSpec& spec,
                          const LoadOptions& options);

// The geometry that a worker loaded with `options` offers.
protocol::CacheGeometry Geometry(const LoadOptions& options);

// The manifest of worker.backend with the overrides of worker.kernels ("op=backend,op=backend").
// InvalidArgument names every operator or backend that does not exist.
absl::StatusOr<kernels::KernelManifest> PlanManifest(const protocol::Config& config,
                                                     const kernels::KernelRegistry& registry);

}  // namespace skein::worker
