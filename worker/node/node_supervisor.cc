// The supervisor's loop. Every wait is epoll_wait with a deadline; no path signals a name or a
// number, only process handles.
#include "worker/node/node_supervisor.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;

constexpr uint64_t kSignalsKey = ~uint64_t{0};
constexpr size_t kLineBytesMax = 4096;
constexpr int kReadsPerEventMax = 16;
constexpr absl::Duration kLeafRetry = absl::Milliseconds(20);

// Floor of the counters: larger than anything an earlier supervisor of this boot gave out.
uint64_t BootTimeFloor(ChildRole role) {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  const uint64_t seconds = static_cast<uint64_t>(now.tv_sec);
  // A term stays below 2^32, because attempts carry it in their upper half.
  if (role == ChildRole::kCoordinator) return seconds;
  return seconds * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// How a process ended, as its successor tells: 1 of its own doing, 2 from outside, 3 in order.
int EndKind(const ChildEnd& end) {
  if (end.signal != 0) {
    const bool own = end.signal == SIGSEGV || end.signal == SIGABRT || end.signal == SIGBUS ||
                     end.signal == SIGILL || end.signal == SIGFPE;
    return own ? 1 : 2;
  }
  if (end.exit_code == kExitOk) return 3;
  return end.exit_code == kExitInternal || end.exit_code == kExitRestart ? 2 : 1;
}

// Parent of a process from its stat text, or -1.
int ParentOf(const std::string& pid) {
  const std::string text = ReadKernelFile(Concat("/proc/", pid, "/stat"));
  const size_t end = text.rfind(") ");
  if (end == std::string::npos || end + 4 >= text.size()) return -1;
  return static_cast<int>(std::strtol(text.c_str() + end + 4, nullptr, 10));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeSupervisor>> NodeSupervisor::Create(SupervisorOptions options) {
  std::unique_ptr<NodeSupervisor> supervisor(new NodeSupervisor(std::move(options)));
  SKEIN_RETURN_IF_ERROR(supervisor->OpenEvents());
  return supervisor;
}

NodeSupervisor::NodeSupervisor(SupervisorOptions options) : options_(std::move(options)) {
  SKEIN_CHECK(options_.containment != nullptr) << "a supervisor needs its containment";
  for (const ChildSpec& spec : options_.children) {
    children_.push_back(std::make_unique<Child>(spec, options_.node));
  }
  [[maybe_unused]] const ssize_t got = ::getrandom(&random_state_, sizeof random_state_, 0);
}

NodeSupervisor::~NodeSupervisor() = default;

absl::Status NodeSupervisor::OpenEvents() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&set, number);
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0 || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return absl::InternalError(Concat("cannot become a supervisor: ", std::strerror(errno)));
  }
  ::signal(SIGPIPE, SIG_IGN);
  signals_ = Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!signals_.valid() || !epoll_.valid()) {
    return absl::InternalError(Concat("no descriptors for events: ", std::strerror(errno)));
  }
  Watch(signals_.get(), kSignalsKey);
  return absl::OkStatus();
}

void NodeSupervisor::Watch(int fd, uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  SKEIN_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0)
      << "epoll_ctl: " << std::strerror(errno);
}

int NodeSupervisor::Run() {
  while (true) {
    const absl::Time now = MonotonicNow();
    CollectEnds(now);
    StartDue(now);
    AdvancePhase(now);
    if (abandoned_ || (phase_ != Phase::kRunning && !AnyRunning(std::nullopt))) break;
    WaitForEvents(now);
  }
  KillAdopted();
  // Leaves empty within milliseconds of a kill; what remains is swept by the next start.
  for (int tries = 0; tries < 50 && !ended_.empty(); ++tries) {
    std::erase_if(ended_, [](const Leaf& leaf) { return leaf.Remove(); });
    if (!ended_.empty()) ::poll(nullptr, 0, 2);
  }
  return exit_code_;
}

