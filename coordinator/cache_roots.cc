#include "coordinator/cache_roots.h"

namespace skein::coordinator {

const std::string& CacheRoots::Of(std::string_view tenant, std::string_view salt) {
  if (!root_.empty() && tenant == tenant_ && salt == salt_) return root_;
  tenant_ = tenant;
  salt_ = salt;
  const KeyDigest of_tenant = HmacSha256(BytesOf(secret_), tenant);
  root_ = BytesOf(HmacSha256(BytesOf(of_tenant), salt));
  return root_;
}

}  // namespace skein::coordinator
