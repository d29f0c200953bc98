// One process as the files of /proc tell it, and the mark by which processes of ours are known: a
// variable that the supervisor puts into the environment of its children and that everything they
// start inherits. No program reads it; only the sweep and `skein whoholds` do, from outside.
// Any thread; values. Must never trust a number alone: a process is its id and its start time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::worker {

// The supervisor that a process was started under.
struct SupervisorMark {
  int pid = 0;               // in the supervisor's own PID namespace
  uint64_t start_ticks = 0;  // since boot
  friend bool operator==(const SupervisorMark&, const SupervisorMark&) = default;
};

struct ProcessEntry {
  int pid = 0;
  int parent = 0;
  char state = '?';                 // as in /proc/PID/stat: R, S, D, T, Z
  uint64_t start_ticks = 0;         // since boot
  uint64_t cpu_ticks = 0;           // of all its threads, user and system
  std::vector<int> namespace_pids;  // from the reader's PID namespace to the process's own
  std::string command;              // its arguments, escaped, at most 200 bytes
  std::string cgroup;               // text of /proc/PID/cgroup
  std::optional<SupervisorMark> mark;
};

// Ids of the processes below `proc_root`, ascending.
std::vector<int> ListProcesses(const std::string& proc_root);
// Nothing when it has ended.
std::optional<ProcessEntry> ReadProcess(const std::string& proc_root, int pid);

// True if `process` is the supervisor that the mark names.
bool IsMarked(const SupervisorMark& mark, const ProcessEntry& process);

// "NAME=value" for the environment of the children of this process.
std::string OwnMarkVariable();
// The mark in the text of /proc/PID/environ, if it has one.
std::optional<SupervisorMark> FindMark(std::string_view environment);

}  // namespace skein::worker
