#include "tests/accept/slow_clients.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace skein::tests {
namespace {

constexpr std::chrono::seconds kPace{1};
constexpr size_t kLooksMax = 2000;  // of a call to Poll

}  // namespace

SlowClients::SlowClients(uint16_t port, std::vector<Behaviour> behaviours)
    : port_(port), behaviours_(std::move(behaviours)) {}

SlowClients::~SlowClients() {
  for (const Client& client : clients_) {
    if (client.fd >= 0) ::close(client.fd);
  }
}

bool SlowClients::Open(size_t count) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (size_t i = 0; i < count; ++i) {
    Client client;
    client.behaviour = clients_.size() % behaviours_.size();
    client.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (client.fd < 0) return false;
    if (const int bytes = behaviours_[client.behaviour].receive_buffer; bytes > 0) {
      ::setsockopt(client.fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
    if (::connect(client.fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
        errno != EINPROGRESS) {
      ::close(client.fd);
      return false;
    }
    client.opened = client.due = Clock::now();
    clients_.push_back(client);
    ++open_;
  }
  return true;
}

void SlowClients::Close(Client& client, Clock::time_point now) {
  ::close(std::exchange(client.fd, -1));
  --open_;
  longest_s_ = std::max(longest_s_, std::chrono::duration<double>(now - client.opened).count());
}

void SlowClients::Act(Client& client, Clock::time_point now) {
  const Behaviour& behaviour = behaviours_[client.behaviour];
  std::array<char, 4096> bytes;
  const size_t wanted = behaviour.drip.empty() ? 1 : bytes.size();
  const ssize_t got = ::recv(client.fd, bytes.data(), wanted, 0);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != ENOTCONN)) return Close(client, now);
  const bool first = client.sent < behaviour.first.size();
  const std::string_view text = first ? std::string_view(behaviour.first).substr(client.sent)
                                      : std::string_view(behaviour.drip).substr(0, 1);
  client.due = now + kPace;
  if (text.empty()) return;
  const ssize_t sent = ::send(client.fd, text.data(), text.size(), MSG_NOSIGNAL);
  if (sent > 0) {
    client.sent += static_cast<size_t>(sent);
  } else if (errno == EAGAIN || errno == ENOTCONN) {
    client.due = now + kPace / 20;  // still connecting
  } else {
    Close(client, now);
  }
}

void SlowClients::Poll() {
  const Clock::time_point now = Clock::now();
  for (size_t looks = 0; looks < std::min(kLooksMax, clients_.size()); ++looks) {
    next_ = next_ + 1 < clients_.size() ? next_ + 1 : 0;
    Client& client = clients_[next_];
    if (client.fd >= 0 && client.due <= now) Act(client, now);
  }
}

size_t RaiseDescriptorLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

uint64_t StatusBytes(int pid, const std::string& name) {
  std::ifstream lines("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stoull(line.substr(name.size() + 1)) << 10;
  }
  return 0;
}

}  // namespace skein::tests
