// A raw TCP connection for tests: sends bytes and reads until a condition.
// Owns: one descriptor.
// Thread: single.
// Must never: be used outside tests.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace skein::tests {

class RawConnection {
 public:
  explicit RawConnection(uint16_t port, int receive_buffer = 0)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawConnection() { Close(); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool connected() const { return connected_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

  // Reads until `done` holds for everything received, the peer closes, or ten seconds pass
  // without a byte. Returns everything received so far.
  const std::string& ReadUntil(const std::function<bool(std::string_view)>& done) {
    std::array<char, 4096> buffer{};
    while (!done(received_)) {
      pollfd poll_fd{fd_, POLLIN, 0};
      if (poll(&poll_fd, 1, 10'000) <= 0) break;
      const ssize_t size = recv(fd_, buffer.data(), buffer.size(), 0);
      if (size <= 0) {
        closed_by_peer_ = true;
        break;
      }
      received_.append(buffer.data(), static_cast<size_t>(size));
    }
    return received_;
  }
  const std::string& ReadUntilText(std::string_view text) {
    return ReadUntil(
        [&](std::string_view all) { return all.find(text) != std::string_view::npos; });
  }
  const std::string& ReadToEnd() {
    return ReadUntil([](std::string_view) { return false; });
  }
  bool closed_by_peer() const { return closed_by_peer_; }
  void Forget() { received_.clear(); }

 private:
  int fd_;
  bool connected_ = false;
  bool closed_by_peer_ = false;
  std::string received_;
};

}  // namespace skein::tests
