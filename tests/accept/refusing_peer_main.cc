// Acceptance check 15, the part of the refusing peer: a worker whose coordinator refuses every
// connection must not hammer it, whether it closes at once, amid the handshake or says nothing.
//   refusing_peer [--seconds N]
// The last line has the figures; exit 0: they hold.
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/accept/child_program.h"
#include "tests/accept/program_directory.h"
#include "tests/protocol/curve_fixture.h"
#include "worker/node/descriptor.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;

// In 30 s; a run of another length may have its share, and what the first second has anyway.
constexpr double kConnectsMax = 40;
constexpr double kFirstConnects = 8;

enum class Refusal { kAtOnce, kAmidHandshake, kSilence };
constexpr std::array<std::pair<Refusal, const char*>, 3> kRefusals = {
    {{Refusal::kAtOnce, "at_once"},
     {Refusal::kAmidHandshake, "amid_handshake"},
     {Refusal::kSilence, "silence"}}};

// A listener that counts who connects and refuses each.
class RefusingPeer {
 public:
  explicit RefusingPeer(Refusal refusal)
      : refusal_(refusal), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_.get(), 64) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("no listener");
    }
    port_ = ntohs(address.sin_port);
  }
  uint16_t port() const { return port_; }
  int connects() const { return connects_; }

  // Takes who comes within `timeout_ms`.
  void Poll(int timeout_ms) {
    std::vector<pollfd> waits = {{listener_.get(), POLLIN, 0}};
    for (const worker::Descriptor& held : held_) waits.push_back({held.get(), POLLIN, 0});
    ::poll(waits.data(), waits.size(), timeout_ms);
    for (size_t i = waits.size(); i-- > 1;) {
      if (waits[i].revents == 0) continue;
      char bytes[256];
      // Its greeting: amid the handshake is when it spoke and waits for an answer.
      const ssize_t size = ::recv(held_[i - 1].get(), bytes, sizeof bytes, 0);
      if (size > 0 && refusal_ == Refusal::kSilence) continue;
      held_.erase(held_.begin() + static_cast<ptrdiff_t>(i - 1));
    }
    if (waits[0].revents == 0) return;
    worker::Descriptor peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ++connects_;
    if (refusal_ != Refusal::kAtOnce) held_.push_back(std::move(peer));
  }

 private:
  const Refusal refusal_;
  const worker::Descriptor listener_;
  uint16_t port_ = 0;
  int connects_ = 0;
  std::vector<worker::Descriptor> held_;
};

int CountConnects(const ProgramDirectory& programs, Refusal refusal, int64_t seconds) {
  const CurveFixture keys;
  RefusingPeer peer(refusal);
  const ChildProgram worker(
      {programs.path() + "/skein-worker", "--model", "deploy/models/tiny-v41", "--backend", "cpu",
       "--control-endpoint", Concat("tcp://127.0.0.1:", peer.port()), "--curve-server-key",
       keys.server_key(), "--curve-secret-key-file", keys.path("worker")},
      keys.path("output"));
  while (peer.connects() == 0 && !worker.process().WaitForEnd(absl::ZeroDuration())) peer.Poll(20);
  const absl::Time end = MonotonicNow() + absl::Seconds(seconds);
  while (MonotonicNow() < end) peer.Poll(20);
  if (worker.process().WaitForEnd(absl::ZeroDuration())) {
    std::printf("the worker ended:\n%s\n", worker.output().c_str());
    return -1;
  }
  return peer.connects();
}

int Run(int64_t seconds) {
  const ProgramDirectory programs("mock-worker");
  const double share = static_cast<double>(seconds) / 30;
  const double most = seconds >= 30 ? kConnectsMax * share
                                    : kFirstConnects + (kConnectsMax - kFirstConnects) * share;
  std::string figures = Concat("seconds=", seconds, " connects_max=", static_cast<int>(most));
  bool holds = true;
  for (const auto& [refusal, name] : kRefusals) {
    const int connects = CountConnects(programs, refusal, seconds);
    figures += Concat(" ", name, "=", connects);
    holds = holds && connects > 0 && connects <= most;
  }
  std::printf("%s\n", figures.c_str());
  return holds ? 0 : 1;
}

int Main(int argc, char** argv) {
  int64_t seconds = 30;
  const bool has_seconds = argc == 3 && std::string_view(argv[1]) == "--seconds";
  if (argc != 1 && (!has_seconds || !absl::SimpleAtoi(argv[2], &seconds) || seconds < 1)) {
    std::fprintf(stderr, "refusing_peer: usage: refusing_peer [--seconds N]\n");
    return 64;
  }
  return Run(seconds);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main(argc, argv); }
