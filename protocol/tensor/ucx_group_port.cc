#include "protocol/tensor/ucx_group_port.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/ucx_port.h"

namespace skein::protocol {
namespace {

// Connections of others at a time; more are refused.
constexpr size_t kLinksMax = 4 * size_t{kGroupRanksMax};
// How long a connection may be silent, or speak of an epoch that is not known here yet.
constexpr absl::Duration kJoinTime = absl::Seconds(15);
// How long a group that is over waits for the others to notice, and for what they had announced.
constexpr absl::Duration kPartTime = absl::Seconds(1);
// Requests are looked at so often while there are some: not every end of one wakes the waiter.
constexpr absl::Duration kBusyLook = absl::Milliseconds(1);
constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr size_t kTextMax = 512;

struct Carried;

// A message of a collective that is not taken over yet, because it or the one before is on its way:
// messages of UCX may overtake each other.
struct Arrival {
  GroupHeader header;                  // 0 is no collective
  std::unique_ptr<std::byte[]> bytes;  // as many as the group's largest message has
  bool whole = false;
};

// A rank ended the group: it is over when what all had announced before has come.
struct Leave {
  GroupMemory::Ending ending;
  absl::Time deadline;
};

struct Link : UcxLink {
  Carried* group = nullptr;               // null: a connection that did not say for which
  const GroupSpan::Peer* peer = nullptr;  // of the group, at the other end
  absl::Time deadline;                    // without a group
  bool unwanted = false;
  std::optional<GroupHeader> hello;  // its first message, while the group is not known
  std::string name;                  // that was in it
  std::optional<Leave> early_leave;  // meanwhile
  bool welcome = false;              // the other side knows the group
  uint64_t sent = 0;                 // collectives
  uint64_t applied = 0;              // the last collective that was taken over
  std::array<Arrival, 2> arrivals;
  bool parted = false;  // the other side has said its last
};

// A group, until all of its links are closed.
struct Carried {
  std::shared_ptr<GroupSpan> span;
  bool called = false;  // the connections that this side makes
  std::optional<Leave> left = std::nullopt;
  std::optional<absl::Time> parting = std::nullopt;  // it is over; links close by then
};

bool Speaks(const Link& link) { return link.endpoint != nullptr && link.broken.ok(); }

std::string TextOf(const UcxMessage& message) {
  if (message.rendezvous || message.bytes == 0) return {};
  return {static_cast<const char*>(message.data), std::min(message.bytes, kTextMax)};
}

GroupHeader HeaderOf(GroupWord kind, const GroupSpan& span) {
  GroupHeader header;
  header.kind = kind;
  header.epoch = span.options().epoch;
  header.rank = static_cast<uint32_t>(span.options().rank);
  header.ranks = static_cast<uint32_t>(span.options().places.size());
  return header;
}

Leave LeaveOf(const GroupHeader& header, const UcxMessage& message) {
  return {{static_cast<int>(header.by), TextOf(message), header.done}, MonotonicNow() + kPartTime};
}

}  // namespace

struct UcxGroupPort::Core {
  explicit Core(UcxGroupPort& the_owner) : owner(the_owner) {}
  ~Core();

  void Note(const UcxMessage& message);
  void Park(Link& link, const GroupHeader& header, const UcxMessage& message);
  void TakeLeave(Link& link, Leave leave);
  void TakeMeet(Link& link, const GroupHeader& header, const UcxMessage& message);
  void ApplyWhole(Link& link);
  void Apply(Link& link, const GroupHeader& header, std::span<const std::byte> payload);

