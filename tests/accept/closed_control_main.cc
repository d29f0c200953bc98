// Acceptance check 18: the control plane is closed to who has no key, and deaf to what is damaged,
// repeated or of another time; by default it is only a socket in a private directory.
//   closed_control
// The last line has the figures; exit 0: they hold.
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "protocol/codec/codec.h"
#include "protocol/transport/frame.h"
#include "protocol/transport/zmq_transport.h"
#include "tests/accept/child_program.h"
#include "tests/accept/program_directory.h"
#include "tests/process/live_server.h"
#include "tests/protocol/curve_fixture.h"
#include "tests/protocol/raw_connection.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::FrameHeader;

constexpr protocol::ActorId kPeer{protocol::NodeId(1), 0};

struct Figures {
  int probes = 0, counted = 0;
  int accepted = 0;
};

// A peer that says what a check wants, and hears what the coordinator says.
class Peer final : public protocol::FrameReceiver {
 public:
  Peer(const std::string& endpoint, const protocol::CurveKeys& keys) {
    protocol::ZmqTransportOptions options;
    options.self = kPeer;
    options.keys = keys;
    transport_ = *protocol::ZmqTransport::Create(options);
    if (!transport_->Connect(protocol::kCoordinatorActor, endpoint).ok()) std::abort();
  }
  void OnFrame(protocol::ActorId, std::span<const std::byte> frame) override {
    const protocol::DecodedFrame decoded = protocol::DecodeFrame(frame);
    if (decoded.header.session != 0) heard_ = decoded.header;
    ++frames_;
  }
  void OnGarbage() override {}

  void Send(const std::vector<std::byte>& frame) {
    [[maybe_unused]] const bool sent = transport_->Send(protocol::kCoordinatorActor, frame).ok();
  }
  void Listen() {
    [[maybe_unused]] const auto polled = transport_->Poll(absl::Milliseconds(5), *this);
  }
  const FrameHeader& heard() const { return heard_; }
  int frames() const { return frames_; }

 private:
  std::unique_ptr<protocol::ZmqTransport> transport_;
  FrameHeader heard_;
  int frames_ = 0;
};

class Check {
 public:
  explicit Check(const ProgramDirectory& programs)
      : port_(FreePort()), endpoint_(Concat("tcp://127.0.0.1:", FreePort())) {
    coordinator_ = std::make_unique<ChildProgram>(
        std::vector<std::string>{
            programs.path() + "/skein-coordinator", "--model", "deploy/models/tiny-v41", "--port",
            std::to_string(port_), "--control-endpoint", endpoint_, "--backend", "cpu",
            "--curve-secret-key-file", keys_.path("coordinator"), "--curve-allowed-keys-file",
            keys_.path("allowed"), "--term", "7", "--lease-timeout", "60"},
        keys_.path("output"));
  }
  bool WaitUp() const {
    return WaitUntil([&] { return Count("skein_control_auth_denied_total") == 0; });
  }
  double Count(std::string_view name, std::string_view labels = "") const {
    return MetricAt(port_, name, labels);
  }

  // Repeats `act` until the counter has risen; the probe is then refused and counted.
  void Probe(const char* what, std::string_view name, std::string_view labels,
             const std::function<void()>& act) {
    const double before = Count(name, labels);
    const bool counted = WaitUntil(
        [&] {
          act();
          return Count(name, labels) > before;
        },
        absl::Seconds(10));
    ++figures_.probes;
    figures_.counted += counted ? 1 : 0;
    if (!counted) std::printf("not counted: %s\n", what);
  }
  int Registrations() const {
    const std::string text = coordinator_->output();
    int count = 0;
    for (size_t at = text.find("worker registered"); at != std::string::npos;
         at = text.find("worker registered", at + 1)) {
      ++count;
    }
    return count;
  }

  void ProbeStrangers();
  void ProbeFrames();
  void CheckSecrets();
  const Figures& figures() const { return figures_; }
  std::string output() const { return coordinator_->output(); }

 private:
  static std::vector<std::byte> Frame(const FrameHeader& header, const protocol::Message& message) {
    FrameHeader typed = header;
    typed.type = static_cast<uint16_t>(protocol::TypeOf(message));
    return protocol::EncodeFrame(typed, *protocol::EncodeMessage(message));
  }

  const CurveFixture keys_;
  const uint16_t port_;
  const std::string endpoint_;
  std::unique_ptr<ChildProgram> coordinator_;
  Figures figures_;
};

void Check::ProbeStrangers() {
  keys_.NewPair("stranger");
  const std::string denied = "skein_control_auth_denied_total";
  Probe("unknown key", denied, "", [&] {
    Peer peer(endpoint_, keys_.Worker("stranger"));
    for (int i = 0; i < 20; ++i) peer.Listen();
    figures_.accepted += peer.frames();
  });
  Probe("wrong server key", denied, "", [&] {
    Peer peer(endpoint_, keys_.Worker("worker", keys_.Worker("stranger").public_key));
    for (int i = 0; i < 20; ++i) peer.Listen();
    figures_.accepted += peer.frames();
  });
  uint16_t port = static_cast<uint16_t>(
      std::strtoul(endpoint_.c_str() + endpoint_.rfind(':') + 1, nullptr, 10));
  Probe("plain client", denied, "", [&] {
    // The greeting of a ZeroMQ peer without security.
    std::string greeting = std::string("\xFF\0\0\0\0\0\0\0\1\x7F\3\0NULL", 16);
    greeting.resize(64, '\0');
    RawConnection plain(port);
    plain.Send(greeting);
    plain.ReadUntil([](std::string_view all) { return all.size() >= 64; });
  });
  if (Registrations() != 0) figures_.accepted += Registrations();
}

