// Tests of worker/node/backend_choice: what auto becomes and why, and names that are not built.
#include "worker/node/backend_choice.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

class BackendChoiceTest : public ::testing::Test {
 protected:
  BackendChoiceTest() {
    char path[] = "/tmp/skein_dev_XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~BackendChoiceTest() override { std::filesystem::remove_all(directory_); }
  void Make(const std::string& name) { std::ofstream(directory_ + "/" + name) << ""; }

  std::string directory_;
};

TEST_F(BackendChoiceTest, AutoIsCpuWithoutAGpu) {
  Make("nvidiactl");
  Make("nvidia-uvm");
  Make("nvidia");
  const auto choice = ChooseBackend("auto", "reference,cpu,sm90", directory_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->backend, "cpu");
  EXPECT_EQ(choice->reason, "no " + directory_ + "/nvidia[0-9]* is visible");
}

TEST_F(BackendChoiceTest, AutoIsSm90WithAGpuAndABuildThatHasIt) {
  Make("nvidia1");
  Make("nvidia0");
  const auto choice = ChooseBackend("auto", "reference,cpu,sm90", directory_);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->backend, "sm90");
  EXPECT_EQ(choice->reason, directory_ + "/nvidia0 is visible");
}

TEST_F(BackendChoiceTest, AGpuWithoutTheBackendSaysSo) {
  Make("nvidia0");
  const auto choice = ChooseBackend("auto", "reference,cpu", directory_);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->backend, "cpu");
  EXPECT_EQ(choice->reason, directory_ + "/nvidia0 is visible, but sm90 is not in this build");
}

TEST_F(BackendChoiceTest, NamesAreTakenOrRefused) {
  EXPECT_EQ(ChooseBackend("reference", "reference,cpu", directory_)->backend, "reference");
  const auto refused = ChooseBackend("sm90", "reference,cpu", directory_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(protocol::StatusText(refused.status()),
            "worker.backend (--backend): \"sm90\" is not in this build, which has reference, cpu; "
            "name one of them or auto");
}

}  // namespace
}  // namespace skein::worker
