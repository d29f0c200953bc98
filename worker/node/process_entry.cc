// Parsing of stat, status, cmdline and environ.
// Any thread. Must never fail because a process ended while it was read.
#include "worker/node/process_entry.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include <dirent.h>
#include <unistd.h>

#include "protocol/base/control_bytes.h"
#include "protocol/base/strings.h"
#include "worker/node/descriptor.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr std::string_view kMarkName = "SKEIN_SUPERVISOR=";
constexpr size_t kCommandBytesMax = 200;
constexpr size_t kEnvironBytesMax = 1 << 20;

template <typename T>
bool ParseNumber(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Arguments joined by spaces, every byte but printable ASCII, and the backslash, as \xNN.
std::string CommandText(std::string_view arguments) {
  while (!arguments.empty() && arguments.back() == '\0') arguments.remove_suffix(1);
  std::string out;
  for (const char c : arguments) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) {
      out += ' ';
    } else if (byte < 0x20 || byte >= 0x7F || c == '\\') {
      out += "\\x";
      protocol::AppendHex(byte, out);
    } else {
      out += c;
    }
    if (out.size() > kCommandBytesMax) return out.substr(0, kCommandBytesMax) + "...";
  }
  return out;
}

std::string ReadBounded(const std::string& path, size_t bytes_max) {
  std::ifstream stream(path, std::ios::binary);
  std::string text(bytes_max, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(bytes_max));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(stream.gcount(), 0)));
  return text;
}

// Fields of stat after the name in parentheses, which may hold anything.
bool ReadStat(const std::string& directory, ProcessEntry& process, std::string& name) {
  const std::string text = ReadKernelFile(directory + "/stat");
  const size_t begin = text.find('(');
  const size_t end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos) return false;
  name = text.substr(begin + 1, end - begin - 1);
  std::istringstream fields(text.substr(end + 1));
  std::string skipped;
  uint64_t user = 0, system = 0;
  fields >> process.state >> process.parent;
  for (int i = 5; i <= 13; ++i) fields >> skipped;
  fields >> user >> system;
  for (int i = 16; i <= 21; ++i) fields >> skipped;
  fields >> process.start_ticks;
  process.cpu_ticks = user + system;
  return !fields.fail();
}

void ReadNamespacePids(const std::string& directory, ProcessEntry& process) {
  std::istringstream lines(ReadKernelFile(directory + "/status"));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("NSpid:", 0) != 0) continue;
    std::istringstream numbers(line.substr(6));
    for (int pid = 0; numbers >> pid;) process.namespace_pids.push_back(pid);
  }
  if (process.namespace_pids.empty()) process.namespace_pids = {process.pid};
}

}  // namespace

std::vector<int> ListProcesses(const std::string& proc_root) {
  std::vector<int> pids;
  DIR* directory = ::opendir(proc_root.c_str());
  if (directory == nullptr) return pids;
  while (const dirent* entry = ::readdir(directory)) {
    int pid = 0;
    if (ParseNumber(std::string_view(entry->d_name), pid) && pid > 0) pids.push_back(pid);
  }
  ::closedir(directory);
  std::sort(pids.begin(), pids.end());
  return pids;
}

std::optional<ProcessEntry> ReadProcess(const std::string& proc_root, int pid) {
  const std::string directory = Concat(proc_root, "/", pid);
  ProcessEntry process;
  process.pid = pid;
  std::string name;
  if (!ReadStat(directory, process, name)) return std::nullopt;
  ReadNamespacePids(directory, process);
  process.command = CommandText(ReadBounded(directory + "/cmdline", 4 * kCommandBytesMax));
  if (process.command.empty()) process.command = Concat("[", CommandText(name), "]");
  process.cgroup = ReadKernelFile(directory + "/cgroup");
  process.mark = FindMark(ReadBounded(directory + "/environ", kEnvironBytesMax));
  return process;
}

bool IsMarked(const SupervisorMark& mark, const ProcessEntry& process) {
  return process.start_ticks == mark.start_ticks && process.namespace_pids.back() == mark.pid;
}

std::string OwnMarkVariable() {
  const std::optional<ProcessEntry> own = ReadProcess("/proc", ::getpid());
  return Concat(kMarkName, ::getpid(), ".", own ? own->start_ticks : 0);
}

std::optional<SupervisorMark> FindMark(std::string_view environment) {
  while (!environment.empty()) {
    const size_t end = std::min(environment.find('\0'), environment.size());
    const std::string_view variable = environment.substr(0, end);
    environment.remove_prefix(std::min(end + 1, environment.size()));
    if (variable.substr(0, kMarkName.size()) != kMarkName) continue;
    const std::string_view value = variable.substr(kMarkName.size());
    const size_t dot = value.find('.');
    SupervisorMark mark;
    if (dot != std::string_view::npos && ParseNumber(value.substr(0, dot), mark.pid) &&
        ParseNumber(value.substr(dot + 1), mark.start_ticks)) {
      return mark;
    }
  }
  return std::nullopt;
}

}  // namespace skein::worker
