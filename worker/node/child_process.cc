// The clone and what the child does before exec. Between the two only async-signal-safe calls.
// Supervisor's thread. Must never allocate, lock or log in the child.
#include "worker/node/child_process.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/exit_codes.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "worker/node/process_entry.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr int kExitCannotExecute = 127;
// Of a child until exec: the program, when it is no path.
constexpr int kProgramFd = kLockFd + 1;

// Everything the child needs, prepared before the clone: it must not allocate.
struct ChildPlan {
  int link_fd = -1;    // its end of the socket
  int output_fd = -1;  // write end of the pipe
  int parent_link_fd = -1;
  int listen_fd = -1;   // or none
  int lock_fd = -1;     // or none
  int program_fd = -1;  // or none
  bool map_user = false;
  char uid_map[64] = {};
  char gid_map[64] = {};
  bool set_processors = false;
  cpu_set_t processors = {};
  const char* program = nullptr;
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
};

void WriteFile(const char* path, const char* text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(fd, text, std::strlen(text));
  ::close(fd);
}

void SetLimits() {
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
}

// Ends the child unless the supervisor still holds the other end of the socket. Inside a namespace
// getppid() is 0 and would prove nothing.
void CheckParent(int link_fd) {
  pollfd wait{link_fd, POLLIN, 0};
  if (::poll(&wait, 1, 0) != 0) ::_exit(protocol::kExitParentGone);
}

