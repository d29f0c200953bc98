// Who a process belongs to, from the text of its /proc/PID/cgroup: container, pod, unit, session.
// Pure functions, any thread. Must never ask a container runtime: the text alone decides.
#pragma once

#include <string>
#include <string_view>

namespace skein::worker {

// "docker 0123456789ab", "cri-o 0123456789ab in pod UID", "unit nginx.service", "session 3 of user
// 1000", "skein worker.0.17"; "nobody known" when the text names none. Takes the lines of cgroup v1
// and v2.
std::string CgroupOwner(std::string_view cgroup);

}  // namespace skein::worker
