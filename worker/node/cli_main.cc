// skein: the command line. Chooses the command; each command is elsewhere.
// Main thread, no other. Must never know a device or a socket of the cluster.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "protocol/base/exit_codes.h"
#include "protocol/base/strings.h"
#include "protocol/config/config.h"
#include "worker/node/commands/bench.h"
#include "worker/node/commands/cluster.h"
#include "worker/node/commands/doctor.h"
#include "worker/node/commands/serve.h"
#include "worker/node/commands/top.h"
#include "worker/node/commands/whoholds.h"
#include "worker/node/node_supervisor.h"

namespace skein::worker {
namespace {

constexpr char kUsage[] =
    "usage: skein COMMAND [FLAGS]\n"
    "  serve [MODEL]  one node: supervisor, coordinator and worker; without MODEL the demo model\n"
    "  coordinator    run skein-coordinator\n"
    "  worker         run skein-worker\n"
    "  node           run skein-node, the supervisor of one node's workers\n"
    "  status         show groups, workers, queues and the rolling restart\n"
    "  top            the same and what it does per second, again and again\n"
    "  drain          let no new request into a group or the cluster\n"
    "  rollout        replace the workers group by group while the cluster serves\n"
    "  keygen FILE    make a key pair for control endpoints on tcp; print its public key\n"
    "  keygen --api ID  make an API key of a client; print it and its entry in the file of keys\n"
    "  doctor         probe what a start would find on this host: feature, state, reason, fix\n"
    "  whoholds       say which processes hold each GPU\n"
    "  bench          load a server over HTTP; print latencies, throughput and goodput\n"
    "  config         print the effective configuration with origins and hash\n"
    "  version        print the version\n"
    "skein COMMAND --help lists the flags.\n";

bool AsksForHelp(std::span<const std::string> arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") return true;
  }
  return false;
}

// Becomes the program `name` beside this one.
int Become(std::string_view name, const ProgramPaths& paths,
           std::span<const std::string> arguments) {
  const std::string program = protocol::Concat(paths.directory, "/", name);
  std::vector<char*> pointers = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) {
    pointers.push_back(const_cast<char*>(argument.c_str()));
  }
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  std::fprintf(stderr, "skein: cannot run %s: %s; install it beside skein\n", program.c_str(),
               std::strerror(errno));
  return protocol::kExitInternal;
}

int PrintConfig(std::span<const std::string> arguments) {
  protocol::LoadOptions options;
  options.allow_auto_backend = true;
  options.positional_max = 1;
  const auto loaded = protocol::LoadConfig(arguments, options);
  if (!loaded.ok()) {
    std::fprintf(stderr, "skein: %s\n", std::string(protocol::StatusText(loaded.status())).c_str());
    return protocol::ConfigExitCode(loaded.status());
  }
  std::fputs(protocol::ConfigDump(*loaded).c_str(), stdout);
  return protocol::kExitOk;
}

int RunCommand(std::string_view command, std::span<const std::string> arguments) {
  const ProgramPaths paths = OwnPaths();
  if (command == "coordinator" || command == "worker" || command == "node") {
    return Become(protocol::Concat("skein-", command), paths, arguments);
  }
  if (command == "keygen") {
    // The supervisor's programs have no ZeroMQ; the coordinator has.
    std::vector<std::string> passed = {"keygen"};
    passed.insert(passed.end(), arguments.begin(), arguments.end());
    return Become("skein-coordinator", paths, passed);
  }
  const bool is_version = command == "version" || command == "--version";
  const bool is_help = command == "help" || command == "--help" || command == "-h";
  if ((is_version || is_help) && !arguments.empty() && !AsksForHelp(arguments)) {
    std::fprintf(stderr, "skein: %s takes no arguments, \"%s\" was given; leave it out\n",
                 std::string(command).c_str(), arguments.front().c_str());
    return protocol::kExitUsage;
  }
  if (is_version) {
    std::printf("skein %s, backends %s\n", std::string(paths.version).c_str(),
                std::string(paths.built_backends).c_str());
    return protocol::kExitOk;
  }
  if (is_help) {
    std::fputs(kUsage, stdout);
    return protocol::kExitOk;
  }
  if (command == "status") return RunStatus(arguments);
  if (command == "top") return RunTop(arguments);
  if (command == "drain") return RunDrain(arguments);
  if (command == "rollout") return RunRollout(arguments);
  if (command == "doctor") return RunDoctor(arguments, paths);
  if (command == "whoholds") return RunWhoholds(arguments);
  if (command == "bench") return RunBench(arguments);
  if (command != "serve" && command != "config") {
    std::fprintf(stderr, "skein: \"%s\" is no command\n%s", std::string(command).c_str(), kUsage);
    return protocol::kExitUsage;
  }
  if (AsksForHelp(arguments)) {
    std::printf("%s\nflags of serve and config:\n%s", kUsage, protocol::ConfigHelp().c_str());
    return protocol::kExitOk;
  }
  return command == "serve" ? RunServe(arguments, paths) : PrintConfig(arguments);
}

}  // namespace
}  // namespace skein::worker

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs(skein::worker::kUsage, stderr);
    return skein::protocol::kExitUsage;
  }
  std::vector<std::string> arguments = skein::protocol::TakeArguments(argc, argv);
  arguments.erase(arguments.begin());
  return skein::worker::RunCommand(argv[1], arguments);
}
