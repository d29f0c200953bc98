#include "protocol/tensor/ucx_port.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/block_wire.h"

namespace skein::protocol {
namespace {

constexpr unsigned kMessageId = 1;
constexpr absl::Duration kEndTime = absl::Seconds(1);
constexpr absl::Duration kWaitMax = absl::Minutes(1);
// Calls of progress in a row; what is left comes with the next round.
constexpr int kRounds = 1000;

// UCX looks for devices once, when it starts, and passes over those that carry nothing yet: it
// could never be reached at such an address. Others are UCX's to judge.
absl::Status CheckDevice(const sockaddr_in& at) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return absl::OkStatus();
  absl::Status status;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in own{};
    std::memcpy(&own, entry->ifa_addr, sizeof(own));
    if (own.sin_addr.s_addr != at.sin_addr.s_addr || (entry->ifa_flags & IFF_RUNNING) != 0)
      continue;
    status = absl::UnavailableError(Concat("the network device ", entry->ifa_name, " of ",
                                           BlockAddressText(at), " is not up; connect it"));
  }
  ::freeifaddrs(list);
  return status;
}

}  // namespace

// ---- start and end

UcxPort::UcxPort(std::unique_ptr<UcxLibrary> library, OnMessage on_message)
    : ucx_(std::move(library)), on_message_(std::move(on_message)) {}

absl::StatusOr<std::unique_ptr<UcxPort>> UcxPort::Create(const UcxPortOptions& options,
                                                         OnMessage on_message) {
  SKEIN_ASSIGN_OR_RETURN(std::unique_ptr<UcxLibrary> library,
                         UcxLibrary::Open(options.library, options.remedy));
  std::unique_ptr<UcxPort> port(new UcxPort(std::move(library), std::move(on_message)));
  SKEIN_RETURN_IF_ERROR(port->Start(options));
  return port;
}

absl::Status UcxPort::Start(const UcxPortOptions& options) {
  SKEIN_ASSIGN_OR_RETURN(const sockaddr_in at, ParseBlockAddress(options.address));
  SKEIN_RETURN_IF_ERROR(CheckDevice(at));
  SKEIN_ASSIGN_OR_RETURN(context_, ucx_->MakeContext(options.transports == UcxTransports::kAny));
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  SKEIN_RETURN_IF_ERROR(ucx_->StatusOf(ucx_->ucp_worker_create(context_, &worker_params, &worker_),
                                       "making a worker"));
  SKEIN_RETURN_IF_ERROR(
      ucx_->StatusOf(ucx_->ucp_worker_get_efd(worker_, &ucx_fd_), "asking for a descriptor"));
  wake_fd_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0) return absl::ResourceExhaustedError("no descriptor is left for a port");
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = &OnWords;
  handler.arg = this;
  SKEIN_RETURN_IF_ERROR(ucx_->StatusOf(ucx_->ucp_worker_set_am_recv_handler(worker_, &handler),
                                       "setting the handler of messages"));
  return StartListener(at);
}

absl::Status UcxPort::StartListener(const sockaddr_in& at) {
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&at);
  params.sockaddr.addrlen = sizeof(at);
  params.conn_handler = {&OnConnection, this};
  SKEIN_RETURN_IF_ERROR(ucx_->StatusOf(ucx_->ucp_listener_create(worker_, &params, &listener_),
                                       Concat("listening on ", BlockAddressText(at))));
  ucp_listener_attr_t found{};
  found.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  SKEIN_RETURN_IF_ERROR(
      ucx_->StatusOf(ucx_->ucp_listener_query(listener_, &found), "asking for the port"));
  sockaddr_in bound{};
  std::memcpy(&bound, &found.sockaddr, sizeof(bound));
  address_ = BlockAddressText(bound);
  return absl::OkStatus();
}

void UcxPort::End(std::span<UcxLink* const> links) {
  if (listener_ != nullptr) ucx_->ucp_listener_destroy(std::exchange(listener_, nullptr));
  for (UcxLink* link : links) Close(*link);
  const absl::Time until = MonotonicNow() + kEndTime;
  const auto closed = [this](UcxLink* link) {
    Reap(*link, [](const UcxRequest&) {});
    return Closed(*link);
  };
  while (MonotonicNow() < until && !std::all_of(links.begin(), links.end(), closed)) Progress();
}

UcxPort::~UcxPort() {
  if (listener_ != nullptr) ucx_->ucp_listener_destroy(listener_);
  if (worker_ != nullptr) ucx_->ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucx_->ucp_cleanup(context_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

// ---- links

absl::Status UcxPort::Connect(UcxLink& link, const sockaddr_in& to) {
  link.ucx = ucx_.get();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&to);
  params.sockaddr.addrlen = sizeof(to);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&OnBroken, &link};
  return ucx_->StatusOf(ucx_->ucp_ep_create(worker_, &params, &link.endpoint),
                        Concat("connecting to ", BlockAddressText(to)));
}

std::vector<ucp_conn_request_h> UcxPort::TakeArrived() { return std::exchange(arrived_, {}); }

bool UcxPort::Accept(ucp_conn_request_h request, UcxLink& link) {
  link.ucx = ucx_.get();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.conn_request = request;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&OnBroken, &link};
  return ucx_->ucp_ep_create(worker_, &params, &link.endpoint) == UCS_OK;
}

void UcxPort::Refuse(ucp_conn_request_h request) {
  // What comes of a refusal changes nothing here.
  static_cast<void>(ucx_->ucp_listener_reject(listener_, request));
}

