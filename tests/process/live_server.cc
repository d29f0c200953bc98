// Starts skein, reads what it prints, finds its processes by the name of its directory, which
// stands in the command line of each. Signals go to handles only.
#include "tests/process/live_server.h"

#include <array>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "protocol/base/clock.h"
#include "protocol/base/strings.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;

constexpr std::string_view kReadyLine = "coordinator: ready http://127.0.0.1:";
constexpr char kProgram[] = SKEIN_PROGRAM_DIRECTORY "/skein";

struct Found {
  int pid = 0;
  std::string command;  // arguments separated by spaces
};

// Processes, no zombies, one of whose arguments names something in `directory`; oldest first.
std::vector<Found> FindProcesses(const std::string& directory) {
  std::vector<Found> found;
  DIR* proc = ::opendir("/proc");
  while (const dirent* entry = ::readdir(proc)) {
    const std::string name = entry->d_name;
    int pid = 0;
    if (!absl::SimpleAtoi(name, &pid)) continue;
    std::string command = worker::ReadKernelFile(Concat("/proc/", name, "/cmdline"));
    for (char& c : command) c = c == '\0' ? ' ' : c;
    if (command.find(directory + "/") != std::string::npos) found.push_back({pid, command});
  }
  ::closedir(proc);
  return found;
}

// argv[0] of a command line, without its folder.
std::string_view ProgramOf(std::string_view command) {
  const std::string_view program = command.substr(0, command.find(' '));
  return program.substr(program.rfind('/') + 1);
}

int RemainingMs(absl::Time end) {
  const int64_t left_ms = absl::ToInt64Milliseconds(end - MonotonicNow());
  return static_cast<int>(left_ms < 0 ? 0 : left_ms);
}

size_t Count(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

std::pair<worker::Descriptor, worker::Descriptor> MakePipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {worker::Descriptor(ends[0]), worker::Descriptor(ends[1])};
}

}  // namespace

ProcessHandle::ProcessHandle(int pid)
    : pid_(pid), handle_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

bool ProcessHandle::Signal(int number) const {
  return valid() && ::syscall(SYS_pidfd_send_signal, handle_.get(), number, nullptr, 0) == 0;
}

bool ProcessHandle::WaitForEnd(absl::Duration limit) const {
  pollfd wait{handle_.get(), POLLIN, 0};
  return ::poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) == 1;
}

bool WaitUntil(const std::function<bool()>& done, absl::Duration limit) {
  const absl::Time end = MonotonicNow() + limit;
  while (!done()) {
    if (RemainingMs(end) == 0) return done();
    ::poll(nullptr, 0, 5);
  }
  return true;
}

std::vector<uint16_t> ScrapedPorts(const std::string& output) {
  std::vector<uint16_t> ports;
  size_t at = output.find("of workers: ");
  if (at == std::string::npos) return ports;
  const size_t end = output.find('\n', at);
  for (at = output.find("127.0.0.1:", at); at < end; at = output.find("127.0.0.1:", at + 1)) {
    ports.push_back(static_cast<uint16_t>(std::strtoul(output.c_str() + at + 10, nullptr, 10)));
  }
  return ports;
}

uint16_t FreePort() {
  const worker::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), raw, size) != 0 || ::getsockname(socket.get(), raw, &size) != 0) {
    throw std::runtime_error("no free port");
  }
  return ntohs(address.sin_port);
}

LiveServer::LiveServer(std::string programs)
    : program_(programs.empty() ? std::string(kProgram) : programs + "/skein") {
  char path[] = "/tmp/skein_live_XXXXXX";
  directory_ = ::mkdtemp(path);
}

