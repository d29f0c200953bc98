#include "protocol/tensor/ucx_block_channel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "protocol/base/clock.h"
#include "protocol/base/crc32c.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/block_wire.h"
#include "protocol/tensor/ucx_library.h"

namespace skein::protocol {
namespace {

constexpr unsigned kMessageId = 1;
// Connections of others at a time; more are refused.
constexpr size_t kLinksMax = 2 * kTransfersMax;
// Pieces of a transfer that are on their way at a time.
constexpr size_t kWindow = 16;
// How long a connection may be silent, and wait for a loan that is to come.
constexpr absl::Duration kAskTime = absl::Seconds(10);
// How long the last words of a transfer may take to leave.
constexpr absl::Duration kPartTime = absl::Seconds(1);
// Requests are looked at so often while there are some: not every end of one wakes the waiter.
constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr absl::Duration kWaitMax = absl::Minutes(1);
constexpr size_t kTextMax = 512;

// One side of one transfer.
struct Transfer {
  bool lends = false;
  std::vector<std::span<const std::byte>> lent;
  std::vector<std::span<std::byte>> wanted;
  std::vector<uint8_t> begun;  // of those wanted
  absl::Time deadline;
  uint64_t bytes = 0;
  size_t next = 0;                      // piece to send
  size_t num_right = 0;                 // pieces that came with the right checksum
  std::optional<absl::Status> outcome;  // its endpoint is being closed, or closed

  size_t size() const { return lends ? lent.size() : wanted.size(); }
  void End(absl::Status status) {
    if (!outcome) outcome = std::move(status);
  }
};

// A request of UCX, and what must stay until it is done.
struct Pending {
  void* request = nullptr;
  std::unique_ptr<BlockHeader> header;
  std::unique_ptr<std::string> text;
  std::optional<size_t> piece = std::nullopt;  // that it receives
  uint32_t crc = 0;                            // that it must have
};

// An endpoint and the transfer that it is for.
struct Link {
  ucp_ep_h endpoint = nullptr;  // null: closed, or being closed
  bool asks = false;            // this side made the connection
  std::optional<TransferId> transfer;
  absl::Time deadline;  // of a connection without a transfer
  std::optional<BlockHeader> asked;
  std::vector<Pending> pending;
  void* closing = nullptr;
  std::optional<absl::Time> parting;  // last words are on their way until then
  bool parted = false;                // they were said
  absl::Status broken;                // by UCX's word
};

}  // namespace

struct UcxBlockChannel::Core {
  explicit Core(std::unique_ptr<UcxLibrary> library) : ucx(std::move(library)) {}
  ~Core();
  absl::Status Start(const UcxChannelOptions& options);
  absl::Status StartListener(const sockaddr_in& at);

  absl::Status Add(TransferId id, Transfer transfer);
  absl::Status Connect(TransferId id, const Transfer& transfer, sockaddr_in to);
  absl::Status Send(Link& link, const BlockHeader& header, std::span<const std::byte> payload,
                    std::string text = {});

