// connect, send, recv, and a search for two texts.
// Thread: see the header. Must never share code with what it checks.
#include "tests/bench/raw_sse_client.h"

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string_view>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace skein::bench {
namespace {

using Clock = std::chrono::steady_clock;

int ConnectTo(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

bool SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// True when some event has a text that is not empty.
bool HasText(std::string_view received) {
  constexpr std::string_view kKey = "\"text\":\"";
  for (size_t at = received.find(kKey); at != std::string_view::npos;
       at = received.find(kKey, at + 1)) {
    const size_t value = at + kKey.size();
    if (value < received.size() && received[value] != '"') return true;
  }
  return false;
}

// Milliseconds to the first text; negative when the stream did not end with [DONE].
double Ask(int fd, const std::string& body) {
  const std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: raw\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  const Clock::time_point begin = Clock::now();
  if (!SendAll(fd, request)) return -1;
  std::string received;
  double first_ms = -1;
  std::array<char, 16 * 1024> piece;
  // The last chunk follows [DONE].
  while (!received.ends_with("0\r\n\r\n") || received.find("[DONE]") == std::string::npos) {
    const ssize_t size = ::recv(fd, piece.data(), piece.size(), 0);
    const Clock::time_point now = Clock::now();
    if (size <= 0) return -1;
    received.append(piece.data(), static_cast<size_t>(size));
    if (first_ms < 0 && HasText(received)) {
      first_ms = std::chrono::duration<double, std::milli>(now - begin).count();
    }
  }
  return first_ms;
}

}  // namespace

RawResult RunRawClient(uint16_t port, const std::vector<std::string>& bodies, int concurrency) {
  RawResult result;
  std::mutex mutex;  // of result
  std::atomic<size_t> next = 0;
  double ttft_sum_ms = 0;
  const Clock::time_point begin = Clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < concurrency; ++i) {
    threads.emplace_back([&] {
      const int fd = ConnectTo(port);
      for (size_t at = next++; at < bodies.size() && fd >= 0; at = next++) {
        const double first_ms = Ask(fd, bodies[at]);
        if (first_ms < 0) break;
        const std::lock_guard lock(mutex);
        ++result.answers;
        ttft_sum_ms += first_ms;
      }
      if (fd >= 0) ::close(fd);
    });
  }
  for (std::thread& thread : threads) thread.join();
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (result.answers > 0) result.mean_ttft_ms = ttft_sum_ms / static_cast<double>(result.answers);
  return result;
}

}  // namespace skein::bench
