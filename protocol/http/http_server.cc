// The listener on Asio: one io_context, one thread, callbacks per connection.
// Owns: sockets, timers and the write queue of each connection.
// Thread: everything below runs on the listener's thread unless a comment says otherwise.
// Must never: end a chunked body that its producer did not end.
#include "protocol/http/http_server.h"

#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/socket.h>

#include "protocol/http/http_connection.h"
#include "protocol/http/response_framing.h"
#include "protocol/http/unix_socket.h"

namespace skein::protocol {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kBacklog = 4096;

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(Options options)
      : loop(std::make_shared<asio::io_context>(1)), acceptor(*loop), timer(*loop) {
    host.options = std::move(options);
    host.loop = loop;
    host.on_end = [this](const std::shared_ptr<HttpConnection>& connection) { Remove(connection); };
  }

  absl::Status Bind();
  absl::Status BindUnix();
  absl::Status TakeListening();
  std::string AddressOf(tcp::socket& socket) const;
  void Accept();
  void OnAccept(const error_code& error, tcp::socket socket);
  void Tick();
  void Remove(const std::shared_ptr<HttpConnection>& connection);
  void DrainNow(std::function<void()> done);
  void TellDrained();
  void StopNow();
  // Calls `function` with each connection, which may end while it runs.
  template <typename Function>
  void ForEach(Function function) {
    const std::vector<std::shared_ptr<HttpConnection>> all(connections.begin(), connections.end());
    for (const auto& connection : all) function(*connection);
  }

  HttpConnectionHost host;
  std::shared_ptr<asio::io_context> loop;
  tcp::acceptor acceptor;
  asio::steady_timer timer;
  std::thread thread;
  uint16_t port = 0;
  std::set<std::shared_ptr<HttpConnection>> connections;
  std::set<std::shared_ptr<HttpConnection>> late_connections;  // accepted while draining
  std::map<std::string, size_t> connections_of_address;
  std::atomic<size_t> num_connections{0};
  std::function<void()> on_drained;
  bool accept_failed = false;
  bool is_stopped = false;
};

absl::Status HttpServer::Impl::BindUnix() {
  absl::StatusOr<int> listening = ListenUnix(host.options.unix_path, kBacklog);
  if (!listening.ok()) return listening.status();
  error_code error;
  // The acceptor needs a family it knows; only accept and close are called on it.
  acceptor.assign(tcp::v4(), *listening, error);
  if (error) return absl::InternalError("cannot watch a socket: " + error.message());
  return absl::OkStatus();
}

absl::Status HttpServer::Impl::TakeListening() {
  const int socket = host.options.listen_fd;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  int listens = 0;
  socklen_t listens_size = sizeof listens;
  const bool is_good =
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
      (address.ss_family == AF_INET || address.ss_family == AF_INET6) &&
      ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) == 0 && listens != 0;
  error_code error;
  if (is_good) acceptor.assign(address.ss_family == AF_INET ? tcp::v4() : tcp::v6(), socket, error);
  if (!is_good || error) {
    return absl::InvalidArgumentError("descriptor " + std::to_string(socket) +
                                      " is no TCP socket that listens; let the supervisor pass it");
  }
  port = acceptor.local_endpoint(error).port();
  return absl::OkStatus();
}

absl::Status HttpServer::Impl::Bind() {
  if (!host.options.unix_path.empty()) return BindUnix();
  if (host.options.listen_fd >= 0) return TakeListening();
  error_code error;
  const auto address = asio::ip::make_address(host.options.host, error);
  const std::string where = host.options.host + ":" + std::to_string(host.options.port);
  if (error) {
    return absl::InvalidArgumentError("cannot listen on " + where +
                                      ": the host must be a numeric IPv4 or IPv6 address");
  }
  const tcp::endpoint endpoint(address, host.options.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error) {
    return absl::UnavailableError("cannot listen on " + where + ": " + error.message() +
                                  "; choose another port or stop the program that holds it");
  }
  port = acceptor.local_endpoint().port();
  return absl::OkStatus();
}

void HttpServer::Impl::Accept() {
  acceptor.async_accept(
      [this](const error_code& error, tcp::socket socket) { OnAccept(error, std::move(socket)); });
}

std::string HttpServer::Impl::AddressOf(tcp::socket& socket) const {
  if (!host.options.unix_path.empty()) return PeerUser(socket.native_handle());
  error_code ignored;
  return socket.remote_endpoint(ignored).address().to_string();
}

void HttpServer::Impl::OnAccept(const error_code& error, tcp::socket socket) {
  if (is_stopped || error == asio::error::operation_aborted) return;
  if (error) {  // out of descriptors: the next tick tries again
    accept_failed = true;
    return;
  }
  error_code ignored;
  if (host.options.unix_path.empty()) socket.set_option(tcp::no_delay(true), ignored);
  const std::string address = AddressOf(socket);
  const bool is_full = connections.size() >= host.options.limits.connections_max;
  if (is_full ||
      connections_of_address[address] >= host.options.limits.connections_per_address_max) {
    const std::string_view limit = is_full ? "connections" : "connections_per_address";
    host.Count("limit", limit);
    const HttpResponse response =
        host.Refusal({503, std::string(limit), "too many connections; try again later"});
    socket.non_blocking(true, ignored);
    // Before a handshake there is no way to say it.
    if (host.options.tls == nullptr)
      socket.send(
          asio::buffer(host.Head(response, BodyFraming::kLength, KeepAlive::kNo) + response.body),
          0, ignored);
    socket.shutdown(tcp::socket::shutdown_send, ignored);
  } else {
    ++connections_of_address[address];
    const auto connection =
        std::make_shared<HttpConnection>(host, *loop, socket.release(), address);
    connections.insert(connection);
    if (host.is_draining) late_connections.insert(connection);
    num_connections = connections.size();
    connection->Start();
  }
  Accept();
}

