// `skein serve` and `skein-node`: from flags to the processes of one node. Everything is resolved
// here, model, backend, endpoints, and the children get it as one generated file.
// Main thread of the process. Must never start a process before the whole configuration is right.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/config/config.h"
#include "worker/node/backend_choice.h"
#include "worker/node/containment.h"

namespace skein::worker {

// What the programs know about themselves.
struct ProgramPaths {
  std::string directory;                  // of the running program
  std::string device_directory = "/dev";  // where GPU device nodes would be
  std::string_view built_backends;        // comma-separated
  std::string_view version;
};

// A configuration with every "auto" and default replaced.
struct ServePlan {
  protocol::Config config;
  bool embedded_model = false;
  BackendChoice backend;
  // By worker: the processors it may run on; empty: any.
  std::vector<std::vector<int>> processors;
};

// The model is the argument, --model, or the demo model beside the program. NotFound when its
// directory holds no config.json, FailedPrecondition for a backend that is not in the build.
absl::StatusOr<ServePlan> ResolveServe(const protocol::LoadedConfig& loaded,
                                       const ProgramPaths& paths);

// What holds children, as far as the kernel gives it and features.* want it.
std::unique_ptr<Containment> ProbeContainment(const protocol::Config& config);

// What a start found out, for its table.
struct StartFacts {
  std::string containment;
  std::string features;
  std::string run_directory;
  int64_t port = 0;     // that the API has
  std::string scraped;  // addresses at which workers are scraped; empty: nowhere
};

// The table that is printed before the processes start.
std::string StartTable(const ServePlan& plan, const ProgramPaths& paths, const StartFacts& facts);

// How long a stop takes at most, from the first signal until everything has ended.
absl::Duration StopBudget(const protocol::Config& config);

// Whole commands; the result is the exit code of the program.
int RunServe(std::span<const std::string> arguments, const ProgramPaths& paths);
int RunNode(std::span<const std::string> arguments, const ProgramPaths& paths);

// ProgramPaths of the running program.
ProgramPaths OwnPaths();

}  // namespace skein::worker
