// Tests of worker/node/commands/serve: what is resolved before a process starts, and the table.
#include "worker/node/commands/serve.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

class ServeTest : public ::testing::Test {
 protected:
  ServeTest() {
    char path[] = "/tmp/skein_serve_XXXXXX";
    root_ = std::filesystem::canonical(::mkdtemp(path)).string();
    paths_.directory = root_ + "/build/dev/bin";
    paths_.device_directory = root_ + "/dev";
    paths_.built_backends = "reference,cpu";
    paths_.version = "9.9.9";
    std::filesystem::create_directories(paths_.directory);
  }
  ~ServeTest() override { std::filesystem::remove_all(root_); }

  std::string MakeModel(std::string_view name) {
    const std::string directory = protocol::Concat(root_, "/", name);
    std::filesystem::create_directories(directory);
    std::ofstream(directory + "/config.json") << "{}";
    return directory;
  }

  absl::StatusOr<ServePlan> Resolve(const std::vector<std::string>& arguments) {
    protocol::LoadOptions options;
    options.allow_auto_backend = true;
    options.positional_max = 1;
    const auto loaded = protocol::LoadConfig(arguments, options);
    if (!loaded.ok()) return loaded.status();
    return ResolveServe(*loaded, paths_);
  }

  std::string root_;
  ProgramPaths paths_;
};

TEST_F(ServeTest, WithoutArgumentsTheDemoModelOfTheBuildTree) {
  const std::string demo = MakeModel("deploy/models/tiny-v41");
  const auto plan = Resolve({});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->embedded_model);
  EXPECT_EQ(plan->config.model.path, demo);
  EXPECT_EQ(plan->config.model.served_model_name, "tiny-v41");
  EXPECT_EQ(plan->config.worker.backend, "cpu");
  EXPECT_EQ(plan->backend.reason, "no " + root_ + "/dev/nvidia[0-9]* is visible");
}

TEST_F(ServeTest, TheDemoModelOfAnInstallation) {
  const std::string demo = MakeModel("build/dev/share/skein/models/tiny-v41");
  const auto plan = Resolve({});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->config.model.path, demo);
}

TEST_F(ServeTest, TheArgumentIsTheModelAndWrongOnesAreRefused) {
  const std::string model = MakeModel("mine");
  const auto plan = Resolve({model, "--served-model-name", "name"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->config.model.path, model);
  EXPECT_EQ(plan->config.model.served_model_name, "name");
  EXPECT_FALSE(plan->embedded_model);
  const auto twice = Resolve({model, "--model", model});
  EXPECT_EQ(twice.status().code(), absl::StatusCode::kInvalidArgument);
  const auto missing = Resolve({root_ + "/nothing"});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(protocol::StatusText(missing.status())),
              HasSubstr("/nothing: no readable config.json there"));
  const auto none = Resolve({});
  EXPECT_THAT(std::string(protocol::StatusText(none.status())),
              HasSubstr("no demo model beside this program"));
}

TEST_F(ServeTest, TheTableSaysWhatWasChosen) {
  MakeModel("deploy/models/tiny-v41");
  const auto plan = Resolve({"--port", "8123"});
  ASSERT_TRUE(plan.ok());
  const std::string table =
      StartTable(*plan, paths_, {"rung 2: something", "9 ok", "/run/x", 8124, "127.0.0.1:9400"});
  EXPECT_THAT(table, HasSubstr("skein 9.9.9\n  model        tiny-v41 (" + root_));
  EXPECT_THAT(table, HasSubstr(", embedded default)\n  backend      cpu: no "));
  EXPECT_THAT(table, HasSubstr("  api          http://127.0.0.1:8124\n"));
  EXPECT_THAT(table, HasSubstr("  metrics      /metrics of the API; of workers: 127.0.0.1:9400\n"));
  EXPECT_THAT(StartTable(*plan, paths_, {}),
              HasSubstr("of workers: none without --worker-metrics-listen\n"));
  EXPECT_THAT(
      table,
      HasSubstr("  containment  rung 2: something\n  host         9 ok\n  run files    /run/x\n"));
  EXPECT_THAT(table, HasSubstr("  log          standard error\n"));
  EXPECT_THAT(table,
              HasSubstr("  stop         Ctrl-C drains for at most 30 s, twice stops at once; "
                        "all has ended within 37 s\n"));
}

TEST_F(ServeTest, TheTableNamesSpeculationOrWhyItIsOff) {
  MakeModel("deploy/models/tiny-v41");
  const auto line = [&](const std::vector<std::string>& flags) {
    const auto plan = Resolve(flags);
    if (!plan.ok()) return plan.status().ToString();
    const std::string table = StartTable(*plan, paths_, {});
    const size_t at = table.find("\n  speculation  ") + 1;
    return table.substr(at, table.find('\n', at) - at);
  };
  EXPECT_EQ(line({}),
            "  speculation  auto (the checkpoint's draft head, if it has one), at most 5 drafts a "
            "sequence and step, adaptive depth");
  EXPECT_EQ(line({R"(--speculative-config={"method": "dspark", "num_speculative_tokens": 1})",
                  "--speculation-depth=fixed"}),
            "  speculation  dspark, at most 1 draft a sequence and step, fixed depth");
  EXPECT_EQ(line({"--speculation-method=none"}), "  speculation  off: speculation.method is none");
  EXPECT_EQ(line({"--num-speculative-tokens=0"}),
            "  speculation  off: speculation.num_speculative_tokens is 0");
}

TEST_F(ServeTest, WorkersShareTheProcessors) {
  MakeModel("deploy/models/tiny-v41");
  const auto one = Resolve({});
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->processors, std::vector<std::vector<int>>{{}}) << "alone: all of them";
  EXPECT_THAT(StartTable(*one, paths_, {}), HasSubstr("\n  workers      1, threads "));
  const auto three = Resolve({"-dp", "3"});
  ASSERT_TRUE(three.ok());
  ASSERT_EQ(three->processors.size(), 3U);
  for (const std::vector<int>& share : three->processors) EXPECT_FALSE(share.empty());
  const auto greedy = Resolve({"-dp", "3", "--threads", "64"});
  ASSERT_TRUE(greedy.ok());
  EXPECT_EQ(greedy->processors, std::vector<std::vector<int>>(3)) << "more than a share holds";
  EXPECT_THAT(StartTable(*greedy, paths_, {}),
              HasSubstr("\n  workers      3, a group each; threads 64 each; one read-only mapping "
                        "of the weights in memory\n"));
}

TEST_F(ServeTest, CommandsReturnTheirExitCodes) {
  EXPECT_EQ(RunServe(std::vector<std::string>{"--prot=1"}, paths_), 64);
  EXPECT_EQ(RunServe(std::vector<std::string>{}, paths_), 65);
  EXPECT_EQ(RunNode(std::vector<std::string>{"--backend", "auto"}, paths_), 78);
}

}  // namespace
}  // namespace skein::worker
