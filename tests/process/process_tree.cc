// Copies, starts and counts processes of a test. Signals go to handles of processes whose program
// lies in the test's own directory.
#include "tests/process/process_tree.h"

#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "worker/node/descriptor.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;

struct Found {
  int pid;
  std::string program;  // name in the directory
};

bool IsZombie(const std::string& pid) {
  const std::string text = worker::ReadKernelFile(Concat("/proc/", pid, "/stat"));
  const size_t end = text.rfind(") ");
  return end == std::string::npos || end + 2 >= text.size() || text[end + 2] == 'Z' ||
         text[end + 2] == 'X';
}

std::vector<Found> FindProcesses(const std::string& directory) {
  std::vector<Found> found;
  DIR* proc = ::opendir("/proc");
  while (const dirent* entry = ::readdir(proc)) {
    const std::string pid = entry->d_name;
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    char text[PATH_MAX] = {};
    if (::readlink(Concat("/proc/", pid, "/exe").c_str(), text, sizeof text - 1) <= 0) continue;
    const std::string program = text;
    if (program.rfind(directory + "/", 0) != 0 || IsZombie(pid)) continue;
    found.push_back({static_cast<int>(std::strtol(pid.c_str(), nullptr, 10)),
                     program.substr(directory.size() + 1)});
  }
  ::closedir(proc);
  return found;
}

bool KillHandle(int pid) {
  const int handle = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (handle < 0) return false;
  const bool sent = ::syscall(SYS_pidfd_send_signal, handle, SIGKILL, nullptr, 0) == 0;
  ::close(handle);
  return sent;
}

int RemainingMs(absl::Time end) {
  const int64_t left = absl::ToInt64Milliseconds(end - MonotonicNow());
  return left < 0 ? 0 : static_cast<int>(left);
}

}  // namespace

ProcessTree::ProcessTree(const std::string& program_directory, Children children) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans of a killed tree come to the test, not to init
  char path[] = "/tmp/skein_tree_XXXXXX";
  directory_ = ::mkdtemp(path);
  const auto copy = [&](std::string_view from, std::string_view to) {
    std::filesystem::copy_file(Concat(program_directory, "/", from), Concat(directory_, "/", to));
  };
  copy("skein", "skein");
  copy("skein-node", "skein-node");
  const bool real = children == Children::kReal;
  copy(real ? "skein-coordinator" : "fake_child", "skein-coordinator");
  copy(real ? "skein-worker" : "fake_child", "skein-worker");
}

ProcessTree::~ProcessTree() {
  if (pid_ != 0) {
    Signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (output_fd_ >= 0) ::close(output_fd_);
  KillAll();
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void ProcessTree::SetBehavior(std::string_view program, std::string_view words) {
  std::ofstream(Concat(directory_, "/", program, ".behavior")) << words;
}

void ProcessTree::Start(std::vector<std::string> arguments) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  if (output_fd_ >= 0) ::close(output_fd_);
  output_.clear();
  const bool node = arguments.front() == "node";
  if (node) arguments.erase(arguments.begin());
  arguments.insert(
      arguments.begin() + (node ? 0 : 1),
      {"--run-directory", directory_ + "/run", "--state-directory", directory_ + "/state"});
  const std::string program = directory_ + (node ? "/skein-node" : "/skein");
  std::vector<char*> pointers = {const_cast<char*>(program.c_str())};
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(ends[1], 1);
    ::dup2(ends[1], 2);
    ::execv(program.c_str(), pointers.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  output_fd_ = ends[0];
  ::fcntl(output_fd_, F_SETFL, O_NONBLOCK);
}

void ProcessTree::ReadOutput(int timeout_ms) {
  pollfd wait{output_fd_, POLLIN, 0};
  if (::poll(&wait, 1, timeout_ms) <= 0) return;
  char text[4096];
  const ssize_t count = ::read(output_fd_, text, sizeof text);
  if (count > 0) output_.append(text, static_cast<size_t>(count));
  if (count == 0) ::poll(nullptr, 0, timeout_ms < 5 ? timeout_ms : 5);
}

bool ProcessTree::WaitForOutput(std::string_view text, absl::Duration limit) {
  const absl::Time end = MonotonicNow() + limit;
  while (output_.find(text) == std::string::npos) {
    const int left_ms = RemainingMs(end);
    if (left_ms == 0) return false;
    ReadOutput(left_ms);
  }
  return true;
}

void ProcessTree::Signal(int number) const {
  if (pid_ != 0) ::kill(pid_, number);
}

bool ProcessTree::KillOldest(std::string_view program) const {
  int oldest = 0;
  for (const Found& process : FindProcesses(directory_)) {
    if (process.program == program && (oldest == 0 || process.pid < oldest)) oldest = process.pid;
  }
  return oldest != 0 && KillHandle(oldest);
}

void ProcessTree::KillAll() const {
  for (const Found& process : FindProcesses(directory_)) KillHandle(process.pid);
}

int ProcessTree::WaitForExit(absl::Duration limit) {
  const absl::Time end = MonotonicNow() + limit;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) != pid_) {
    const int left_ms = RemainingMs(end);
    if (left_ms == 0) return -1000;
    ReadOutput(left_ms < 5 ? left_ms : 5);
  }
  for (size_t before = 1; before != output_.size();) {  // what is still in the pipe
    before = output_.size();
    ReadOutput(0);
  }
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::vector<std::string> ProcessTree::Alive() const {
  while (true) {  // orphans that ended and came to us
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0 ||
        info.si_pid == pid_) {
      break;
    }
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
  std::vector<std::string> programs;
  for (const Found& process : FindProcesses(directory_)) programs.push_back(process.program);
  return programs;
}

std::vector<int> ProcessTree::Pids(std::string_view program) const {
  std::vector<int> pids;
  for (const Found& process : FindProcesses(directory_)) {
    if (program.empty() || process.program == program) pids.push_back(process.pid);
  }
  return pids;
}

bool ProcessTree::WaitUntil(const std::function<bool()>& done, absl::Duration limit) const {
  const absl::Time end = MonotonicNow() + limit;
  while (!done()) {
    if (RemainingMs(end) == 0) return done();
    ::poll(nullptr, 0, 5);
  }
  return true;
}

}  // namespace skein::tests
