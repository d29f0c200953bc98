// deploy/systemd: the units verify without output in a root that holds the installed programs, end
// with their control group, and give a stop the time that it may take.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace skein::tests {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kUnits[] = {"skein.service", "skein-node.service",
                                  "skein-coordinator.service"};

std::string ReadFile(const fs::path& path) {
  std::ifstream stream(path);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

// The lint: what is wrong with a unit of ours.
std::vector<std::string> Lint(const std::string& text) {
  std::vector<std::string> problems;
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos || line[0] == '#') continue;
    const std::string key = line.substr(0, equals);
    const std::string value = line.substr(equals + 1);
    if (key == "KillMode" && value != "control-group") {
      problems.push_back("KillMode=" + value + ": only control-group ends what a child started");
    }
    values[key] = value;
  }
  const std::pair<const char*, const char*> wanted[] = {
      {"KillMode", "control-group"},         {"SendSIGKILL", "yes"}, {"Restart", "on-failure"},
      {"RestartPreventExitStatus", "64 65 78"}, {"OOMPolicy", "kill"},  {"LimitCORE", "0"}};
  for (const auto& [key, value] : wanted) {
    if (values[key] != value) problems.push_back(std::string(key) + " is not " + value);
  }
  for (const char* key : {"TimeoutStopSec", "MemoryMax", "TasksMax", "LimitNOFILE"}) {
    if (values[key].empty()) problems.push_back(std::string(key) + " is missing");
  }
  // server.shutdown_timeout is 30 s by default, and 15 s belong to the rest of a stop.
  if (std::strtol(values["TimeoutStopSec"].c_str(), nullptr, 10) < 45) {
    problems.push_back("TimeoutStopSec is shorter than a drain and 15 s");
  }
  return problems;
}

TEST(SystemdUnits, PassTheLint) {
  for (const char* unit : kUnits) {
    EXPECT_THAT(Lint(ReadFile(fs::path("deploy/systemd") / unit)), IsEmpty()) << unit;
  }
}

TEST(SystemdUnits, TheLintRefusesOtherKillModes) {
  const std::string good = ReadFile("deploy/systemd/skein.service");
  for (const char* mode : {"process", "mixed", "none"}) {
    std::string text = good;
    const std::string line = "KillMode=control-group";
    text.replace(text.find(line), line.size(), std::string("KillMode=") + mode);
    EXPECT_THAT(::testing::PrintToString(Lint(text)), HasSubstr(std::string("KillMode=") + mode));
  }
  // A second line wins over the first.
  EXPECT_THAT(Lint(good + "KillMode=none\n"), ::testing::Not(IsEmpty()));
  EXPECT_THAT(Lint("[Service]\n"), ::testing::SizeIs(::testing::Ge(10u)));
}

// A root with our programs and the targets and slices that the units refer to.
class UnitRoot {
 public:
  UnitRoot() {
    char path[] = "/tmp/skein_root_XXXXXX";
    root_ = ::mkdtemp(path);
    fs::create_directories(root_ / "usr/bin");
    fs::create_directories(root_ / "usr/lib/systemd/system");
    for (const char* program : {"skein", "skein-node", "skein-coordinator"}) {
      fs::copy_file(fs::path(SKEIN_PROGRAM_DIRECTORY) / program, root_ / "usr/bin" / program);
    }
    for (const auto& entry : fs::directory_iterator("/usr/lib/systemd/system")) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".target" && extension != ".slice") continue;
      fs::copy(entry.path(), root_ / "usr/lib/systemd/system" / entry.path().filename(),
               fs::copy_options::copy_symlinks | fs::copy_options::recursive);
    }
  }
  ~UnitRoot() { fs::remove_all(root_); }

  // What the verifier prints about a unit with this text.
  std::string Verify(const std::string& name, const std::string& text) const {
    const fs::path unit = root_ / "usr/lib/systemd/system" / name;
    std::ofstream(unit) << text;
    const std::string command =
        "systemd-analyze verify --root=" + root_.string() + " " + name + " 2>&1";
    std::string output;
    FILE* pipe = ::popen(command.c_str(), "r");
    char part[4096];
    while (const size_t size = std::fread(part, 1, sizeof part, pipe)) output.append(part, size);
    ::pclose(pipe);
    return output;
  }

 private:
  fs::path root_;
};

TEST(SystemdUnits, VerifyWithoutOutput) {
  if (std::system("systemd-analyze --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "systemd-analyze is not installed";
  }
  const UnitRoot root;
  for (const char* unit : kUnits) {
    EXPECT_EQ(root.Verify(unit, ReadFile(fs::path("deploy/systemd") / unit)), "") << unit;
  }
  // It does speak when something is wrong.
  std::string broken = ReadFile("deploy/systemd/skein.service");
  broken.replace(broken.find("OOMPolicy=kill"), 14, "OOMPolcy=kill");
  EXPECT_THAT(root.Verify("skein.service", broken), HasSubstr("OOMPolcy"));
}

}  // namespace
}  // namespace skein::tests
