// A server that speaks TLS by itself, for tests of clients: it answers each connection's first
// request with a text of the test and says how the connection ended.
// Owns: the listening socket and a thread.
// Thread: the test's; connections are served one after the other on the thread.
// Must never: wait longer than its limit.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/http/tls_session.h"
#include "tests/protocol/http_fixture.h"

namespace skein::tests {

class TlsPeer {
 public:
  enum class After { kStaysOpen, kSaysItsEnd };  // what the server does behind its answer

  // Serves `connections` connections.
  TlsPeer(std::shared_ptr<protocol::TlsContext> context, std::string answer, After after,
          int connections)
      : context_(std::move(context)), answer_(std::move(answer)), after_(after) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 4), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ::ntohs(address.sin_port);
    Limit(listener_);
    thread_ = std::thread([this, connections] {
      for (int i = 0; i < connections; ++i) Serve();
    });
  }
  ~TlsPeer() {
    thread_.join();
    ::close(listener_);
  }
  TlsPeer(const TlsPeer&) = delete;
  TlsPeer& operator=(const TlsPeer&) = delete;

  uint16_t port() const { return port_; }
  // True for each connection whose client said its end before it closed, in their order.
  protocol::Box<bool> ends;

 private:
  static void Limit(int socket) {
    const timeval limit{10, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }

  void Serve() {
    const int socket = ::accept(listener_, nullptr, nullptr);
    if (socket < 0) return;
    Limit(socket);
    protocol::TlsSession session(context_);
    std::string text, wire;
    bool answered = false;
    bool said_its_end = false;
    std::array<char, 4096> buffer;
    for (ssize_t got = 1; got > 0;) {
      got = ::recv(socket, buffer.data(), buffer.size(), 0);
      if (got <= 0) break;
      const auto state =
          session.Receive(std::string_view(buffer.data(), static_cast<size_t>(got)), &text);
      said_its_end = state == protocol::TlsSession::State::kEnded;
      session.TakeOutput(&wire);
      if (!answered && text.find("\r\n\r\n") != std::string::npos) {
        answered = true;
        session.Send(answer_, &wire);
        if (after_ == After::kSaysItsEnd) session.SendEnd(&wire);
      }
      ::send(socket, wire.data(), wire.size(), MSG_NOSIGNAL);
      wire.clear();
    }
    ::close(socket);
    ends.Put(said_its_end);
  }

  const std::shared_ptr<protocol::TlsContext> context_;
  const std::string answer_;
  const After after_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace skein::tests
