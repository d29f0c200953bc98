// Socket names as claims of processors, and the memory policy of the process by system call.
// Main thread. Must never wait for a processor or guess a list of nodes that it cannot read.
#include "worker/host_placement.h"

#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "protocol/base/fingerprint.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h
constexpr int kNodesMax = 1024;

// A bound socket that stands for a processor, or -1 if another process holds it.
int ClaimSocket(int processor) {
  const int socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return -1;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // A leading zero byte: a name without a file.
  const std::string name = absl::StrCat("skein-processor-", processor);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(socket_fd, reinterpret_cast<const sockaddr*>(&address), length) == 0) return socket_fd;
  close(socket_fd);
  return -1;
}

}  // namespace

ProcessorClaims::ProcessorClaims(ProcessorClaims&& other) noexcept
    : processors_(std::exchange(other.processors_, {})),
      sockets_(std::exchange(other.sockets_, {})) {}

ProcessorClaims& ProcessorClaims::operator=(ProcessorClaims&& other) noexcept {
  std::swap(processors_, other.processors_);
  std::swap(sockets_, other.sockets_);
  return *this;
}

ProcessorClaims::~ProcessorClaims() { Release(); }

void ProcessorClaims::Release() {
  for (const int socket_fd : sockets_) close(socket_fd);
  sockets_.clear();
  processors_.clear();
}

ProcessorClaims ProcessorClaims::Take(const std::vector<int>& usable, int count) {
  ProcessorClaims claims;
  for (const int processor : usable) {
    if (static_cast<int>(claims.processors_.size()) == count) break;
    const int socket_fd = ClaimSocket(processor);
    if (socket_fd < 0) continue;
    claims.sockets_.push_back(socket_fd);
    claims.processors_.push_back(processor);
  }
  if (static_cast<int>(claims.processors_.size()) < count) claims.Release();
  return claims;
}

std::optional<std::vector<int>> ParseNodeList(std::string_view text) {
  std::vector<int> nodes;
  const std::vector<std::string> parts = absl::StrSplit(protocol::ToAbsl(text), ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last >= kNodesMax) {
      return std::nullopt;
    }
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  }
  return nodes;
}

std::string InterleaveMemory() {
  std::ifstream file("/sys/devices/system/node/has_memory");
  std::string text;
  std::getline(file, text);
  const std::optional<std::vector<int>> nodes = ParseNodeList(text);
  if (!nodes) {
    return "unknown: the system lists no memory nodes; pages lie where they are first read";
  }
  if (nodes->size() < 2) return "one node, nothing to place";
  constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, kNodesMax / kBits> mask = {};
  for (const int node : *nodes) {
    const auto at = static_cast<size_t>(node);
    mask[at / kBits] |= 1UL << (at % kBits);
  }
  if (syscall(SYS_set_mempolicy, kInterleave, mask.data(), static_cast<unsigned long>(kNodesMax)) !=
      0) {
    return absl::StrCat("not placed: the kernel refuses set_mempolicy (", std::strerror(errno),
                        "); pages lie where they are first read");
  }
  return absl::StrCat("interleaved over nodes ", text);
}

std::string HostIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  return protocol::Fingerprint(boot + network);
}

}  // namespace skein::worker