absl::Status UcxPort::Send(UcxLink& link, const UcxWords& words) {
  UcxRequest sent;
  sent.header.assign(words.header.begin(), words.header.end());
  std::span<const std::byte> payload = words.payload;
  if (!words.text.empty()) {
    const auto bytes = std::as_bytes(std::span(words.text.data(), words.text.size()));
    sent.text.assign(bytes.begin(), bytes.end());
    payload = sent.text;
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY;
  sent.request = ucx_->ucp_am_send_nbx(link.endpoint, kMessageId, sent.header.data(),
                                       sent.header.size(), payload.data(), payload.size(), &param);
  if (UCS_PTR_IS_ERR(sent.request)) return ucx_->StatusOf(UCS_PTR_STATUS(sent.request), "sending");
  if (sent.request != nullptr) link.open.push_back(std::move(sent));
  return absl::OkStatus();
}

absl::StatusOr<bool> UcxPort::Receive(UcxLink& link, const UcxMessage& message,
                                      std::span<std::byte> into, const UcxRequest& piece) {
  ucp_request_param_t param{};
  void* request =
      ucx_->ucp_am_recv_data_nbx(worker_, message.data, into.data(), message.bytes, &param);
  if (UCS_PTR_IS_ERR(request)) {
    return ucx_->StatusOf(UCS_PTR_STATUS(request), "receiving a piece");
  }
  if (request == nullptr) return true;
  link.open.push_back(piece);
  link.open.back().request = request;
  return false;
}

void UcxPort::Flush(UcxLink& link) {
  ucp_request_param_t param{};
  void* request = ucx_->ucp_ep_flush_nbx(link.endpoint, &param);
  if (UCS_PTR_IS_ERR(request)) {
    link.broken = ucx_->StatusOf(UCS_PTR_STATUS(request), "the other side is gone");
  } else if (request != nullptr) {
    link.open.push_back({.request = request});
  }
}

void UcxPort::Reap(UcxLink& link, const std::function<void(const UcxRequest&)>& on_done) {
  std::erase_if(link.open, [&](const UcxRequest& open) {
    const ucs_status_t status = ucx_->ucp_request_check_status(open.request);
    if (status == UCS_INPROGRESS) return false;
    ucx_->ucp_request_free(open.request);
    if (status == UCS_OK) {
      on_done(open);
    } else if (link.broken.ok()) {
      link.broken = ucx_->StatusOf(status, "the other side is gone");
    }
    return true;
  });
}

void UcxPort::Close(UcxLink& link) {
  if (link.endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  link.closing = ucx_->ucp_ep_close_nbx(std::exchange(link.endpoint, nullptr), &param);
}

bool UcxPort::Closed(UcxLink& link) {
  if (link.endpoint != nullptr || !link.open.empty()) return false;
  if (link.closing == nullptr || UCS_PTR_IS_ERR(link.closing)) return true;
  if (ucx_->ucp_request_check_status(link.closing) == UCS_INPROGRESS) return false;
  ucx_->ucp_request_free(std::exchange(link.closing, nullptr));
  return true;
}

// ---- what UCX tells

void UcxPort::OnConnection(ucp_conn_request_h request, void* port) {
  static_cast<UcxPort*>(port)->arrived_.push_back(request);
}

void UcxPort::OnBroken(void* link, ucp_ep_h endpoint, ucs_status_t status) {
  auto* broken = static_cast<UcxLink*>(link);
  if (broken->endpoint == endpoint) {
    broken->broken = broken->ucx->StatusOf(status, "the other side is gone");
  }
}

ucs_status_t UcxPort::OnWords(void* port, const void* header, size_t header_bytes, void* data,
                              size_t bytes, const ucp_am_recv_param_t* param) {
  UcxMessage message;
  message.header = {static_cast<const std::byte*>(header), header_bytes};
  message.data = data;
  message.bytes = bytes;
  message.rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) message.from = param->reply_ep;
  static_cast<UcxPort*>(port)->on_message_(message);
  return UCS_OK;
}

// ---- progress

void UcxPort::Progress() {
  for (int i = 0; i < kRounds && ucx_->ucp_worker_progress(worker_) != 0; ++i) {
  }
}

absl::Status UcxPort::Sleep(absl::Time until) {
  const ucs_status_t armed = ucx_->ucp_worker_arm(worker_);
  if (armed == UCS_ERR_BUSY) return absl::OkStatus();
  SKEIN_RETURN_IF_ERROR(ucx_->StatusOf(armed, "waiting"));
  const absl::Duration wait = std::clamp(until - MonotonicNow(), absl::ZeroDuration(), kWaitMax);
  const auto wait_ms = absl::ToInt64Milliseconds(wait + absl::Microseconds(999));
  pollfd fds[] = {{ucx_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  if (::poll(fds, 2, static_cast<int>(wait_ms)) < 0 && errno != EINTR) {
    return absl::InternalError("the descriptors of a port cannot be waited for");
  }
  return absl::OkStatus();
}

bool UcxPort::TakeWake() {
  uint64_t woken = 0;
  return ::read(wake_fd_, &woken, sizeof(woken)) > 0;
}

void UcxPort::Wake() {
  const uint64_t one = 1;
  // A full counter wakes as well.
  static_cast<void>(!::write(wake_fd_, &one, sizeof(one)));
}

}  // namespace skein::protocol