// Puts the child's descriptors where it looks for them and closes every other one. Sources are
// moved above the targets first, so that no dup2 overwrites one.
void PlaceDescriptors(const ChildPlan& plan) {
  const int targets[] = {0, 1, 2, kSupervisorFd, kListenFd, kLockFd, kProgramFd};
  const int null_fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  int sources[] = {null_fd,        plan.output_fd, plan.output_fd, plan.link_fd,
                   plan.listen_fd, plan.lock_fd,   plan.program_fd};
  for (int& source : sources) {
    if (source < 0) continue;
    source = ::fcntl(source, F_DUPFD_CLOEXEC, 16);
    if (source < 0) ::_exit(kExitCannotExecute);
  }
  ::syscall(SYS_close_range, kSupervisorFd + 1, kProgramFd, 0);
  for (size_t i = 0; i < std::size(targets); ++i) {
    if (sources[i] >= 0) ::dup2(sources[i], targets[i]);
  }
  ::fcntl(kProgramFd, F_SETFD, FD_CLOEXEC);
  ::syscall(SYS_close_range, kProgramFd + 1, ~0U, 0);
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  ::setpgid(0, 0);
  if (plan.map_user) {
    WriteFile("/proc/self/setgroups", "deny");
    WriteFile("/proc/self/uid_map", plan.uid_map);
    WriteFile("/proc/self/gid_map", plan.gid_map);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::close(plan.parent_link_fd);
  CheckParent(plan.link_fd);
  PlaceDescriptors(plan);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  SetLimits();
  if (plan.set_processors) ::sched_setaffinity(0, sizeof plan.processors, &plan.processors);
  if (plan.program_fd >= 0) {
    ::syscall(SYS_execveat, kProgramFd, "", plan.arguments, plan.environment, AT_EMPTY_PATH);
  } else {
    ::execve(plan.program, plan.arguments, plan.environment);
  }
  const char text[] = "cannot execute the program\n";
  [[maybe_unused]] const ssize_t written = ::write(2, text, sizeof text - 1);
  ::_exit(kExitCannotExecute);
}

absl::Status CheckProgram(const std::string& program) {
  struct stat status {};
  if (::stat(program.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
      ::access(program.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        Concat(program, " is missing or not executable; install it beside skein"));
  }
  if ((status.st_mode & (S_ISUID | S_ISGID)) != 0) {
    return absl::FailedPreconditionError(
        Concat(program, " is set-id, which clears the parent-death signal; remove the bit"));
  }
  return absl::OkStatus();
}

absl::Status KernelError(std::string_view call) {
  return absl::InternalError(Concat(call, " failed: ", std::strerror(errno)));
}

// The pipe and socket of a child: ours in `child`, its own in the two outputs.
absl::Status OpenChannels(Descriptor& our_output, Descriptor& our_link, Descriptor& its_output,
                          Descriptor& its_link) {
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) return KernelError("pipe2");
  our_output = Descriptor(pipe_ends[0]);
  its_output = Descriptor(pipe_ends[1]);
  int socket_ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socket_ends) != 0) {
    return KernelError("socketpair");
  }
  our_link = Descriptor(socket_ends[0]);
  its_link = Descriptor(socket_ends[1]);
  for (const int fd : {our_output.get(), our_link.get()}) {
    if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) return KernelError("fcntl");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildStart& start,
                                                 const Containment& containment) {
  if (start.program_fd < 0) SKEIN_RETURN_IF_ERROR(CheckProgram(start.program));
  ChildProcess child;
  Descriptor its_output;
  Descriptor its_link;
  SKEIN_RETURN_IF_ERROR(OpenChannels(child.output_, child.link_, its_output, its_link));
  if (containment.leaves()) {
    SKEIN_ASSIGN_OR_RETURN(child.leaf_, containment.MakeLeaf(start.leaf_name));
  }
  std::vector<char*> arguments;
  arguments.push_back(const_cast<char*>(start.program.c_str()));
  for (const std::string& text : start.arguments) {
    arguments.push_back(const_cast<char*>(text.c_str()));
  }
  arguments.push_back(nullptr);
  const std::string mark = OwnMarkVariable();
  std::vector<char*> environment = {const_cast<char*>(mark.c_str())};
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  const bool own_namespace = start.own_pid_namespace && containment.pid_namespaces();
  ChildPlan plan;
  plan.link_fd = its_link.get();
  plan.output_fd = its_output.get();
  plan.parent_link_fd = child.link_.get();
  plan.listen_fd = start.listen_fd;
  plan.lock_fd = start.lock_fd;
  plan.program_fd = start.program_fd;
  plan.map_user = own_namespace && containment.needs_user_namespace();
  std::snprintf(plan.uid_map, sizeof plan.uid_map, "%u %u 1", ::geteuid(), ::geteuid());
  std::snprintf(plan.gid_map, sizeof plan.gid_map, "%u %u 1", ::getegid(), ::getegid());
  plan.set_processors = !start.processors.empty();
  for (const int processor : start.processors) CPU_SET(processor, &plan.processors);
  plan.program = start.program.c_str();
  plan.arguments = arguments.data();
  plan.environment = environment.data();

  int process_fd = -1;
  clone_args clone{};
  clone.flags = CLONE_PIDFD;
  if (own_namespace) clone.flags |= CLONE_NEWPID;
  if (plan.map_user) clone.flags |= CLONE_NEWUSER;
  if (child.leaf_.has_value()) {
    clone.flags |= CLONE_INTO_CGROUP;
    clone.cgroup = static_cast<uint64_t>(child.leaf_->fd());
  }
  clone.pidfd = reinterpret_cast<uint64_t>(&process_fd);
  clone.exit_signal = SIGCHLD;
  const long pid = CloneProcess(clone);
  if (pid < 0) return KernelError("clone");
  if (pid == 0) RunChild(plan);
  child.pid_ = static_cast<int>(pid);
  child.process_fd_ = Descriptor(process_fd);
  return child;
}

void ChildProcess::Signal(int number) const {
  // ESRCH: it ended, which the process handle reports as well.
  ::syscall(SYS_pidfd_send_signal, process_fd_.get(), number, nullptr, 0);
}

void ChildProcess::Kill() const {
  Signal(SIGKILL);
  if (leaf_.has_value()) leaf_->Kill();
}

std::optional<ChildEnd> ChildProcess::Reap() {
  siginfo_t info{};
  if (::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(process_fd_.get()), &info,
               WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  ChildEnd end;
  // Before the leaf is gone: out of memory there is the worker's own doing.
  if (leaf_.has_value() && info.si_code != CLD_EXITED) end.oom_killed = leaf_->OomKilled();
  if (leaf_.has_value()) leaf_->Kill();
  (info.si_code == CLD_EXITED ? end.exit_code : end.signal) = info.si_status;
  return end;
}

}  // namespace skein::worker
