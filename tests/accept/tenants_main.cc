// Acceptance check 17, the prefix cache between tenants: what one computed gives another neither
// cached tokens nor time. Tenants are two keys, and in a second part salts of one.
//   tenants [--pairs N] [--prompt N] [--salts N]
// One tenant computes a prompt; another one sends it, and, in alternating order, a prompt that
// nobody sent. The times of the two kinds are compared by the test of Kolmogorov and Smirnov, and,
// so that the comparison is worth something, also those of real hits. The last line has the
// figures; exit 0: they hold. With fewer than 500 pairs p must only not be tiny: one run in a
// hundred is below 0.01 by chance.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "protocol/base/strings.h"
#include "protocol/http/http_client.h"
#include "protocol/json/json.h"
#include "tests/process/key_file.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::JsonValue;
using Clock = std::chrono::steady_clock;

constexpr int64_t kAllPairs = 500;
constexpr double kWanted = 0.01;
constexpr double kTiny = 1e-6;

struct Plan {
  int64_t pairs = kAllPairs;
  int64_t prompt = 300;
  int64_t salts = 200;
};

struct Answer {
  double ms = 0;
  int64_t cached = -1;  // -1: no answer
};

class Client {
 public:
  Client(uint16_t port, std::string key) : port_(port), key_(std::move(key)) {}

  Answer Ask(const std::string& prompt, const std::string& salt = "") const {
    protocol::HttpCall call;
    call.port = port_;
    call.method = "POST";
    call.target = "/v1/completions";
    call.headers = {{"Authorization", "Bearer " + key_}};
    const std::string salted = salt.empty() ? "" : Concat(",\"cache_salt\":\"", salt, "\"");
    call.body = Concat("{\"prompt\":", prompt, ",\"max_tokens\":1,\"temperature\":0", salted, "}");
    const Clock::time_point begin = Clock::now();
    const auto result = protocol::CallHttp(call);
    Answer answer;
    answer.ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    if (!result.ok() || result->status != 200) return answer;
    const auto json = protocol::ParseJson(result->body);
    const JsonValue* usage = json.ok() ? json->Find("usage") : nullptr;
    const JsonValue* details = usage == nullptr ? nullptr : usage->Find("prompt_tokens_details");
    const JsonValue* cached = details == nullptr ? nullptr : details->Find("cached_tokens");
    if (cached != nullptr) answer.cached = cached->AsInt64("cached_tokens").value_or(-1);
    return answer;
  }

 private:
  const uint16_t port_;
  const std::string key_;
};

class Draw {
 public:
  // JSON of a prompt of so many tokens.
  std::string Prompt(int64_t tokens) {
    std::string prompt = "[";
    for (int64_t i = 0; i < tokens; ++i) {
      prompt += Concat(i == 0 ? "" : ",", 300 + random_() % 3000);
    }
    return prompt + "]";
  }
  std::string Salt() {
    constexpr std::string_view kLetters = "ab01z._-";
    std::string salt;
    const uint64_t length = 1 + random_() % 6;
    for (uint64_t i = 0; i < length; ++i) {
      salt += kLetters[random_() % kLetters.size()];
    }
    return salt;
  }

 private:
  std::mt19937_64 random_{17};
};

// The probability that two samples of one distribution differ as much as these.
double KolmogorovSmirnov(std::vector<double> a, std::vector<double> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  double distance = 0;
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const double at = std::min(a[i], b[j]);
    while (i < a.size() && a[i] <= at) ++i;
    while (j < b.size() && b[j] <= at) ++j;
    distance = std::max(distance, std::abs(static_cast<double>(i) / static_cast<double>(a.size()) -
                                           static_cast<double>(j) / static_cast<double>(b.size())));
  }
  const double n =
      static_cast<double>(a.size() * b.size()) / static_cast<double>(a.size() + b.size());
  const double lambda = (std::sqrt(n) + 0.12 + 0.11 / std::sqrt(n)) * distance;
  if (lambda < 0.2) return 1;
  double p = 0;
  for (int k = 1; k <= 100; ++k) {
    p += (k % 2 == 1 ? 2 : -2) * std::exp(-2.0 * k * k * lambda * lambda);
  }
  return std::clamp(p, 0.0, 1.0);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// What pairs of requests showed.
