// The tests of exactness, speculation and recorded steps on the GPU of this machine. Without one
// the program says so and skips. --eager: steps are queued call by call unless a test records them.
#include <cstdio>
#include <string_view>

#include <gtest/gtest.h>

#include "tests/worker/tiny_model.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto device = skein::worker::OpenGpu("sm90", 0);
  if (!device.ok() && !GTEST_FLAG_GET(list_tests)) {
    std::printf("skipped: %s\n", std::string(device.status().message()).c_str());
    return 0;
  }
  skein::tests::TestBackend& backend = skein::tests::BackendOfTests();
  backend.name = "sm90";
  if (device.ok()) backend.device = *device;
  backend.record_steps = argc < 2 || std::string_view(argv[1]) != "--eager";
  return RUN_ALL_TESTS();
}
