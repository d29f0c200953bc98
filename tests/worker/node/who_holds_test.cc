// Tests of worker/node/who_holds and gpu_inventory: twenty trees that look like hosts, and one real
// orphan that is ended by its handle.
#include "worker/node/who_holds.h"

#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/worker/node/fake_proc.h"
#include "worker/node/gpu_inventory.h"

namespace skein::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kId = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const std::string kUid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";

class WhoHoldsTest : public ::testing::Test {
 protected:
  WhoHoldsTest() {
    proc_.AddDevice(0);
    proc_.AddDevice(1);
    proc_.Add({.pid = 1, .parent = 0, .start_ticks = 1, .arguments = {"/sbin/init"}});
    query_.proc_root = proc_.proc();
    query_.device_glob = proc_.device_glob();
    query_.nvml_library = "libskein-none.so";
  }

  HolderReport Look() { return FindHolders(query_, inventory_ ? *inventory_ : Nodes()); }
  GpuInventory Nodes() { return FindGpus(query_.device_glob, query_.nvml_library); }

  // The only holder; the report goes with the assertion.
  GpuHolder Only() {
    const HolderReport report = Look();
    EXPECT_EQ(report.holders.size(), 1u) << HolderText(report);
    return report.holders.empty() ? GpuHolder{} : report.holders.front();
  }

  void ExpectForeign(const std::string& cgroup, const std::string& owner) {
    proc_.Add({.pid = 100, .parent = 50, .cgroup = cgroup, .descriptors = {proc_.device(0)}});
    proc_.Add({.pid = 50});
    const GpuHolder holder = Only();
    EXPECT_EQ(holder.verdict, HolderVerdict::kForeign);
    EXPECT_EQ(holder.owner, owner);
    EXPECT_EQ(HolderExitCode(Look()), 3);
  }

  FakeProc proc_;
  HolderQuery query_;
  std::optional<GpuInventory> inventory_;
};

TEST_F(WhoHoldsTest, T01NobodyHoldsAnything) {
  proc_.Add({.pid = 100, .descriptors = {"/dev/null", proc_.device(0) + "ctl"}});
  EXPECT_THAT(Look().holders, ::testing::IsEmpty());
  EXPECT_EQ(HolderExitCode(Look()), 0);
  EXPECT_THAT(HolderText(Look()), HasSubstr("nobody found"));
}

TEST_F(WhoHoldsTest, T02Docker) {
  ExpectForeign("0::/system.slice/docker-" + kId + ".scope\n", "docker 0123456789ab");
}

TEST_F(WhoHoldsTest, T03DockerUnderCgroupV1) {
  ExpectForeign("9:devices:/docker/" + kId + "\n1:name=systemd:/docker/" + kId + "\n",
                "docker 0123456789ab");
}

TEST_F(WhoHoldsTest, T04ContainerdInAPod) {
  ExpectForeign(
      "0::/kubepods.slice/kubepods-pod1b4e28ba_2fa1_11d2_883f_0016d3cca427.slice/"
      "cri-containerd-" +
          kId + ".scope\n",
      "containerd 0123456789ab in pod " + kUid);
}

TEST_F(WhoHoldsTest, T05CriO) {
  ExpectForeign("0::/kubepods.slice/kubepods-pod1b4e28ba_2fa1_11d2_883f_0016d3cca427.slice/crio-" +
                    kId + ".scope\n",
                "cri-o 0123456789ab in pod " + kUid);
}

TEST_F(WhoHoldsTest, T06Podman) {
  ExpectForeign("0::/machine.slice/libpod-" + kId + ".scope\n", "podman 0123456789ab");
}

TEST_F(WhoHoldsTest, T07SystemdUnit) {
  ExpectForeign("0::/system.slice/train.service\n", "unit train.service");
}

TEST_F(WhoHoldsTest, T08LoginSession) {
  ExpectForeign("0::/user.slice/user-1000.slice/session-3.scope\n", "session 3 of user 1000");
}

TEST_F(WhoHoldsTest, T09MappingWithoutDescriptor) {
  proc_.Add({.pid = 100, .mappings = {"/usr/lib/libc.so.6", proc_.device(1)}});
  const GpuHolder holder = Only();
  EXPECT_EQ(holder.evidence, "mapping");
  EXPECT_THAT(holder.gpus, ElementsAre(1));
}

TEST_F(WhoHoldsTest, T10DescriptorWithoutARowOfTheDriver) {
  proc_.Add({.pid = 100, .descriptors = {proc_.device(0), proc_.device(1)}});
  inventory_ = Nodes();
  inventory_->nvml_problem.clear();
  const GpuHolder holder = Only();
  EXPECT_EQ(holder.evidence, "descriptor");
  EXPECT_THAT(holder.gpus, ElementsAre(0, 1));
}