struct Figures {
  std::vector<double> foreign, fresh, own;  // ms
  int64_t leaked = 0;                       // tokens that another tenant's request found
  int64_t hits = 0;                         // requests that found their own tenant's
  bool whole = true;                        // all were answered
};

void RunPairs(const Plan& plan, const Client& alice, const Client& bob, Draw& draw,
              Figures& figures) {
  for (int64_t i = 0; i < plan.pairs && figures.whole; ++i) {
    const std::string prompt = draw.Prompt(plan.prompt);
    const std::string other = draw.Prompt(plan.prompt);
    const Answer first = alice.Ask(prompt);
    Answer foreign, fresh;
    if (i % 2 == 0) foreign = bob.Ask(prompt);
    fresh = bob.Ask(other);
    if (i % 2 == 1) foreign = bob.Ask(prompt);
    const Answer own = alice.Ask(prompt);
    figures.foreign.push_back(foreign.ms);
    figures.fresh.push_back(fresh.ms);
    figures.own.push_back(own.ms);
    figures.leaked += foreign.cached + fresh.cached + first.cached;
    figures.hits += own.cached > 0 ? 1 : 0;
    figures.whole = std::min({first.cached, foreign.cached, fresh.cached, own.cached}) >= 0;
  }
}

// The same prompt under many salts that are beginnings of one another.
void RunSalts(const Plan& plan, const Client& client, Draw& draw, Figures& figures) {
  const std::string prompt = draw.Prompt(plan.prompt);
  std::set<std::string> salts;
  while (static_cast<int64_t>(salts.size()) < plan.salts) salts.insert(draw.Salt());
  for (const std::string& salt : salts) {
    const Answer first = client.Ask(prompt, salt);
    const Answer again = client.Ask(prompt, salt);
    figures.leaked += first.cached;
    figures.hits += again.cached > 0 ? 1 : 0;
    figures.whole = figures.whole && first.cached >= 0 && again.cached >= 0;
  }
}

int Run(const Plan& plan) {
  LiveServer server;
  const std::string file = server.directory() + "/keys.yaml";
  const auto keys = WriteKeyFile(file, {{"alice", ""}, {"bob", ""}});
  if (keys.empty() || !server.StartReady({"--enable-prefix-caching", "--api-key-file", file})) {
    std::fprintf(stderr, "%s", server.output().c_str());
    return 1;
  }
  const Client alice(server.port(), keys.at("alice"));
  const Client bob(server.port(), keys.at("bob"));
  Draw draw;
  Figures figures;
  for (int i = 0; i < 5; ++i) bob.Ask(draw.Prompt(plan.prompt), "warm");
  RunPairs(plan, alice, bob, draw, figures);
  RunSalts(plan, alice, draw, figures);
  const double p = KolmogorovSmirnov(figures.foreign, figures.fresh);
  const double p_own = KolmogorovSmirnov(figures.own, figures.fresh);
  const double limit = plan.pairs >= kAllPairs ? kWanted : kTiny;
  const bool holds = figures.whole && figures.leaked == 0 &&
                     figures.hits == plan.pairs + plan.salts && p > limit && p_own < kTiny;
  std::printf(
      "pairs=%lld foreign_cached_tokens=%lld own_hits=%lld/%lld ms_foreign=%.2f ms_fresh=%.2f "
      "ms_own=%.2f ks_p=%.4f ks_p_of_hits=%.1e\n",
      static_cast<long long>(plan.pairs), static_cast<long long>(figures.leaked),
      static_cast<long long>(figures.hits), static_cast<long long>(plan.pairs + plan.salts),
      Median(figures.foreign), Median(figures.fresh), Median(figures.own), p, p_own);
  return holds ? 0 : 1;
}

int Main(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    int64_t* const target = name == "--pairs"    ? &plan.pairs
                            : name == "--prompt" ? &plan.prompt
                            : name == "--salts"  ? &plan.salts
                                                 : nullptr;
    if (target != nullptr && absl::SimpleAtoi(value, target) && *target > 0) continue;
    std::fputs("usage: tenants [--pairs N] [--prompt N] [--salts N]\n", stderr);
    return 64;
  }
  return Run(plan);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main(argc, argv); }
