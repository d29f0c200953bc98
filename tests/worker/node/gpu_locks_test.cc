// Tests of worker/node/gpu_locks: a lock per GPU, and the full story of whoever holds one.
#include "worker/node/gpu_locks.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "protocol/base/strings.h"
#include "tests/worker/node/fake_proc.h"

namespace skein::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GpuLocksTest : public ::testing::Test {
 protected:
  GpuLocksTest() {
    char path[] = "/tmp/skein_locks_XXXXXX";
    directory_ = ::mkdtemp(path);
    options_.directory = directory_;
    options_.proc_root = proc_.proc();
    gpus_[0].node = "/dev/nvidia0";
    gpus_[0].uuid = "GPU-aa";
    gpus_[1].minor = 1;
    gpus_[1].node = "/dev/nvidia1";
  }
  ~GpuLocksTest() override { std::filesystem::remove_all(directory_); }
  std::string Reason(size_t count) const {
    return std::string(protocol::StatusText(LockGpus(gpus_, count, options_).status()));
  }

  std::string directory_;
  FakeProc proc_;
  GpuLockOptions options_;
  std::vector<Gpu> gpus_ = std::vector<Gpu>(2);
};

TEST_F(GpuLocksTest, EachWorkerLocksAGpuUntilTheLastDescriptorIsClosed) {
  auto locks = LockGpus(gpus_, 2, options_);
  ASSERT_TRUE(locks.ok()) << locks.status();
  ASSERT_EQ(locks->size(), 2U);
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/gpu-GPU-aa.lock"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/gpu-1.lock")) << "no UUID without the driver";
  const Descriptor inherited(::dup((*locks)[1].get()));
  locks->clear();
  EXPECT_TRUE(LockGpus(gpus_, 1, options_).ok());
  EXPECT_THAT(Reason(2), HasSubstr("GPU 1 (/dev/nvidia1) is held")) << "a helper has it still";
}

TEST_F(GpuLocksTest, AHolderIsNamedWithCommandAndOwner) {
  const auto held = LockGpus(gpus_, 2, options_);
  ASSERT_TRUE(held.ok());
  proc_.Add({.pid = 41, .descriptors = {"/dev/null"}});
  proc_.Add({.pid = 42,
             .state = 'T',
             .arguments = {"skein-worker", "--worker-index=1"},
             .cgroup = "0::/system.slice/skein.service\n",
             .descriptors = {"/dev/null", directory_ + "/gpu-GPU-aa.lock"}});
  EXPECT_THAT(Reason(1), AllOf(HasSubstr("gpu-GPU-aa.lock is locked by pid 42 (skein-worker "
                                         "--worker-index=1), unit skein.service, state T; end it"),
                               HasSubstr("skein whoholds tells more")));
}

TEST_F(GpuLocksTest, AHolderThatCannotBeSeenIsNotGuessed) {
  const auto held = LockGpus(gpus_, 1, options_);
  ASSERT_TRUE(held.ok());
  EXPECT_THAT(Reason(1), HasSubstr("locked by a process of another user or PID namespace"));
}

TEST_F(GpuLocksTest, MoreWorkersThanGpusAreRefused) {
  EXPECT_THAT(Reason(3), HasSubstr("3 workers need a GPU each, but 2 are visible"));
}

TEST_F(GpuLocksTest, TheFallbackDirectoryIsTakenWhenTheFirstCannotBeWritten) {
  options_.fallback = directory_;
  options_.directory = "/proc/no/such";
  EXPECT_TRUE(LockGpus(gpus_, 1, options_).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/gpu-GPU-aa.lock"));
}

}  // namespace
}  // namespace skein::worker