void HttpServer::Impl::Remove(const std::shared_ptr<HttpConnection>& connection) {
  if (connections.erase(connection) == 0) return;
  num_connections = connections.size();
  const auto count = connections_of_address.find(connection->address());
  if (--count->second == 0) connections_of_address.erase(count);
  late_connections.erase(connection);
  TellDrained();
}

void HttpServer::Impl::TellDrained() {
  if (connections.size() > late_connections.size() || !on_drained) return;
  std::exchange(on_drained, nullptr)();
}

void HttpServer::Impl::Tick() {
  timer.expires_after(host.options.limits.tick);
  timer.async_wait([this](const error_code& error) {
    if (error) return;
    ForEach([now = HttpConnection::Clock::now()](HttpConnection& connection) {
      connection.CheckTimeouts(now);
    });
    if (std::exchange(accept_failed, false) && !is_stopped) Accept();
    Tick();
  });
}

void HttpServer::Impl::DrainNow(std::function<void()> done) {
  host.is_draining = true;
  on_drained = std::move(done);
  ForEach([](HttpConnection& connection) { connection.CloseIfIdle(); });
  TellDrained();
}

void HttpServer::Impl::StopNow() {
  host.is_draining = true;
  is_stopped = true;
  error_code ignored;
  acceptor.close(ignored);
  if (!host.options.unix_path.empty()) RemoveUnix(host.options.unix_path);
  timer.cancel();
  ForEach([](HttpConnection& connection) { connection.Close(); });
  host.unwritten.clear();
  loop->stop();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(Options options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  const absl::Status bound = impl->Bind();
  if (!bound.ok()) return bound;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { Stop(); }

void HttpServer::Start() {
  impl_->Accept();
  impl_->Tick();
  impl_->thread = std::thread([impl = impl_.get()] { impl->loop->run(); });
}

void HttpServer::Stop() {
  if (!impl_->thread.joinable()) return;
  asio::post(*impl_->loop, [impl = impl_.get()] { impl->StopNow(); });
  impl_->thread.join();
}

void HttpServer::Drain(std::function<void()> done) {
  Post([impl = impl_.get(), done = std::move(done)]() mutable { impl->DrainNow(std::move(done)); });
}

uint16_t HttpServer::port() const { return impl_->port; }

size_t HttpServer::num_connections() const { return impl_->num_connections; }

void HttpServer::Post(std::function<void()> function) {
  asio::post(*impl_->loop, std::move(function));
}

HttpExchange::HttpExchange(std::shared_ptr<Link> link) : link_(std::move(link)) {}

namespace {

// Runs `call` on the connection of `link`, at once when this is the listener's thread.
template <typename Call>
void OnConnection(const HttpExchange::Link& link, Call call) {
  const std::shared_ptr<asio::io_context> loop = link.loop.lock();
  if (loop == nullptr) return;
  asio::dispatch(*loop,
                 [answer = link.answer, weak = link.connection, call = std::move(call)]() mutable {
                   if (const std::shared_ptr<HttpConnection> connection = weak.lock())
                     call(*connection, answer);
                 });
}

}  // namespace

HttpExchange::~HttpExchange() {
  if (link_->is_ended) return;
  OnConnection(*link_,
               [](HttpConnection& connection, uint64_t answer) { connection.Abort(answer); });
}

void HttpExchange::Respond(HttpResponse response) {
  link_->is_ended = true;
  OnConnection(*link_,
               [response = std::move(response)](HttpConnection& c, uint64_t answer) mutable {
                 c.Respond(answer, std::move(response));
               });
}

void HttpExchange::StartStream(HttpResponse head) {
  OnConnection(*link_, [head = std::move(head)](HttpConnection& c, uint64_t answer) {
    c.StartStream(answer, head);
  });
}

bool HttpExchange::Push(std::string bytes) {
  if (link_->is_ended) return false;
  const size_t before = link_->pending_bytes.fetch_add(bytes.size());
  // A single piece may be larger than what may wait.
  if (before > 0 && before + bytes.size() > link_->egress_bytes_max) {
    link_->pending_bytes.fetch_sub(bytes.size());
    return false;
  }
  OnConnection(*link_, [bytes = std::move(bytes)](HttpConnection& c, uint64_t answer) mutable {
    c.Push(answer, std::move(bytes));
  });
  return true;
}

void HttpExchange::EndStream(std::string last, After after) {
  link_->is_ended = true;
  link_->pending_bytes.fetch_add(last.size());
  OnConnection(*link_, [last = std::move(last), after](HttpConnection& c, uint64_t answer) mutable {
    c.EndStream(answer, std::move(last), after);
  });
}

void HttpExchange::Abort() {
  link_->is_ended = true;
  OnConnection(*link_,
               [](HttpConnection& connection, uint64_t answer) { connection.Abort(answer); });
}

size_t HttpExchange::pending_bytes() const { return link_->pending_bytes; }

void HttpExchange::Post(std::function<void()> function) {
  const std::shared_ptr<asio::io_context> loop = link_->loop.lock();
  if (loop != nullptr) asio::post(*loop, std::move(function));
}

void HttpExchange::OnClosed(std::function<void()> function) {
  link_->on_closed = std::move(function);
}

void HttpExchange::OnDrained(std::function<void()> function) {
  link_->on_drained = std::move(function);
}

}  // namespace skein::protocol
