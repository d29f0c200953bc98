// Stands for skein-coordinator and skein-worker in process tests: the same guard, signal watch and
// flags, and a behaviour read from the file `<program name>.behavior` beside it, one word a line:
//   helpers     starts one helper that left the session and one that is stopped
//   ignore_term does not end on TERM
//   exit=N      ends at once with this code
//   crash       ends by SIGKILL to itself once it is ready
#include <climits>
#include <cstdio>
#include <fstream>
#include <future>
#include <set>
#include <string>
#include <vector>

#include <signal.h>
#include <unistd.h>

#include "protocol/base/parent_guard.h"
#include "protocol/base/signal_watch.h"
#include "protocol/config/config.h"

namespace {

std::string OwnPath() {
  char text[PATH_MAX] = {};
  const ssize_t size = ::readlink("/proc/self/exe", text, sizeof text - 1);
  return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
}

std::set<std::string> ReadBehavior(const std::string& program) {
  std::set<std::string> words;
  std::ifstream file(program + ".behavior");
  for (std::string word; file >> word;) words.insert(word);
  return words;
}

void StartHelpers() {
  if (::fork() == 0) {
    ::setsid();
    while (true) ::pause();
  }
  if (::fork() == 0) {
    ::setsid();
    ::raise(SIGSTOP);
    while (true) ::pause();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string program = OwnPath();
  const std::set<std::string> behavior = ReadBehavior(program);
  for (const std::string& word : behavior) {
    if (word.rfind("exit=", 0) == 0) return static_cast<int>(std::strtol(&word[5], nullptr, 10));
  }
  const bool coordinator = program.find("coordinator") != std::string::npos;
  skein::protocol::LoadOptions options;
  options.required = {"model.path", "transport.control_endpoint"};
  options.program_flags = {"supervisor-fd", coordinator ? "term" : "incarnation"};
  for (const char* flag : {"worker-index", "predecessor-end"}) {
    if (!coordinator) options.program_flags.push_back(flag);
  }
  if (coordinator) options.program_flags.push_back("listen-fd");
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto loaded = skein::protocol::LoadConfig(arguments, options);
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
    return 78;
  }
  if (behavior.contains("helpers")) StartHelpers();
  std::promise<void> stop;
  auto watch = skein::protocol::SignalWatch::Create([&](int count) {
    if (count == 1 && !behavior.contains("ignore_term")) stop.set_value();
  });
  auto guard =
      skein::protocol::ParentGuard::Create(static_cast<int>(loaded->FlagOr("supervisor-fd", -1)));
  if (!watch.ok() || !guard.ok()) return 70;
  std::printf("%s pid=%d started\n", coordinator ? "coordinator" : "worker", ::getpid());
  std::fflush(stdout);
  (*guard)->Report(coordinator ? "ready coordinator" : "ready worker");
  if (behavior.contains("crash")) ::kill(::getpid(), SIGKILL);
  if (behavior.contains("crash")) ::abort();  // an init does not die of its own SIGKILL
  stop.get_future().wait();
  std::printf("%s stopped in order\n", coordinator ? "coordinator" : "worker");
  std::fflush(stdout);
  return 0;
}
