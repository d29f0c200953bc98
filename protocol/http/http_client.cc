// A blocking socket with deadlines, and the response parser of Beast.
// Owns: one descriptor per call.
// Thread: blocks its caller.
// Must never: report a cut body as whole.
#include "protocol/http/http_client.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/http/event_splitter.h"
#include "protocol/http/unix_socket.h"

namespace skein::protocol {
namespace {

namespace http = boost::beast::http;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string Where(const HttpCall& call) {
  if (!call.unix_path.empty()) return "unix:" + call.unix_path;
  return call.host + ":" + std::to_string(call.port);
}

absl::Status WaitFor(int fd, int16_t events, const HttpCall& call) {
  pollfd poll_fd{fd, events, 0};
  const int ready = poll(&poll_fd, 1, static_cast<int>(call.timeout.count()));
  if (ready > 0 || (ready < 0 && errno == EINTR)) return absl::OkStatus();
  return absl::DeadlineExceededError("no progress with " + Where(call) + " for " +
                                     std::to_string(call.timeout.count()) + " ms");
}

absl::StatusOr<Descriptor> ConnectTo(const addrinfo& address, const HttpCall& call) {
  Descriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return absl::UnavailableError(std::strerror(errno));
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return absl::UnavailableError(std::strerror(errno));
    const absl::Status ready = WaitFor(fd.get(), POLLOUT, call);
    if (!ready.ok()) return ready;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return absl::UnavailableError(std::strerror(error));
  }
  return fd;
}

absl::StatusOr<Descriptor> Connect(const HttpCall& call) {
  if (!call.unix_path.empty()) {
    absl::StatusOr<int> fd = ConnectUnix(call.unix_path);
    if (!fd.ok()) return fd.status();
    return Descriptor(*fd);
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code =
      getaddrinfo(call.host.c_str(), std::to_string(call.port).c_str(), &hints, &found);
  if (code != 0) {
    return absl::UnavailableError("cannot resolve " + call.host + ": " + gai_strerror(code) +
                                  "; give a known name or an address");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  absl::Status last;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    absl::StatusOr<Descriptor> fd = ConnectTo(*address, call);
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return absl::UnavailableError("cannot connect to " + Where(call) + ": " +
                                std::string(last.message()) +
                                "; is the server running, and there?");
}

// A connection with or without TLS. Waits as the call allows.
class Wire {
 public:
  Wire(int fd, const HttpCall& call) : fd_(fd), call_(call) {
    if (call.tls != nullptr) tls_ = std::make_unique<TlsSession>(call.tls, call.host);
  }
  // With TLS the server is told why nothing more comes, as far as the socket takes it.
  ~Wire() {
    if (tls_ == nullptr) return;
    std::string out;
    if (tls_->state() == TlsSession::State::kOpen) tls_->SendEnd(&out);
    if (tls_->state() == TlsSession::State::kBroken) tls_->TakeOutput(&out);
    send(fd_, out.data(), out.size(), MSG_NOSIGNAL);
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // Sends all, behind the handshake.
  absl::Status Send(std::string_view bytes) {
    if (tls_ == nullptr) return SendRaw(bytes);
    std::string out;
    while (tls_->state() == TlsSession::State::kHandshake) {
      const absl::Status status = Feed();
      if (!status.ok()) return status;
    }
    tls_->Send(bytes, &out);
    return SendRaw(out);
  }
  // Appends what came to `text`, maybe nothing; `ended`: nothing more does. DataLoss: it was cut.
  absl::Status Receive(std::string* text, bool* ended) {
    const absl::Status status = Feed();
    if (!status.ok()) return status;
    text->append(std::exchange(clear_, {}));
    *ended = ended_;
    return absl::OkStatus();
  }

 private:
  absl::Status SendRaw(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno == EAGAIN || errno == EINTR) {
        const absl::Status ready = WaitFor(fd_, POLLOUT, call_);
        if (!ready.ok()) return ready;
      } else {
        // The server may have answered and closed before it read everything.
        return absl::OkStatus();
      }
    }
    return absl::OkStatus();
  }

  // What TLS has to say leaves, and what comes next is added to clear_.
  absl::Status Feed() {
    std::string out;
    if (tls_ != nullptr) tls_->TakeOutput(&out);
    absl::Status status = SendRaw(out);
    if (!status.ok()) return status;
    std::array<char, 16 * 1024> buffer;
    ssize_t received = recv(fd_, buffer.data(), buffer.size(), 0);
    while (received < 0 && (errno == EAGAIN || errno == EINTR)) {
      status = WaitFor(fd_, POLLIN, call_);
      if (!status.ok()) return status;
      received = recv(fd_, buffer.data(), buffer.size(), 0);
    }
    const std::string_view bytes(buffer.data(), received > 0 ? static_cast<size_t>(received) : 0);
    if (tls_ == nullptr) {
      ended_ = bytes.empty();
      clear_.append(bytes);
      return absl::OkStatus();
    }
    return FeedTls(bytes);
  }

  absl::Status FeedTls(std::string_view bytes) {
    const bool shook_hands = tls_->state() != TlsSession::State::kHandshake;
    const TlsSession::State state = tls_->Receive(bytes, &clear_);
    ended_ = state == TlsSession::State::kEnded;
    if (state == TlsSession::State::kPlain || state == TlsSession::State::kBroken) {
      return TlsFailure(*tls_, Where(call_));
    }
    if (!bytes.empty()) return absl::OkStatus();
    if (!shook_hands) return absl::UnavailableError(Where(call_) + " ended the TLS handshake");
    return absl::DataLossError("the answer of " + Where(call_) + " was cut");
  }

  const int fd_;
  const HttpCall& call_;
  std::unique_ptr<TlsSession> tls_;  // null: bytes cross as they are
  std::string clear_;
  bool ended_ = false;
};

std::string MakeRequest(const HttpCall& call) {
  std::string text = call.method + " " + call.target + " HTTP/1.1\r\nHost: " +
                     (call.unix_path.empty() ? Where(call) : std::string("localhost")) +
                     "\r\nConnection: close\r\n";
  if (!call.body.empty()) {
    text += "Content-Type: " + call.content_type +
            "\r\nContent-Length: " + std::to_string(call.body.size()) + "\r\n";
  }
  for (const auto& [name, value] : call.headers) text += name + ": " + value + "\r\n";
  return text + "\r\n" + call.body;
}

using Parser = http::response_parser<http::string_body>;

absl::Status ReadAnswer(Wire& wire, const HttpCall& call, Parser* parser,
                        const std::function<bool(std::string_view)>& on_body) {
  std::string unread;
  bool ended = false;
  while (!parser->is_done()) {
    const absl::Status received = wire.Receive(&unread, &ended);
    if (!received.ok()) return received;
    boost::beast::error_code error;
    while (!unread.empty() && !parser->is_done()) {
      const size_t used = parser->put(boost::asio::buffer(unread), error);
      unread.erase(0, used);
      if (error == http::error::need_more || (!error && used == 0)) break;
      if (error) return absl::DataLossError("the answer is malformed: " + error.message());
    }
    if (parser->is_header_done() && !on_body(parser->get().body())) {
      return absl::CancelledError("the receiver ended the call");
    }
    if (!ended || parser->is_done()) continue;
    error = {};
    if (parser->got_some()) parser->put_eof(error);
    if (error || !parser->is_done()) {
      return absl::DataLossError("the answer of " + Where(call) + " was cut");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<HttpResult> Run(const HttpCall& call,
                               const std::function<bool(std::string_view)>* on_event) {
  absl::StatusOr<Descriptor> fd = Connect(call);
  if (!fd.ok()) return fd.status();
  Wire wire(fd->get(), call);
  absl::Status status = wire.Send(MakeRequest(call));
  if (!status.ok()) return status;
  Parser parser;
  parser.body_limit(boost::none);
  parser.eager(true);
  EventSplitter splitter;
  status = ReadAnswer(wire, call, &parser, [&](std::string_view) {
    const auto type = parser.get()[http::field::content_type];
    if (on_event == nullptr || !type.starts_with("text/event-stream")) return true;
    const std::string body = std::exchange(parser.get().body(), {});
    return splitter.Feed(body, *on_event);
  });
  if (!status.ok()) return status;
  HttpResult result;
  result.status = static_cast<int>(parser.get().result_int());
  for (const auto& field : parser.get()) {
    result.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  result.body = std::move(parser.get().body());
  return result;
}

}  // namespace

std::string_view HttpResult::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (HeaderNameEquals(key, name)) return value;
  }
  return {};
}

absl::StatusOr<HttpResult> CallHttp(const HttpCall& call) { return Run(call, nullptr); }

absl::StatusOr<HttpResult> CallHttpEvents(const HttpCall& call,
                                          const std::function<bool(std::string_view)>& on_event) {
  return Run(call, &on_event);
}

}  // namespace skein::protocol
