#include "protocol/tensor/ucx_block_channel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/clock.h"
#include "protocol/base/crc32c.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/block_wire.h"

namespace skein::protocol {
namespace {

// Connections at a time; of those that are for no transfer the oldest makes room for a new one.
constexpr size_t kLinksMax = 2 * kTransfersMax;
// The same with those that are being closed; more are refused.
constexpr size_t kEndpointsMax = 2 * kLinksMax;
// Pieces of a transfer that are on their way at a time.
constexpr size_t kWindow = 16;
// How long a connection may be silent, and wait for a loan that is to come; and a loan for somebody
// who asks for it.
constexpr absl::Duration kAskTime = absl::Seconds(10);
// How long the other side has to go once the last word was sent to it.
constexpr absl::Duration kPartTime = absl::Seconds(1);
// How long it may take UCX to say that a connection is gone whose pieces it reported.
constexpr absl::Duration kBreakTime = absl::Milliseconds(200);
// Requests are looked at so often while there are some: not every end of one wakes the waiter.
constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr size_t kTextMax = 512;

// One side of one transfer.
struct Transfer {
  bool lends = false;
  std::vector<std::span<const std::byte>> lent;
  std::vector<std::span<std::byte>> wanted;
  std::vector<uint8_t> begun;  // of those wanted
  absl::Time deadline;
  absl::Time asked_deadline;  // of a loan, once somebody has asked for it
  uint64_t bytes = 0;
  size_t next = 0;                      // piece to send
  size_t num_right = 0;                 // pieces that came with the right checksum
  std::optional<size_t> wrong;          // one that did not
  absl::Time judged;                    // when that is the end, unless the connection is gone
  std::optional<absl::Status> outcome;  // its endpoint is being closed, or closed
  bool told = false;                    // by the other side, which waits for that

  size_t size() const { return lends ? lent.size() : wanted.size(); }
  void End(absl::Status status) {
    if (!outcome) outcome = std::move(status);
  }
};

// An endpoint and the transfer that it is for.
struct Link : UcxLink {
  bool asks = false;  // this side made the connection
  std::optional<TransferId> transfer;
  absl::Time deadline;  // of a connection without a transfer
  std::optional<BlockHeader> asked;
  // What the other side said for its last word before its loan was found.
  std::optional<std::pair<BlockHeader, std::string>> taken;
  std::optional<absl::Time> parting;  // the last word was sent; the other side has until then
};

// What stands behind a last word.
std::string TextOf(const UcxMessage& message) {
  if (message.rendezvous || message.bytes == 0) return "no reason given";
  return {static_cast<char*>(message.data), std::min(message.bytes, kTextMax)};
}

}  // namespace

struct UcxBlockChannel::Core {
  ~Core();

  absl::Status Add(TransferId id, Transfer transfer);
  absl::Status Connect(TransferId id, const Transfer& transfer, sockaddr_in to);
  absl::Status Send(Link& link, const BlockHeader& header, std::span<const std::byte> payload,
                    std::string_view text = {});

  // A message: it is noted, and Advance acts.
  void Note(const UcxMessage& message);
  void TakeLast(Transfer& transfer, const BlockHeader& header, const std::string& text);
  void TakePiece(Link& link, Transfer& transfer, const BlockHeader& header,
                 const UcxMessage& message);

  bool MakeRoom();
  void Accept();
  void Advance();
  void AdvanceLink(Link& link, absl::Time now);
  void Reap(Link& link);
  void Answer(Link& link, absl::Time now);
  void SendPieces(Link& link, Transfer& transfer);
  void Verify(Transfer& transfer, size_t piece, uint32_t crc);
  void Judge(Transfer& transfer, absl::Time now);
  void Part(Link& link, const BlockHeader& last, std::string_view text, absl::Time now);
  void SayTaken(Link& link, const Transfer& transfer, absl::Time now);
  Link* LinkOf(ucp_ep_h endpoint);
  Link* LinkOf(TransferId id);
  Transfer* TransferOf(const Link& link);
  absl::Status Sleep(absl::Time until);