void NodeSupervisor::StartDue(absl::Time now) {
  for (const auto& child : children_) {
    // A start that fails for good may have changed the phase.
    if (phase_ != Phase::kRunning && phase_ != Phase::kDraining) return;
    if (child->process.has_value() || child->start_at > now) continue;
    // The coordinator drains once: what ended while draining is not started again.
    if (phase_ == Phase::kDraining && child->spec.role == ChildRole::kCoordinator) continue;
    StartChild(*child, now);
  }
}

void NodeSupervisor::StartChild(Child& child, absl::Time now) {
  const bool coordinator = child.spec.role == ChildRole::kCoordinator;
  child.counter = std::max(child.counter + 1, BootTimeFloor(child.spec.role));
  ChildStart start;
  start.leaf_name = Concat(child.spec.name, ".", child.counter);
  start.program = child.spec.program;
  start.arguments = child.spec.arguments;
  start.arguments.push_back(Concat("--supervisor-fd=", kSupervisorFd));
  start.arguments.push_back(Concat(coordinator ? "--term=" : "--incarnation=", child.counter));
  if (!coordinator) start.arguments.push_back(Concat("--predecessor-end=", child.last_end));
  start.own_pid_namespace = !coordinator;
  start.processors = child.spec.processors;
  absl::StatusOr<ChildProcess> process = ChildProcess::Start(start, *options_.containment);
  if (!process.ok()) {
    SKEIN_LOG(kError, "child not started")
        .Field("child", child.spec.name)
        .Field("reason", protocol::StatusText(process.status()));
    ChildEnd end;
    end.exit_code = absl::IsFailedPrecondition(process.status()) ? kExitConfig : kExitRestart;
    OnEnd(child, end, now);
    return;
  }
  child.process = *std::move(process);
  const uint64_t key = static_cast<uint64_t>(
      std::find_if(children_.begin(), children_.end(),
                   [&child](const auto& other) { return other.get() == &child; }) -
      children_.begin());
  Watch(child.process->process_fd(), key);
  Watch(child.process->output_fd(), key);
  Watch(child.process->link_fd(), key);
  SKEIN_LOG(kInfo, "child started")
      .Field("child", child.spec.name)
      .Field("pid", child.process->pid())
      .Field(coordinator ? "term" : "incarnation", child.counter);
}

absl::Time NodeSupervisor::NextDeadline() const {
  absl::Time next = std::min(phase_end_, hard_end_);
  for (const auto& child : children_) {
    if (!child->process.has_value()) next = std::min(next, child->start_at);
  }
  if (!ended_.empty()) next = std::min(next, MonotonicNow() + kLeafRetry);
  return next;
}

void NodeSupervisor::WaitForEvents(absl::Time now) {
  const absl::Duration left = NextDeadline() - now;
  int wait_ms = -1;
  if (left < absl::Hours(1)) {
    wait_ms = static_cast<int>(
        std::max<int64_t>(absl::ToInt64Milliseconds(left + absl::Microseconds(999)), 0));
  }
  epoll_event events[32];
  const int count = ::epoll_wait(epoll_.get(), events, 32, wait_ms);
  bool signalled = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t key = events[i].data.u64;
    if (key == kSignalsKey) {
      signalled = true;
      continue;
    }
    Child& child = *children_[key];
    if (!child.process.has_value()) continue;
    OnOutput(child);
    OnLink(child);
  }
  if (signalled) OnSignals();
}

void NodeSupervisor::OnSignals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo != SIGCHLD) OnStopSignal();
  }
}

void NodeSupervisor::OnStopSignal() {
  const absl::Time now = MonotonicNow();
  if (phase_ != Phase::kRunning) {
    SKEIN_LOG(kWarn, "second stop signal: stopping now");
    if (phase_ != Phase::kKilling) EnterKilling(now);
    return;
  }
  hard_end_ = now + options_.drain_timeout + 3 * options_.node.stop_timeout + absl::Seconds(1);
  phase_ = Phase::kDraining;
  // After the timeout the coordinator itself ends what still runs, with an error its clients see.
  phase_end_ = now + options_.drain_timeout + options_.node.stop_timeout;
  SKEIN_LOG(kInfo, "draining; a second signal stops at once")
      .Field("timeout_s", absl::ToDoubleSeconds(options_.drain_timeout));
  for (const auto& child : children_) {
    if (child->spec.role == ChildRole::kCoordinator && child->process.has_value()) {
      child->process->Signal(SIGTERM);
    }
  }
}