  // Callbacks: they note, and Advance acts.
  static void OnConnection(ucp_conn_request_h request, void* core);
  static void OnBroken(void* core, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t OnMessage(void* core, const void* header, size_t header_bytes, void* data,
                                size_t bytes, const ucp_am_recv_param_t* param);
  void Note(const BlockHeader& header, void* data, size_t bytes, const ucp_am_recv_param_t& param);
  void TakePiece(const BlockHeader& header, void* data, size_t bytes, bool rendezvous);

  void Accept();
  void Advance();
  void AdvanceLink(Link& link, absl::Time now);
  void Reap(Link& link);
  void Answer(Link& link, absl::Time now);
  void SendPieces(Link& link, Transfer& transfer);
  void Verify(Transfer& transfer, size_t piece, uint32_t crc);
  void SayLast(Link& link, const Transfer& transfer, absl::Time now);
  void Close(Link& link, bool flush);
  bool Closed(Link& link);
  Link* LinkOf(ucp_ep_h endpoint);
  Link* LinkOf(TransferId id);
  Transfer* TransferOf(const Link& link);
  absl::Status Sleep(absl::Time until);

  const std::unique_ptr<UcxLibrary> ucx;
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  ucp_listener_h listener = nullptr;
  int ucx_fd = -1;
  int wake_fd = -1;
  std::string address;
  std::map<TransferId, Transfer> transfers;
  std::vector<std::unique_ptr<Link>> links;
  std::vector<ucp_conn_request_h> arrived;
  std::vector<ChannelEvent> events;
};

// ---- start and end

absl::Status UcxBlockChannel::Core::Start(const UcxChannelOptions& options) {
  SKEIN_ASSIGN_OR_RETURN(const sockaddr_in at, ParseBlockAddress(options.address));
  SKEIN_ASSIGN_OR_RETURN(context,
                         ucx->MakeContext(options.transports == UcxTransports::kAny));
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  SKEIN_RETURN_IF_ERROR(ucx->StatusOf(
      ucx->ucp_worker_create(context, &worker_params, &worker), "making a worker"));
  SKEIN_RETURN_IF_ERROR(
      ucx->StatusOf(ucx->ucp_worker_get_efd(worker, &ucx_fd), "asking for a descriptor"));
  wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd < 0) return absl::ResourceExhaustedError("no descriptor is left for a channel");
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = &OnMessage;
  handler.arg = this;
  SKEIN_RETURN_IF_ERROR(ucx->StatusOf(ucx->ucp_worker_set_am_recv_handler(worker, &handler),
                                      "setting the handler of messages"));
  return StartListener(at);
}

absl::Status UcxBlockChannel::Core::StartListener(const sockaddr_in& at) {
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&at);
  params.sockaddr.addrlen = sizeof(at);
  params.conn_handler = {&OnConnection, this};
  SKEIN_RETURN_IF_ERROR(ucx->StatusOf(ucx->ucp_listener_create(worker, &params, &listener),
                                      absl::StrCat("listening on ", BlockAddressText(at))));
  ucp_listener_attr_t found{};
  found.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  SKEIN_RETURN_IF_ERROR(
      ucx->StatusOf(ucx->ucp_listener_query(listener, &found), "asking for the port"));
  sockaddr_in bound{};
  std::memcpy(&bound, &found.sockaddr, sizeof(bound));
  address = BlockAddressText(bound);
  return absl::OkStatus();
}

UcxBlockChannel::Core::~Core() {
  if (listener != nullptr) ucx->ucp_listener_destroy(listener);
  for (const std::unique_ptr<Link>& link : links) Close(*link, false);
  const absl::Time until = MonotonicNow() + kPartTime;
  while (!links.empty() && MonotonicNow() < until) {
    while (ucx->ucp_worker_progress(worker) != 0) {
    }
    std::erase_if(links, [this](const std::unique_ptr<Link>& link) {
      Reap(*link);
      return Closed(*link);
    });
  }
  if (worker != nullptr) ucx->ucp_worker_destroy(worker);
  if (context != nullptr) ucx->ucp_cleanup(context);
  if (wake_fd >= 0) ::close(wake_fd);
}

// ---- transfers

absl::Status UcxBlockChannel::Core::Add(TransferId id, Transfer transfer) {
  if (transfers.contains(id)) {
    return absl::AlreadyExistsError(Concat("transfer ", id.value(), " is under way"));
  }
  if (transfers.size() >= kTransfersMax || transfer.size() > kPiecesMax || transfer.size() == 0) {
    return absl::ResourceExhaustedError(
        Concat("a transfer of ", transfer.size(), " pieces beside ", transfers.size(),
               " others; from 1 to ", kPiecesMax, " pieces, at most ", kTransfersMax,
               " transfers"));
  }
  for (const auto& piece : transfer.lent) transfer.bytes += piece.size();
  for (const auto& piece : transfer.wanted) transfer.bytes += piece.size();
  transfers.emplace(id, std::move(transfer));
  return absl::OkStatus();
}

