#include "tests/accept/networks.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "protocol/base/strings.h"
#include "tests/accept/child_program.h"

namespace skein::tests {
namespace {

using protocol::Concat;

constexpr const char* kNearMac = "02:00:00:00:00:01";
constexpr const char* kFarMac = "02:00:00:00:00:02";
constexpr const char* kNoMac = "02:00:00:00:00:99";

}  // namespace

Networks::Networks() : near_(Concat("skn", ::getpid())), far_(Concat("skf", ::getpid())) {
  ok_ = Ip({"netns", "add", near_}) && Ip({"netns", "add", far_}) &&
        Ip({"-n", near_, "link", "add", "v0", "address", kNearMac, "type", "veth", "peer", "name",
            "v1", "address", kFarMac, "netns", far_}) &&
        Ip({"-n", near_, "addr", "add", Concat(kNearAddress, "/24"), "dev", "v0"}) &&
        Ip({"-n", far_, "addr", "add", Concat(kFarAddress, "/24"), "dev", "v1"}) &&
        Ip({"-n", near_, "link", "set", "v0", "up"}) &&
        Ip({"-n", far_, "link", "set", "v1", "up"}) &&
        Ip({"-n", near_, "link", "set", "lo", "up"}) &&
        Ip({"-n", far_, "link", "set", "lo", "up"}) && Cut(false, false);
}

Networks::~Networks() {
  Ip({"netns", "del", near_});
  Ip({"netns", "del", far_});
}

bool Networks::Cut(bool near, bool far) const {
  return Ip({"-n", near_, "neigh", "replace", kFarAddress, "lladdr", near ? kNoMac : kFarMac, "dev",
             "v0", "nud", "permanent"}) &&
         Ip({"-n", far_, "neigh", "replace", kNearAddress, "lladdr", far ? kNoMac : kNearMac, "dev",
             "v1", "nud", "permanent"});
}

bool Networks::SetLink(bool up) const {
  // What a link knew of its neighbours goes with it.
  return Ip({"-n", near_, "link", "set", "v0", up ? "up" : "down"}) && (!up || Cut(false, false));
}

bool Networks::Enter() const {
  const int fd = ::open(Concat("/run/netns/", near_).c_str(), O_RDONLY | O_CLOEXEC);
  const bool entered = fd >= 0 && ::setns(fd, CLONE_NEWNET) == 0;
  ::close(fd);
  // What lists network devices, as UCX does, reads them there: those of this namespace.
  return entered && ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_SLAVE | MS_REC, nullptr) == 0 &&
         ::umount2("/sys", MNT_DETACH) == 0 && ::mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0;
}

bool Networks::Ip(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "ip");
  return RunCommand(arguments) == 0;
}

}  // namespace skein::tests
