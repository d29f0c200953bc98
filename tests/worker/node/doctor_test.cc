// Tests of worker/node/doctor: each probe on a host that has the thing and on one that lacks it,
// and what preferred, required, off and strict make of that.
#include "worker/node/doctor.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "protocol/base/strings.h"
#include "tests/worker/node/fake_proc.h"
#include "worker/node/descriptor.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    config_.worker.backend = "cpu";
    config_.server.port = 0;
    config_.server.connections_max = 16;
    options_.proc = host_.proc();
    options_.sys = root() + "/sys";
    options_.dev = root() + "/dev";
    options_.run_base = root();
    options_.state_directory = root() + "/none/state";
    options_.nvml_library = "libskein-none.so";
    options_.nccl_library = "libskein-none.so";
    containment_ = Containment::Probe({.pid_namespaces = false, .leaves = false});
  }

  std::string root() const { return std::filesystem::path(host_.proc()).parent_path(); }

  Feature Probe(std::string_view name) {
    for (Feature& feature : ExamineHost(config_, *containment_, options_)) {
      if (feature.name == name) return feature;
    }
    ADD_FAILURE() << "no feature " << name;
    return {};
  }
  FeatureState State(std::string_view name) { return Probe(name).state; }

  absl::Status Judge() {
    return JudgeFeatures(config_, ExamineHost(config_, *containment_, options_));
  }

  FakeProc host_;
  protocol::Config config_;
  DoctorOptions options_;
  std::unique_ptr<Containment> containment_;
};

TEST_F(DoctorTest, EveryFeatureWithAPolicyIsProbed) {
  const std::vector<Feature> features = ExamineHost(config_, *containment_, options_);
  size_t found = 0;
  for (const protocol::ConfigKey& key : protocol::ConfigKeys()) {
    if (key.path.substr(0, 9) != "features.") continue;
    ++found;
    const bool probed = std::any_of(features.begin(), features.end(), [&key](const Feature& f) {
      return f.name == key.path.substr(9);
    });
    EXPECT_TRUE(probed) << key.path;
  }
  EXPECT_EQ(found, 12u);
  EXPECT_EQ(FeaturePolicy(config_, "rdma"), "preferred");
  EXPECT_THAT(FeaturePolicy(config_, "gpu"), IsEmpty());
}

TEST(FeatureMetricsTest, EachFeatureHasEveryStateAndOneOfThem) {
  const std::string text = FeatureMetrics(
      {{"numa", FeatureState::kDegraded, "one \"node\" in C:\\\nand no more", "add memory"}});
  EXPECT_NE(text.find("# TYPE skein_feature gauge\n"
                      "skein_feature{name=\"numa\",state=\"ok\",reason=\"\"} 0\n"
                      "skein_feature{name=\"numa\",state=\"degraded\",reason="
                      "\"one \\\"node\\\" in C:\\\\\\nand no more\"} 1\n"
                      "skein_feature{name=\"numa\",state=\"unused\",reason=\"\"} 0\n"
                      "skein_feature{name=\"numa\",state=\"failed\",reason=\"\"} 0\n"),
            std::string::npos)
      << text;
}

TEST_F(DoctorTest, RdmaNeedsDevicesThatOpen) {
  EXPECT_EQ(State("rdma"), FeatureState::kUnused) << "one node needs none";
  config_.transport.control_endpoint = "tcp://10.0.0.1:7000";
  const Feature missing = Probe("rdma");
  EXPECT_EQ(missing.state, FeatureState::kDegraded);
  EXPECT_THAT(missing.reason, HasSubstr("/infiniband/uverbs*; tensors between nodes go by TCP"));
  EXPECT_THAT(missing.fix, HasSubstr("ib_uverbs"));
  host_.Write("dev/infiniband/uverbs0", "");
  EXPECT_EQ(State("rdma"), FeatureState::kOk);
}

TEST_F(DoctorTest, HugePagesAndClockComeFromTheSystem) {
  EXPECT_EQ(State("huge_pages"), FeatureState::kDegraded);
  host_.Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_EQ(State("huge_pages"), FeatureState::kOk);
  host_.Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_EQ(State("huge_pages"), FeatureState::kDegraded);
  const std::string clock = "sys/devices/system/clocksource/clocksource0/current_clocksource";
  host_.Write(clock, "tsc\n");
  EXPECT_EQ(State("clock"), FeatureState::kOk);
  host_.Write(clock, "hpet\n");
  EXPECT_EQ(Probe("clock").reason, "hpet; each read is a system call");
  EXPECT_EQ(State("clock"), FeatureState::kDegraded);
}

