// A directory tree that looks like /proc and /dev to code which takes their roots as arguments.
// For tests; one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

namespace skein::worker {

struct FakeProcess {
  int pid = 0;
  int parent = 1;
  char state = 'S';
  uint64_t start_ticks = 1000;
  uint64_t cpu_ticks = 10;
  std::vector<int> namespace_pids = {};  // empty: pid alone
  std::vector<std::string> arguments = {"python", "serve.py"};
  std::string cgroup = "0::/\n";
  std::string environment = {};               // NAME=value, each ended by a zero byte
  std::vector<std::string> descriptors = {};  // targets of its links
  std::vector<std::string> mappings = {};     // paths
};

class FakeProc {
 public:
  FakeProc() {
    char path[] = "/tmp/skein_proc_XXXXXX";
    root_ = ::mkdtemp(path);
    std::filesystem::create_directories(root_ + "/proc");
    std::filesystem::create_directories(root_ + "/dev");
    Write("proc/uptime", "100000.00 1.00\n");
    Write("proc/stat", "cpu 1 2 3\nbtime 1700000000\n");
  }
  ~FakeProc() { std::filesystem::remove_all(root_); }

  std::string proc() const { return root_ + "/proc"; }
  std::string device(int minor) const { return root_ + "/dev/nvidia" + std::to_string(minor); }
  std::string device_glob() const { return root_ + "/dev/nvidia[0-9]*"; }

  void AddDevice(int minor) { Write("dev/nvidia" + std::to_string(minor), ""); }

  void Add(const FakeProcess& process) {
    const std::string directory = "proc/" + std::to_string(process.pid);
    std::string stat = std::to_string(process.pid) + " (a ) b) " + process.state + " " +
                       std::to_string(process.parent);
    for (int i = 5; i <= 13; ++i) stat += " 0";
    stat += " " + std::to_string(process.cpu_ticks) + " 0";
    for (int i = 16; i <= 21; ++i) stat += " 0";
    stat += " " + std::to_string(process.start_ticks) + " 0 0\n";
    Write(directory + "/stat", stat);
    std::string pids;
    for (const int pid : process.namespace_pids) pids += "\t" + std::to_string(pid);
    if (pids.empty()) pids = "\t" + std::to_string(process.pid);
    Write(directory + "/status", "Name:\tx\nNSpid:" + pids + "\n");
    std::string command;
    for (const std::string& argument : process.arguments) command += argument + '\0';
    Write(directory + "/cmdline", command);
    Write(directory + "/cgroup", process.cgroup);
    Write(directory + "/environ", process.environment);
    std::string maps;
    for (const std::string& path : process.mappings) {
      maps += "7f00-7f01 rw-s 00000000 00:05 42   " + path + "\n";
    }
    Write(directory + "/maps", maps);
    std::filesystem::create_directories(root_ + "/" + directory + "/fd");
    int fd = 3;
    for (const std::string& target : process.descriptors) {
      std::filesystem::create_symlink(target,
                                      root_ + "/" + directory + "/fd/" + std::to_string(fd++));
    }
  }

  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }

 private:
  std::string root_;
};

// The environment of a process that the supervisor with this pid and start started.
inline std::string MarkedEnvironment(int pid, uint64_t start_ticks) {
  return std::string("HOME=/root") + '\0' + "SKEIN_SUPERVISOR=" + std::to_string(pid) + "." +
         std::to_string(start_ticks) + '\0';
}

}  // namespace skein::worker
