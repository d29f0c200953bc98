// The roots of what requests may share in the prefix cache: one for each tenant and salt, under a
// secret, so that nobody can choose a prompt that collides with another tenant's. Model and cache
// layout are those of the group, whose cache ends with its epoch.
// Thread: the control loop's.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/key_digest.h"

namespace skein::coordinator {

class CacheRoots {
 public:
  explicit CacheRoots(const KeyDigest& secret) : secret_(secret) {}

  // Remembers the last answer: neighbours are mostly of one tenant, and two digests cost a
  // twentieth of the smallest request.
  const std::string& Of(std::string_view tenant, std::string_view salt);

 private:
  const KeyDigest secret_;
  std::string tenant_, salt_, root_;
};

}  // namespace skein::coordinator
