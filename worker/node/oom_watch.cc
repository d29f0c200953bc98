// Finding the file, reading the counters.
// Supervisor's thread. Must never guess from a file that has other counters.
#include "worker/node/oom_watch.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include <unistd.h>

#include "protocol/base/strings.h"
#include "worker/node/containment.h"
#include "worker/node/descriptor.h"

namespace skein::worker {
namespace {

using protocol::Concat;

// The number behind `name` at the beginning of a line.
std::optional<uint64_t> NumberOf(std::string_view text, std::string_view name) {
  size_t at = 0;
  while (at < text.size()) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    if (line.starts_with(name) && line.size() > name.size() + 1 && line[name.size()] == ' ') {
      uint64_t number = 0;
      const char* begin = line.data() + name.size() + 1;
      const auto [end, error] = std::from_chars(begin, line.data() + line.size(), number);
      if (error == std::errc() && end == line.data() + line.size()) return number;
    }
    at += line.size() + 1;
  }
  return std::nullopt;
}

// Of the v1 hierarchy with the memory controller; its root has no limit.
std::string FileOfV1(std::string_view mountinfo, std::string_view cgroup) {
  std::string own;
  std::istringstream lines{std::string(cgroup)};
  for (std::string line; std::getline(lines, line);) {
    const size_t name = line.find(":memory:/");
    if (name != std::string::npos) own = line.substr(name + 8);
  }
  if (own.empty() || own.find("..") != std::string::npos) return "";
  std::istringstream mounts{std::string(mountinfo)};
  for (std::string line; std::getline(mounts, line);) {
    const size_t separator = line.find(" - cgroup ");
    if (separator == std::string::npos || !line.ends_with("memory")) continue;
    std::istringstream fields(line);
    std::string id, parent, device, root, point;
    fields >> id >> parent >> device >> root >> point;
    if (root == "/") return Concat(point, own == "/" ? "" : own, "/memory.oom_control");
    if (own.rfind(root, 0) == 0) {
      return Concat(point, own.substr(root.size()), "/memory.oom_control");
    }
  }
  return "";
}

}  // namespace

std::optional<uint64_t> LimitKills(std::string_view text) {
  const std::optional<uint64_t> kills = NumberOf(text, "oom_kill");
  if (!kills || NumberOf(text, "oom_kill_disable")) return kills;
  // v2 counts kills of the host's own lack of memory as well, and separately how often a limit was
  // the reason.
  const std::optional<uint64_t> limits = NumberOf(text, "oom");
  return limits ? std::optional<uint64_t>(std::min(*kills, *limits)) : std::nullopt;
}

std::string LimitKillsFile(std::string_view mountinfo, std::string_view cgroup) {
  for (std::string path = CgroupDirectory(mountinfo, cgroup); path.size() > 1;
       path.resize(path.rfind('/'))) {
    const std::string file = path + "/memory.events";
    if (::access(file.c_str(), R_OK) == 0) return file;
    if (::access((path + "/cgroup.controllers").c_str(), F_OK) != 0) break;  // above the mount
  }
  return FileOfV1(mountinfo, cgroup);
}

OomWatch::OomWatch(std::string file) : file_(std::move(file)), seen_(Read()) {}

OomWatch OomWatch::OfThisProcess() {
  return OomWatch(
      LimitKillsFile(ReadKernelFile("/proc/self/mountinfo"), ReadKernelFile("/proc/self/cgroup")));
}

std::optional<uint64_t> OomWatch::Read() const {
  return file_.empty() ? std::nullopt : LimitKills(ReadKernelFile(file_));
}

bool OomWatch::TakeKill() {
  const std::optional<uint64_t> now = Read();
  const std::optional<uint64_t> before = std::exchange(seen_, now);
  return now && before && *now > *before;
}

}  // namespace skein::worker
