// The GPU backend of a build: there or not, what cannot be had is an error with its remedy.
#include "worker/gpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

TEST(GpuBackend, NoMachineHasThatManyGpus) {
  const auto device = OpenGpu("sm90", 4096);
  ASSERT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string text(device.status().message());
  EXPECT_THAT(text, HasSubstr("backend sm90"));
  EXPECT_THAT(text, HasSubstr("name another backend (--backend cpu)"));
}

TEST(GpuBackend, KernelsAreThoseOfTheBackendItNames) {
  kernels::KernelRegistry registry;
  ASSERT_TRUE(RegisterGpuKernels(registry).ok());
  EXPECT_FALSE(IsGpuBackend("cpu"));
  EXPECT_FALSE(IsGpuBackend("reference"));
  if (IsGpuBackend("sm90")) {
    EXPECT_EQ(registry.Operators("sm90").size(), static_cast<size_t>(kernels::kNumOps));
  } else {
    EXPECT_TRUE(registry.Backends().empty());
  }
}

}  // namespace
}  // namespace skein::worker