TEST_F(DoctorTest, NumaListsItsNodes) {
  EXPECT_EQ(State("numa"), FeatureState::kUnused);
  host_.Write("sys/devices/system/node/node0/cpulist", "0\n");
  EXPECT_EQ(Probe("numa").reason, "one memory node");
  host_.Write("sys/devices/system/node/node1/cpulist", "1\n");
  EXPECT_THAT(Probe("numa").reason, HasSubstr("2 memory nodes"));
}

TEST_F(DoctorTest, RunDirectoryMustBeWritable) {
  EXPECT_EQ(State("run_directory"), FeatureState::kOk);
  options_.run_base = "/proc/none/run";
  const Feature missing = Probe("run_directory");
  EXPECT_EQ(missing.state, FeatureState::kDegraded);
  EXPECT_THAT(missing.reason, HasSubstr("/proc/none/run: "));
  EXPECT_THAT(missing.reason, HasSubstr("; a private directory under /tmp"));
  config_.node.run_directory = "/proc/none/mine";
  EXPECT_EQ(State("run_directory"), FeatureState::kFailed) << "it was asked for by name";
  config_.node.run_directory = "/proc";
  const Feature kernel = Probe("run_directory");
  EXPECT_EQ(kernel.state, FeatureState::kFailed) << "its mode lets root write";
  EXPECT_THAT(kernel.reason, HasSubstr("/proc: nothing can be written there: "));
  EXPECT_THAT(kernel.fix, HasSubstr("give a directory that can be written"));
  config_.node.run_directory = root() + "/" + std::string(100, 'a');
  EXPECT_THAT(Probe("run_directory").reason, HasSubstr("sockets there allow 79"));
}

TEST_F(DoctorTest, StateMustReachTheDisk) {
  const auto entries = [this] {
    return std::distance(std::filesystem::directory_iterator(root()), {});
  };
  const auto before = entries();
  const std::string fallback = protocol::Concat(root(), "/skein-state.", ::geteuid());
  EXPECT_EQ(Probe("state_directory").reason, fallback);
  config_.node.run_directory = root() + "/made";
  EXPECT_EQ(State("state_directory"), FeatureState::kOk) << "the start will make both";
  config_.node.state_directory = root() + "/mine";
  EXPECT_EQ(Probe("state_directory").reason, root() + "/mine");
  EXPECT_EQ(entries(), before) << "nothing remains";
  config_.node.state_directory = "/proc";
  const Feature kernel = Probe("state_directory");
  EXPECT_EQ(kernel.state, FeatureState::kFailed);
  EXPECT_THAT(kernel.reason, HasSubstr("node.state_directory (--state-directory): /proc: "));
  EXPECT_THAT(std::string(Judge().message()), HasSubstr("choose another"));
  options_.listens = false;
  EXPECT_EQ(State("state_directory"), FeatureState::kUnused) << "the coordinator has the term";
}

TEST_F(DoctorTest, ATornTermIsSeen) {
  std::filesystem::create_directories(root() + "/mine");
  std::filesystem::permissions(root() + "/mine", std::filesystem::perms::owner_all);
  host_.Write("mine/term", "skein ter");
  config_.node.state_directory = root() + "/mine";
  EXPECT_EQ(State("state_directory"), FeatureState::kFailed);
  EXPECT_THAT(Probe("state_directory").reason, HasSubstr("is torn"));
  EXPECT_THAT(Probe("state_directory").fix, HasSubstr("end every worker of this cluster"));
}

TEST_F(DoctorTest, DescriptorsMustHoldTheConnections) {
  EXPECT_EQ(State("descriptors"), FeatureState::kOk);
  config_.server.connections_max = 2'000'000'000;
  EXPECT_EQ(State("descriptors"), FeatureState::kDegraded);
}

