// Tests of worker/node/descriptor: one close, moves, and files that cannot be read.
#include "worker/node/descriptor.h"

#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace skein::worker {
namespace {

TEST(DescriptorTest, ClosesOnceAndMoves) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    Descriptor first(ends[0]);
    Descriptor second(std::move(first));
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(second.get(), ends[0]);
    EXPECT_EQ(::fcntl(ends[0], F_GETFD), 0);
  }
  EXPECT_EQ(::fcntl(ends[0], F_GETFD), -1);
  ::close(ends[1]);
}

TEST(ReadKernelFileTest, ReadsAndNeverThrows) {
  EXPECT_NE(ReadKernelFile("/proc/self/stat").find(") "), std::string::npos);
  EXPECT_EQ(ReadKernelFile("/no/such/file"), "");
  EXPECT_EQ(ReadKernelFile("/proc/self"), "") << "a directory opens but does not read";
}

}  // namespace
}  // namespace skein::worker
