// What the cpu backend promises beyond the contracts: bits depend on neither threads nor
// instruction set, for every case.
#include <gtest/gtest.h>

#include "kernels/cpu/register.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/conformance.h"

namespace skein::kernels {
namespace {

class CpuConformance : public ::testing::TestWithParam<size_t> {
 protected:
  // Runs the case with these rows.
  Instance Run(const Rows& rows, DeviceStream stream = {}, CpuIsa isa = CpuIsa::kAuto) const {
    KernelRegistry registry;
    EXPECT_TRUE(RegisterCpuKernels(registry, isa).ok());
    Instance instance = cases_[GetParam()].make(rows);
    const absl::Status status = instance.run(registry, "cpu", stream);
    EXPECT_TRUE(status.ok()) << status;
    return instance;
  }
  const std::vector<Case> cases_ = AllCases();
};

TEST_P(CpuConformance, BitsDependOnNeitherThreadsNorInstructionSet) {
  cpu::ThreadPool two(2), three(3);
  const Instance one = Run(Ids(0, 64));
  ExpectSameBits(one, Run(Ids(0, 64), {&two}));
  ExpectSameBits(one, Run(Ids(0, 64), {&three}));
  ExpectSameBits(one, Run(Ids(0, 64), {}, CpuIsa::kScalar));
  ExpectSameBits(Run(Ids(5, 3)), Run(Ids(5, 3), {&three}));
}

INSTANTIATE_TEST_SUITE_P(All, CpuConformance, ::testing::Range<size_t>(0, AllCases().size()),
                         &CaseNameOf<::testing::TestParamInfo<size_t>>);

TEST(CpuRegistration, TakesEachInstructionSetOnceAndRefusesASecondTime) {
  KernelRegistry registry;
  ASSERT_TRUE(RegisterCpuKernels(registry, CpuIsa::kScalar).ok());
  EXPECT_EQ(RegisterCpuKernels(registry, CpuIsa::kScalar).code(), absl::StatusCode::kAlreadyExists);
  KernelRegistry other;
  const absl::Status status = RegisterCpuKernels(other, CpuIsa::kAvx2);
  EXPECT_EQ(status.ok(), CpuHasAvx2()) << status;
}

}  // namespace
}  // namespace skein::kernels
