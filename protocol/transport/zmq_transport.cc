// The one file that knows ZeroMQ, by its C interface: no exceptions to translate.
// Must never touch a socket outside the thread that polls.
#include "protocol/transport/zmq_transport.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/retry_pause.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/transport/control_endpoint.h"
#include "protocol/transport/frame.h"
#include "protocol/transport/zap_handler.h"

namespace skein::protocol {
namespace {

constexpr int kQueueMessagesMax = 1000;
constexpr int kHandshakeMs = 2000;
// Between two tries to connect. ZeroMQ's own pauses begin anew whenever a connection was accepted,
// so a peer that closes what it accepts would be called without end.
constexpr absl::Duration kRedialFirst = absl::Milliseconds(50);
constexpr absl::Duration kRedialMax = absl::Milliseconds(2500);
constexpr int kConnectTimeoutMs = 2000;
constexpr int kLost = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED;
// Connections in a row that ended before a word until somebody is told; the first may be bad luck.
constexpr int kHangUpsTold = 3;
constexpr int kTcpRetransmitMs = 1000;
constexpr int kMessagesPerPollMax = 256;  // per socket, so that timers are not starved

std::string ZmqError() { return ::zmq_strerror(::zmq_errno()); }

struct CloseContext {
  void operator()(void* context) const { ::zmq_ctx_term(context); }
};
struct CloseSocket {
  void operator()(void* socket) const { ::zmq_close(socket); }
};
using ZmqContext = std::unique_ptr<void, CloseContext>;
using ZmqSocket = std::unique_ptr<void, CloseSocket>;

// One part of a message, closed at the end of its scope.
class Part {
 public:
  Part() { ::zmq_msg_init(&message_); }
  ~Part() { ::zmq_msg_close(&message_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  // False with zmq_errno() set when nothing is there.
  bool Receive(void* socket) { return ::zmq_msg_recv(&message_, socket, ZMQ_DONTWAIT) >= 0; }
  bool more() { return ::zmq_msg_more(&message_) != 0; }
  std::span<const std::byte> bytes() {
    return {static_cast<const std::byte*>(::zmq_msg_data(&message_)), ::zmq_msg_size(&message_)};
  }

 private:
  zmq_msg_t message_;
};

// Routing id of an actor: never begins with zero, which is ZeroMQ's own range.
using RoutingId = std::array<std::byte, 9>;

RoutingId ToRoutingId(ActorId actor) {
  RoutingId id{};
  id[0] = std::byte{0x53};
  for (size_t i = 0; i < 4; ++i) {
    id[1 + i] = static_cast<std::byte>(actor.node.value() >> (8 * i) & 0xFF);
    id[5 + i] = static_cast<std::byte>(actor.slot >> (8 * i) & 0xFF);
  }
  return id;
}

bool FromRoutingId(std::span<const std::byte> id, ActorId& actor) {
  if (id.size() != RoutingId().size() || id[0] != std::byte{0x53}) return false;
  uint32_t node = 0;
  uint32_t slot = 0;
  for (size_t i = 0; i < 4; ++i) {
    node |= std::to_integer<uint32_t>(id[1 + i]) << (8 * i);
    slot |= std::to_integer<uint32_t>(id[5 + i]) << (8 * i);
  }
  actor = ActorId{NodeId(node), slot};
  return true;
}

int ToMilliseconds(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return -1;
  // Rounded up: waking just before a deadline would spin until it.
  return static_cast<int>(
      std::min<int64_t>(absl::ToInt64Milliseconds(duration + absl::Microseconds(999)), 60'000));
}

// The next event of a dialled socket, which was lost, says that it had been connected.
bool WasAccepted(void* events) {
  Part event;
  uint16_t number = 0;
  if (!event.Receive(events) || event.bytes().size() < sizeof number) return false;
  std::memcpy(&number, event.bytes().data(), sizeof number);
  return number == ZMQ_EVENT_DISCONNECTED;
}

// Somebody accepts connections at this ipc endpoint. ZeroMQ would take its path away unseen.
bool IsServed(std::string_view endpoint) {
  constexpr std::string_view kIpc = "ipc://";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!endpoint.starts_with(kIpc)) return false;
  const std::string_view path = endpoint.substr(kIpc.size());
  if (path.empty() || path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  const int connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const bool served = connected == 0 || errno == EAGAIN;  // EAGAIN: its backlog is full
  ::close(fd);
  return served;
}

}  // namespace

class ZmqTransport::Impl {
 public:
  Impl(const ZmqTransportOptions& options, ZmqContext context, int wake_fd)
      : options_(options), context_(std::move(context)), wake_fd_(wake_fd) {}
  ~Impl() { ::close(wake_fd_); }

  absl::Status Listen(std::string_view endpoint);
  absl::Status Connect(ActorId peer, std::string_view endpoint);
  absl::Status Send(ActorId peer, std::span<const std::byte> frame);
  absl::Status Poll(absl::Duration timeout, FrameReceiver& receiver);
  void Wake() {
    const uint64_t one = 1;
    // Full means a wake-up is pending: nothing to add.
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
  }
  std::string bound_endpoint() const {
    char text[256] = {};
    size_t size = sizeof text;
    if (!router_ || ::zmq_getsockopt(router_.get(), ZMQ_LAST_ENDPOINT, text, &size) != 0) return "";
    return text;
  }

 private:
  absl::StatusOr<ZmqSocket> Open(int type);
  absl::Status Secure(ZmqSocket& socket, const std::string& server_key) const;
  // Opens the ears of a coordinator on tcp: keys, the allow-list, the count of who failed.
  absl::Status SecureListener(ZmqSocket& socket);
  void DrainRouter(FrameReceiver& receiver);
  // A connection to a peer that is dialled anew, after a pause, whenever it was lost.
  struct Dealer {
    std::string endpoint;
    std::string server_key;
    ZmqSocket socket;  // null between two tries
    ZmqSocket events;  // that it was lost
    RetryPause pause{kRedialFirst, kRedialMax};
    absl::Time dial_at = absl::InfinitePast();
    bool has_spoken = false;  // on this connection
    int hang_ups = 0;         // in a row of a peer that never spoke
  };
  absl::Status Dial(Dealer& dealer);
  // Dials what is due; when the next one is.
  absl::Time DialDue(absl::Time now);
  void HangUp(ActorId peer, Dealer& dealer, FrameReceiver& receiver);
  bool Speaks(ActorId peer) const;
  void TellHangUps(const Dealer& dealer) const;
  static void DrainDealer(ActorId peer, Dealer& dealer, FrameReceiver& receiver);
  static void SkipParts(Part& part, void* socket);

  const ZmqTransportOptions options_;
  const ZmqContext context_;  // outlives the sockets below
  const int wake_fd_;
  std::unique_ptr<ZapHandler> zap_;  // of a coordinator on tcp
  ZmqSocket router_;
  // One for each key that the peer may have; at most one of them gets through.
  std::map<ActorId, std::vector<Dealer>> dealers_;
  uint64_t num_dialled_ = 0;
  std::mt19937_64 random_{std::random_device{}()};
};

absl::StatusOr<ZmqSocket> ZmqTransport::Impl::Open(int type) {
  ZmqSocket socket(::zmq_socket(context_.get(), type));
  if (!socket) return absl::InternalError(Concat("zmq_socket failed: ", ZmqError()));
  const auto set = [&socket](int option, int value) {
    return ::zmq_setsockopt(socket.get(), option, &value, sizeof value) == 0;
  };
  const int64_t message_bytes_max = static_cast<int64_t>(kFrameBytesMax);
  const RoutingId self = ToRoutingId(options_.self);
  bool ok = set(ZMQ_LINGER, 0) && set(ZMQ_SNDHWM, kQueueMessagesMax) &&
            set(ZMQ_RCVHWM, kQueueMessagesMax) && set(ZMQ_HANDSHAKE_IVL, kHandshakeMs) &&
            set(ZMQ_HEARTBEAT_IVL, ToMilliseconds(options_.heartbeat_interval)) &&
            set(ZMQ_HEARTBEAT_TIMEOUT, ToMilliseconds(options_.heartbeat_timeout)) &&
            set(ZMQ_TCP_MAXRT, kTcpRetransmitMs) && set(ZMQ_RECONNECT_IVL, -1) &&
            set(ZMQ_CONNECT_TIMEOUT, kConnectTimeoutMs) &&
            ::zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &message_bytes_max,
                             sizeof message_bytes_max) == 0 &&
            ::zmq_setsockopt(socket.get(), ZMQ_ROUTING_ID, self.data(), self.size()) == 0;
  if (type == ZMQ_ROUTER) {
    // Handover: a restarted worker takes its address back before the old connection is noticed.
    ok = ok && set(ZMQ_ROUTER_MANDATORY, 1) && set(ZMQ_ROUTER_HANDOVER, 1);
  } else {
    ok = ok && set(ZMQ_IMMEDIATE, 1);
  }
  if (!ok) return absl::InternalError(Concat("zmq_setsockopt failed: ", ZmqError()));
  return socket;
}

// An empty `server_key` makes the socket the server.
absl::Status ZmqTransport::Impl::Secure(ZmqSocket& socket, const std::string& server_key) const {
  const int is_server = server_key.empty() ? 1 : 0;
  const auto set = [&socket](int option, const std::string& text) {
    return ::zmq_setsockopt(socket.get(), option, text.c_str(), text.size()) == 0;
  };
  const bool ok =
      ::zmq_setsockopt(socket.get(), ZMQ_CURVE_SERVER, &is_server, sizeof is_server) == 0 &&
      set(ZMQ_CURVE_SECRETKEY, options_.keys->secret_key) &&
      (is_server != 0 ? set(ZMQ_ZAP_DOMAIN, "skein")
                      : set(ZMQ_CURVE_PUBLICKEY, options_.keys->public_key) &&
                            set(ZMQ_CURVE_SERVERKEY, server_key));
  if (ok) return absl::OkStatus();
  return absl::FailedPreconditionError(Concat("the keys cannot be used: ", ZmqError()));
}

absl::Status ZmqTransport::Impl::SecureListener(ZmqSocket& socket) {
  SKEIN_ASSIGN_OR_RETURN(zap_,
                         ZapHandler::Create(context_.get(), options_.keys->allowed_keys_file));
  SKEIN_RETURN_IF_ERROR(Secure(socket, ""));
  return zap_->Watch(socket.get());
}

absl::Status ZmqTransport::Impl::Listen(std::string_view endpoint) {
  if (router_) return absl::FailedPreconditionError("this transport listens already");
  SKEIN_RETURN_IF_ERROR(CheckControlEndpoint(endpoint, options_.keys.has_value()));
  if (IsServed(endpoint)) {
    return absl::FailedPreconditionError(
        Concat("cannot bind ", endpoint,
               ": another process listens there; end it or choose another --control-endpoint"));
  }
  SKEIN_ASSIGN_OR_RETURN(ZmqSocket socket, Open(ZMQ_ROUTER));
  if (NeedsKeys(endpoint)) SKEIN_RETURN_IF_ERROR(SecureListener(socket));
  if (::zmq_bind(socket.get(), std::string(endpoint).c_str()) != 0) {
    return absl::UnavailableError(
        Concat("cannot bind ", endpoint, ": ", ZmqError(), "; choose another --control-endpoint"));
  }
  router_ = std::move(socket);
  return absl::OkStatus();
}

absl::Status ZmqTransport::Impl::Connect(ActorId peer, std::string_view endpoint) {
  if (dealers_.contains(peer)) {
    return absl::AlreadyExistsError(Concat("peer ", peer.node.value(), " is connected already"));
  }
  SKEIN_RETURN_IF_ERROR(CheckControlEndpoint(endpoint, options_.keys.has_value()));
  std::vector<std::string> server_keys = {""};
  if (NeedsKeys(endpoint)) server_keys = options_.keys->server_keys;
  std::vector<Dealer> dealers;
  for (const std::string& server_key : server_keys) {
    Dealer& dealer = dealers.emplace_back();
    dealer.endpoint = endpoint;
    dealer.server_key = server_key;
    SKEIN_RETURN_IF_ERROR(Dial(dealer));
  }
  dealers_.emplace(peer, std::move(dealers));
  return absl::OkStatus();
}

absl::Status ZmqTransport::Impl::Dial(Dealer& dealer) {
  SKEIN_ASSIGN_OR_RETURN(ZmqSocket socket, Open(ZMQ_DEALER));
  if (!dealer.server_key.empty()) SKEIN_RETURN_IF_ERROR(Secure(socket, dealer.server_key));
  const std::string events = Concat("inproc://skein.dialled.", ++num_dialled_);
  ZmqSocket listening(::zmq_socket(context_.get(), ZMQ_PAIR));
  const int linger = 0;
  if (!listening || ::zmq_setsockopt(listening.get(), ZMQ_LINGER, &linger, sizeof linger) != 0 ||
      ::zmq_socket_monitor(socket.get(), events.c_str(), kLost) != 0 ||
      ::zmq_connect(listening.get(), events.c_str()) != 0) {
    return absl::InternalError(Concat("lost connections cannot be seen: ", ZmqError()));
  }
  if (::zmq_connect(socket.get(), dealer.endpoint.c_str()) != 0) {
    return absl::InvalidArgumentError(
        Concat("cannot connect to ", dealer.endpoint, ": ", ZmqError()));
  }
  dealer.has_spoken = false;
  dealer.socket = std::move(socket);
  dealer.events = std::move(listening);
  return absl::OkStatus();
}

absl::Time ZmqTransport::Impl::DialDue(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto& [peer, dealers] : dealers_) {
    for (Dealer& dealer : dealers) {
      if (dealer.socket) continue;
      if (dealer.dial_at <= now) {
        if (const absl::Status dialled = Dial(dealer); dialled.ok()) continue;
        dealer.dial_at = now + dealer.pause.Next(random_());  // out of descriptors, for example
      }
      next = std::min(next, dealer.dial_at);
    }
  }
  return next;
}

// By one of the keys that it may have.
bool ZmqTransport::Impl::Speaks(ActorId peer) const {
  const std::vector<Dealer>& dealers = dealers_.at(peer);
  return std::any_of(dealers.begin(), dealers.end(),
                     [](const Dealer& dealer) { return dealer.has_spoken; });
}

// Once until the peer speaks. A coordinator that is not there yet refuses the call; one that takes
// and ends it does not know us, or is not the one we know.
void ZmqTransport::Impl::TellHangUps(const Dealer& dealer) const {
  if (dealer.server_key.empty()) return;
  SKEIN_LOG(kWarn, "the coordinator ends the connection before it speaks")
      .Field("endpoint", dealer.endpoint)
      .Field("own_public_key", options_.keys->public_key)
      .Field("server_key", dealer.server_key)
      .Field("fix",
             "transport.curve_server_key must be its public key, and ours a line of its "
             "transport.curve_allowed_keys_file; it is called on and on");
}

// What came before the loss is still delivered.
void ZmqTransport::Impl::HangUp(ActorId peer, Dealer& dealer, FrameReceiver& receiver) {
  for (int i = 0; i <= kQueueMessagesMax / kMessagesPerPollMax; ++i) {
    DrainDealer(peer, dealer, receiver);
  }
  if (!dealer.has_spoken && WasAccepted(dealer.events.get()) && ++dealer.hang_ups == kHangUpsTold &&
      !Speaks(peer)) {
    TellHangUps(dealer);
  }
  dealer.socket.reset();
  dealer.events.reset();
  dealer.dial_at = MonotonicNow() + dealer.pause.Next(random_());
}

absl::Status ZmqTransport::Impl::Send(ActorId peer, std::span<const std::byte> frame) {
  int sent = -1;
  const auto dealer = dealers_.find(peer);
  if (dealer != dealers_.end()) {
    for (const Dealer& each : dealer->second) {
      if (sent >= 0 || !each.socket) continue;
      sent = ::zmq_send(each.socket.get(), frame.data(), frame.size(), ZMQ_DONTWAIT);
    }
  } else if (router_) {
    const RoutingId id = ToRoutingId(peer);
    sent = ::zmq_send(router_.get(), id.data(), id.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE);
    if (sent >= 0) {
      sent = ::zmq_send(router_.get(), frame.data(), frame.size(), ZMQ_DONTWAIT);
    }
  } else {
    return absl::UnavailableError(Concat("no connection to peer ", peer.node.value()));
  }
  if (sent >= 0) return absl::OkStatus();
  const std::string text =
      Concat("frame to peer ", peer.node.value(), " was not queued: ", ZmqError());
  // A DEALER without connection and one with a full queue look the same: both heal by resending.
  if (::zmq_errno() == EAGAIN && dealer == dealers_.end()) {
    return absl::ResourceExhaustedError(text);
  }
  return absl::UnavailableError(text);
}

absl::Status ZmqTransport::Impl::Poll(absl::Duration timeout, FrameReceiver& receiver) {
  const absl::Time now = MonotonicNow();
  timeout = std::min(timeout, DialDue(now) - now);
  std::vector<zmq_pollitem_t> items;
  items.push_back({nullptr, wake_fd_, ZMQ_POLLIN, 0});
  if (router_) items.push_back({router_.get(), 0, ZMQ_POLLIN, 0});
  for (const auto& [peer, dealers] : dealers_) {
    for (const Dealer& dealer : dealers) {
      if (!dealer.socket) continue;
      items.push_back({dealer.socket.get(), 0, ZMQ_POLLIN, 0});
      items.push_back({dealer.events.get(), 0, ZMQ_POLLIN, 0});
    }
  }
  if (zap_) {
    items.push_back({zap_->questions(), 0, ZMQ_POLLIN, 0});
    items.push_back({zap_->events(), 0, ZMQ_POLLIN, 0});
  }
  if (::zmq_poll(items.data(), static_cast<int>(items.size()), ToMilliseconds(timeout)) < 0) {
    if (::zmq_errno() == EINTR) return absl::OkStatus();
    return absl::InternalError(Concat("zmq_poll failed: ", ZmqError()));
  }
  if (items[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_fd_, &count, sizeof count);
  }
  if (zap_) {
    zap_->Answer();
    for (uint64_t denied = zap_->TakeDenied(); denied > 0; --denied) receiver.OnDenied();
  }
  size_t next = 1;
  if (router_ && items[next++].revents != 0) DrainRouter(receiver);
  for (auto& [peer, dealers] : dealers_) {
    for (Dealer& dealer : dealers) {
      if (!dealer.socket) continue;
      if (items[next++].revents != 0) DrainDealer(peer, dealer, receiver);
      if (items[next++].revents != 0) HangUp(peer, dealer, receiver);
    }
  }
  return absl::OkStatus();
}

void ZmqTransport::Impl::SkipParts(Part& part, void* socket) {
  while (part.more() && part.Receive(socket)) {
  }
}

void ZmqTransport::Impl::DrainRouter(FrameReceiver& receiver) {
  for (int i = 0; i < kMessagesPerPollMax; ++i) {
    Part identity;
    if (!identity.Receive(router_.get())) return;
    ActorId peer;
    const bool known = FromRoutingId(identity.bytes(), peer);
    Part body;
    if (!identity.more() || !body.Receive(router_.get())) {
      receiver.OnGarbage();
      continue;
    }
    if (body.more() || !known) {
      SkipParts(body, router_.get());
      receiver.OnGarbage();
      continue;
    }
    receiver.OnFrame(peer, body.bytes());
  }
}

void ZmqTransport::Impl::DrainDealer(ActorId peer, Dealer& dealer, FrameReceiver& receiver) {
  for (int i = 0; i < kMessagesPerPollMax; ++i) {
    Part body;
    if (!body.Receive(dealer.socket.get())) return;
    dealer.pause.Reset();  // it speaks: this peer is no refuser
    dealer.has_spoken = true;
    dealer.hang_ups = 0;
    if (body.more()) {
      SkipParts(body, dealer.socket.get());
      receiver.OnGarbage();
      continue;
    }
    receiver.OnFrame(peer, body.bytes());
  }
}

ZmqTransport::ZmqTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ZmqTransport::~ZmqTransport() = default;

absl::StatusOr<std::unique_ptr<ZmqTransport>> ZmqTransport::Create(
    const ZmqTransportOptions& options) {
  ZmqContext context(::zmq_ctx_new());
  if (!context) return absl::InternalError(Concat("zmq_ctx_new failed: ", ZmqError()));
  const int wake_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) return absl::InternalError(Concat("eventfd failed: ", std::strerror(errno)));
  return std::unique_ptr<ZmqTransport>(
      new ZmqTransport(std::make_unique<Impl>(options, std::move(context), wake_fd)));
}

absl::Status ZmqTransport::Listen(std::string_view endpoint) { return impl_->Listen(endpoint); }
absl::Status ZmqTransport::Connect(ActorId peer, std::string_view endpoint) {
  return impl_->Connect(peer, endpoint);
}
absl::Status ZmqTransport::Send(ActorId peer, std::span<const std::byte> frame) {
  return impl_->Send(peer, frame);
}
absl::Status ZmqTransport::Poll(absl::Duration timeout, FrameReceiver& receiver) {
  return impl_->Poll(timeout, receiver);
}
void ZmqTransport::Wake() { impl_->Wake(); }
std::string ZmqTransport::bound_endpoint() const { return impl_->bound_endpoint(); }

}  // namespace skein::protocol
