// The snapshot for operators as JSON. Pure, any thread. Must never leave a field out because it is
// zero: readers are programs too.
#pragma once

#include <string>

#include "coordinator/cluster_status.h"

namespace skein::coordinator {

// What does not change while the process lives.
struct ServerIdentity {
  std::string build;
  std::string protocol;
  std::string config_hash;
};

// {"build",...,"ready",...,"groups":[...],"workers":[...],"rollout":{...}}. Ages are seconds.
std::string StatusJson(const ClusterStatus& status, const ServerIdentity& server);

// The object that "rollout" is in the above.
std::string RolloutJson(const RolloutStatus& rollout);

}  // namespace skein::coordinator
