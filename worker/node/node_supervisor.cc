// The supervisor's loop. Every wait is epoll_wait with a deadline; no path signals a name or a
// number, only process handles.
#include "worker/node/node_supervisor.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "protocol/base/clock.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "worker/node/adopted_children.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;

constexpr uint64_t kSignalsKey = ~uint64_t{0};
constexpr size_t kReportBytesMax = 4096;
constexpr absl::Duration kCountersEvery = absl::Seconds(5);
constexpr absl::Duration kLeafRetry = absl::Milliseconds(20);
constexpr absl::Duration kAdoptedMax = absl::Seconds(2);

// Floor of the counters: larger than anything an earlier supervisor of this boot gave out.
uint64_t BootTimeFloor(ChildRole role) {
  // A term stays below 2^32, because attempts carry it in their upper half.
  if (role == ChildRole::kCoordinator) return protocol::SecondsSinceBoot();
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Another start of the same program would not help.
bool IsRefusal(const ChildEnd& end) {
  return end.signal == 0 &&
         (end.exit_code == protocol::kExitUsage || end.exit_code == protocol::kExitModel ||
          end.exit_code == protocol::kExitConfig);
}

// The lines before the series of a counter.
std::string CounterHead(std::string_view name, std::string_view help) {
  return Concat("# HELP ", name, " ", help, "\n# TYPE ", name, " counter\n");
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeSupervisor>> NodeSupervisor::Create(SupervisorOptions options) {
  std::unique_ptr<NodeSupervisor> supervisor(new NodeSupervisor(std::move(options)));
  SKEIN_RETURN_IF_ERROR(supervisor->OpenEvents());
  return supervisor;
}

NodeSupervisor::NodeSupervisor(SupervisorOptions options) : options_(std::move(options)) {
  SKEIN_CHECK(options_.containment != nullptr) << "a supervisor needs its containment";
  LineOutput& output = options_.output != nullptr ? *options_.output : standard_error_;
  for (const ChildSpec& spec : options_.children) {
    children_.push_back(std::make_unique<Child>(spec, options_.node, output));
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
    EndOverdue(now);
    EndHung(now);
    AdvancePhase(now);
    TickSigns(now);
    if (abandoned_ || (phase_ != Phase::kRunning && !AnyRunning(std::nullopt))) break;
    WaitForEvents(now);
  }
  EndAdopted([this](int pid) { return IsOwnChild(pid); });
  // Leaves empty within milliseconds of a kill; what remains is swept by the next start.
  for (int tries = 0; tries < 50 && !ended_.empty(); ++tries) {
    std::erase_if(ended_, [](const Leaf& leaf) { return leaf.Remove(); });
    if (!ended_.empty()) ::poll(nullptr, 0, 2);
  }
  return exit_code_;
}

void NodeSupervisor::StartDue(absl::Time now) {
  // The predecessor's leftovers hold what it held.
  if (adopted_until_ != absl::InfinitePast()) return;
  for (const auto& child : children_) {
    // A start that fails for good may have changed the phase.
    if (phase_ != Phase::kRunning && phase_ != Phase::kDraining) return;
    if (child->process.has_value() || child->start_at > now) continue;
    // The coordinator drains once: what ended while draining is not started again.
    if (phase_ == Phase::kDraining && child->spec.role == ChildRole::kCoordinator) continue;
    StartChild(*child, now);
  }
}

absl::StatusOr<uint64_t> NodeSupervisor::NextCounter(const Child& child) const {
  const uint64_t floor = std::max(child.counter + 1, BootTimeFloor(child.spec.role));
  if (child.spec.role == ChildRole::kWorker || options_.terms == nullptr) return floor;
  return options_.terms->Next(floor);
}

ChildStart NodeSupervisor::MakeStart(const Child& child) const {
  const bool coordinator = child.spec.role == ChildRole::kCoordinator;
  ChildStart start;
  start.leaf_name = Concat(child.spec.name, ".", child.counter);
  start.program = child.spec.program;
  start.program_fd = child.program.fd();
  start.arguments = child.spec.arguments;
  start.arguments.push_back(Concat("--supervisor-fd=", kSupervisorFd));
  start.arguments.push_back(Concat(coordinator ? "--term=" : "--incarnation=", child.counter));
  if (!coordinator) {
    start.arguments.push_back(Concat("--predecessor-end=", static_cast<int>(child.last_end)));
  }
  if (coordinator && options_.listener.valid()) {
    start.listen_fd = options_.listener.get();
    start.arguments.push_back(Concat("--listen-fd=", kListenFd));
  }
  if (child.spec.metrics_fd >= 0) {
    start.listen_fd = child.spec.metrics_fd;
    start.arguments.push_back(Concat("--metrics-fd=", kListenFd));
  }
  start.own_pid_namespace = !coordinator;
  start.processors = child.spec.processors;
  start.lock_fd = child.spec.lock_fd;
  return start;
}

absl::Status NodeSupervisor::TryStart(Child& child) {
  SKEIN_ASSIGN_OR_RETURN(child.counter, NextCounter(child));
  child.program.Look(child.spec.program);
  SKEIN_ASSIGN_OR_RETURN(child.process,
                         ChildProcess::Start(MakeStart(child), *options_.containment));
  return absl::OkStatus();
}

void NodeSupervisor::StartChild(Child& child, absl::Time now) {
  child.is_ready = false;
  child.overdue = false;
  child.hung = false;
  if (const absl::Status started = TryStart(child); !started.ok()) {
    SKEIN_LOG(kError, "child not started")
        .Field("child", child.spec.name)
        .Field("reason", protocol::StatusText(started));
    ChildEnd end;
    end.exit_code =
        absl::IsFailedPrecondition(started) ? protocol::kExitConfig : protocol::kExitRestart;
    OnEnd(child, end, now);
    return;
  }
  child.trial_end =
      child.program.on_trial() ? now + options_.start_timeout : absl::InfiniteFuture();
  child.pulse.Restart(now);
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
      .Field(child.spec.role == ChildRole::kCoordinator ? "term" : "incarnation", child.counter);
}

absl::Time NodeSupervisor::NextDeadline() const {
  absl::Time next = std::min(phase_end_, hard_end_);
  for (const auto& child : children_) {
    next =
        std::min(next, child->process.has_value() ? std::min(child->trial_end, child->pulse.next())
                                                  : child->start_at);
    next = std::min(next, child->output.settle_at());
  }
  if (options_.life != nullptr) next = std::min(next, options_.life->next());
  if (options_.output != nullptr) next = std::min(next, options_.output->next());
  if (!options_.counters_path.empty()) next = std::min(next, counters_at_);
  if (!ended_.empty() || adopted_until_ != absl::InfinitePast()) {
    next = std::min(next, MonotonicNow() + kLeafRetry);
  }
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
    OnOutput(child, now);
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
      .Field("timeout_s", absl::ToDoubleSeconds(options_.drain_timeout))
      .Field("all_ended_within_s", absl::ToDoubleSeconds(hard_end_ - now));
  if (options_.life != nullptr) options_.life->Stopping();
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
  options_.listener.Close();  // no coordinator will come: clients are refused, not left waiting
  if (options_.life != nullptr) options_.life->Stopping();
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
  options_.listener.Close();
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

void NodeSupervisor::OnOutput(Child& child, absl::Time now) {
  if (!child.output.Read(child.process->output_fd(), now)) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, child.process->output_fd(), nullptr);
  }
}

void NodeSupervisor::OnLink(Child& child) {
  char text[512];
  while (true) {
    const ssize_t count = ::read(child.process->link_fd(), text, sizeof text);
    if (count == 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, child.process->link_fd(), nullptr);
    if (count <= 0) break;
    child.report.append(text, static_cast<size_t>(count));
    if (child.report.size() > kReportBytesMax) child.report.clear();
  }
  for (size_t end = child.report.find('\n'); end != std::string::npos;
       end = child.report.find('\n')) {
    const std::string line = child.report.substr(0, end);
    child.report.erase(0, end + 1);
    OnLine(child, line);
  }
}

void NodeSupervisor::OnLine(Child& child, const std::string& line) {
  constexpr std::string_view kProgress = "progress ";
  if (line == "alive") {
    child.pulse.OnAnswer();
    return;
  }
  // Says nothing of the program yet: it may hang in what it began.
  if (line.rfind(kProgress, 0) == 0) {
    std::string_view phase;
    int percent = 0;
    if (options_.bar != nullptr &&
        ReadProgress(std::string_view(line).substr(kProgress.size()), phase, percent)) {
      options_.bar->Update(child.spec.name, phase, percent, MonotonicNow());
    }
    return;
  }
  child.trial_end = absl::InfiniteFuture();
  if (line.rfind("ready", 0) == 0) OnReady(child);
  if (options_.on_report) options_.on_report(child.spec, line);
}

void NodeSupervisor::OnReady(Child& child) {
  child.was_ready = true;
  child.is_ready = true;
  if (options_.bar != nullptr) options_.bar->Done(child.spec.name);
  child.program.OnReady();
  if (options_.life == nullptr) return;
  const bool coordinator = child.spec.role == ChildRole::kCoordinator;
  const bool all = std::all_of(children_.begin(), children_.end(), [](const auto& other) {
    return other->is_ready || other->spec.role == ChildRole::kCoordinator;
  });
  if (coordinator && options_.listener.valid()) {
    options_.life->ChildrenReady(options_.listener.get(), MonotonicNow());
  } else if (!options_.listener.valid() && all) {
    options_.life->ChildrenReady(-1, MonotonicNow());
  }
}

// Programs on trial that hang before their first word.
void NodeSupervisor::EndOverdue(absl::Time now) {
  for (const auto& child : children_) {
    if (!child->process.has_value() || now < child->trial_end) continue;
    SKEIN_LOG(kError, "the new program says nothing and is ended")
        .Field("child", child->spec.name)
        .Field("after_s", absl::ToDoubleSeconds(options_.start_timeout));
    child->trial_end = absl::InfiniteFuture();
    child->overdue = true;
    child->process->Kill();
  }
}

// Children that answer no more: stopped, or with a loop that stands still. Their requests moved
// when the lease ended; what is missing is the process.
void NodeSupervisor::EndHung(absl::Time now) {
  for (const auto& child : children_) {
    if (!child->process.has_value()) continue;
    const int pid = child->process->pid();
    if (!child->pulse.Ask(child->process->link_fd(), pid, now)) continue;
    SKEIN_LOG(kError, "child answers no more and is killed")
        .Field("child", child->spec.name)
        .Field("pid", pid)
        .Field("reason", WhySilent(pid))
        .Field("hang_timeout_s", absl::ToDoubleSeconds(options_.node.hang_timeout));
    child->hung = IsOwnHang(pid);
    child->overdue = child->hung && child->program.on_trial();
    child->process->Kill();
  }
}

// A child that failed too often waits for minutes. Another program is not guilty of that.
void NodeSupervisor::RetryReplaced(absl::Time now) {
  for (const auto& child : children_) {
    if (phase_ != Phase::kRunning || child->process.has_value()) continue;
    if (child->start_at <= now + options_.node.backoff_max) continue;
    if (!child->program.IsReplaced(child->spec.program)) continue;
    SKEIN_LOG(kInfo, "another program was installed, it is started at once")
        .Field("child", child->spec.name);
    child->policy = RestartPolicy(options_.node);
    child->start_at = now;
  }
}

void NodeSupervisor::CollectEnds(absl::Time now) {
  for (const auto& child : children_) {
    if (!child->process.has_value()) continue;
    const bool counts_ooms = child->process->CountsOoms();
    std::optional<ChildEnd> end = child->process->Reap();
    if (!end.has_value()) continue;
    if (end->signal == SIGKILL && !counts_ooms) end->oom_above = oom_.TakeKill();
    OnOutput(*child, now);
    OnLink(*child);
    child->output.End(now);
    child->report.clear();
    if (auto leaf = child->process->TakeLeaf()) ended_.push_back(*std::move(leaf));
    child->process.reset();
    if (options_.containment->rung() == 3) adopted_until_ = now + kAdoptedMax;
    OnEnd(*child, *end, now);
  }
  std::erase_if(ended_, [](const Leaf& leaf) { return leaf.Remove(); });
  ReapAdopted([this](int pid) { return IsOwnChild(pid); });
  EndLeftovers(now);
}

// Without a namespace and a leaf, what a dead child left comes to us. Rounds of the loop, none of
// which waits: children that live go on being served.
void NodeSupervisor::EndLeftovers(absl::Time now) {
  if (adopted_until_ == absl::InfinitePast()) return;
  if (KillAdopted([this](int pid) { return IsOwnChild(pid); }) == 0) {
    adopted_until_ = absl::InfinitePast();
  } else if (now >= adopted_until_) {
    SKEIN_LOG(kError, "what a dead child left does not end; leaving it to the kernel");
    adopted_until_ = absl::InfinitePast();
  }
}

void NodeSupervisor::OnEnd(Child& child, const ChildEnd& end, absl::Time now) {
  child.start_at = absl::InfiniteFuture();
  if (options_.bar != nullptr) options_.bar->Done(child.spec.name);
  child.last_end = child.overdue || child.hung ? PredecessorEnd::kOwn : JudgeEnd(end);
  WriteCounters();
  if (phase_ != Phase::kRunning && phase_ != Phase::kDraining) return;
  if (phase_ == Phase::kDraining && child.spec.role == ChildRole::kCoordinator) return;
  if (GoBack(child, end, now)) return;
  if (IsRefusal(end) && !child.was_ready) {
    SKEIN_LOG(kError, "child refused to start; a restart would not help")
        .Field("child", child.spec.name)
        .Field("end", end.Describe());
    exit_code_ = end.exit_code;
    EnterStopping(now);
    return;
  }
  Restart(child, end, now);
}

// A program that was put in the place of another and does not work gives way to that one: when it
// refuses to start or is refused, when it hangs, and when it ends twice by itself, with whatever
// code, before it is ready.
bool NodeSupervisor::GoBack(Child& child, const ChildEnd& end, absl::Time now) {
  const bool failed = !child.is_ready && (child.last_end == PredecessorEnd::kOwn ||
                                          child.last_end == PredecessorEnd::kOrdered);
  const bool goes_back = IsRefusal(end) || child.overdue ? child.program.GoBack()
                         : failed                        ? child.program.OnFailedStart()
                                                         : false;
  if (!goes_back) return false;
  // So the coordinator hears of a failed start, not of an end in order: its rollout halts.
  child.last_end = PredecessorEnd::kOwn;
  SKEIN_LOG(kError, "the new program does not work, the one before it is started again")
      .Field("child", child.spec.name)
      .Field("end", end.Describe());
  ++child.restarts;
  child.start_at = now;
  return true;
}

void NodeSupervisor::Restart(Child& child, const ChildEnd& end, absl::Time now) {
  ++child.restarts;
  // One that ends in order without ever being ready could do so again and again: it counts.
  if (child.last_end == PredecessorEnd::kOrdered && child.is_ready) {
    child.program.OnOrderedEnd();
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
    exit_code_ =
        protocol::kExitRestart;  // nothing is served without it: the process manager decides
    EnterStopping(now);
  }
}

bool NodeSupervisor::IsOwnChild(int pid) const {
  return std::any_of(children_.begin(), children_.end(), [pid](const auto& child) {
    return child->process.has_value() && child->process->pid() == pid;
  });
}

void NodeSupervisor::TickSigns(absl::Time now) {
  for (const auto& child : children_) child->output.Settle(now);
  if (options_.output != nullptr) options_.output->Tick(now);
  if (options_.life != nullptr) options_.life->Tick(now);
  if (now < counters_at_) return;
  counters_at_ = now + kCountersEvery;
  RetryReplaced(now);
  oom_.TakeKill();  // of a helper: it explains no end of a child that comes later
  WriteCounters();
}

void NodeSupervisor::WriteCounters() {
  if (options_.counters_path.empty()) return;
  const uint64_t lost = options_.output != nullptr ? options_.output->lines_lost() : 0;
  std::string text = options_.features;
  text += CounterHead("skein_orphans_swept_total",
                      "Processes and files of earlier runs that this start removed. Any: find out "
                      "what ended that run's supervisor.");
  text += Concat("skein_orphans_swept_total ", options_.orphans_swept, "\n");
  text += CounterHead("skein_log_lines_lost_total",
                      "Log lines that could not be written: the disk is full or too slow.");
  text += Concat("skein_log_lines_lost_total ", lost, "\n");
  text += CounterHead("skein_child_restarts_total",
                      "Starts of a child after its first, by child. Rising: read its last lines.");
  for (const auto& child : children_) {
    text += Concat("skein_child_restarts_total{child=\"", child->spec.name, "\"} ", child->restarts,
                   "\n");
  }
  text += CounterHead("skein_child_lines_suppressed_total",
                      "Log lines of a child that its rate limit held back.");
  for (const auto& child : children_) {
    text += Concat("skein_child_lines_suppressed_total{child=\"", child->spec.name, "\"} ",
                   child->output.lines_suppressed(), "\n");
  }
  const std::string next = options_.counters_path + ".next";
  const Descriptor file(
      ::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid() ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return;  // the disk is full: the old numbers stay
  }
  ::rename(next.c_str(), options_.counters_path.c_str());
}

uint64_t NodeSupervisor::RandomUint64() {
  uint64_t z = (random_state_ += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace skein::worker
