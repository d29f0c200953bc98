// skein-faultproxy: relays between ZeroMQ peers on Unix sockets and harms what it relays.
//   skein-faultproxy --listen PATH --dial PATH [--seed N] [--messages-per-fault N]
// USR1: from now on nothing is harmed. TERM or INT: prints its figures and ends. Wiring only.

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include <signal.h>

#include "absl/strings/numbers.h"
#include "tests/chaos/fault_proxy.h"

namespace skein::tests {
namespace {

std::atomic<bool> g_heals = false;
std::atomic<bool> g_ends = false;

int Run(const FaultProxy::Options& options) {
  ::signal(SIGUSR1, [](int) { g_heals = true; });
  ::signal(SIGTERM, [](int) { g_ends = true; });
  ::signal(SIGINT, [](int) { g_ends = true; });
  FaultProxy proxy(options);
  std::printf("listening\n");
  std::fflush(stdout);
  proxy.Run([&] {
    if (g_heals.exchange(false)) proxy.Heal();
    return g_ends.load();
  });
  const FaultProxy::Counts& counts = proxy.counts();
  std::printf("connections=%llu messages=%llu", static_cast<unsigned long long>(counts.connections),
              static_cast<unsigned long long>(counts.messages));
  for (size_t i = 0; i < kProxyFaultNames.size(); ++i) {
    std::printf(" %s=%llu", kProxyFaultNames[i].data(),
                static_cast<unsigned long long>(counts.faults[i]));
  }
  std::printf("\n");
  return 0;
}

int Main(int argc, char** argv) {
  FaultProxy::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    bool good = true;
    if (name == "--listen") {
      options.listen = argv[i + 1];
    } else if (name == "--dial") {
      options.dial = argv[i + 1];
    } else if (name == "--seed") {
      good = absl::SimpleAtoi(argv[i + 1], &options.seed);
    } else if (name == "--messages-per-fault") {
      good = absl::SimpleAtoi(argv[i + 1], &options.messages_per_fault);
    } else {
      good = false;
    }
    if (good) continue;
    std::fprintf(stderr, "skein-faultproxy: %s %s: no such flag or number\n", argv[i], argv[i + 1]);
    return 64;
  }
  try {
    return Run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "skein-faultproxy: %s\n", error.what());
    return 78;
  }
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main(argc, argv); }