  void Accept(absl::Time now);
  void Advance();
  void AdvanceLink(Link& link, absl::Time now);
  void AdvanceParked(Link& link, absl::Time now);
  void AdvanceGroup(Carried& group, absl::Time now);
  void Connect(Carried& group);
  void SendAnnounced(Link& link);
  void SayLast(Carried& group);
  void Attach(Link& link, Carried& group);
  void Break(Link& link, std::string_view reason);
  bool MayEnd(const Carried& group, absl::Time now) const;
  Link* LinkOf(ucp_ep_h endpoint);
  bool HasLinks(const Carried& group) const;
  static bool Over(const Carried& group) { return group.parting || group.span->seat().over(); }
  absl::Time NextLook(absl::Time now) const;

  UcxGroupPort& owner;
  std::unique_ptr<UcxPort> port;
  std::vector<std::unique_ptr<Link>> links;
  std::vector<std::unique_ptr<Carried>> groups;
};

UcxGroupPort::Core::~Core() {
  if (port == nullptr) return;
  std::vector<UcxLink*> open;
  for (const std::unique_ptr<Link>& link : links) open.push_back(link.get());
  port->End(open);
  port.reset();
}

// ---- what comes

Link* UcxGroupPort::Core::LinkOf(ucp_ep_h endpoint) {
  for (const std::unique_ptr<Link>& link : links) {
    if (endpoint != nullptr && link->endpoint == endpoint) return link.get();
  }
  return nullptr;
}

void UcxGroupPort::Core::Note(const UcxMessage& message) {
  const std::optional<GroupHeader> header = ReadGroupHeader(message.header);
  Link* link = header ? LinkOf(message.from) : nullptr;
  if (link == nullptr) return;  // no word of ours
  const bool leaves = header->kind == GroupWord::kLeave;
  Carried* group = link->group;
  const bool other = group != nullptr && group->span->options().epoch != header->epoch;
  if (header->epoch < owner.newest_ || other || (group != nullptr && !leaves && Over(*group))) {
    ++owner.stale_dropped_;
    link->unwanted = group == nullptr;
    return;
  }
  if (group == nullptr) return Park(*link, *header, message);
  if (header->kind == GroupWord::kMeet) return TakeMeet(*link, *header, message);
  if (leaves) return TakeLeave(*link, LeaveOf(*header, message));
  link->welcome = true;
}

void UcxGroupPort::Core::TakeLeave(Link& link, Leave leave) {
  link.parted = true;
  const auto ranks = static_cast<int>(link.group->span->options().places.size());
  if (!link.group->left && leave.ending.by >= 0 && leave.ending.by < ranks)
    link.group->left = std::move(leave);
}

// What comes first on a connection waits for its group.
void UcxGroupPort::Core::Park(Link& link, const GroupHeader& header, const UcxMessage& message) {
  if (header.kind == GroupWord::kHello && !link.hello) {
    link.name = TextOf(message);
    link.hello = header;
  } else if (header.kind == GroupWord::kLeave && !link.early_leave) {
    link.early_leave = LeaveOf(header, message);
  } else {
    link.unwanted = true;
  }
}

void UcxGroupPort::Core::TakeMeet(Link& link, const GroupHeader& header,
                                  const UcxMessage& message) {
  const uint64_t number = header.announcement.number;
  const size_t most = link.group->span->bytes_max();
  Arrival& arrival = link.arrivals[number % 2];
  if (!link.peer->is_source || header.rank != static_cast<uint32_t>(link.peer->rank) ||
      number <= link.applied || number > link.applied + 2 ||
      arrival.header.announcement.number == number || header.bytes != message.bytes ||
      message.bytes > most) {
    return Break(link, Concat("sent ", message.bytes, " bytes as collective ", number, " after ",
                              link.applied, "; a group has at most ", most));
  }
  const std::span<const std::byte> data(static_cast<const std::byte*>(message.data),
                                        message.rendezvous ? 0 : message.bytes);
  const bool next = number == link.applied + 1 && link.group->span->seat().memory() != nullptr;
  if (!message.rendezvous && next) return Apply(link, header, data);
  arrival.header = header;
  if (arrival.bytes == nullptr) arrival.bytes = std::make_unique_for_overwrite<std::byte[]>(most);
  arrival.whole = !message.rendezvous;
  std::copy(data.begin(), data.end(), arrival.bytes.get());
  if (arrival.whole) return;
  const absl::StatusOr<bool> done =
      port->Receive(link, message, {arrival.bytes.get(), message.bytes}, {.piece = number});
  if (!done.ok()) return Break(link, StatusText(done.status()));
  arrival.whole = *done;
}

void UcxGroupPort::Core::ApplyWhole(Link& link) {
  if (link.group->span->seat().memory() == nullptr) return;
  while (true) {
    Arrival& next = link.arrivals[(link.applied + 1) % 2];
    if (!next.whole || next.header.announcement.number != link.applied + 1) return;
    next.whole = false;
    Apply(link, next.header, {next.bytes.get(), next.header.bytes});
  }
}

void UcxGroupPort::Core::Apply(Link& link, const GroupHeader& header,
                               std::span<const std::byte> payload) {
  link.applied = header.announcement.number;
  const absl::Status applied = link.group->span->Apply(header, payload);
  if (!applied.ok()) Break(link, StatusText(applied));
}

// What a rank does or what became of the way to it ends the group.
void UcxGroupPort::Core::Break(Link& link, std::string_view reason) {
  const GroupSpan& span = *link.group->span;
  span.seat().Abort(
      Concat("rank ", link.peer->rank, ", at ", span.address(link.peer->rank), ": ", reason));
}

// ---- progress

void UcxGroupPort::Core::Accept(absl::Time now) {
  for (ucp_conn_request_h request : port->TakeArrived()) {
    if (links.size() >= kLinksMax) {
      port->Refuse(request);
      continue;
    }
    auto link = std::make_unique<Link>();
    if (!port->Accept(request, *link)) continue;
    link->deadline = now + kJoinTime;
    links.push_back(std::move(link));
  }
}

void UcxGroupPort::Core::AdvanceParked(Link& link, absl::Time now) {
  if (link.hello && link.hello->epoch <= owner.newest_ && !link.unwanted) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& carried) {
      return carried->span->options().epoch == link.hello->epoch && !Over(*carried);
    });
    if (group == groups.end()) {  // over
      ++owner.stale_dropped_;
      link.unwanted = true;
    } else {
      Attach(link, **group);
      if (link.group != nullptr) return;
    }
  }
  if (!link.broken.ok() || link.unwanted || now >= link.deadline) port->Close(link);
}

