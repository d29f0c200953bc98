// Both sides bind before they send, so one of the two sends finds the other's socket: nobody dials
// again and again.
#include "protocol/tensor/host_meeting.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

constexpr uint64_t kMagic = 0x31676e6974656d53;  // "Smeting1"
constexpr uint32_t kHello = 1;                   // a rank is there and has no memory yet
constexpr uint32_t kMemory = 2;                  // of the first rank, with the descriptor
constexpr uint32_t kTaken = 3;                   // a rank has it

struct Note {
  uint64_t magic = kMagic;
  uint32_t kind = 0;
  uint32_t rank = 0;
  uint32_t size = 0;
  uint32_t unused = 0;
  uint64_t bytes = 0;
};

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::string ErrorText() { return std::strerror(errno); }

// The address of a rank: a leading zero byte makes a name without a file.
struct Address {
  sockaddr_un address{};
  socklen_t length = 0;
};

Address AddressOf(const std::string& name, int rank) {
  Address out;
  out.address.sun_family = AF_UNIX;
  const std::string text = Concat("skein-", name, "-", rank);
  std::memcpy(out.address.sun_path + 1, text.data(), text.size());
  out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return out;
}

absl::StatusOr<Descriptor> BindSocket(const HostMeeting& meeting) {
  Descriptor socket_fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket_fd.get() < 0) return absl::InternalError(Concat("socket: ", ErrorText()));
  const int on = 1;
  ::setsockopt(socket_fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  // A rank that does not read must not hold up the others for longer.
  const timeval wait{1, 0};
  ::setsockopt(socket_fd.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
  const Address own = AddressOf(meeting.name, meeting.rank);
  if (::bind(socket_fd.get(), reinterpret_cast<const sockaddr*>(&own.address), own.length) == 0) {
    return socket_fd;
  }
  return absl::FailedPreconditionError(Concat("communicator ", meeting.name, ": rank ",
                                              meeting.rank, " cannot take its name: ", ErrorText(),
                                              "; a name is used once, by one process a rank"));
}

// A note to a rank, which may not be there yet: then it will say hello.
void Send(const HostMeeting& meeting, int socket_fd, int to, uint32_t kind, int memory_fd = -1) {
  Note note;
  note.kind = kind;
  note.rank = static_cast<uint32_t>(meeting.rank);
  note.size = static_cast<uint32_t>(meeting.ranks.size());
  note.bytes = meeting.bytes;
  Address address = AddressOf(meeting.name, to);
  iovec part{&note, sizeof note};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = &address.address;
  message.msg_namelen = address.length;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (memory_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &memory_fd, sizeof memory_fd);
  }
  [[maybe_unused]] const ssize_t sent = ::sendmsg(socket_fd, &message, MSG_NOSIGNAL);
}

struct Received {
  Note note;
  Descriptor memory;
};

// What a rank of this user sent; nothing for anything else.
std::optional<Received> Receive(int socket_fd) {
  Received out;
  iovec part{&out.note, sizeof out.note};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(ucred))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  bool own_user = false;
  for (cmsghdr* head = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET) continue;
    if (head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int))) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
      out.memory = Descriptor(fd);
    }
    if (head->cmsg_type == SCM_CREDENTIALS) {
      ucred sender{};
      std::memcpy(&sender, CMSG_DATA(head), sizeof sender);
      own_user = sender.uid == ::geteuid();
    }
  }
  const bool whole = got == static_cast<ssize_t>(sizeof out.note) && out.note.magic == kMagic;
  if (!whole || !own_user) return std::nullopt;
  return out;
}

// Until the socket has something to read.
absl::Status Await(const HostMeeting& meeting, int socket_fd, const std::string& missing) {
  while (true) {
    const absl::Duration left = meeting.deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          Concat("communicator ", meeting.name, ": ", missing,
                 " in time; ranks that share memory are processes of one host and one user"));
    }
    pollfd ready[2] = {{meeting.abort_fd, POLLIN, 0}, {socket_fd, POLLIN, 0}};
    const int64_t left_ms = absl::ToInt64Milliseconds(std::min(left, absl::Minutes(1))) + 1;
    const int count = ::poll(ready, 2, static_cast<int>(left_ms));
    if (count < 0 && errno != EINTR) return absl::InternalError(Concat("poll: ", ErrorText()));
    if (count <= 0) continue;
    if (ready[0].revents != 0) return absl::AbortedError("aborted while the ranks meet");
    if (ready[1].revents != 0) return absl::OkStatus();
  }
}

