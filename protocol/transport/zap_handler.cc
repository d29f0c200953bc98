#include "protocol/transport/zap_handler.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include <sys/stat.h>
#include <zmq.h>

#include "protocol/base/log.h"
#include "protocol/base/strings.h"
#include "protocol/transport/curve_keys.h"

namespace skein::protocol {
namespace {

constexpr char kQuestions[] = "inproc://zeromq.zap.01";
constexpr char kEvents[] = "inproc://skein.handshakes";
constexpr int kFailures = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr size_t kFramesMax = 16;
constexpr size_t kFrameBytesMax = 256;

// All parts of the message that waits; nothing when none does.
std::optional<std::vector<std::string>> Receive(void* socket) {
  std::vector<std::string> frames;
  int more = 1;
  while (more != 0) {
    std::array<char, kFrameBytesMax> bytes{};
    const int size = ::zmq_recv(socket, bytes.data(), bytes.size(), ZMQ_DONTWAIT);
    if (size < 0) return std::nullopt;
    if (frames.size() < kFramesMax) {
      frames.emplace_back(bytes.data(), std::min(static_cast<size_t>(size), bytes.size()));
    }
    size_t length = sizeof more;
    if (::zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &length) != 0) return std::nullopt;
  }
  return frames;
}

// The text form of a peer's key, if the question is about one.
std::string KeyOf(const std::vector<std::string>& question) {
  if (question.size() != 7 || question[0] != "1.0" || question[5] != "CURVE" ||
      question[6].size() != 32) {
    return "";
  }
  std::array<char, 41> text{};
  ::zmq_z85_encode(text.data(), reinterpret_cast<const uint8_t*>(question[6].data()), 32);
  return text.data();
}

// Why a handshake failed, from the first frame of its event: number and value in the machine's
// order.
std::string WhyFailed(const std::string& event) {
  uint16_t number = 0;
  uint32_t value = 0;
  if (event.size() < sizeof number + sizeof value) return "unknown";
  std::memcpy(&number, event.data(), sizeof number);
  std::memcpy(&value, event.data() + sizeof number, sizeof value);
  if (number == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    return "it left in the middle, as one without CURVE may do";
  if (value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC) {
    return "it encrypts for another key; its transport.curve_server_key must be the public key of "
           "this coordinator";
  }
  if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
    return "it does not speak CURVE; a worker needs transport.curve_server_key";
  }
  return Concat("it does not keep to the protocol (", value, ")");
}

// Who is not on the list was told of already, by its key.
bool IsListed(const std::string& event) {
  uint16_t number = 0;
  if (event.size() >= sizeof number) std::memcpy(&number, event.data(), sizeof number);
  return number != ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ZapHandler>> ZapHandler::Create(void* context,
                                                               std::string allowed_keys_file) {
  void* questions = ::zmq_socket(context, ZMQ_REP);
  const int linger = 0;
  if (questions == nullptr ||
      ::zmq_setsockopt(questions, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
      ::zmq_bind(questions, kQuestions) != 0) {
    const std::string why = ::zmq_strerror(::zmq_errno());
    if (questions != nullptr) ::zmq_close(questions);
    return absl::InternalError(Concat("nobody would judge keys: ", kQuestions, ": ", why));
  }
  std::unique_ptr<ZapHandler> handler(
      new ZapHandler(context, questions, std::move(allowed_keys_file)));
  handler->Reload();
  return handler;
}

ZapHandler::~ZapHandler() {
  if (events_ != nullptr) ::zmq_close(events_);
  ::zmq_close(questions_);
}

absl::Status ZapHandler::Watch(void* listening) {
  events_ = ::zmq_socket(context_, ZMQ_PAIR);
  const int linger = 0;
  if (events_ == nullptr || ::zmq_setsockopt(events_, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
      ::zmq_socket_monitor(listening, kEvents, kFailures) != 0 ||
      ::zmq_connect(events_, kEvents) != 0) {
    return absl::InternalError(
        Concat("failed handshakes cannot be seen: ", ::zmq_strerror(::zmq_errno())));
  }
  return absl::OkStatus();
}

void ZapHandler::Reload() {
  struct stat status {};
  if (::stat(file_.c_str(), &status) != 0) {
    // As with one that cannot be read: the last good list stays. To let nobody in, empty the file.
    if (std::exchange(loaded_, {}) != std::pair<int64_t, uint64_t>()) {
      SKEIN_LOG(kError, "allow-list not taken, the last one stays")
          .Field("reason", Concat(file_, ": ", std::strerror(errno)))
          .Field("keys", static_cast<uint64_t>(allowed_.size()));
    }
    return;
  }
  const std::pair<int64_t, uint64_t> changed = {
      int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec, status.st_ino};
  if (changed == loaded_) return;
  loaded_ = changed;
  std::ifstream file(file_);
  if (!file) {
    SKEIN_LOG(kError, "allow-list not taken").Field("reason", Concat(file_, " cannot be read"));
    return;
  }
  std::ostringstream text;
  text << file.rdbuf();
  absl::StatusOr<std::vector<std::string>> keys = ParseAllowedKeys(text.str());
  if (!keys.ok()) {
    // A list that cannot be read is no reason to let somebody in, nor to turn known workers away.
    SKEIN_LOG(kError, "allow-list not taken").Field("reason", StatusText(keys.status()));
    return;
  }
  allowed_ = *std::move(keys);
  if (!allowed_.empty()) {
    SKEIN_LOG(kInfo, "allow-list read").Field("keys", static_cast<uint64_t>(allowed_.size()));
    return;
  }
  SKEIN_LOG(kWarn, "the allow-list is empty, no worker may come in")
      .Field("file", file_)
      .Field("fix", "write the public key of each worker in a line; it is read again by itself");
}

bool ZapHandler::Allows(const std::string& key) {
  if (key.empty()) return false;
  Reload();
  return std::find(allowed_.begin(), allowed_.end(), key) != allowed_.end();
}

void ZapHandler::Answer() {
  while (const auto question = Receive(questions_)) {
    const std::string key = KeyOf(*question);
    const bool allowed = Allows(key);
    if (!allowed) SKEIN_LOG(kWarn, "peer turned away").Field("key", key.empty() ? "none" : key);
    const std::array<std::string, 6> answer = {"1.0",
                                               question->size() > 1 ? (*question)[1] : "",
                                               allowed ? "200" : "400",
                                               allowed ? "OK" : "this key is not on the allow-list",
                                               allowed ? key : "",
                                               ""};
    for (size_t i = 0; i < answer.size(); ++i) {
      ::zmq_send(questions_, answer[i].data(), answer[i].size(),
                 i + 1 < answer.size() ? ZMQ_SNDMORE | ZMQ_DONTWAIT : ZMQ_DONTWAIT);
    }
  }
}

uint64_t ZapHandler::TakeDenied() {
  uint64_t denied = 0;
  while (events_ != nullptr) {
    const auto event = Receive(events_);
    if (!event) break;
    ++denied;
    if (event->empty() || !IsListed(event->front())) continue;
    SKEIN_LOG(kWarn, "peer turned away").Field("reason", WhyFailed(event->front()));
  }
  return denied;
}

}  // namespace skein::protocol