void UcxGroupPort::Core::Attach(Link& link, Carried& group) {
  const GroupSpan& span = *group.span;
  const auto rank = static_cast<int>(link.hello->rank);
  const auto peer = std::find_if(span.peers().begin(), span.peers().end(),
                                 [&](const auto& known) { return known.rank == rank; });
  const bool taken = std::any_of(links.begin(), links.end(), [&](const auto& other) {
    return other->group == &group && other->peer->rank == rank;
  });
  if (taken || peer == span.peers().end() || peer->is_called || link.name != span.options().name ||
      link.hello->ranks != span.options().places.size()) {
    SKEIN_LOG(kWarn, "a stranger in the place of a rank")
        .Field("epoch", link.hello->epoch)
        .Field("rank", rank);
    link.unwanted = true;
    return;
  }
  link.group = &group;
  link.peer = &*peer;
  link.welcome = true;
  const GroupHeader welcome = HeaderOf(GroupWord::kWelcome, span);
  const absl::Status sent = port->Send(link, {std::as_bytes(std::span(&welcome, 1))});
  if (!sent.ok()) link.broken = sent;
  if (link.early_leave) TakeLeave(link, *std::move(link.early_leave));
}

void UcxGroupPort::Core::AdvanceLink(Link& link, absl::Time now) {
  port->Reap(link, [&](const UcxRequest& done) {
    if (done.piece) link.arrivals[*done.piece % 2].whole = true;
  });
  if (link.endpoint == nullptr) return;
  if (link.group == nullptr) return AdvanceParked(link, now);
  Carried& group = *link.group;
  if (!Over(group)) ApplyWhole(link);
  if (!link.broken.ok()) {
    if (!Over(group) && !link.parted) Break(link, Concat("lost: ", StatusText(link.broken)));
    return port->Close(link);
  }
  if (!group.parting) return SendAnnounced(link);
  // Both sides have said their last, or one of them does not.
  if ((link.parted && link.open.empty()) || now >= *group.parting) port->Close(link);
}