absl::Status CheckNote(const HostMeeting& meeting, const Note& note) {
  if (note.size == meeting.ranks.size() && note.bytes == meeting.bytes) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      Concat("communicator ", meeting.name, ": rank ", note.rank, " wants ", note.bytes,
             " bytes for ", note.size, " ranks, rank ", meeting.rank, " ", meeting.bytes, " for ",
             meeting.ranks.size(), "; all ranks need the same model and configuration"));
}

absl::StatusOr<Descriptor> MakeMemory(const HostMeeting& meeting) {
  Descriptor memory(
      ::memfd_create(Concat("skein-", meeting.name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0) return absl::InternalError(Concat("memfd_create: ", ErrorText()));
  // Sealed: nobody can cut it under another's feet.
  if (::ftruncate(memory.get(), static_cast<off_t>(meeting.bytes)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return absl::ResourceExhaustedError(
        Concat(meeting.bytes, " bytes of memory for the ranks: ", ErrorText()));
  }
  return memory;
}

// The first rank: until every other one said that it has the memory.
absl::StatusOr<int> HandOut(const HostMeeting& meeting) {
  SKEIN_ASSIGN_OR_RETURN(Descriptor memory, MakeMemory(meeting));
  SKEIN_ASSIGN_OR_RETURN(const Descriptor socket_fd, BindSocket(meeting));
  std::vector<int> missing(meeting.ranks.begin() + 1, meeting.ranks.end());
  for (const int rank : missing) Send(meeting, socket_fd.get(), rank, kMemory, memory.get());
  while (!missing.empty()) {
    std::string names;
    for (const int rank : missing) names += Concat(names.empty() ? "rank " : ", ", rank);
    SKEIN_RETURN_IF_ERROR(Await(meeting, socket_fd.get(), names + " did not come"));
    const std::optional<Received> received = Receive(socket_fd.get());
    if (!received) continue;
    const auto rank = static_cast<int>(received->note.rank);
    if (std::find(meeting.ranks.begin() + 1, meeting.ranks.end(), rank) == meeting.ranks.end()) {
      continue;
    }
    SKEIN_RETURN_IF_ERROR(CheckNote(meeting, received->note));
    if (received->note.kind == kHello) {
      Send(meeting, socket_fd.get(), rank, kMemory, memory.get());
    }
    if (received->note.kind == kTaken) std::erase(missing, rank);
  }
  return memory.Release();
}

// The others: until the first one gives the memory.
absl::StatusOr<int> Take(const HostMeeting& meeting) {
  SKEIN_ASSIGN_OR_RETURN(const Descriptor socket_fd, BindSocket(meeting));
  const int first = meeting.ranks.front();
  Send(meeting, socket_fd.get(), first, kHello);
  while (true) {
    SKEIN_RETURN_IF_ERROR(Await(meeting, socket_fd.get(), Concat("rank ", first, " did not come")));
    std::optional<Received> received = Receive(socket_fd.get());
    if (!received || received->note.kind != kMemory || received->memory.get() < 0) continue;
    SKEIN_RETURN_IF_ERROR(CheckNote(meeting, received->note));
    struct stat found {};
    const int seals = ::fcntl(received->memory.get(), F_GET_SEALS);
    if (::fstat(received->memory.get(), &found) != 0 ||
        static_cast<uint64_t>(found.st_size) != meeting.bytes || seals < 0 ||
        (seals & F_SEAL_SHRINK) == 0) {
      continue;
    }
    Send(meeting, socket_fd.get(), first, kTaken);
    return received->memory.Release();
  }
}

}  // namespace

absl::StatusOr<int> ShareMemory(const HostMeeting& meeting) {
  return meeting.rank == meeting.ranks.front() ? HandOut(meeting) : Take(meeting);
}

}  // namespace skein::protocol
