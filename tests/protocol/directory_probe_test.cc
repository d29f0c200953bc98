// Tests of protocol/base/directory_probe: what is said of each directory, and that nothing remains.
#include "protocol/base/directory_probe.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

class DirectoryProbeTest : public ::testing::Test {
 protected:
  DirectoryProbeTest() {
    char path[] = "/tmp/skein_probe_XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~DirectoryProbeTest() override { std::filesystem::remove_all(directory_); }

  static std::string Say(const std::string& path, Durability durability = Durability::kFsync) {
    const absl::Status status = TryDirectory(path, durability);
    return status.ok() ? "ok" : std::string(StatusText(status));
  }
  std::string directory_;
};

TEST_F(DirectoryProbeTest, NothingRemains) {
  EXPECT_EQ(Say(directory_), "ok");
  EXPECT_EQ(Say(directory_, Durability::kNone), "ok");
  EXPECT_EQ(Say(directory_ + "/missing"), "ok") << "it could be made";
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(DirectoryProbeTest, SaysWhatFailed) {
  EXPECT_EQ(Say("/no/such/parent"), "cannot be made: No such file or directory");
  std::ofstream(directory_ + "/file") << "x";
  EXPECT_EQ(Say(directory_ + "/file"), "nothing can be written there: Not a directory");
  // Root may write there by its mode, and yet cannot.
  if (::geteuid() == 0) {
    EXPECT_EQ(Say("/proc"), "nothing can be written there: No such file or directory");
  }
}

TEST_F(DirectoryProbeTest, AFullDiskIsNoPlace) {
  if (::mount("none", directory_.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "a small disk needs root";
  }
  EXPECT_EQ(Say(directory_), "ok");
  std::ofstream(directory_ + "/full") << std::string(64 << 10, 'x');
  EXPECT_EQ(Say(directory_, Durability::kNone),
            "nothing can be written there: No space left on device");
  EXPECT_EQ(::umount(directory_.c_str()), 0);
}

}  // namespace
}  // namespace skein::protocol