// Makes the connections that are this rank's to make.
void UcxGroupPort::Core::Connect(Carried& group) {
  group.called = true;
  const GroupHeader hello = HeaderOf(GroupWord::kHello, *group.span);
  for (const GroupSpan::Peer& peer : group.span->peers()) {
    if (!peer.is_called) continue;
    links.push_back(std::make_unique<Link>());
    Link& link = *links.back();
    link.group = &group;
    link.peer = &peer;
    absl::Status status = port->Connect(link, peer.address);
    if (status.ok()) {
      status =
          port->Send(link, {std::as_bytes(std::span(&hello, 1)), {}, group.span->options().name});
    }
    if (!status.ok()) Break(link, StatusText(status));
  }
}

// What the owner announced since, before the end too: that belongs to the others.
void UcxGroupPort::Core::SendAnnounced(Link& link) {
  if (link.peer->host == nullptr || !link.welcome) return;
  for (const uint64_t announced = link.group->span->announced(); link.sent < announced;) {
    if (!Speaks(link)) return;  // the group ends by it
    const size_t turn = ++link.sent % 2;
    const GroupSpan::Host& host = *link.peer->host;
    const absl::Status sent =
        port->Send(link, {std::as_bytes(std::span(&host.headers[turn], 1)), host.payloads[turn]});
    host.taken->store(link.sent, std::memory_order_release);
    if (!sent.ok()) link.broken = sent;
  }
}

// The group is over: says so to the other hosts.
void UcxGroupPort::Core::SayLast(Carried& group) {
  const GroupSeat& seat = group.span->seat();
  const GroupMemory* memory = seat.memory();
  const auto ending = memory != nullptr ? memory->ending() : std::nullopt;
  const std::string reason = ending ? ending->reason : seat.reason();
  GroupHeader header = HeaderOf(GroupWord::kLeave, *group.span);
  header.done = ending ? ending->done : seat.done();
  header.by = static_cast<uint64_t>(ending ? ending->by : seat.rank());
  for (const std::unique_ptr<Link>& link : links) {
    if (link->group != &group || !Speaks(*link)) continue;
    SendAnnounced(*link);
    const absl::Status sent =
        port->Send(*link, {std::as_bytes(std::span(&header, 1)), {}, reason.substr(0, kTextMax)});
    if (!sent.ok()) link->broken = sent;
    if (link->broken.ok()) port->Flush(*link);
  }
}

// What every rank had announced is done before the end that one of them makes.
bool UcxGroupPort::Core::MayEnd(const Carried& group, absl::Time now) const {
  const GroupMemory* memory = group.span->seat().memory();
  if (memory == nullptr || now >= group.left->deadline) return true;
  const auto ranks = static_cast<int>(group.span->options().places.size());
  for (int rank = 0; rank < ranks; ++rank) {
    if (memory->at(rank) < group.left->ending.done) return false;
  }
  return true;
}

void UcxGroupPort::Core::AdvanceGroup(Carried& group, absl::Time now) {
  if (group.parting) return;
  GroupSeat& seat = group.span->seat();
  const uint64_t newest = owner.newest_;
  if (owner.ending_) seat.Abort("the worker ends");
  if (group.span->options().epoch < newest) seat.Abort("a newer epoch has begun");
  if (!seat.over()) {
    if (!group.called) Connect(group);
    if (!group.left || !MayEnd(group, now)) return;
    if (seat.memory() == nullptr) return seat.Abort(group.left->ending.reason);
    if (!seat.memory()->over()) seat.memory()->End(group.left->ending);
  }
  SayLast(group);
  group.parting = now + kPartTime;
}

