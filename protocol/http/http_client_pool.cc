// Non-blocking sockets behind one epoll descriptor.
// Owns: the sockets.
// Thread: the caller's.
// Must never: repeat a call.
#include "protocol/http/http_client_pool.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/http/response_reader.h"

namespace skein::protocol {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr int kEventsMax = 256;
constexpr std::chrono::milliseconds kTimeoutTick{100};

}  // namespace

class HttpClientPool::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {}
  ~Impl();

  absl::Status Open();
  void Start(uint64_t call, std::string request);
  void Poll(std::chrono::nanoseconds timeout, Receiver& receiver);
  size_t num_calls() const { return num_calls_; }
  size_t num_connections() const { return connections_.size(); }

 private:
  struct Connection {
    int fd = -1;
    bool has_call = false;
    bool is_connecting = true;
    bool wants_write = false;
    uint64_t call = 0;
    std::unique_ptr<TlsSession> tls;  // null: bytes cross as they are
    std::string request;              // waits for the handshake
    std::string out;
    size_t sent = 0;
    ResponseReader reader;
    Clock::time_point progress;
  };
  struct Failure {
    uint64_t call = 0;
    absl::Status why;
  };

  Connection* Connect(absl::Status* why);
  void Watch(Connection& connection, uint32_t events, int operation);
  static void Send(Connection& connection);
  void Write(Connection& connection);
  bool Decrypt(Connection& connection, std::string_view bytes, Receiver& receiver);
  void Read(Connection& connection, Receiver& receiver);
  void Consume(Connection& connection, std::string_view bytes, Receiver& receiver);
  void End(Connection& connection, const absl::Status& result, Receiver& receiver);
  static void SayEnd(Connection& connection);
  // Nobody has ended its session, if it has one.
  static bool IsUsable(const Connection& connection) {
    return connection.tls == nullptr || connection.tls->state() == TlsSession::State::kOpen;
  }
  void Close(int fd);
  void CheckTimeouts(Receiver& receiver);
  std::string Where() const { return options_.host + ":" + std::to_string(options_.port); }

  const Options options_;
  int epoll_ = -1;
  sockaddr_storage address_{};
  socklen_t address_size_ = 0;
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;
  std::vector<int> idle_;  // last used last
  std::vector<Failure> failures_;
  size_t num_calls_ = 0;
  Clock::time_point now_ = Clock::now();  // of the bytes being told
  Clock::time_point next_check_ = now_ + kTimeoutTick;
  std::array<char, kReadBytes> buffer_;
  std::string clear_;  // of the bytes being told, with TLS
};

HttpClientPool::Impl::~Impl() {
  for (const auto& [fd, connection] : connections_) {
    SayEnd(*connection);
    ::close(fd);
  }
  if (epoll_ >= 0) ::close(epoll_);
}

absl::Status HttpClientPool::Impl::Open() {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code =
      getaddrinfo(options_.host.c_str(), std::to_string(options_.port).c_str(), &hints, &found);
  if (code != 0) {
    return absl::UnavailableError("cannot resolve " + options_.host + ": " + gai_strerror(code));
  }
  std::memcpy(&address_, found->ai_addr, found->ai_addrlen);
  address_size_ = found->ai_addrlen;
  freeaddrinfo(found);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return absl::InternalError(std::string("epoll: ") + std::strerror(errno));
  return absl::OkStatus();
}

void HttpClientPool::Impl::Watch(Connection& connection, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.fd = connection.fd;
  epoll_ctl(epoll_, operation, connection.fd, &event);
  connection.wants_write = (events & EPOLLOUT) != 0;
}

HttpClientPool::Impl::Connection* HttpClientPool::Impl::Connect(absl::Status* why) {
  const int fd = socket(address_.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    *why = absl::UnavailableError(std::string("no socket: ") + std::strerror(errno) +
                                  "; raise the limit of open files or lower the concurrency");
    return nullptr;
  }
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address_), address_size_) != 0 &&
      errno != EINPROGRESS) {
    *why = absl::UnavailableError("cannot connect to " + Where() + ": " + std::strerror(errno) +
                                  "; is the server running, and there?");
    ::close(fd);
    return nullptr;
  }
  auto& made = connections_[fd] = std::make_unique<Connection>();
  made->fd = fd;
  if (options_.tls != nullptr) {
    made->tls = std::make_unique<TlsSession>(options_.tls, options_.host);
    made->tls->TakeOutput(&made->out);
  }
  Watch(*made, EPOLLIN | EPOLLOUT, EPOLL_CTL_ADD);
  return made.get();
}

