// Clients that hold connections without using them: drippers send a byte a second, readers take a
// byte a second of a long stream. Own their sockets, many thousands. One thread; Poll never waits.
// Must never count a connection that this side closed as closed by the server.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace skein::tests {

class SlowClients {
 public:
  using Clock = std::chrono::steady_clock;

  // Sends `first` when connected, then a byte of `drip` a second; reads a byte a second if it is
  // empty, else all that comes. `receive_buffer` in bytes; 0: the system's.
  struct Behaviour {
    std::string first;
    std::string drip;
    int receive_buffer = 0;
  };

  SlowClients(uint16_t port, std::vector<Behaviour> behaviours);
  ~SlowClients();
  SlowClients(const SlowClients&) = delete;
  SlowClients& operator=(const SlowClients&) = delete;

  // Opens the next `count` connections, each of the behaviours in turn. False when no socket is to
  // be had.
  bool Open(size_t count);
  // Does what is due.
  void Poll();

  size_t opened() const { return clients_.size(); }
  size_t open() const { return open_; }
  // Connections that the server ended, and how long the last of them lasted.
  size_t ended() const { return clients_.size() - open_; }
  double longest_s() const { return longest_s_; }

 private:
  struct Client {
    int fd = -1;
    size_t behaviour = 0;
    size_t sent = 0;
    Clock::time_point opened, due;
  };

  void Act(Client& client, Clock::time_point now);
  void Close(Client& client, Clock::time_point now);

  const uint16_t port_;
  const std::vector<Behaviour> behaviours_;
  std::vector<Client> clients_;
  size_t open_ = 0;
  size_t next_ = 0;  // to be looked at
  double longest_s_ = 0;
};

// Raises this process's limit of descriptors as far as it may; what it is then.
size_t RaiseDescriptorLimit();
// A line of /proc/PID/status in bytes, such as "VmHWM"; 0 when it is not there.
uint64_t StatusBytes(int pid, const std::string& name);

}  // namespace skein::tests