bool UcxGroupPort::Core::HasLinks(const Carried& group) const {
  return std::any_of(links.begin(), links.end(),
                     [&](const auto& link) { return link->group == &group; });
}

void UcxGroupPort::Core::Advance() {
  const absl::Time now = MonotonicNow();
  Accept(now);
  for (size_t i = 0; i < links.size(); ++i) AdvanceLink(*links[i], now);
  for (const std::unique_ptr<Carried>& group : groups) AdvanceGroup(*group, now);
  std::erase_if(links, [this](const std::unique_ptr<Link>& link) { return port->Closed(*link); });
  std::erase_if(groups, [this](const std::unique_ptr<Carried>& group) {
    return group->parting && !HasLinks(*group);
  });
}

absl::Time UcxGroupPort::Core::NextLook(absl::Time now) const {
  absl::Time next = now + absl::Minutes(1);
  for (const std::unique_ptr<Link>& link : links) {
    if (!link->open.empty() || link->closing != nullptr) return now + kBusyLook;
    if (link->group == nullptr || link->group->parting || link->group->left) next = now + kLook;
  }
  return next;
}

// ---- the thread and the interface

UcxGroupPort::UcxGroupPort() : core_(std::make_unique<Core>(*this)) {}

absl::StatusOr<std::unique_ptr<UcxGroupPort>> UcxGroupPort::Create(UcxPortOptions options) {
  options.remedy =
      "ranks on other hosts are reached over UCX: install libucx0, or keep groups within a host "
      "and leave transport.group_address empty";
  std::unique_ptr<UcxGroupPort> made(new UcxGroupPort());
  Core* core = made->core_.get();
  auto port = UcxPort::Create(options, [core](const UcxMessage& message) { core->Note(message); });
  if (!port.ok()) return port.status();
  core->port = *std::move(port);
  made->thread_ = std::thread([port = made.get()] { port->Loop(); });
  return made;
}

UcxGroupPort::~UcxGroupPort() {
  ending_ = true;
  if (thread_.joinable()) {
    Wake();
    thread_.join();
  }
  for (Begun* at = begun_; at != nullptr;) delete std::exchange(at, at->next);
}

const std::string& UcxGroupPort::address() const { return core_->port->address(); }

void UcxGroupPort::NoteEpoch(uint64_t epoch) {
  uint64_t newest = newest_;
  while (newest < epoch && !newest_.compare_exchange_weak(newest, epoch)) {
  }
}

void UcxGroupPort::Begin(std::shared_ptr<GroupSpan> span) {
  auto* begun = new Begun{std::move(span), begun_};
  while (!begun_.compare_exchange_weak(begun->next, begun)) {
  }
  Wake();
}

void UcxGroupPort::Wake() { core_->port->Wake(); }

void UcxGroupPort::TakeBegun() {
  for (Begun* at = begun_.exchange(nullptr); at != nullptr;) {
    NoteEpoch(at->span->options().epoch);
    core_->groups.push_back(std::make_unique<Carried>(Carried{std::move(at->span)}));
    delete std::exchange(at, at->next);
  }
}

void UcxGroupPort::Loop() {
  while (true) {
    core_->port->TakeWake();
    core_->port->Progress();
    TakeBegun();
    core_->Advance();
    if (ending_ && core_->groups.empty()) return;
    const absl::Status status = core_->port->Sleep(core_->NextLook(MonotonicNow()));
    if (status.ok()) continue;
    SKEIN_LOG(kError, "ranks on other hosts cannot be reached any more")
        .Field("reason", StatusText(status));
    for (const auto& group : core_->groups) group->span->seat().Abort(StatusText(status));
    return;
  }
}

}  // namespace skein::protocol