void NodeSupervisor::AdvancePhase(absl::Time now) {
  if (phase_ == Phase::kKilling) {
    abandoned_ = now >= phase_end_ && AnyRunning(std::nullopt);
    if (abandoned_) SKEIN_LOG(kError, "a killed child does not end; leaving it to the kernel");
    return;
  }
  if (now >= hard_end_) EnterKilling(now);
  if (phase_ == Phase::kDraining && (now >= phase_end_ || !AnyRunning(ChildRole::kCoordinator))) {
    EnterStopping(now);
  } else if (phase_ == Phase::kStopping && now >= phase_end_) {
    EnterKilling(now);
  }
}

void NodeSupervisor::EnterStopping(absl::Time now) {
  phase_ = Phase::kStopping;
  phase_end_ = now + options_.node.stop_timeout;
  hard_end_ = std::min(hard_end_, phase_end_ + options_.node.stop_timeout);
  for (const auto& child : children_) {
    if (!child->process.has_value()) continue;
    // A coordinator that is still here outlasted its drain.
    if (child->spec.role == ChildRole::kCoordinator) {
      child->process->Kill();
    } else {
      child->process->Signal(SIGTERM);
    }
  }
}

void NodeSupervisor::EnterKilling(absl::Time now) {
  phase_ = Phase::kKilling;
  phase_end_ = now + options_.node.stop_timeout;
  hard_end_ = absl::InfiniteFuture();
  for (const auto& child : children_) {
    if (child->process.has_value()) child->process->Kill();
  }
}

bool NodeSupervisor::AnyRunning(std::optional<ChildRole> role) const {
  return std::any_of(children_.begin(), children_.end(), [role](const auto& child) {
    return child->process.has_value() && (!role.has_value() || child->spec.role == *role);
  });
}

void NodeSupervisor::OnOutput(Child& child) {
  char text[kLineBytesMax];
  for (int reads = 0; reads < kReadsPerEventMax; ++reads) {
    const ssize_t count = ::read(child.process->output_fd(), text, sizeof text);
    if (count <= 0) {
      if (count == 0) {
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, child.process->output_fd(), nullptr);
      }
      return;
    }
    child.line.append(text, static_cast<size_t>(count));
    const size_t end = child.line.rfind('\n');
    if (end != std::string::npos) {
      PassOn(std::string_view(child.line).substr(0, end + 1));
      child.line.erase(0, end + 1);
    } else if (child.line.size() >= kLineBytesMax) {
      PassOn(child.line + "\n");
      child.line.clear();
    }
  }
}

void NodeSupervisor::PassOn(std::string_view text) {
  while (!text.empty()) {
    // A reader that does not read must not stop the supervisor: what does not fit is lost.
    pollfd wait{options_.output_fd, POLLOUT, 0};
    const std::string_view piece = text.substr(0, kLineBytesMax);
    if (::poll(&wait, 1, 0) != 1 || (wait.revents & POLLOUT) == 0 ||
        ::write(options_.output_fd, piece.data(), piece.size()) <= 0) {
      ++lines_lost_;
      return;
    }
    text.remove_prefix(piece.size());
  }
}

void NodeSupervisor::OnLink(Child& child) {
  char text[512];
  while (true) {
    const ssize_t count = ::read(child.process->link_fd(), text, sizeof text);
    if (count == 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, child.process->link_fd(), nullptr);
    if (count <= 0) break;
    child.report.append(text, static_cast<size_t>(count));
    if (child.report.size() > kLineBytesMax) child.report.clear();
  }
  for (size_t end = child.report.find('\n'); end != std::string::npos;
       end = child.report.find('\n')) {
    const std::string line = child.report.substr(0, end);
    child.report.erase(0, end + 1);
    if (line.rfind("ready", 0) == 0) child.was_ready = true;
    if (options_.on_report) options_.on_report(child.spec, line);
  }
}

