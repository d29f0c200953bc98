// Tests of worker/node/cgroup_owner: the paths of runtimes, systemd and our own leaves.
#include "worker/node/cgroup_owner.h"

#include <string>

#include <gtest/gtest.h>

namespace skein::worker {
namespace {

const std::string kId = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const std::string kUid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";

TEST(CgroupOwnerTest, NamesTheInnermostOwner) {
  const std::string flat = "1b4e28ba_2fa1_11d2_883f_0016d3cca427";
  const struct {
    std::string cgroup;
    std::string owner;
  } cases[] = {
      {"0::/system.slice/docker-" + kId + ".scope\n", "docker 0123456789ab"},
      {"12:memory:/docker/" + kId + "\n0::/\n", "docker 0123456789ab"},
      {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + flat +
           ".slice/cri-containerd-" + kId + ".scope\n",
       "containerd 0123456789ab in pod " + kUid},
      {"0::/kubepods.slice/kubepods-pod" + flat + ".slice/crio-" + kId + ".scope\n",
       "cri-o 0123456789ab in pod " + kUid},
      {"4:cpu:/kubepods/burstable/pod" + kUid + "/" + kId + "\n",
       "container 0123456789ab in pod " + kUid},
      {"0::/machine.slice/libpod-" + kId + ".scope/container\n", "podman 0123456789ab"},
      {"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + kId + ".scope\n",
       "podman 0123456789ab"},
      {"0::/system.slice/nginx.service\n", "unit nginx.service"},
      {"0::/user.slice/user-1000.slice/session-3.scope\n", "session 3 of user 1000"},
      {"0::/user.slice/user-1000.slice\n", "user 1000"},
      {"0::/system.slice/skein-node.service/skein.7.9.0/worker.0.17\n", "skein worker.0.17"},
      {"0::/worker.0.17\n", "nobody known"},
      {"0::/\n", "nobody known"},
      {"", "nobody known"},
      {"garbage", "nobody known"},
      {"0::/docker/short\n", "nobody known"},
  };
  for (const auto& c : cases) EXPECT_EQ(CgroupOwner(c.cgroup), c.owner) << c.cgroup;
}

}  // namespace
}  // namespace skein::worker