TEST_F(WhoHoldsTest, T11RowOfTheDriverWithoutDescriptor) {
  proc_.Add({.pid = 100});
  inventory_ = Nodes();
  inventory_->gpus[1].holders = {{100, 5 << 20}};
  const GpuHolder holder = Only();
  EXPECT_EQ(holder.evidence, "driver");
  EXPECT_EQ(holder.memory_bytes, 5u << 20);
}

TEST_F(WhoHoldsTest, T12TheDriverNamesAPidOfANamespace) {
  proc_.Add({.pid = 900, .namespace_pids = {900, 17, 1}, .descriptors = {proc_.device(0)}});
  inventory_ = Nodes();
  inventory_->gpus[0].holders = {{17, 1 << 20}};
  const GpuHolder holder = Only();
  EXPECT_EQ(holder.process.pid, 900);
  EXPECT_EQ(holder.evidence, "driver+descriptor");
}

TEST_F(WhoHoldsTest, T13APidThatTwoProcessesCouldBeIsNotGuessed) {
  proc_.Add({.pid = 900, .namespace_pids = {900, 17}});
  proc_.Add({.pid = 901, .namespace_pids = {901, 17}});
  inventory_ = Nodes();
  inventory_->gpus[0].holders = {{17, 0}};
  EXPECT_THAT(Look().unresolved_pids, ElementsAre(17));
  EXPECT_EQ(HolderExitCode(Look()), 4);
}

TEST_F(WhoHoldsTest, T14AHostPidThatDoesNotResolveHere) {
  inventory_ = Nodes();
  inventory_->gpus[0].holders = {{4711, 0}};
  EXPECT_EQ(HolderExitCode(Look()), 4);
  EXPECT_THAT(HolderText(Look()), HasSubstr("process 4711, which is none of this PID namespace"));
}

TEST_F(WhoHoldsTest, T15MemoryInUseThatNobodyHereHolds) {
  std::filesystem::create_directories(proc_.proc() + "/self/ns");
  std::filesystem::create_symlink("pid:[4026532999]", proc_.proc() + "/self/ns/pid");
  inventory_ = Nodes();
  inventory_->nvml_problem.clear();
  EXPECT_EQ(HolderExitCode(Look()), 0);
  inventory_->gpus[0].memory_used_bytes = uint64_t{100} << 30;
  EXPECT_EQ(HolderExitCode(Look()), 4);
}

TEST_F(WhoHoldsTest, T16OursWithALiveSupervisor) {
  proc_.Add({.pid = 70,
             .parent = 1,
             .start_ticks = 800,
             .namespace_pids = {70, 5},
             .arguments = {"skein-node"}});
  proc_.Add({.pid = 71,
             .parent = 70,
             .namespace_pids = {71, 6, 1},
             .arguments = {"skein-worker"},
             .cgroup = "0::/system.slice/skein-node.service/skein.5.1.0/worker.0.9\n",
             .environment = MarkedEnvironment(5, 800),
             .descriptors = {proc_.device(0)}});
  const GpuHolder holder = Only();
  EXPECT_EQ(holder.verdict, HolderVerdict::kOursLive);
  EXPECT_EQ(holder.owner, "skein worker.0.9");
  EXPECT_EQ(HolderExitCode(Look()), 0);
}

TEST_F(WhoHoldsTest, T17OursWithoutSupervisor) {
  proc_.Add(
      {.pid = 71, .environment = MarkedEnvironment(5, 800), .descriptors = {proc_.device(0)}});
  EXPECT_EQ(Only().verdict, HolderVerdict::kOursOrphan);
  EXPECT_EQ(HolderExitCode(Look()), 5);
}

TEST_F(WhoHoldsTest, T18TheSupervisorsNumberWasReused) {
  proc_.Add({.pid = 5, .start_ticks = 801, .arguments = {"cron"}});
  proc_.Add(
      {.pid = 71, .environment = MarkedEnvironment(5, 800), .descriptors = {proc_.device(0)}});
  EXPECT_EQ(Only().verdict, HolderVerdict::kOursOrphan);
}

TEST_F(WhoHoldsTest, T19AForeignOrphanSpins) {
  // 100,000 s of uptime, started at 10 s: 99,000 s of CPU time.
  const auto per_second = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
  proc_.Add({.pid = 100,
             .parent = 1,
             .state = 'R',
             .start_ticks = 10 * per_second,
             .cpu_ticks = 99'000 * per_second,
             .descriptors = {proc_.device(0)}});
  EXPECT_EQ(Only().verdict, HolderVerdict::kForeignOrphan);
  EXPECT_THAT(HolderText(Look()), HasSubstr("spinning since 2023-11-14 22:13:30 UTC"));
  EXPECT_EQ(HolderExitCode(Look()), 3);
}

TEST_F(WhoHoldsTest, T20BusyWithAParentIsNoOrphan) {
  const auto per_second = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
  proc_.Add({.pid = 50, .parent = 1, .arguments = {"bash"}});
  proc_.Add({.pid = 100,
             .parent = 50,
             .state = 'R',
             .start_ticks = 10 * per_second,
             .cpu_ticks = 99'000 * per_second,
             .descriptors = {proc_.device(0)}});
  EXPECT_EQ(Only().verdict, HolderVerdict::kForeign);
}

