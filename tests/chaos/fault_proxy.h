// A relay between ZeroMQ peers on Unix sockets that does to their messages what networks do: delay,
// stall, loss, a flipped bit, an end in the middle of a message, a reset. What is done follows from
// the seed, the number of the connection, the direction and the message.
// Owns: the listener and its connections. Thread: the one that calls Run.
// Must never: reorder, or harm the greeting and commands of ZeroMQ itself.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/chaos/message_splitter.h"
#include "worker/node/descriptor.h"

namespace skein::tests {

enum class ProxyFault { kDelay, kStall, kDrop, kFlip, kTruncate, kReset };
inline constexpr std::array<std::string_view, 6> kProxyFaultNames = {
    "delays", "stalls", "drops", "flips", "truncates", "resets"};

class FaultProxy {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    std::string listen, dial;  // paths of Unix sockets
    uint64_t seed = 1;
    uint32_t messages_per_fault = 100;  // on average, of a direction; 0: no faults
  };
  struct Counts {
    uint64_t connections = 0, messages = 0;
    std::array<uint64_t, kProxyFaultNames.size()> faults = {};
  };

  // Throws when the socket cannot be made.
  explicit FaultProxy(const Options& options);

  // Relays until `ends` says so, which is asked at least every 100 ms.
  void Run(const std::function<bool()>& ends);
  // Messages pass from now on as they are.
  void Heal() { options_.messages_per_fault = 0; }
  const Counts& counts() const { return counts_; }

 private:
  // One direction: bytes that came, and those that go on when their time has come.
  struct Direction {
    struct Waiting {
      std::string bytes;
      Clock::time_point due;
    };
    MessageSplitter splitter;
    std::string in;
    std::deque<Waiting> out;
    Clock::time_point due;  // of the last that waits: none overtakes
    uint64_t random = 0;
    bool ends = false;  // nothing follows what waits; then the connection is closed
  };
  struct Connection {
    worker::Descriptor client, server;
    Direction up, down;  // from the client, from the server
    bool closed = false;
  };

  void Accept();
  void Read(int fd, Connection& connection, Direction& direction);
  void Relay(Direction& direction, const MessageSplitter::Unit& unit, Connection& connection);
  void Write(int fd, Connection& connection, Direction& direction);
  uint64_t Draw(Direction& direction, uint64_t bound);

  Options options_;
  worker::Descriptor listener_;
  std::vector<std::unique_ptr<Connection>> connections_;
  Counts counts_;
};

}  // namespace skein::tests
