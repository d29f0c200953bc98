// Acceptance check 12, shares of keys: under contention each key gets the part of the tokens that
// its weight says, whatever the sizes and priorities of its requests.
//   key_shares [--seconds N]     (10)
// Two keys of weight 1 and 3 have more requests than run at a time, the first longer ones and with
// the higher priority. The last line has the figures; exit 0: each part is within 5 %.
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <poll.h>

#include "absl/strings/numbers.h"
#include "protocol/base/strings.h"
#include "protocol/http/http_client.h"
#include "tests/accept/program_directory.h"
#include "tests/process/key_file.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::Concat;

constexpr int kStepUs = 4'000;
constexpr int kSequences = 8;
constexpr int kClients = 20;  // of each key
constexpr int kRampMs = 1'000;
constexpr double kSlack = 0.05;

struct Demand {
  int prompt;
  int answer;
  int priority;
  double wanted;  // its part
};

constexpr std::array<Demand, 2> kDemands = {{{48, 24, -100, 0.25}, {16, 8, 100, 0.75}}};

// Asks again and again; counts the tokens of whole answers while `counts` is set.
class Clients {
 public:
  Clients(uint16_t port, const std::string& key, const Demand& demand,
          const std::atomic<bool>& counts)
      : counts_(counts) {
    for (int i = 0; i < kClients; ++i) {
      threads_.emplace_back([this, port, key, demand, i] { Loop(port, key, demand, i); });
    }
  }
  ~Clients() {
    stops_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  uint64_t tokens() const { return tokens_; }
  uint64_t failures() const { return failures_; }

 private:
  void Loop(uint16_t port, const std::string& key, const Demand& demand, int client) {
    for (int number = 0; !stops_; ++number) {
      protocol::HttpCall call;
      call.port = port;
      call.method = "POST";
      call.target = "/v1/completions";
      call.headers = {{"Authorization", "Bearer " + key}};
      std::string prompt;
      for (int i = 0; i < demand.prompt; ++i) {
        prompt += Concat(i == 0 ? "" : ",", 300 + (client * 997 + number * 31 + i * 7) % 3000);
      }
      call.body = Concat("{\"prompt\":[", prompt, "],\"temperature\":0,\"ignore_eos\":true,",
                         "\"max_tokens\":", demand.answer, ",\"priority\":", demand.priority, "}");
      const auto result = protocol::CallHttp(call);
      if (!result.ok() || result->status != 200) {
        ++failures_;
      } else if (counts_) {
        tokens_ += static_cast<uint64_t>(demand.prompt + demand.answer);
      }
    }
  }

  const std::atomic<bool>& counts_;
  std::atomic<bool> stops_ = false;
  std::atomic<uint64_t> tokens_ = 0, failures_ = 0;
  std::vector<std::thread> threads_;
};

int Run(int64_t seconds) {
  const ProgramDirectory programs("mock-worker");
  programs.SetMockSpeed(kStepUs, 0);
  LiveServer server(programs.path());
  const std::string file = server.directory() + "/keys.yaml";
  const auto keys =
      WriteKeyFile(file, {{"one", "    priority_min: -100\n"}, {"three", "    weight: 3\n"}});
  if (keys.empty() || !server.StartReady({"--model", "deploy/models/tiny-v41", "--max-num-seqs",
                                          std::to_string(kSequences), "--no-enable-prefix-caching",
                                          "--api-key-file", file, "--log-level", "warn"})) {
    std::printf("not ready:\n%s\n", server.output().c_str());
    return 1;
  }
  std::atomic<bool> counts = false;
  std::array<uint64_t, 2> tokens{};
  uint64_t failures = 0;
  {
    Clients one(server.port(), keys.at("one"), kDemands[0], counts);
    Clients three(server.port(), keys.at("three"), kDemands[1], counts);
    ::poll(nullptr, 0, kRampMs);
    counts = true;
    ::poll(nullptr, 0, static_cast<int>(1000 * seconds));
    counts = false;
    tokens = {one.tokens(), three.tokens()};
    failures = one.failures() + three.failures();
  }
  const auto all = static_cast<double>(tokens[0] + tokens[1]);
  std::array<double, 2> parts{};
  bool holds = failures == 0 && all > 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = all > 0 ? static_cast<double>(tokens[i]) / all : 0;
    holds = holds && std::abs(parts[i] / kDemands[i].wanted - 1) <= kSlack;
  }
  std::printf(
      "seconds=%lld tokens=%.0f failures=%llu part_of_weight_1=%.4f part_of_weight_3=%.4f\n",
      static_cast<long long>(seconds), all, static_cast<unsigned long long>(failures), parts[0],
      parts[1]);
  return holds ? 0 : 1;
}

int Main(int argc, char** argv) {
  int64_t seconds = 10;
  const bool asked = argc == 3 && std::string_view(argv[1]) == "--seconds";
  if (argc != 1 && (!asked || !absl::SimpleAtoi(argv[2], &seconds) || seconds < 1)) {
    std::fputs("usage: key_shares [--seconds N]\n", stderr);
    return 64;
  }
  return Run(seconds);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main(argc, argv); }