void NodeSupervisor::CollectEnds(absl::Time now) {
  for (const auto& child : children_) {
    if (!child->process.has_value()) continue;
    const std::optional<ChildEnd> end = child->process->Reap();
    if (!end.has_value()) continue;
    OnOutput(*child);
    OnLink(*child);
    if (!child->line.empty()) PassOn(std::exchange(child->line, "") + "\n");
    child->report.clear();
    if (auto leaf = child->process->TakeLeaf()) ended_.push_back(*std::move(leaf));
    child->process.reset();
    if (!options_.containment->leaves() && !options_.containment->pid_namespaces()) KillAdopted();
    OnEnd(*child, *end, now);
  }
  std::erase_if(ended_, [](const Leaf& leaf) { return leaf.Remove(); });
  // Adopted orphans that ended: known children were reaped above, by their handle.
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    const bool known = std::any_of(children_.begin(), children_.end(), [&info](const auto& child) {
      return child->process.has_value() && child->process->pid() == info.si_pid;
    });
    if (known) break;  // ended since; the next round reaps it
    ::waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG);
    info.si_pid = 0;
  }
}

void NodeSupervisor::OnEnd(Child& child, const ChildEnd& end, absl::Time now) {
  child.start_at = absl::InfiniteFuture();
  child.last_end = EndKind(end);
  if (phase_ != Phase::kRunning && phase_ != Phase::kDraining) return;
  if (phase_ == Phase::kDraining && child.spec.role == ChildRole::kCoordinator) return;
  const bool refused =
      end.signal == 0 &&
      (end.exit_code == kExitUsage || end.exit_code == kExitModel || end.exit_code == kExitConfig);
  if (refused && !child.was_ready) {
    SKEIN_LOG(kError, "child refused to start; a restart would not help")
        .Field("child", child.spec.name)
        .Field("end", end.Describe());
    exit_code_ = end.exit_code;
    EnterStopping(now);
    return;
  }
  if (child.last_end == 3) {  // it was asked to: its successor starts at once and counts nothing
    child.start_at = now;
    SKEIN_LOG(kInfo, "child ended as asked, its successor starts").Field("child", child.spec.name);
    return;
  }
  const RestartPolicy::Decision decision = child.policy.OnExit(now, RandomUint64());
  child.start_at = now + decision.pause;
  SKEIN_LOG(kWarn, decision.failed ? "child failed too often" : "child ended, will be restarted")
      .Field("child", child.spec.name)
      .Field("end", end.Describe())
      .Field("restart_in_s", absl::ToDoubleSeconds(decision.pause));
  if (decision.failed && child.spec.role == ChildRole::kCoordinator) {
    exit_code_ = kExitRestart;  // nothing is served without it: the process manager decides
    EnterStopping(now);
  }
}

void NodeSupervisor::KillAdopted() {
  // As subreaper every orphan of a child becomes ours. The loop ends when a round finds none.
  for (int round = 0; round < 100; ++round) {
    int found = 0;
    DIR* directory = ::opendir("/proc");
    if (directory == nullptr) return;
    while (const dirent* entry = ::readdir(directory)) {
      const std::string name = entry->d_name;
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      if (ParentOf(name) != ::getpid()) continue;
      const int pid = static_cast<int>(std::strtol(name.c_str(), nullptr, 10));
      const bool known = std::any_of(children_.begin(), children_.end(), [pid](const auto& child) {
        return child->process.has_value() && child->process->pid() == pid;
      });
      if (known) continue;
      const Descriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      if (!handle.valid() || ParentOf(name) != ::getpid()) continue;  // the number was reused
      ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0);
      pollfd wait{handle.get(), POLLIN, 0};
      ::poll(&wait, 1, 100);
      siginfo_t info{};
      ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(handle.get()), &info,
               WEXITED | WNOHANG);
      ++found;
    }
    ::closedir(directory);
    if (found == 0) return;
  }
}

uint64_t NodeSupervisor::RandomUint64() {
  uint64_t z = (random_state_ += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace skein::worker
