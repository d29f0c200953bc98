#include "tests/chaos/process_census.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include <unistd.h>

#include "absl/strings/numbers.h"
#include "protocol/base/strings.h"
#include "worker/node/descriptor.h"

namespace skein::tests {
namespace {

using protocol::Concat;
namespace fs = std::filesystem;

struct Process {
  int parent = 0;
  char state = '?';
};

std::map<int, Process> AllProcesses() {
  std::map<int, Process> all;
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string text = worker::ReadKernelFile(Concat("/proc/", name, "/stat"));
    // The name in brackets may hold anything; state and parent follow it.
    const size_t close = text.rfind(") ");
    if (close == std::string::npos || text.size() < close + 5) continue;
    const std::string rest = text.substr(close + 4);
    Process process{0, text[close + 2]};
    int pid = 0;
    if (absl::SimpleAtoi(name, &pid) &&
        absl::SimpleAtoi(rest.substr(0, rest.find(' ')), &process.parent)) {
      all[pid] = process;
    }
  }
  return all;
}

// `root` and what descends from it.
std::set<int> TreeBelow(const std::map<int, Process>& all, int root) {
  std::set<int> tree;
  if (all.contains(root)) tree.insert(root);
  for (bool grew = true; grew;) {
    grew = false;
    for (const auto& [pid, process] : all) {
      if (tree.contains(process.parent)) grew |= tree.insert(pid).second;
    }
  }
  return tree;
}

// By the name of its link, what a socket is: its protocol, and the state of a connection or the
// path of what it is bound to.
std::map<std::string, std::string> AllSockets() {
  struct Table {
    const char* name;
    size_t inode, what;  // columns
  };
  constexpr Table kTables[] = {{"tcp", 9, 3}, {"tcp6", 9, 3}, {"unix", 6, 7}};
  std::map<std::string, std::string> all;
  for (const Table& table : kTables) {
    std::ifstream lines(Concat("/proc/net/", table.name));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::vector<std::string> columns{std::istream_iterator<std::string>(words), {}};
      if (columns.size() <= table.inode) continue;
      columns.resize(std::max(columns.size(), table.what + 1));
      all[Concat("socket:[", columns[table.inode], "]")] =
          Concat("socket ", table.name, " ", columns[table.what]);
    }
  }
  return all;
}

// What stands for a descriptor: its file, without the numbers and the directory of a run, which
// differ from start to start.
std::string KindOf(const fs::path& link, const std::map<std::string, std::string>& sockets) {
  constexpr std::string_view kRun = "/skein-run.";
  constexpr size_t kRandom = 6;  // characters of its name
  std::error_code error;
  std::string target = fs::read_symlink(link, error).string();
  const auto socket = sockets.find(target);
  const bool is_socket = socket != sockets.end();
  if (is_socket) target = socket->second;
  if (const size_t run = target.find(kRun); run != std::string::npos) {
    target.erase(run + kRun.size(), kRandom);
  }
  // The state of a connection is a number that counts.
  if (!is_socket) std::erase_if(target, [](char c) { return c >= '0' && c <= '9'; });
  return target;
}

void CountDescriptors(int pid, const std::map<std::string, std::string>& sockets,
                      std::map<std::string, size_t>& counts) {
  std::error_code error;
  const std::string program =
      fs::read_symlink(Concat("/proc/", pid, "/exe"), error).filename().string();
  for (fs::directory_iterator at(Concat("/proc/", pid, "/fd"), error), end; !error && at != end;
       at.increment(error)) {
    ++counts[Concat(program, " ", KindOf(at->path(), sockets))];
  }
}

}  // namespace

size_t Census::num_descriptors() const {
  size_t sum = 0;
  for (const auto& [name, count] : descriptors) sum += count;
  return sum;
}

Census TakeCensus(int root) {
  const std::map<int, Process> all = AllProcesses();
  const std::map<std::string, std::string> sockets = AllSockets();
  Census census;
  for (const int pid : TreeBelow(all, root)) {
    if (all.at(pid).state == 'Z') {
      ++census.zombies;
      continue;
    }
    ++census.processes;
    CountDescriptors(pid, sockets, census.descriptors);
  }
  return census;
}

size_t CountOrphans(const std::vector<int>& roots) {
  const std::map<int, Process> all = AllProcesses();
  std::set<int> ours = TreeBelow(all, ::getpid());
  ours.erase(::getpid());
  for (const int root : roots) {
    for (const int pid : TreeBelow(all, root)) ours.erase(pid);
  }
  return ours.size();
}

std::string Difference(const Census& before, const Census& after) {
  std::string text;
  const auto add = [&](std::string_view name, size_t was, size_t is) {
    if (was != is) text += Concat(name, ": ", is, ", before ", was, "\n");
  };
  add("processes", before.processes, after.processes);
  add("zombies", before.zombies, after.zombies);
  std::map<std::string, size_t> all = before.descriptors;
  all.insert(after.descriptors.begin(), after.descriptors.end());
  for (const auto& [name, count] : all) {
    const auto count_in = [&, name = name](const Census& census) {
      const auto at = census.descriptors.find(name);
      return at == census.descriptors.end() ? 0 : at->second;
    };
    add(name, count_in(before), count_in(after));
  }
  return text;
}

}  // namespace skein::tests
