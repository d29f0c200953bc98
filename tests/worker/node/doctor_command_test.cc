// Tests of the command skein doctor: the model's files, JSON, exit codes.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json.h"
#include "worker/node/commands/doctor.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

constexpr const char* kModel = "deploy/models/tiny-v41";

TEST(ExamineModelTest, TheDemoModelIsWhole) {
  const Feature model = ExamineModel(kModel);
  EXPECT_EQ(model.state, FeatureState::kOk) << model.reason;
  EXPECT_THAT(model.reason, HasSubstr("4096 tokens, all files there"));
}

TEST(ExamineModelTest, NamesWhatIsMissingOrOfAnotherModel) {
  char path[] = "/tmp/skein_model_XXXXXX";
  const std::string directory = ::mkdtemp(path);
  for (const auto& file : std::filesystem::directory_iterator(kModel)) {
    std::filesystem::create_symlink(std::filesystem::absolute(file),
                                    directory + "/" + file.path().filename().string());
  }
  ASSERT_EQ(ExamineModel(directory).state, FeatureState::kOk);
  std::filesystem::remove(directory + "/model-00002-of-00002.safetensors");
  EXPECT_THAT(ExamineModel(directory).reason,
              HasSubstr("1 weight files are missing, first model-00002-of-00002.safetensors"));
  std::filesystem::remove(directory + "/config.json");
  EXPECT_THAT(ExamineModel(directory).reason, HasSubstr("config.json cannot be read"));
  std::ofstream(directory + "/config.json") << R"({"vocab_size": 100})";
  EXPECT_THAT(ExamineModel(directory).reason,
              HasSubstr("tokenizer.json has token 4095, config.json a vocab_size of 100"));
  std::filesystem::remove_all(directory);
}

int Doctor(std::vector<std::string> arguments) { return RunDoctor(arguments, OwnPaths()); }

TEST(DoctorCommandTest, SaysWhatAStartWouldSay) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Doctor({kModel, "--port", "0", "--json"}), 0);
  const auto json = protocol::ParseJson(::testing::internal::GetCapturedStdout());
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_GE(json->Find("features")->elements().size(), 18u);

  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(
      Doctor({kModel, "--port", "0", "--feature-nvml", "required", "--feature-rdma", "required"}),
      78);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("rdma is required"));
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("model           ok "));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Doctor({"--no-such"}), 64);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("unknown flag"));
}

}  // namespace
}  // namespace skein::worker