void Check::ProbeFrames() {
  Peer peer(endpoint_, keys_.Worker());
  protocol::RegisterWorker hello;
  hello.build = SKEIN_VERSION;
  hello.backend = hello.model = "probe";
  hello.incarnation = protocol::Incarnation(10);
  hello.geometry = {64, 64, 4, 512, 4096, 0};
  FrameHeader header;
  header.from = kPeer;
  header.to = protocol::kCoordinatorActor;
  header.incarnation = protocol::Incarnation(10);
  header.session = 2;
  header.ordinal = 1;
  const std::vector<std::byte> first = Frame(header, hello);
  const bool registered = WaitUntil([&] {
    peer.Send(first);
    peer.Listen();
    return Registrations() == 1;
  });
  if (!registered) std::printf("the honest frame was not taken\n%s\n", output().c_str());
  const auto again = [&](const std::vector<std::byte>& frame) {
    peer.Send(frame);
    peer.Listen();
  };
  constexpr std::string_view kStale = "skein_stale_frames_dropped_total";
  constexpr std::string_view kBad = "skein_bad_frames_total";
  Probe("replayed frame", kStale, "repeated", [&] { again(first); });
  FrameHeader other = header;
  other.incarnation = protocol::Incarnation(9);
  Probe("older incarnation", kStale, "incarnation", [&] { again(Frame(other, hello)); });
  other = header;
  other.session = 1;
  Probe("older session", kStale, "session", [&] { again(Frame(other, hello)); });
  other = header;
  other.term = protocol::Term(6);
  other.ordinal = 2;
  Probe("older term", kStale, "term", [&] { again(Frame(other, hello)); });
  for (const size_t at : {size_t{0}, size_t{4}, size_t{20}, first.size() - 1}) {
    std::vector<std::byte> flipped = first;
    flipped[at] ^= std::byte{4};
    Probe("flipped bit", kBad, "", [&] { again(flipped); });
  }
  Probe("cut frame", kBad, "length", [&] { again({first.begin(), first.begin() + 50}); });
  other = header;
  other.from = {protocol::NodeId(2), 0};
  Probe("foreign sender", kBad, "address", [&] { again(Frame(other, hello)); });
  protocol::StepResult result;
  result.epoch = protocol::Epoch(1);
  uint64_t ordinal = 1;
  Probe("older epoch", "skein_stale_results_total", "", [&] {
    other = header;
    other.ordinal = ++ordinal;
    other.acknowledged = 0;
    again(Frame(other, result));
  });
  figures_.accepted += Registrations() - (registered ? 1 : 0);
}

void Check::CheckSecrets() {
  const std::string secret = keys_.Coordinator().secret_key;
  std::ostringstream arguments;
  arguments << std::ifstream(Concat("/proc/", coordinator_->process().pid(), "/cmdline")).rdbuf();
  protocol::HttpCall call;
  call.port = port_;
  call.target = "/metrics";
  const auto metrics = protocol::CallHttp(call);
  for (const std::string& text : {output(), arguments.str(), metrics.ok() ? metrics->body : ""}) {
    if (text.find(secret) == std::string::npos) continue;
    ++figures_.accepted;
    std::printf("a secret key can be read\n");
  }
}

// Local addresses of listening TCP sockets that are not loopback, among those that were not there.
std::vector<std::string> OpenDoors() {
  std::vector<std::string> doors;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const bool is_loopback = local.substr(6, 2) == "7F" || local.find("01000000:") == 24;
      if (state == "0A" && !is_loopback) doors.push_back(local);
    }
  }
  return doors;
}

int CountNewDoors(const ProgramDirectory& programs) {
  const std::vector<std::string> before = OpenDoors();
  LiveServer server(programs.path());
  if (!server.StartReady({"--model", "deploy/models/tiny-v41"})) return -1;
  int doors = 0;
  for (const std::string& door : OpenDoors()) {
    if (std::find(before.begin(), before.end(), door) != before.end()) continue;
    std::printf("listens beyond loopback: %s\n", door.c_str());
    ++doors;
  }
  return doors;
}

int Run() {
  const ProgramDirectory programs("mock-worker");
  const int doors = CountNewDoors(programs);
  Check check(programs);
  if (!check.WaitUp()) {
    std::printf("not up:\n%s\n", check.output().c_str());
    return 1;
  }
  check.ProbeStrangers();
  check.ProbeFrames();
  check.CheckSecrets();
  const Figures& figures = check.figures();
  std::printf("probes=%d refused_and_counted=%d accepted=%d open_doors=%d\n", figures.probes,
              figures.counted, figures.accepted, doors);
  const bool holds = figures.counted == figures.probes && figures.accepted == 0 && doors == 0;
  if (!holds) std::printf("%s\n", check.output().c_str());
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace skein::tests

int main() { return skein::tests::Run(); }