void HttpClientPool::Impl::Start(uint64_t call, std::string request) {
  ++num_calls_;
  Connection* connection = nullptr;
  if (!idle_.empty()) {
    connection = connections_.at(idle_.back()).get();
    idle_.pop_back();
  } else {
    absl::Status why;
    connection = Connect(&why);
    if (connection == nullptr) return failures_.push_back({call, std::move(why)});
  }
  connection->has_call = true;
  connection->call = call;
  connection->request = std::move(request);
  connection->progress = Clock::now();
  Send(*connection);
  if (!connection->is_connecting) Write(*connection);
}

// Puts the request, and before it what TLS has to say, among what leaves.
void HttpClientPool::Impl::Send(Connection& connection) {
  if (connection.tls == nullptr) {
    connection.out += std::exchange(connection.request, {});
    return;
  }
  connection.tls->TakeOutput(&connection.out);
  if (connection.tls->state() != TlsSession::State::kOpen) return;
  connection.tls->Send(std::exchange(connection.request, {}), &connection.out);
}

void HttpClientPool::Impl::Write(Connection& connection) {
  while (connection.sent < connection.out.size()) {
    const ssize_t sent = send(connection.fd, connection.out.data() + connection.sent,
                              connection.out.size() - connection.sent, MSG_NOSIGNAL);
    if (sent > 0) {
      connection.sent += static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      if (!connection.wants_write) Watch(connection, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
      return;
    } else if (errno != EINTR) {
      break;  // what the server wrote before it closed, or the close itself, is read next
    }
  }
  connection.out.clear();
  connection.sent = 0;
  if (connection.wants_write) Watch(connection, EPOLLIN, EPOLL_CTL_MOD);
}

// With TLS the server is told why nothing more comes, as far as the socket takes it.
void HttpClientPool::Impl::SayEnd(Connection& connection) {
  // Behind half a record nobody could read it.
  if (connection.tls == nullptr || !connection.out.empty()) return;
  std::string wire;
  if (IsUsable(connection)) connection.tls->SendEnd(&wire);
  if (connection.tls->state() == TlsSession::State::kBroken) connection.tls->TakeOutput(&wire);
  send(connection.fd, wire.data(), wire.size(), MSG_NOSIGNAL);
}

void HttpClientPool::Impl::Close(int fd) {
  SayEnd(*connections_.at(fd));
  std::erase(idle_, fd);
  connections_.erase(fd);
  ::close(fd);
}

void HttpClientPool::Impl::End(Connection& connection, const absl::Status& result,
                               Receiver& receiver) {
  const int status = connection.reader.status();
  const bool keeps = result.ok() && connection.reader.keeps_alive() && IsUsable(connection);
  const bool had_call = std::exchange(connection.has_call, false);
  const uint64_t call = connection.call;
  if (keeps) {
    connection.reader.Reset();
    idle_.push_back(connection.fd);
  } else {
    Close(connection.fd);
  }
  if (!had_call) return;
  --num_calls_;
  receiver.OnEnd(call, status, result, now_);
}

void HttpClientPool::Impl::Consume(Connection& connection, std::string_view bytes,
                                   Receiver& receiver) {
  size_t used = 0;
  const absl::Status read = connection.reader.Feed(
      bytes,
      [&](std::string_view body) {
        receiver.OnBody(connection.call, connection.reader.status(), body, now_);
      },
      &used);
  if (!read.ok()) {
    return End(connection, read, receiver);
  }
  if (!connection.reader.is_whole()) return;
  const bool extra = used < bytes.size();
  End(connection,
      extra ? absl::DataLossError("bytes came behind the end of the answer") : absl::OkStatus(),
      receiver);
}

void HttpClientPool::Impl::Read(Connection& connection, Receiver& receiver) {
  const ssize_t size = recv(connection.fd, buffer_.data(), buffer_.size(), 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  now_ = Clock::now();
  connection.progress = now_;
  std::string_view bytes(buffer_.data(), size > 0 ? static_cast<size_t>(size) : 0);
  if (connection.tls != nullptr && (size > 0 || !connection.is_connecting)) {
    if (!Decrypt(connection, bytes, receiver)) return;
    bytes = clear_;
  }
  if (!bytes.empty() && connection.has_call) return Consume(connection, bytes, receiver);
  if (size > 0 && bytes.empty()) return;                  // TLS spoke of itself
  if (!connection.has_call) return Close(connection.fd);  // the server ended an idle connection
  absl::Status result =
      size < 0 ? absl::DataLossError(std::string("the connection failed: ") + std::strerror(errno))
               : connection.reader.Close();
  if (connection.is_connecting) {
    result = absl::UnavailableError("cannot connect to " + Where() + ": " +
                                    std::strerror(size < 0 ? errno : ECONNRESET) +
                                    "; is the server running, and there?");
  }
  End(connection, result, receiver);
}

// Leaves in clear_ what the bytes say, and sends what waited for them. False when the connection is
// over, whatever had come of an answer.
bool HttpClientPool::Impl::Decrypt(Connection& connection, std::string_view bytes,
                                   Receiver& receiver) {
  using State = TlsSession::State;
  TlsSession& tls = *connection.tls;
  const bool shook_hands = tls.state() != State::kHandshake;
  clear_.clear();
  const State state = bytes.empty() ? tls.state() : tls.Receive(bytes, &clear_);
  absl::Status failure;
  if (state == State::kPlain || state == State::kBroken) {
    failure = TlsFailure(tls, Where());
  } else if (state == State::kEnded && clear_.empty()) {
    End(connection, connection.reader.Close(), receiver);
    return false;
  } else if (bytes.empty() && !shook_hands) {
    failure = absl::UnavailableError(Where() + " ended the TLS handshake");
  } else if (bytes.empty()) {
    failure = absl::DataLossError("the answer of " + Where() + " was cut");
  }
  if (!failure.ok()) {
    End(connection, failure, receiver);
    return false;
  }
  Send(connection);
  if (!connection.out.empty()) Write(connection);
  return true;
}

void HttpClientPool::Impl::CheckTimeouts(Receiver& receiver) {
  next_check_ = now_ + kTimeoutTick;
  std::vector<int> late;
  for (const auto& [fd, connection] : connections_) {
    if (connection->has_call && now_ - connection->progress > options_.timeout) late.push_back(fd);
  }
  for (const int fd : late) {
    End(*connections_.at(fd),
        absl::DeadlineExceededError("no byte of the answer for " +
                                    std::to_string(options_.timeout.count()) + " ms"),
        receiver);
  }
}

void HttpClientPool::Impl::Poll(std::chrono::nanoseconds timeout, Receiver& receiver) {
  for (const Failure& failure : std::exchange(failures_, {})) {
    --num_calls_;
    receiver.OnEnd(failure.call, 0, failure.why, Clock::now());
    timeout = std::chrono::nanoseconds(0);
  }
  std::array<epoll_event, kEventsMax> events;
  const std::chrono::nanoseconds wait = std::min<std::chrono::nanoseconds>(timeout, kTimeoutTick);
  const timespec time{wait.count() / 1'000'000'000, wait.count() % 1'000'000'000};
  int count = epoll_pwait2(epoll_, events.data(), kEventsMax, &time, nullptr);
  if (count < 0 && errno == ENOSYS) {  // kernels before 5.11: whole milliseconds, rounded down
    count = epoll_wait(epoll_, events.data(), kEventsMax, static_cast<int>(wait.count() / 1000000));
  }
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    const auto found = connections_.find(event.data.fd);
    if (found == connections_.end()) continue;  // closed by an earlier event of this round
    Connection& connection = *found->second;
    if ((event.events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
      Read(connection, receiver);
    } else if ((event.events & EPOLLOUT) != 0) {
      connection.is_connecting = false;
      Write(connection);
    }
  }
  now_ = Clock::now();
  if (now_ >= next_check_) CheckTimeouts(receiver);
}

absl::StatusOr<std::unique_ptr<HttpClientPool>> HttpClientPool::Create(Options options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  const absl::Status opened = impl->Open();
  if (!opened.ok()) return opened;
  return std::unique_ptr<HttpClientPool>(new HttpClientPool(std::move(impl)));
}

HttpClientPool::HttpClientPool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClientPool::~HttpClientPool() = default;

void HttpClientPool::Start(uint64_t call, std::string request) {
  impl_->Start(call, std::move(request));
}
void HttpClientPool::Poll(std::chrono::nanoseconds timeout, Receiver& receiver) {
  impl_->Poll(timeout, receiver);
}
size_t HttpClientPool::num_calls() const { return impl_->num_calls(); }
size_t HttpClientPool::num_connections() const { return impl_->num_connections(); }

std::string KeptRequest(std::string_view method, std::string_view target, std::string_view host,
                        std::string_view headers, std::string_view body) {
  std::string text;
  text.reserve(128 + headers.size() + body.size());
  text.append(method).append(" ").append(target).append(" HTTP/1.1\r\nHost: ").append(host);
  text.append("\r\n").append(headers);
  if (method != "GET") {
    text +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  return text.append("\r\n").append(body);
}

}  // namespace skein::protocol