  std::unique_ptr<UcxPort> port;
  std::map<TransferId, Transfer> transfers;
  std::vector<std::unique_ptr<Link>> links;
  std::vector<ChannelEvent> events;
};

UcxBlockChannel::Core::~Core() {
  if (port == nullptr) return;
  std::vector<UcxLink*> open;
  for (const std::unique_ptr<Link>& link : links) open.push_back(link.get());
  port->End(open);
  port.reset();
}

// ---- transfers

absl::Status UcxBlockChannel::Core::Add(TransferId id, Transfer transfer) {
  if (transfers.contains(id)) {
    return absl::AlreadyExistsError(Concat("transfer ", id.value(), " is under way"));
  }
  if (transfers.size() >= kTransfersMax || transfer.size() > kPiecesMax || transfer.size() == 0) {
    return absl::ResourceExhaustedError(Concat("a transfer of ", transfer.size(), " pieces beside ",
                                               transfers.size(), " others; from 1 to ", kPiecesMax,
                                               " pieces, at most ", kTransfersMax, " transfers"));
  }
  for (const auto& piece : transfer.lent) transfer.bytes += piece.size();
  for (const auto& piece : transfer.wanted) transfer.bytes += piece.size();
  transfers.emplace(id, std::move(transfer));
  return absl::OkStatus();
}

absl::Status UcxBlockChannel::Core::Connect(TransferId id, const Transfer& transfer,
                                            sockaddr_in to) {
  auto link = std::make_unique<Link>();
  SKEIN_RETURN_IF_ERROR(port->Connect(*link, to));
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
                                         std::span<const std::byte> payload,
                                         std::string_view text) {
  return port->Send(link, {std::as_bytes(std::span(&header, 1)), payload, text});
}

// ---- what UCX tells

// A word counts on the connection of its transfer alone: who knows a name cannot speak for others.
void UcxBlockChannel::Core::Note(const UcxMessage& message) {
  BlockHeader header;
  if (message.header.size() != sizeof(header)) return;  // no word of ours: dropped
  std::memcpy(&header, message.header.data(), sizeof(header));
  Link* link = message.from != nullptr ? LinkOf(message.from) : nullptr;
  if (header.magic != kBlockMagic || link == nullptr) return;
  if (header.kind == BlockWord::kAsk) {
    if (!link->asks && !link->asked) link->asked = header;
    return;
  }
  Transfer* transfer = TransferOf(*link);
  if (transfer == nullptr) {
    const bool own = link->asked && header.transfer == link->asked->transfer;
    if (own && header.kind == BlockWord::kTaken && !link->taken) {
      link->taken.emplace(header, TextOf(message));
    }
    return;
  }
  if (header.transfer != link->transfer->value()) return;
  switch (header.kind) {
    case BlockWord::kAsk:
      return;
    case BlockWord::kPiece:
      if (!transfer->lends) TakePiece(*link, *transfer, header, message);
      return;
    case BlockWord::kRefused:
      if (!transfer->lends) TakeLast(*transfer, header, TextOf(message));
      return;
    case BlockWord::kTaken:
      if (transfer->lends) TakeLast(*transfer, header, TextOf(message));
      return;
  }
}

void UcxBlockChannel::Core::TakeLast(Transfer& transfer, const BlockHeader& header,
                                     const std::string& text) {
  // A code that this build does not know is an error all the same.
  const auto code = static_cast<absl::StatusCode>(header.number);
  const bool ok = header.kind == BlockWord::kTaken && code == absl::StatusCode::kOk;
  transfer.told = true;
  transfer.End(ok ? absl::OkStatus()
                  : absl::Status(code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code,
                                 absl::StrCat("the other side: ", text)));
}

// A piece comes: at once, or now that its place is named.
void UcxBlockChannel::Core::TakePiece(Link& link, Transfer& transfer, const BlockHeader& header,
                                      const UcxMessage& message) {
  if (transfer.outcome) return;
  const size_t bytes = message.bytes;
  if (header.number >= transfer.size() || bytes != transfer.wanted[header.number].size() ||
      header.bytes != bytes || transfer.begun[header.number] != 0) {
    return transfer.End(absl::FailedPreconditionError(
        Concat("piece ", header.number, " of ", bytes, " bytes is none of the ", transfer.size(),
               " that are wanted, or came twice")));
  }
  transfer.begun[header.number] = 1;
  const std::span<std::byte> into = transfer.wanted[header.number];
  const auto crc = static_cast<uint32_t>(header.crc);
  if (!message.rendezvous) {
    std::memcpy(into.data(), message.data, bytes);
    return Verify(transfer, header.number, crc);
  }
  const absl::StatusOr<bool> done =
      port->Receive(link, message, into, {.piece = header.number, .crc = crc});
  if (!done.ok()) return transfer.End(done.status());
  if (*done) Verify(transfer, header.number, crc);
}

// Of a connection that breaks off UCX may say that a piece is there before it says that it is gone:
// a wrong checksum is that of the other side only when nothing else is heard for a while.
void UcxBlockChannel::Core::Verify(Transfer& transfer, size_t piece, uint32_t crc) {
  if (Crc32c(0, transfer.wanted[piece]) == crc) {
    if (++transfer.num_right == transfer.size()) transfer.End(absl::OkStatus());
  } else if (!transfer.wrong) {
    transfer.wrong = piece;
    transfer.judged = MonotonicNow() + kBreakTime;
  }
}

void UcxBlockChannel::Core::Judge(Transfer& transfer, absl::Time now) {
  if (!transfer.wrong || now < transfer.judged) return;
  transfer.End(absl::DataLossError(
      absl::StrCat("piece ", *transfer.wrong, " of ", transfer.size(), " has a wrong checksum")));
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

// Who connects and does not say for what makes room for the next one; who asks waits for its loan.
bool UcxBlockChannel::Core::MakeRoom() {
  if (links.size() >= kEndpointsMax) return false;
  const auto open = [](const auto& link) { return link->endpoint != nullptr; };
  if (std::count_if(links.begin(), links.end(), open) < static_cast<ptrdiff_t>(kLinksMax)) {
    return true;
  }
  const auto idle = std::find_if(links.begin(), links.end(), [&](const auto& link) {
    return open(link) && !link->transfer && !link->asked;
  });
  if (idle == links.end()) return false;
  port->Close(**idle);
  return true;
}

void UcxBlockChannel::Core::Accept() {
  for (ucp_conn_request_h request : port->TakeArrived()) {
    if (!MakeRoom()) {
      port->Refuse(request);
      continue;
    }
    auto link = std::make_unique<Link>();
    if (!port->Accept(request, *link)) continue;
    link->deadline = MonotonicNow() + kAskTime;
    links.push_back(std::move(link));
  }
}

void UcxBlockChannel::Core::Reap(Link& link) {
  Transfer* transfer = TransferOf(link);
  port->Reap(link, [&](const UcxRequest& done) {
    if (done.piece && transfer != nullptr && !transfer->outcome && link.broken.ok()) {
      Verify(*transfer, *done.piece, done.crc);
    }
  });
}

// A connection of another worker: gives it what it asks for, or says why not.
void UcxBlockChannel::Core::Answer(Link& link, absl::Time now) {
  if (!link.asked) {
    if (now >= link.deadline) port->Close(link);
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
    link.transfer = id;  // which ends when the refusal was heard
    loan.End(absl::FailedPreconditionError(reason));
  } else {
    link.transfer = id;
    loan.deadline = loan.asked_deadline;
    if (link.taken) TakeLast(loan, link.taken->first, link.taken->second);
    return;
  }
  Part(link, refusal, reason, now);
}

void UcxBlockChannel::Core::SendPieces(Link& link, Transfer& transfer) {
  while (transfer.next < transfer.size() && link.open.size() < kWindow) {
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

// The last word: who gets it closes the connection, which tells this side that it came.
void UcxBlockChannel::Core::Part(Link& link, const BlockHeader& last, std::string_view text,
                                 absl::Time now) {
  link.parting = now + kPartTime;
  if (const absl::Status sent = Send(link, last, {}, text); !sent.ok()) link.broken = sent;
}

// Who fetched says what became of it, so that the lender need not guess.
void UcxBlockChannel::Core::SayTaken(Link& link, const Transfer& transfer, absl::Time now) {
  BlockHeader header;
  header.kind = BlockWord::kTaken;
  header.transfer = link.transfer->value();
  header.number = static_cast<uint64_t>(transfer.outcome->code());
  Part(link, header, StatusText(*transfer.outcome), now);
}

void UcxBlockChannel::Core::AdvanceLink(Link& link, absl::Time now) {
  Reap(link);
  if (link.endpoint == nullptr) return;
  Transfer* transfer = TransferOf(link);
  if (!link.broken.ok()) {
    if (transfer != nullptr) transfer->End(link.broken);
    return port->Close(link);
  }
  if (link.parting) {
    if (now >= *link.parting) port->Close(link);
    return;
  }
  if (transfer == nullptr) return Answer(link, now);
  Judge(*transfer, now);
  if (!transfer->outcome) {
    if (transfer->lends) SendPieces(link, *transfer);
    return;
  }
  if (transfer->lends || transfer->told) return port->Close(link);
  SayTaken(link, *transfer, now);
}

void UcxBlockChannel::Core::Advance() {
  const absl::Time now = MonotonicNow();
  Accept();
  for (auto& [id, transfer] : transfers) {
    if (now >= transfer.deadline) {
      transfer.End(absl::DeadlineExceededError(transfer.lends ? "the loan was not taken in time"
                                                              : "the blocks did not come in time"));
    }
  }
  for (size_t i = 0; i < links.size(); ++i) AdvanceLink(*links[i], now);
  std::erase_if(links, [this](const std::unique_ptr<Link>& link) { return port->Closed(*link); });
  std::erase_if(transfers, [this](const auto& entry) {
    const auto& [id, transfer] = entry;
    if (!transfer.outcome || LinkOf(id) != nullptr) return false;
    events.push_back({id, *transfer.outcome});
    return true;
  });
}

// Until UCX has something, Wake was called or the time has come.
absl::Status UcxBlockChannel::Core::Sleep(absl::Time until) {
  for (const auto& [id, transfer] : transfers) until = std::min(until, transfer.deadline);
  if (!links.empty()) until = std::min(until, MonotonicNow() + kLook);
  return port->Sleep(until);
}

// ---- the interface

UcxBlockChannel::UcxBlockChannel(std::unique_ptr<Core> core) : core_(std::move(core)) {}
UcxBlockChannel::~UcxBlockChannel() = default;

absl::StatusOr<std::unique_ptr<UcxBlockChannel>> UcxBlockChannel::Create(
    const UcxPortOptions& options) {
  auto core = std::make_unique<Core>();
  SKEIN_ASSIGN_OR_RETURN(core->port,
                         UcxPort::Create(options, [core = core.get()](const UcxMessage& message) {
                           core->Note(message);
                         }));
  return std::unique_ptr<UcxBlockChannel>(new UcxBlockChannel(std::move(core)));
}

const std::string& UcxBlockChannel::address() const { return core_->port->address(); }

absl::Status UcxBlockChannel::Lend(TransferId transfer,
                                   std::vector<std::span<const std::byte>> pieces,
                                   absl::Time deadline) {
  Transfer loan;
  loan.lends = true;
  loan.lent = std::move(pieces);
  loan.deadline = std::min(deadline, MonotonicNow() + kAskTime);
  loan.asked_deadline = deadline;
  return core_->Add(transfer, std::move(loan));
}

absl::Status UcxBlockChannel::Fetch(TransferId transfer, const std::string& address,
                                    std::vector<std::span<std::byte>> pieces, absl::Time deadline) {
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
    core_->port->Progress();
    core_->Advance();
    const bool wakes = core_->port->TakeWake();
    if (wakes || !core_->events.empty() || MonotonicNow() >= until) {
      return std::exchange(core_->events, {});
    }
    SKEIN_RETURN_IF_ERROR(core_->Sleep(until));
  }
}

void UcxBlockChannel::Wake() { core_->port->Wake(); }

}  // namespace skein::protocol
