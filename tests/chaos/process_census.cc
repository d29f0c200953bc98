#include "tests/chaos/process_census.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

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

// What stands for a descriptor: its file, without the numbers that differ from start to start.
std::string KindOf(const fs::path& link) {
  std::error_code error;
  std::string target = fs::read_symlink(link, error).string();
  std::erase_if(target, [](char c) { return c >= '0' && c <= '9'; });
  return target;
}

void CountDescriptors(int pid, std::map<std::string, size_t>& counts) {
  std::error_code error;
  const std::string program =
      fs::read_symlink(Concat("/proc/", pid, "/exe"), error).filename().string();
  for (fs::directory_iterator at(Concat("/proc/", pid, "/fd"), error), end; !error && at != end;
       at.increment(error)) {
    ++counts[Concat(program, " ", KindOf(at->path()))];
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
  Census census;
  for (const int pid : TreeBelow(all, root)) {
    if (all.at(pid).state == 'Z') {
      ++census.zombies;
      continue;
    }
    ++census.processes;
    CountDescriptors(pid, census.descriptors);
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
