#include "tests/accept/child_program.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/http/http_client.h"

namespace skein::tests {
namespace {

int Spawn(std::vector<std::string> arguments, const std::string& output_file) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const int parent = ::getpid();
  const int pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  const int out = ::open(output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(out, 1);
  ::dup2(out, 2);
  ::execvp(pointers[0], pointers.data());
  ::_exit(127);
}

}  // namespace

ChildProgram::ChildProgram(const std::vector<std::string>& arguments, std::string output_file)
    : output_file_(std::move(output_file)), process_(Spawn(arguments, output_file_)) {
  if (!process_.valid()) throw std::runtime_error("cannot start " + arguments[0]);
}

ChildProgram::~ChildProgram() {
  process_.Signal(SIGKILL);
  ::waitpid(process_.pid(), nullptr, 0);
}

std::string ChildProgram::output() const {
  std::ostringstream text;
  text << std::ifstream(output_file_).rdbuf();
  return text.str();
}

int RunCommand(const std::vector<std::string>& arguments) {
  const int pid = Spawn(arguments, "/dev/null");
  int status = 0;
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

double MetricAt(uint16_t port, std::string_view name, std::string_view labels) {
  protocol::HttpCall call;
  call.port = port;
  call.target = "/metrics";
  const auto result = protocol::CallHttp(call);
  if (!result.ok()) return -1;
  double sum = 0;
  std::istringstream lines(result->body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name) || line.size() <= name.size()) continue;
    if (line[name.size()] != '{' && line[name.size()] != ' ') continue;
    if (line.find(labels) == std::string::npos) continue;
    sum += std::strtod(line.c_str() + line.rfind(' '), nullptr);
  }
  return sum;
}

}  // namespace skein::tests
