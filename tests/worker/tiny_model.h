// The demo model loaded for one test with its own threads, on the cpu backend unless the program
// says otherwise. Owns registry, threads and model. Thread: the test's.
// Must never: depend on anything but its arguments.
#pragma once

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "kernels/cpu/register.h"
#include "kernels/cpu/thread_pool.h"
#include "worker/gpu_backend.h"
#include "worker/loaded_model.h"

namespace skein::tests {

// What models of the program run on: set by main() before the first is loaded.
struct TestBackend {
  std::string name = "cpu";
  bool record_steps = false;                // unless a setup asks for it
  std::shared_ptr<kernels::Device> device;  // null: the host, with threads of the setup
};
inline TestBackend& BackendOfTests() {
  static TestBackend backend;
  return backend;
}

struct TinySetup {
  int threads = 1;
  int max_rows = 64;
  int max_samples = 8;
  int max_model_len = 256;
  int num_blocks = 64;
  int num_slots = 8;
  int max_draft_requests = 0;
  int num_checkpoints = 0;
  worker::TapSide tap_side = worker::TapSide::kEntering;
  bool record_steps = BackendOfTests().record_steps;
  std::shared_ptr<kernels::Device> device = nullptr;  // null: that of the program's backend
};

inline worker::LoadOptions TinyOptions(const TinySetup& setup) {
  worker::LoadOptions options;
  options.model_dir = "deploy/models/tiny-v41";
  options.numerics = worker::Numerics::Model();
  options.limits.max_rows = setup.max_rows;
  options.limits.max_samples = setup.max_samples;
  options.limits.max_model_len = setup.max_model_len;
  options.block_tokens = 32;
  options.num_blocks = setup.num_blocks;
  options.num_slots = setup.num_slots;
  options.num_checkpoints = setup.num_checkpoints;
  options.max_draft_requests = setup.max_draft_requests;
  options.tap_side = setup.tap_side;
  options.record_steps = setup.record_steps;
  if (setup.max_draft_requests > 0) options.limits.max_drafts = 5;
  return options;
}

class TinyModel {
 public:
  explicit TinyModel(const TinySetup& setup) : threads_(setup.threads) {
    const TestBackend& backend = BackendOfTests();
    EXPECT_TRUE(kernels::RegisterCpuKernels(registry_, kernels::CpuIsa::kAuto).ok());
    EXPECT_TRUE(worker::RegisterGpuKernels(registry_).ok());
    worker::LoadOptions options = TinyOptions(setup);
    options.device = setup.device != nullptr ? setup.device : backend.device;
    if (options.device == nullptr) {
      options.device = std::make_shared<kernels::HostDevice>(kernels::DeviceStream{&threads_});
    }
    auto loaded = worker::LoadedModel::Load(
        registry_, kernels::KernelManifest::Uniform(backend.name), options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (loaded.ok()) model_ = *std::move(loaded);
  }

  bool ok() const { return model_ != nullptr; }
  worker::LoadedModel& model() { return *model_; }
  // Hands the model over; the threads stay here.
  std::unique_ptr<worker::LoadedModel> Take() { return std::move(model_); }

 private:
  kernels::KernelRegistry registry_;
  kernels::cpu::ThreadPool threads_;
  std::unique_ptr<worker::LoadedModel> model_;
};

}  // namespace skein::tests
