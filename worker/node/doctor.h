// The probes of a start: what the host has, what it lacks, what is used instead and how to get it
// (reliability.md 7). The same list is printed by `skein doctor` and judged by `skein serve`.
// Supervisor's thread, before any child. Must never open a device or change anything that outlasts
// the call: directories are tried by a file that is gone again.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "protocol/base/term_file.h"
#include "protocol/config/config.h"
#include "worker/node/containment.h"
#include "worker/node/who_holds.h"

namespace skein::worker {

enum class FeatureState {
  kOk,
  kDegraded,  // missing; the alternative in `reason` is used
  kUnused,    // missing or off, and nothing of this configuration needs it
  kFailed,    // nothing can be started like this
};
// "ok", "degraded", "unused", "failed".
std::string_view FeatureStateName(FeatureState state);

struct Feature {
  std::string name;  // the key below `features`, or what else was probed
  FeatureState state = FeatureState::kOk;
  std::string reason;
  std::string fix;  // how to get it; empty when it is there
};

// Where the probes look; tests have other roots.
struct DoctorOptions {
  std::string proc = "/proc";
  std::string sys = "/sys";
  std::string dev = "/dev";
  std::string run_base = "/run/skein";
  std::string state_directory = std::string(protocol::kDefaultStateDirectory);
  std::string nvml_library = "libnvidia-ml.so.1";
  std::string nccl_library = "libnccl.so.2";
  bool listens = true;  // this node has the API's port
};

// All probes, in a fixed order. `config` is resolved: worker.backend is a name. `containment`: what
// it found is one of the features.
std::vector<Feature> ExamineHost(const protocol::Config& config, const Containment& containment,
                                 const DoctorOptions& options = {});

// FailedPrecondition names every feature that keeps this configuration from starting: failed ones,
// missing ones that are required, and with node.strict all degraded ones. A log line for each
// degraded one otherwise.
absl::Status JudgeFeatures(const protocol::Config& config, const std::vector<Feature>& features);

// A table for people: name, state, reason, fix.
std::string FeatureTable(const std::vector<Feature>& features);
// The names of degraded ones, with this between two.
std::string DegradedNames(const std::vector<Feature>& features, std::string_view separator);
// One line: how many of each state, and the names of degraded ones.
std::string FeatureSummary(const std::vector<Feature>& features);

// The same as metrics text: skein_feature{name,state,reason}, 1 for the state that each has.
std::string FeatureMetrics(const std::vector<Feature>& features);

// The value of features.NAME; empty when there is no such key.
std::string_view FeaturePolicy(const protocol::Config& config, std::string_view name);

}  // namespace skein::worker