absl::Status UcxBlockChannel::Core::Connect(TransferId id, const Transfer& transfer,
                                            sockaddr_in to) {
  auto link = std::make_unique<Link>();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&to);
  params.sockaddr.addrlen = sizeof(to);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&OnBroken, this};
  SKEIN_RETURN_IF_ERROR(ucx->StatusOf(ucx->ucp_ep_create(worker, &params, &link->endpoint),
                                      absl::StrCat("connecting to ", BlockAddressText(to))));
  link->asks = true;
  link->transfer = id;
  links.push_back(std::move(link));
  BlockHeader header;
  header.transfer = id.value();
  header.number = transfer.size();
  header.bytes = transfer.bytes;
  const absl::Status sent = Send(*links.back(), header, {});
  if (!sent.ok()) links.back()->broken = sent;
  return absl::OkStatus();
}

absl::Status UcxBlockChannel::Core::Send(Link& link, const BlockHeader& header,
                                         std::span<const std::byte> payload, std::string text) {
  Pending pending;
  pending.header = std::make_unique<BlockHeader>(header);
  if (!text.empty()) {
    pending.text = std::make_unique<std::string>(std::move(text));
    payload = std::as_bytes(std::span(pending.text->data(), pending.text->size()));
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY;
  pending.request =
      ucx->ucp_am_send_nbx(link.endpoint, kMessageId, pending.header.get(), sizeof(BlockHeader),
                           payload.data(), payload.size(), &param);
  if (UCS_PTR_IS_ERR(pending.request)) {
    return ucx->StatusOf(UCS_PTR_STATUS(pending.request), "sending");
  }
  if (pending.request != nullptr) link.pending.push_back(std::move(pending));
  return absl::OkStatus();
}

// ---- what UCX tells

void UcxBlockChannel::Core::OnConnection(ucp_conn_request_h request, void* core) {
  static_cast<Core*>(core)->arrived.push_back(request);
}

void UcxBlockChannel::Core::OnBroken(void* core, ucp_ep_h endpoint, ucs_status_t status) {
  auto* self = static_cast<Core*>(core);
  if (Link* link = self->LinkOf(endpoint)) {
    link->broken = self->ucx->StatusOf(status, "the other side is gone");
  }
}

ucs_status_t UcxBlockChannel::Core::OnMessage(void* core, const void* header, size_t header_bytes,
                                              void* data, size_t bytes,
                                              const ucp_am_recv_param_t* param) {
  BlockHeader read;
  if (header_bytes != sizeof(read)) return UCS_OK;  // no word of ours: dropped
  std::memcpy(&read, header, sizeof(read));
  if (read.magic == kBlockMagic) static_cast<Core*>(core)->Note(read, data, bytes, *param);
  return UCS_OK;
}

void UcxBlockChannel::Core::Note(const BlockHeader& header, void* data, size_t bytes,
                                 const ucp_am_recv_param_t& param) {
  const bool rendezvous = (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (header.kind == BlockWord::kPiece) return TakePiece(header, data, bytes, rendezvous);
  const TransferId id(header.transfer);
  if (header.kind == BlockWord::kAsk) {
    const bool known = (param.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    Link* link = known ? LinkOf(param.reply_ep) : nullptr;
    if (link != nullptr && !link->asks && !link->asked) link->asked = header;
    return;
  }
  const auto found = transfers.find(id);
  if (found == transfers.end() || found->second.lends != (header.kind == BlockWord::kTaken)) return;
  std::string text = "no reason given";
  if (!rendezvous && bytes > 0) text.assign(static_cast<char*>(data), std::min(bytes, kTextMax));
  // A code that this build does not know is an error all the same.
  const auto code = static_cast<absl::StatusCode>(header.number);
  const bool ok = header.kind == BlockWord::kTaken && code == absl::StatusCode::kOk;
  found->second.End(ok ? absl::OkStatus()
                       : absl::Status(code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown
                                                                    : code,
                                      absl::StrCat("the other side: ", text)));
}

// A piece comes: at once, or now that its place is named.
void UcxBlockChannel::Core::TakePiece(const BlockHeader& header, void* data, size_t bytes,
                                      bool rendezvous) {
  const TransferId id(header.transfer);
  const auto found = transfers.find(id);
  Link* link = LinkOf(id);
  if (found == transfers.end() || link == nullptr || found->second.lends ||
      found->second.outcome) {
    return;
  }
  Transfer& transfer = found->second;
  if (header.number >= transfer.size() || bytes != transfer.wanted[header.number].size() ||
      header.bytes != bytes || transfer.begun[header.number] != 0) {
    return transfer.End(absl::FailedPreconditionError(
        Concat("piece ", header.number, " of ", bytes, " bytes is none of the ", transfer.size(),
               " that are wanted, or came twice")));
  }
  transfer.begun[header.number] = 1;
  const std::span<std::byte> into = transfer.wanted[header.number];
  const auto crc = static_cast<uint32_t>(header.crc);
  if (!rendezvous) {
    std::memcpy(into.data(), data, bytes);
    return Verify(transfer, header.number, crc);
  }
  ucp_request_param_t param{};
  void* request = ucx->ucp_am_recv_data_nbx(worker, data, into.data(), bytes, &param);
  if (UCS_PTR_IS_ERR(request)) {
    return transfer.End(ucx->StatusOf(UCS_PTR_STATUS(request), "receiving a piece"));
  }
  if (request == nullptr) return Verify(transfer, header.number, crc);
  link->pending.push_back({request, nullptr, nullptr, header.number, crc});
}

void UcxBlockChannel::Core::Verify(Transfer& transfer, size_t piece, uint32_t crc) {
  if (Crc32c(0, transfer.wanted[piece]) != crc) {
    return transfer.End(absl::DataLossError(
        absl::StrCat("piece ", piece, " of ", transfer.size(), " has a wrong checksum")));
  }
  if (++transfer.num_right == transfer.size()) transfer.End(absl::OkStatus());
}

// ---- progress

Link* UcxBlockChannel::Core::LinkOf(ucp_ep_h endpoint) {
  for (const std::unique_ptr<Link>& link : links) {
    if (link->endpoint == endpoint) return link.get();
  }
  return nullptr;
}

Link* UcxBlockChannel::Core::LinkOf(TransferId id) {
  for (const std::unique_ptr<Link>& link : links) {
    if (link->transfer == id) return link.get();
  }
  return nullptr;
}

Transfer* UcxBlockChannel::Core::TransferOf(const Link& link) {
  if (!link.transfer) return nullptr;
  const auto found = transfers.find(*link.transfer);
  return found == transfers.end() ? nullptr : &found->second;
}

void UcxBlockChannel::Core::Accept() {
  for (ucp_conn_request_h request : std::exchange(arrived, {})) {
    if (links.size() >= kLinksMax) {
      // What comes of a refusal changes nothing here.
      static_cast<void>(ucx->ucp_listener_reject(listener, request));
      continue;
    }
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.conn_request = request;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {&OnBroken, this};
    auto link = std::make_unique<Link>();
    if (ucx->ucp_ep_create(worker, &params, &link->endpoint) != UCS_OK) continue;
    link->deadline = MonotonicNow() + kAskTime;
    links.push_back(std::move(link));
  }
}

// Requests that are done.
void UcxBlockChannel::Core::Reap(Link& link) {
  Transfer* transfer = TransferOf(link);
  std::erase_if(link.pending, [&](const Pending& pending) {
    const ucs_status_t status = ucx->ucp_request_check_status(pending.request);
    if (status == UCS_INPROGRESS) return false;
    ucx->ucp_request_free(pending.request);
    if (status != UCS_OK && link.broken.ok()) {
      link.broken = ucx->StatusOf(status, "the other side is gone");
    } else if (pending.piece && transfer != nullptr && !transfer->outcome) {
      Verify(*transfer, *pending.piece, pending.crc);
    }
    return true;
  });
}

// A connection of another worker: gives it what it asks for, or says why not.
void UcxBlockChannel::Core::Answer(Link& link, absl::Time now) {
  if (!link.asked) {
    if (now >= link.deadline) Close(link, false);
    return;
  }
  const TransferId id(link.asked->transfer);
  const auto found = transfers.find(id);
  BlockHeader refusal;
  refusal.kind = BlockWord::kRefused;
  refusal.transfer = id.value();
  refusal.number = static_cast<uint64_t>(absl::StatusCode::kFailedPrecondition);
  std::string reason;
  if (found == transfers.end() || !found->second.lends || LinkOf(id) != nullptr) {
    if (now < link.deadline) return;  // what was told to both sides may come here later
    reason = "nothing is lent under this name";
  } else if (Transfer& loan = found->second;
             loan.size() != link.asked->number || loan.bytes != link.asked->bytes) {
    reason = Concat(loan.size(), " pieces of ", loan.bytes, " bytes in all are lent, not ",
                    link.asked->number, " of ", link.asked->bytes,
                    ": the caches have different layouts");
    loan.End(absl::FailedPreconditionError(reason));
  } else {
    link.transfer = id;
    return;
  }
  if (!Send(link, refusal, {}, reason).ok()) return Close(link, false);
  Close(link, true);
}

void UcxBlockChannel::Core::SendPieces(Link& link, Transfer& transfer) {
  while (transfer.next < transfer.size() && link.pending.size() < kWindow) {
    const std::span<const std::byte> piece = transfer.lent[transfer.next];
    BlockHeader header;
    header.kind = BlockWord::kPiece;
    header.transfer = link.transfer->value();
    header.number = transfer.next++;
    header.bytes = piece.size();
    header.crc = Crc32c(0, piece);
    if (const absl::Status sent = Send(link, header, piece); !sent.ok()) {
      link.broken = sent;
      return;
    }
  }
}

// Who fetched says what became of it, so that the lender need not guess.
void UcxBlockChannel::Core::SayLast(Link& link, const Transfer& transfer, absl::Time now) {
  link.parted = true;
  if (transfer.lends || !link.broken.ok() || absl::IsUnavailable(*transfer.outcome)) return;
  BlockHeader header;
  header.kind = BlockWord::kTaken;
  header.transfer = link.transfer->value();
  header.number = static_cast<uint64_t>(transfer.outcome->code());
  if (Send(link, header, {}, std::string(transfer.outcome->message())).ok()) {
    link.parting = now + kPartTime;
  }
}

void UcxBlockChannel::Core::Close(Link& link, bool flush) {
  if (link.endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flush ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
  link.closing = ucx->ucp_ep_close_nbx(std::exchange(link.endpoint, nullptr), &param);
}

// Nobody can read or write through the link any more.
bool UcxBlockChannel::Core::Closed(Link& link) {
  if (link.endpoint != nullptr || !link.pending.empty()) return false;
  if (link.closing == nullptr || UCS_PTR_IS_ERR(link.closing)) return true;
  if (ucx->ucp_request_check_status(link.closing) == UCS_INPROGRESS) return false;
  ucx->ucp_request_free(std::exchange(link.closing, nullptr));
  return true;
}

void UcxBlockChannel::Core::AdvanceLink(Link& link, absl::Time now) {
  Reap(link);
  if (link.endpoint == nullptr) return;
  Transfer* transfer = TransferOf(link);
  if (transfer == nullptr) {
    if (!link.broken.ok()) return Close(link, false);
    Answer(link, now);
    transfer = TransferOf(link);
    if (transfer == nullptr) return;
  }
  if (!link.broken.ok()) transfer->End(link.broken);
  if (!transfer->outcome) {
    if (transfer->lends) SendPieces(link, *transfer);
    return;
  }
  if (!link.parted) SayLast(link, *transfer, now);
  const bool said = !link.parting || (link.pending.empty() && link.broken.ok());
  if (!said && link.broken.ok() && now < *link.parting) return;
  Close(link, link.parting.has_value() && said);
}

void UcxBlockChannel::Core::Advance() {
  const absl::Time now = MonotonicNow();
  Accept();
  for (auto& [id, transfer] : transfers) {
    if (now >= transfer.deadline) {
      transfer.End(absl::DeadlineExceededError(
          transfer.lends ? "the loan was not taken in time" : "the blocks did not come in time"));
    }
  }
  for (size_t i = 0; i < links.size(); ++i) AdvanceLink(*links[i], now);
  std::erase_if(links, [this](const std::unique_ptr<Link>& link) { return Closed(*link); });
  std::erase_if(transfers, [this](const auto& entry) {
    const auto& [id, transfer] = entry;
    if (!transfer.outcome || LinkOf(id) != nullptr) return false;
    events.push_back({id, *transfer.outcome});
    return true;
  });
}

// Until UCX has something, Wake was called or the time has come.
absl::Status UcxBlockChannel::Core::Sleep(absl::Time until) {
  const ucs_status_t armed = ucx->ucp_worker_arm(worker);
  if (armed == UCS_ERR_BUSY) return absl::OkStatus();
  SKEIN_RETURN_IF_ERROR(ucx->StatusOf(armed, "waiting"));
  for (const auto& [id, transfer] : transfers) until = std::min(until, transfer.deadline);
  if (!links.empty()) until = std::min(until, MonotonicNow() + kLook);
  const absl::Duration wait = std::clamp(until - MonotonicNow(), absl::ZeroDuration(), kWaitMax);
  const auto wait_ms = absl::ToInt64Milliseconds(wait + absl::Microseconds(999));
  pollfd fds[] = {{ucx_fd, POLLIN, 0}, {wake_fd, POLLIN, 0}};
  if (::poll(fds, 2, static_cast<int>(wait_ms)) < 0 && errno != EINTR) {
    return absl::InternalError("the descriptors of a channel cannot be waited for");
  }
  return absl::OkStatus();
}

// ---- the interface

UcxBlockChannel::UcxBlockChannel(std::unique_ptr<Core> core) : core_(std::move(core)) {}
UcxBlockChannel::~UcxBlockChannel() = default;

absl::StatusOr<std::unique_ptr<UcxBlockChannel>> UcxBlockChannel::Create(
    const UcxChannelOptions& options) {
  SKEIN_ASSIGN_OR_RETURN(std::unique_ptr<UcxLibrary> library, UcxLibrary::Open(options.library));
  auto core = std::make_unique<Core>(std::move(library));
  SKEIN_RETURN_IF_ERROR(core->Start(options));
  return std::unique_ptr<UcxBlockChannel>(new UcxBlockChannel(std::move(core)));
}

const std::string& UcxBlockChannel::address() const { return core_->address; }

absl::Status UcxBlockChannel::Lend(TransferId transfer,
                                   std::vector<std::span<const std::byte>> pieces,
                                   absl::Time deadline) {
  Transfer loan;
  loan.lends = true;
  loan.lent = std::move(pieces);
  loan.deadline = deadline;
  return core_->Add(transfer, std::move(loan));
}

absl::Status UcxBlockChannel::Fetch(TransferId transfer, const std::string& address,
                                    std::vector<std::span<std::byte>> pieces,
                                    absl::Time deadline) {
  SKEIN_ASSIGN_OR_RETURN(const sockaddr_in to, ParseBlockAddress(address));
  if (to.sin_port == 0) return absl::InvalidArgumentError(Concat("\"", address, "\" has no port"));
  Transfer fetch;
  fetch.wanted = std::move(pieces);
  fetch.begun.assign(fetch.wanted.size(), 0);
  fetch.deadline = deadline;
  SKEIN_RETURN_IF_ERROR(core_->Add(transfer, std::move(fetch)));
  absl::Status connected = core_->Connect(transfer, core_->transfers.at(transfer), to);
  if (!connected.ok()) core_->transfers.erase(transfer);
  return connected;
}

void UcxBlockChannel::Cancel(TransferId transfer) {
  const auto found = core_->transfers.find(transfer);
  if (found == core_->transfers.end()) return;
  found->second.End(absl::CancelledError("not wanted any more"));
}

absl::StatusOr<std::vector<ChannelEvent>> UcxBlockChannel::Poll(absl::Time until) {
  while (true) {
    constexpr int kRounds = 1000;
    for (int i = 0; i < kRounds && core_->ucx->ucp_worker_progress(core_->worker) != 0; ++i) {
    }
    core_->Advance();
    uint64_t woken = 0;
    const bool wakes = ::read(core_->wake_fd, &woken, sizeof(woken)) > 0;
    if (wakes || !core_->events.empty() || MonotonicNow() >= until) {
      return std::exchange(core_->events, {});
    }
    SKEIN_RETURN_IF_ERROR(core_->Sleep(until));
  }
}

void UcxBlockChannel::Wake() {
  const uint64_t one = 1;
  // A full counter wakes as well.
  static_cast<void>(!::write(core_->wake_fd, &one, sizeof(one)));
}

}  // namespace skein::protocol
