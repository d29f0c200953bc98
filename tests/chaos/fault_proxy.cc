#include "tests/chaos/fault_proxy.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace skein::tests {
namespace {

using std::chrono::milliseconds;

constexpr size_t kWaitingMax = 4096;  // messages of a direction; more are left in the socket

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) throw std::runtime_error("too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

worker::Descriptor MakeSocket() {
  return worker::Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

void NoBlocking(int fd) { ::fcntl(fd, F_SETFL, O_NONBLOCK); }

}  // namespace

FaultProxy::FaultProxy(const Options& options) : options_(options), listener_(MakeSocket()) {
  const sockaddr_un address = AddressOf(options.listen);
  const auto* const raw = reinterpret_cast<const sockaddr*>(&address);
  if (::bind(listener_.get(), raw, sizeof address) != 0 || ::listen(listener_.get(), 64) != 0) {
    throw std::runtime_error(options.listen + ": " + std::strerror(errno));
  }
  NoBlocking(listener_.get());
}

uint64_t FaultProxy::Draw(Direction& direction, uint64_t bound) {
  direction.random += 0x9E3779B97F4A7C15u;
  uint64_t x = direction.random;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (x ^ (x >> 31)) % bound;
}

void FaultProxy::Accept() {
  worker::Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!client.valid()) return;
  worker::Descriptor server = MakeSocket();
  const sockaddr_un address = AddressOf(options_.dial);
  // Nobody there: the client sees its connection closed and dials again.
  const auto* const raw = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(server.get(), raw, sizeof address) != 0) return;
  NoBlocking(client.get());
  NoBlocking(server.get());
  auto connection = std::make_unique<Connection>();
  connection->client = std::move(client);
  connection->server = std::move(server);
  connection->up.random = (options_.seed << 32) + 2 * counts_.connections;
  connection->down.random = (options_.seed << 32) + 2 * counts_.connections + 1;
  ++counts_.connections;
  connections_.push_back(std::move(connection));
}

void FaultProxy::Read(int fd, Connection& connection, Direction& direction) {
  std::array<char, 16384> bytes;
  const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), 0);
  if (count <= 0) {
    // What waits is lost, as when a host goes.
    connection.closed |= count == 0 || errno != EAGAIN;
    return;
  }
  direction.in.append(bytes.data(), static_cast<size_t>(count));
  size_t done = 0;
  while (!direction.ends) {
    const auto unit = direction.splitter.Next(std::string_view(direction.in).substr(done));
    if (unit.kind == MessageSplitter::Kind::kNone) break;
    direction.out.push_back({direction.in.substr(done, unit.size), Clock::now()});
    done += unit.size;
    Relay(direction, unit, connection);
  }
  direction.in.erase(0, done);
}

// Decides what becomes of the unit at the end of `direction.out`.
void FaultProxy::Relay(Direction& direction, const MessageSplitter::Unit& unit,
                       Connection& connection) {
  Direction::Waiting& last = direction.out.back();
  const bool is_message = unit.kind == MessageSplitter::Kind::kMessage;
  counts_.messages += is_message ? 1 : 0;
  const uint32_t every = options_.messages_per_fault;
  const bool is_hit = is_message && every > 0 && Draw(direction, every) == 0;
  if (is_hit) {
    // Small harm is more frequent than great.
    constexpr ProxyFault kDrawn[] = {ProxyFault::kDelay, ProxyFault::kDelay,    ProxyFault::kDelay,
                                     ProxyFault::kDrop,  ProxyFault::kDrop,     ProxyFault::kFlip,
                                     ProxyFault::kStall, ProxyFault::kTruncate, ProxyFault::kReset};
    const ProxyFault fault = kDrawn[Draw(direction, std::size(kDrawn))];
    ++counts_.faults[static_cast<size_t>(fault)];
    switch (fault) {
      case ProxyFault::kDelay:
        last.due += milliseconds(1 + Draw(direction, 200));
        break;
      case ProxyFault::kStall:
        last.due += milliseconds(300 + Draw(direction, 2000));
        break;
      case ProxyFault::kDrop:
        direction.out.pop_back();
        return;
      case ProxyFault::kFlip:
        if (unit.body < unit.size) {
          char& byte = last.bytes[unit.body + Draw(direction, unit.size - unit.body)];
          byte = static_cast<char>(byte ^ (1 << Draw(direction, 8)));
        }
        break;
      case ProxyFault::kTruncate:
        last.bytes.resize(1 + Draw(direction, last.bytes.size()));
        direction.ends = true;
        break;
      case ProxyFault::kReset:
        connection.closed = true;
        break;
    }
  }
  last.due = direction.due = std::max(last.due, direction.due);
}

void FaultProxy::Write(int fd, Connection& connection, Direction& direction) {
  const Clock::time_point now = Clock::now();
  while (!direction.out.empty() && direction.out.front().due <= now) {
    std::string& bytes = direction.out.front().bytes;
    const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0) {
      connection.closed |= errno != EAGAIN;
      return;
    }
    bytes.erase(0, static_cast<size_t>(count));
    if (!bytes.empty()) return;
    direction.out.pop_front();
  }
  connection.closed |= direction.ends && direction.out.empty();
}

void FaultProxy::Run(const std::function<bool()>& ends) {
  std::vector<pollfd> waits;
  while (!ends()) {
    waits.assign(1, {listener_.get(), POLLIN, 0});
    int wait_ms = 100;
    const Clock::time_point now = Clock::now();
    const auto add = [&](int fd, const Direction& from, const Direction& to) {
      short events = 0;
      if (from.out.size() < kWaitingMax && !from.ends) events |= POLLIN;
      if (!to.out.empty() && to.out.front().due <= now) events |= POLLOUT;
      if (!to.out.empty() && to.out.front().due > now) {
        const auto left = std::chrono::ceil<milliseconds>(to.out.front().due - now).count();
        wait_ms = std::min(wait_ms, static_cast<int>(left));
      }
      waits.push_back({fd, events, 0});
    };
    for (const auto& connection : connections_) {
      add(connection->client.get(), connection->up, connection->down);
      add(connection->server.get(), connection->down, connection->up);
    }
    if (::poll(waits.data(), waits.size(), wait_ms) < 0) continue;
    for (size_t i = 0; i < connections_.size(); ++i) {
      Connection& connection = *connections_[i];
      const int client = connection.client.get(), server = connection.server.get();
      if (waits[1 + 2 * i].revents != 0) Read(client, connection, connection.up);
      if (waits[2 + 2 * i].revents != 0) Read(server, connection, connection.down);
      Write(server, connection, connection.up);
      Write(client, connection, connection.down);
    }
    std::erase_if(connections_, [](const auto& connection) { return connection->closed; });
    if (waits[0].revents != 0) Accept();
  }
}

}  // namespace skein::tests