TEST_F(DoctorTest, ABusyPortKeepsTheNodeFromStarting) {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener.get(), generic, size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), generic, &size), 0);
  config_.server.port = ntohs(address.sin_port);
  EXPECT_EQ(State("port"), FeatureState::kFailed);
  EXPECT_THAT(std::string(Judge().message()), HasSubstr("Address already in use; end what"));
  options_.listens = false;
  EXPECT_EQ(State("port"), FeatureState::kUnused);
}

TEST_F(DoctorTest, AForeignHolderStopsAGpuBackendAlone) {
  host_.AddDevice(0);
  host_.Add({.pid = 100,
             .arguments = {"train"},
             .cgroup = "0::/system.slice/train.service\n",
             .descriptors = {host_.device(0)}});
  EXPECT_EQ(State("gpu_holders"), FeatureState::kUnused) << "cpu does not mind";
  config_.worker.backend = "sm90";
  EXPECT_EQ(State("gpu_holders"), FeatureState::kFailed);
  const absl::Status judged = Judge();
  EXPECT_TRUE(absl::IsFailedPrecondition(judged));
  for (const char* part : {"unit train.service", "pid 100", "skein whoholds"}) {
    EXPECT_THAT(std::string(judged.message()), HasSubstr(part));
  }
}

// The driver opens no device inside one; the leaf contains a GPU worker.
TEST_F(DoctorTest, AGpuWorkerNeedsNoPidNamespace) {
  EXPECT_EQ(State("pid_namespace"), FeatureState::kDegraded);
  config_.worker.backend = "sm90";
  EXPECT_EQ(State("pid_namespace"), FeatureState::kUnused);
  config_.features.pid_namespace = "required";
  EXPECT_EQ(State("pid_namespace"), FeatureState::kDegraded);
}

TEST_F(DoctorTest, AGpuBackendNeedsAGpu) {
  EXPECT_EQ(State("gpu"), FeatureState::kUnused);
  config_.worker.backend = "sm90";
  EXPECT_EQ(State("gpu"), FeatureState::kFailed);
  EXPECT_THAT(Probe("gpu").fix, HasSubstr("--backend cpu"));
}

TEST_F(DoctorTest, PolicyDecidesWhatMissingMeans) {
  config_.features.huge_pages = "preferred";
  EXPECT_TRUE(Judge().ok()) << Judge();
  config_.features.huge_pages = "required";
  EXPECT_THAT(std::string(Judge().message()),
              HasSubstr("huge_pages is required (features.huge_pages): transparent huge pages are "
                        "off; 4 KiB pages; echo madvise"));
  config_.features.huge_pages = "off";
  EXPECT_EQ(Probe("huge_pages").reason, "off by features.huge_pages");
  EXPECT_TRUE(Judge().ok());
  // Unused and required is an error as well: it was asked for.
  config_.features.nccl = "required";
  EXPECT_THAT(std::string(Judge().message()), HasSubstr("nccl is required (features.nccl)"));
}

TEST_F(DoctorTest, StrictMakesEveryDegradedFeatureAnError) {
  config_.node.strict = 1;
  const std::string text(Judge().message());
  EXPECT_THAT(text, HasSubstr("pid_namespace (--strict): "));
  EXPECT_THAT(text, HasSubstr("huge_pages (--strict): "));
  EXPECT_THAT(text, Not(HasSubstr("rdma"))) << "what is not used is not degraded";
}

TEST_F(DoctorTest, TextsShowEachFeature) {
  const std::vector<Feature> features = {{"rdma", FeatureState::kDegraded, "gone; TCP", "load it"},
                                         {"clock", FeatureState::kOk, "tsc", ""},
                                         {"nccl", FeatureState::kUnused, "none", ""}};
  EXPECT_EQ(FeatureTable(features),
            "rdma            degraded  gone; TCP\n                          fix: load it\n"
            "clock           ok        tsc\nnccl            unused    none\n");
  EXPECT_EQ(FeatureSummary(features), "1 ok, 1 unused, degraded: rdma; skein doctor shows each");
  EXPECT_EQ(DegradedNames({{"rdma", FeatureState::kDegraded, "", ""},
                           {"clock", FeatureState::kOk, "", ""},
                           {"numa", FeatureState::kFailed, "", ""},
                           {"memlock", FeatureState::kDegraded, "", ""}},
                          ","),
            "rdma,memlock");
}

}  // namespace
}  // namespace skein::worker