TEST_F(WhoHoldsTest, InsideANamespaceANumberAloneIsNobody) {
  std::filesystem::create_directories(proc_.proc() + "/self/ns");
  std::filesystem::create_symlink("pid:[4026532999]", proc_.proc() + "/self/ns/pid");
  proc_.Add({.pid = 100});
  proc_.Add({.pid = 101, .descriptors = {proc_.device(0)}});
  inventory_ = Nodes();
  inventory_->nvml_problem.clear();
  inventory_->gpus[0].holders = {{100, 1 << 20}, {101, 2 << 20}};
  const GpuHolder holder = Only();
  EXPECT_EQ(holder.process.pid, 101) << "it has the device open";
  EXPECT_THAT(Look().unresolved_pids, ElementsAre(100));
  EXPECT_THAT(HolderText(Look()), HasSubstr("process 100"));
}

TEST_F(WhoHoldsTest, AForeignHolderDecidesBeforeAnOrphan) {
  proc_.Add(
      {.pid = 71, .environment = MarkedEnvironment(5, 800), .descriptors = {proc_.device(0)}});
  proc_.Add({.pid = 100, .descriptors = {proc_.device(1)}});
  EXPECT_EQ(HolderExitCode(Look()), 3);
}

TEST(GpuInventoryTest, SaysWhyTheDriverSaidNothing) {
  FakeProc proc;
  EXPECT_EQ(FindGpus(proc.device_glob(), "libskein-none.so").nvml_problem,
            "not asked: there is no GPU");
  for (const int minor : {10, 2}) proc.AddDevice(minor);
  proc.Write("dev/nvidia-uvm", "");
  const GpuInventory inventory = FindGpus(proc.device_glob(), "libskein-none.so");
  ASSERT_EQ(inventory.gpus.size(), 2u);
  EXPECT_EQ(inventory.gpus[0].minor, 2);
  EXPECT_EQ(inventory.gpus[1].minor, 10);
  EXPECT_THAT(inventory.nvml_problem, HasSubstr("libskein-none.so cannot be opened"));
  EXPECT_THAT(FindGpus(proc.device_glob(), "libm.so.6").nvml_problem, HasSubstr("lacks functions"));
}

// A child that waits for its end.
int StartSleeper() {
  const int pid = ::fork();
  if (pid == 0) {
    while (true) ::pause();
  }
  return pid;
}

TEST(KillOrphansTest, EndsOrphansOfOursAndNobodyElse) {
  const int orphan = StartSleeper();
  const int foreign = StartSleeper();
  const int reused = StartSleeper();
  HolderReport report;
  for (const int pid : {orphan, foreign, reused}) {
    GpuHolder holder;
    holder.process = *ReadProcess("/proc", pid);
    holder.verdict = HolderVerdict::kOursOrphan;
    report.holders.push_back(holder);
  }
  report.holders[1].verdict = HolderVerdict::kForeignOrphan;
  report.holders[2].process.start_ticks += 1;  // the number now means another process
  EXPECT_EQ(KillOrphans(report), 1);
  int status = 0;
  EXPECT_EQ(::waitpid(orphan, &status, WNOHANG), orphan);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  for (const int pid : {foreign, reused}) {
    EXPECT_EQ(::waitpid(pid, &status, WNOHANG), 0) << "was signalled";
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
  }
}

// A chroot without /proc: nobody is seen, and nobody is called absent.
TEST(NoProcessesTest, WithoutProcessesItCannotTell) {
  FakeProc proc;
  proc.AddDevice(0);
  const HolderReport report = FindHolders(
      {.proc_root = proc.proc(), .device_glob = proc.device_glob(), .nvml_library = "none.so"});
  EXPECT_EQ(HolderExitCode(report), 4);
  EXPECT_THAT(HolderText(report), HasSubstr("lists no process; mount proc there"));
}

// A supervisor waits for its signals: none may reach a thread that the driver leaves behind.
TEST(GpuInventory, ThreadsOfTheDriverLeaveSignalsAlone) {
  FakeProc proc;
  proc.AddDevice(0);
  proc.AddDevice(1);
  sigset_t before;
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &before), 0);
  const GpuInventory inventory = FindGpus(proc.device_glob(), SKEIN_FAKE_NVML);
  EXPECT_EQ(inventory.nvml_problem, "");
  ASSERT_EQ(inventory.gpus.size(), 2u);
  EXPECT_EQ(inventory.gpus[0].name, "leaves SIGTERM");
  sigset_t after;
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &after), 0);
  EXPECT_EQ(::sigismember(&before, SIGTERM), ::sigismember(&after, SIGTERM));
}

}  // namespace
}  // namespace skein::worker
