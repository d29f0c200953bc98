// fork, affinity, exec; readiness over the socket; CPU time and memory from /proc.
// Thread: main's. Must never leave a process behind.
#include "tests/bench/bench_process.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"

namespace skein::bench {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;

constexpr int kChildSocket = 3;

// The number behind `key` in a file of "key: value" lines.
double FieldOf(const std::string& text, std::string_view key) {
  const size_t at = text.find(key);
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + key.size(), nullptr);
}

}  // namespace

void PinToCore(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

absl::StatusOr<BenchProcess> BenchProcess::Start(const Spec& spec) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return absl::InternalError(Concat("socketpair: ", std::strerror(errno)));
  }
  worker::Descriptor ours(ends[0]);
  const worker::Descriptor theirs(ends[1]);
  std::vector<std::string> arguments = {spec.program};
  arguments.insert(arguments.end(), spec.arguments.begin(), spec.arguments.end());
  arguments.insert(arguments.end(), {"--supervisor-fd", std::to_string(kChildSocket)});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const int pid = ::fork();
  if (pid < 0) return absl::InternalError(Concat("fork: ", std::strerror(errno)));
  if (pid == 0) {
    if (spec.core >= 0) PinToCore(spec.core);
    if (theirs.get() == kChildSocket) ::fcntl(kChildSocket, F_SETFD, 0);
    ::dup2(theirs.get(), kChildSocket);
    ::execv(spec.program.c_str(), pointers.data());
    ::_exit(127);
  }
  return BenchProcess(pid, std::move(ours));
}

BenchProcess::BenchProcess(BenchProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), socket_(std::move(other.socket_)) {}

BenchProcess::~BenchProcess() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);  // a child that was not reaped: the number is still its own
  ::waitpid(pid_, nullptr, 0);
}

absl::StatusOr<std::string> BenchProcess::WaitReady(absl::Duration limit) {
  const absl::Time end = MonotonicNow() + limit;
  std::string text;
  for (;;) {
    const auto left = absl::ToInt64Milliseconds(end - MonotonicNow());
    pollfd wait{socket_.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&wait, 1, static_cast<int>(left)) == 0) {
      return absl::DeadlineExceededError(Concat("process ", pid_, " did not become ready"));
    }
    std::array<char, 512> piece{};
    const ssize_t size = ::read(socket_.get(), piece.data(), piece.size());
    if (size <= 0) return absl::UnavailableError(Concat("process ", pid_, " ended at its start"));
    text.append(piece.data(), static_cast<size_t>(size));
    const size_t ready = text.find("ready");
    const size_t line_end = text.find('\n', ready == std::string::npos ? text.size() : ready);
    if (line_end == std::string::npos) continue;
    const size_t value = ready + 6;
    return value >= line_end ? std::string() : text.substr(value, line_end - value);
  }
}

double BenchProcess::CpuSeconds() const {
  const std::string stat = worker::ReadKernelFile(Concat("/proc/", pid_, "/stat"));
  const size_t end = stat.rfind(") ");
  if (end == std::string::npos) return 0;
  // utime and stime are fields 14 and 15; the text begins at field 3.
  size_t at = end + 2;
  for (int field = 3; field < 14; ++field) at = stat.find(' ', at) + 1;
  char* rest = nullptr;
  const double user = std::strtod(stat.c_str() + at, &rest);
  return (user + std::strtod(rest, nullptr)) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double BenchProcess::ResidentMib() const {
  return FieldOf(worker::ReadKernelFile(Concat("/proc/", pid_, "/status")), "VmRSS:") / 1024;
}

}  // namespace skein::bench