LiveServer::~LiveServer() {
  if (skein_.valid() && !exit_) {
    skein_.Signal(SIGTERM);
    skein_.Signal(SIGTERM);  // without a drain
    if (WaitForExit(absl::Seconds(10)) == -1000) {
      skein_.Signal(SIGKILL);
      WaitForExit(absl::Seconds(10));
    }
  }
  for (const Found& left : FindProcesses(directory_)) ProcessHandle(left.pid).Signal(SIGKILL);
  if (reader_.joinable()) reader_.join();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void LiveServer::Start(std::vector<std::string> flags) {
  std::vector<std::string> arguments = {program_, "serve", "--run-directory", directory_ + "/run"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  bool names_port = false;
  for (const std::string& flag : flags) names_port |= flag == "--port";
  if (!names_port) arguments.insert(arguments.end(), {"--port", "0"});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  auto [out, out_end] = MakePipe();
  auto [err, err_end] = MakePipe();
  const int parent = ::getpid();
  const int pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // a test that is killed leaves no server behind
    if (::getppid() != parent) ::_exit(127);
    ::dup2(out_end.get(), 1);
    ::dup2(err_end.get(), 2);
    ::execv(program_.c_str(), pointers.data());
    ::_exit(127);
  }
  skein_ = ProcessHandle(pid);
  exit_.reset();
  output_ended_ = false;
  out_ = std::move(out);
  err_ = std::move(err);
  reader_ = std::thread([this] { ReadOutput(); });
}

bool LiveServer::StartReady(std::vector<std::string> flags) {
  Start(std::move(flags));
  return WaitForOutput(kReadyLine) && WaitForHealth(200);
}

protocol::HttpResult LiveServer::Admin(const std::string& method, const std::string& target,
                                       const std::string& body) const {
  constexpr std::string_view kServed = "msg=\"operators are served\" address=unix:";
  const std::string text = output();
  const size_t at = text.rfind(kServed);
  if (at == std::string::npos) return {};
  protocol::HttpCall call;
  call.unix_path = text.substr(at + kServed.size(), text.find('\n', at) - at - kServed.size());
  call.method = method;
  call.target = target;
  call.body = body;
  const auto result = protocol::CallHttp(call);
  return result.ok() ? *result : protocol::HttpResult{};
}

bool LiveServer::WaitForStatus(std::string_view text) const {
  return WaitUntil(
      [&] { return Admin("GET", "/admin/status").body.find(text) != std::string::npos; });
}

void LiveServer::ReadOutput() {
  std::array<pollfd, 2> waits{{{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}}};
  while (waits[0].fd >= 0 || waits[1].fd >= 0) {
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;
    for (pollfd& wait : waits) {
      if (wait.fd < 0 || wait.revents == 0) continue;
      std::array<char, 4096> text{};
      const ssize_t count = ::read(wait.fd, text.data(), text.size());
      const std::lock_guard lock(mutex_);
      if (count > 0) {
        output_.append(text.data(), static_cast<size_t>(count));
        if (wait.fd == err_.get()) errors_.append(text.data(), static_cast<size_t>(count));
      } else if (count == 0) {
        wait.fd = -1;
      }
    }
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  output_ended_ = true;
  changed_.notify_all();
}

bool LiveServer::WaitForOutput(std::string_view text, int times) {
  const auto holds = [&] { return Count(output_, text) >= static_cast<size_t>(times); };
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(kLimit),
                    [&] { return holds() || output_ended_; });
  return holds();
}

std::string LiveServer::output() const {
  const std::lock_guard lock(mutex_);
  return output_;
}

std::string LiveServer::errors() const {
  const std::lock_guard lock(mutex_);
  return errors_;
}

uint16_t LiveServer::port() const {
  const std::string text = output();
  const size_t at = text.rfind(kReadyLine);
  if (at == std::string::npos) return 0;
  return static_cast<uint16_t>(std::strtoul(text.c_str() + at + kReadyLine.size(), nullptr, 10));
}

bool LiveServer::WaitForHealth(int status, std::string_view text) {
  protocol::HttpCall call;
  call.target = "/health";
  return WaitUntil([&] {
    call.port = port();
    const auto result = protocol::CallHttp(call);
    return result.ok() && result->status == status && result->body.find(text) != std::string::npos;
  });
}

double LiveServer::Metric(std::string_view name) const {
  protocol::HttpCall call;
  call.port = port();
  call.target = "/metrics";
  const auto result = protocol::CallHttp(call);
  if (!result.ok()) return -1;
  double sum = -1;
  std::string_view label;
  if (const size_t brace = name.find('{'); brace != std::string_view::npos) {
    label = name.substr(brace + 1, name.size() - brace - 2);
    name = name.substr(0, brace);
  }
  std::string_view rest = result->body;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.size() <= name.size() || !line.starts_with(name)) continue;
    if (line[name.size()] != '{' && line[name.size()] != ' ') continue;
    if (line.find(label) == std::string_view::npos) continue;
    const double value = std::strtod(std::string(line.substr(line.rfind(' '))).c_str(), nullptr);
    sum = sum < 0 ? value : sum + value;
  }
  return sum;
}

bool LiveServer::WaitForMetric(std::string_view name, double value) const {
  return WaitUntil([&] { return Metric(name) == value; });
}

ProcessHandle LiveServer::Find(std::string_view program, std::string_view argument) const {
  for (const Found& process : FindProcesses(directory_)) {
    if (ProgramOf(process.command) != program) continue;
    if (argument.empty() || process.command.find(Concat(" ", argument, " ")) != std::string::npos) {
      return ProcessHandle(process.pid);
    }
  }
  return ProcessHandle();
}

std::vector<std::string> LiveServer::Alive() const {
  std::vector<std::string> commands;
  for (const Found& process : FindProcesses(directory_)) commands.push_back(process.command);
  return commands;
}

int LiveServer::WaitForExit(absl::Duration limit) {
  if (!exit_ && skein_.WaitForEnd(limit)) {
    int status = 0;
    ::waitpid(skein_.pid(), &status, 0);
    exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (reader_.joinable()) reader_.join();  // what is still in the pipes
  }
  return exit_.value_or(-1000);
}

}  // namespace skein::tests
