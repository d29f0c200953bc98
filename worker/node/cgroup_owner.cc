// Recognising the paths that container runtimes, systemd and our own supervisor make.
// Any thread. Must never prefer the outer owner over the inner one.
#include "worker/node/cgroup_owner.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "absl/strings/str_split.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr size_t kShortId = 12;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// What lies between `prefix` and `suffix`, or empty.
std::string_view Between(std::string_view text, std::string_view prefix, std::string_view suffix) {
  if (text.size() <= prefix.size() + suffix.size() || text.substr(0, prefix.size()) != prefix ||
      text.substr(text.size() - suffix.size()) != suffix) {
    return {};
  }
  return text.substr(prefix.size(), text.size() - prefix.size() - suffix.size());
}

bool IsContainerId(std::string_view text) { return text.size() >= 32 && IsHex(text); }

// The runtime and the short id, if this component of the path is a container.
std::string Container(std::string_view part, std::string_view before, bool in_pod) {
  struct Form {
    std::string_view prefix;
    std::string_view runtime;
  };
  static constexpr Form kForms[] = {{"docker-", "docker"},
                                    {"cri-containerd-", "containerd"},
                                    {"nerdctl-", "containerd"},
                                    {"crio-", "cri-o"},
                                    {"libpod-", "podman"}};
  for (const Form& form : kForms) {
    for (const std::string_view suffix : {std::string_view(".scope"), std::string_view()}) {
      const std::string_view id = Between(part, form.prefix, suffix);
      if (IsContainerId(id)) return Concat(form.runtime, " ", id.substr(0, kShortId));
    }
  }
  // Without systemd: /docker/ID, /containerd/NAMESPACE/ID, /kubepods/.../podUID/ID.
  if (!IsContainerId(part)) return "";
  const std::string_view runtime = before == "docker" ? "docker" : in_pod ? "pod" : "containerd";
  return Concat(runtime == "pod" ? "container" : runtime, " ", part.substr(0, kShortId));
}

// The uid of a pod: "pod1234-..." or "kubepods-burstable-pod1234_....slice".
std::string PodUid(std::string_view part) {
  if (part.size() > 6 && part.substr(part.size() - 6) == ".slice") part.remove_suffix(6);
  const size_t at = part.rfind("pod");
  if (at == std::string_view::npos || (at > 0 && part[at - 1] != '-')) return "";
  std::string uid(part.substr(at + 3));
  std::replace(uid.begin(), uid.end(), '_', '-');
  const bool right = uid.size() >= 32 && std::all_of(uid.begin(), uid.end(), [](unsigned char c) {
                       return std::isxdigit(c) != 0 || c == '-';
                     });
  return right ? uid : "";
}

struct Owner {
  std::string skein, container, pod, session, unit, user;
};

void Look(std::string_view path, Owner& owner) {
  const std::vector<std::string> parts = absl::StrSplit(protocol::ToAbsl(path), '/');
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& part = parts[i];
    if (std::string uid = PodUid(part); !uid.empty()) owner.pod = std::move(uid);
    std::string container = Container(part, i > 0 ? parts[i - 1] : "", !owner.pod.empty());
    if (!container.empty()) owner.container = std::move(container);
    if (const auto user = Between(part, "user-", ".slice"); !user.empty()) owner.user = user;
    if (const auto id = Between(part, "session-", ".scope"); !id.empty()) owner.session = id;
    if (!Between(part, "", ".service").empty()) owner.unit = part;
    const bool leaf = part.rfind("worker.", 0) == 0 || part.rfind("coordinator.", 0) == 0;
    if (leaf && i > 0 && parts[i - 1].rfind("skein.", 0) == 0) owner.skein = part;
  }
}

}  // namespace

std::string CgroupOwner(std::string_view cgroup) {
  Owner owner;
  for (const auto line : absl::StrSplit(protocol::ToAbsl(cgroup), '\n')) {
    // "hierarchy:controllers:path"
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second != line.npos) Look(protocol::ToStd(line.substr(second + 1)), owner);
  }
  if (!owner.skein.empty()) return Concat("skein ", owner.skein);
  const std::string pod = owner.pod.empty() ? "" : Concat("pod ", owner.pod);
  if (!owner.container.empty())
    return pod.empty() ? owner.container : Concat(owner.container, " in ", pod);
  if (!pod.empty()) return pod;
  if (!owner.session.empty()) {
    return Concat("session ", owner.session, owner.user.empty() ? "" : " of user ", owner.user);
  }
  if (!owner.unit.empty()) return Concat("unit ", owner.unit);
  return owner.user.empty() ? "nobody known" : Concat("user ", owner.user);
}

}  // namespace skein::worker
