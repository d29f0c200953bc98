// Acceptance check 10: no request that breaks a framing rule is accepted, none gets a second
// answer, and honest streams beside them stay exact.
//   http_framing [--seconds N] [--seed N]
// The last line has the figures; exit 0: they hold.
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "protocol/base/clock.h"
#include "protocol/http/request_reader.h"
#include "tests/accept/framing_probes.h"
#include "tests/accept/framing_reference.h"
#include "tests/accept/program_directory.h"
#include "tests/accept/stream_load.h"
#include "tests/process/live_server.h"
#include "tests/protocol/raw_connection.h"

namespace skein::tests {
namespace {

using protocol::MonotonicNow;

constexpr std::string_view kSecond = "GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n";

struct Figures {
  uint64_t probes = 0, read = 0, sent = 0;
  uint64_t accepted_bad = 0;     // a broken rule and no refusal
  uint64_t refused_good = 0;     // no broken rule and a refusal
  uint64_t different = 0;        // other requests than the reference read
  uint64_t second_requests = 0;  // answers after a refusal
};

std::string Printable(std::string_view bytes) {
  std::string out;
  for (const char c : bytes.substr(0, 400)) {
    char text[8];
    const auto byte = static_cast<unsigned char>(c);
    std::snprintf(text, sizeof text, byte >= 0x20 && byte < 0x7F ? "%c" : "\\x%02x", byte);
    out += text;
  }
  return out;
}

void Report(const char* what, std::string_view bytes) {
  std::printf("%s: %s\n", what, Printable(bytes).c_str());
}

// The listener's reader and the reference on the same bytes, which arrive in pieces.
void CompareReaders(const std::string& bytes, ProbeSource& source, Figures& figures) {
  const protocol::HttpLimits limits;
  protocol::RequestReader reader(limits);
  std::vector<ReferenceRequest> requests;
  for (std::string_view rest = bytes; !rest.empty();) {
    const size_t size = std::min(rest.size(), 1 + source.Below(200));
    reader.Feed(rest.substr(0, size));
    rest.remove_prefix(size);
    while (reader.has_request()) {
      const protocol::HttpRequest request = reader.TakeRequest();
      requests.push_back({request.method, request.target, request.body});
    }
  }
  const ReferenceReading expected = ReadByTheRules(bytes);
  ++figures.read;
  if (expected.refused && !reader.refusal()) {
    ++figures.accepted_bad;
    Report("accepted although a rule is broken", bytes);
  } else if (!expected.refused && reader.refusal()) {
    ++figures.refused_good;
    Report(reader.refusal()->rule.c_str(), bytes);
  } else if (expected.requests != requests) {
    ++figures.different;
    Report("read in another way", bytes);
  }
}

// Status lines; the texts of refusals speak of versions too.
size_t CountAnswers(std::string_view answers) {
  constexpr std::string_view kVersion = "HTTP/1.1 ";
  size_t count = 0;
  for (size_t at = answers.find(kVersion); at != std::string_view::npos;
       at = answers.find(kVersion, at + 1)) {
    const size_t next = at + kVersion.size();
    count += next < answers.size() && answers[next] >= '0' && answers[next] <= '9' ? 1 : 0;
  }
  return count;
}

bool IsRefusal(std::string_view answer) {
  return answer.find("HTTP/1.1 400 ") != std::string_view::npos ||
         answer.find("HTTP/1.1 431 ") != std::string_view::npos ||
         answer.find("HTTP/1.1 413 ") != std::string_view::npos;
}

// A bad probe and a good request behind it: one refusal, then the end.
void Probe(uint16_t port, const FramingProbe& probe, Figures& figures) {
  RawConnection connection(port);
  connection.Send(probe.bytes);
  connection.Send(kSecond);
  const std::string answers = connection.ReadToEnd();
  ++figures.probes;
  if (!IsRefusal(answers)) {
    ++figures.accepted_bad;
    Report(probe.name.c_str(), answers);
  }
  if (CountAnswers(answers) > 1) {
    ++figures.second_requests;
    Report("a second answer", probe.bytes);
  }
  if (!connection.closed_by_peer()) Report("not closed", probe.bytes);
}

// A changed probe to the live server: at most one answer for each request of the reference, and one
// refusal, after which nothing comes.
void Send(uint16_t port, const std::string& bytes, Figures& figures) {
  const ReferenceReading expected = ReadByTheRules(bytes);
  if (!expected.refused) return;
  RawConnection connection(port);
  connection.Send(bytes);
  connection.Send(kSecond);
  const std::string answers = connection.ReadToEnd();
  ++figures.sent;
  const size_t count = CountAnswers(answers);
  if (count > expected.requests.size() + 1) {
    ++figures.second_requests;
    Report("more answers than requests", bytes);
  }
}

int Run(int64_t seconds, int64_t seed) {
  const ProgramDirectory programs("mock-worker");
  LiveServer server(programs.path());
  const uint16_t port = FreePort();
  if (!server.StartReady({"--model", "deploy/models/tiny-v41", "--port", std::to_string(port),
                          "--log-level", "error"})) {
    std::printf("not ready:\n%s\n", server.output().c_str());
    return 1;
  }
  StreamLoad honest({.port = port, .streams = 8, .tokens = 200});
  honest.Start();
  Figures figures;
  for (const FramingProbe& probe : BadProbes()) {
    Probe(port, probe, figures);
    honest.Poll(std::chrono::milliseconds(0));
  }
  ProbeSource source(static_cast<uint64_t>(seed));
  for (const FramingProbe& probe : BadProbes()) CompareReaders(probe.bytes, source, figures);
  for (const FramingProbe& probe : GoodProbes()) CompareReaders(probe.bytes, source, figures);
  const absl::Time end = MonotonicNow() + absl::Seconds(seconds);
  while (MonotonicNow() < end) {
    for (int i = 0; i < 100; ++i) CompareReaders(source.Next(), source, figures);
    Send(port, source.Next(), figures);
    honest.Poll(std::chrono::milliseconds(0));
  }
  honest.Finish();
  while (!honest.idle()) honest.Poll(std::chrono::milliseconds(20));
  const StreamLoad::Totals& totals = honest.totals();
  std::printf(
      "probes=%llu compared=%llu sent=%llu accepted_bad=%llu refused_good=%llu different=%llu "
      "second_requests=%llu honest=%llu/%llu\n",
      static_cast<unsigned long long>(figures.probes),
      static_cast<unsigned long long>(figures.read), static_cast<unsigned long long>(figures.sent),
      static_cast<unsigned long long>(figures.accepted_bad),
      static_cast<unsigned long long>(figures.refused_good),
      static_cast<unsigned long long>(figures.different),
      static_cast<unsigned long long>(figures.second_requests),
      static_cast<unsigned long long>(totals.whole),
      static_cast<unsigned long long>(totals.started));
  const bool holds =
      figures.accepted_bad + figures.refused_good + figures.different + figures.second_requests ==
          0 &&
      totals.whole == totals.started && totals.whole > 0;
  return holds ? 0 : 1;
}

int Main(int argc, char** argv) {
  int64_t seconds = 20;
  int64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    int64_t* number = name == "--seconds" ? &seconds : name == "--seed" ? &seed : nullptr;
    if (number == nullptr || !absl::SimpleAtoi(argv[i + 1], number)) {
      std::fprintf(stderr, "http_framing: %s %s: no such flag or number\n", argv[i], argv[i + 1]);
      return 78;
    }
  }
  return Run(seconds, seed);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main(argc, argv); }
