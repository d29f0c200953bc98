// The loop: poll, deliver, fire timers, tick sessions, idle. See the header for the threads.
// Must never wait anywhere but in Transport::Poll.
#include "protocol/actor/threaded_actor_system.h"

#include <algorithm>
#include <vector>

#include <sys/random.h>

#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

constexpr size_t kTimersMax = 4096;
constexpr absl::Duration kFlushMax = absl::Milliseconds(500);

void Count(std::atomic<uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

uint64_t KernelRandom() {
  uint64_t random = 0;
  SKEIN_CHECK(::getrandom(&random, sizeof random, 0) == sizeof random)
      << "the kernel gave no random bytes";
  return random;
}

}  // namespace

ThreadedActorSystem::ThreadedActorSystem(const ActorSystemOptions& options,
                                         std::unique_ptr<Transport> transport)
    : options_(options),
      transport_(std::move(transport)),
      random_state_(options.random_seed.value_or(0)) {
  SKEIN_CHECK((options_.term == Term()) != (options_.incarnation == Incarnation()))
      << "a system is a coordinator's (term) or a worker's (incarnation)";
}

ThreadedActorSystem::~ThreadedActorSystem() = default;

absl::StatusOr<ActorId> ThreadedActorSystem::Spawn(std::string name, ActorFactory factory) {
  if (actor_ != nullptr) {
    return absl::FailedPreconditionError(
        Concat("the system runs ", name_, "; make another system for ", name));
  }
  name_ = std::move(name);
  actor_ = factory(*transport_);
  SKEIN_CHECK(actor_ != nullptr) << "the factory of " << name_ << " made no actor";
  return options_.self;
}

absl::Status ThreadedActorSystem::Listen(std::string_view endpoint) {
  if (options_.term == Term()) {
    return absl::FailedPreconditionError("only a coordinator's system listens; a worker connects");
  }
  return transport_->Listen(endpoint);
}

absl::Status ThreadedActorSystem::Connect(ActorId peer, std::string_view endpoint) {
  if (options_.incarnation == Incarnation()) {
    return absl::FailedPreconditionError("only a worker's system connects; a coordinator listens");
  }
  if (sessions_.contains(peer)) {
    return absl::AlreadyExistsError(Concat("peer ", peer.node.value(), " is connected already"));
  }
  SKEIN_RETURN_IF_ERROR(transport_->Connect(peer, endpoint));
  SessionOptions session;
  session.self = options_.self;
  session.peer = peer;
  session.role = SessionRole::kConnecting;
  session.incarnation = options_.incarnation;
  session.beat_interval = options_.beat_interval;
  session.lease = options_.lease;
  sessions_[peer] =
      std::make_unique<Session>(session, static_cast<SessionOutput&>(*this), counters_, Now());
  return absl::OkStatus();
}

absl::Status ThreadedActorSystem::Run() {
  SKEIN_RETURN_IF_ERROR(Start());
  while (running()) Round();
  return stop_reason_;
}

absl::Status ThreadedActorSystem::Start() {
  if (actor_ == nullptr) return absl::FailedPreconditionError("Run without an actor: Spawn one");
  actor_->OnStart(*this);
  return absl::OkStatus();
}

void ThreadedActorSystem::Round() {
  const absl::Time due = next_round();
  const absl::Status polled = transport_->Poll(std::max(due - Now(), absl::ZeroDuration()), *this);
  if (!polled.ok()) Stop(polled);
  if (stopped_) {  // what was sent is being acknowledged
    if (!polled.ok()) flush_end_ = absl::InfinitePast();
    TickSessions();
    return;
  }
  NoteDelay(due);
  if (options_.on_round) options_.on_round();
  FireTimers();
  if (!stopped_) TickSessions();
  if (!stopped_) actor_->OnIdle(*this);
}

bool ThreadedActorSystem::running() const {
  if (!stopped_) return true;
  if (!stop_reason_.ok() || Now() >= flush_end_) return false;
  return std::any_of(sessions_.begin(), sessions_.end(), [](const auto& entry) {
    return entry.second->alive() && entry.second->unacknowledged() > 0;
  });
}

// What was due and is done only now was late: the thread did not run, or was busy.
void ThreadedActorSystem::NoteDelay(absl::Time due) {
  const absl::Time now = Now();
  if (now < due) return;
  delay_.Observe(now - due, now);
  if (options_.on_scheduling_delay) options_.on_scheduling_delay(now - due);
}

absl::Status ThreadedActorSystem::Send(ActorId to, Epoch epoch, Message message) {
  const auto found = sessions_.find(to);
  if (found == sessions_.end()) {
    return absl::UnavailableError(Concat("peer ", to.node.value(), " is not connected"));
  }
  SKEIN_ASSIGN_OR_RETURN(std::vector<std::byte> body, EncodeMessage(message));
  return found->second->Send(static_cast<uint16_t>(TypeOf(message)), epoch, std::move(body), Now());
}

TimerId ThreadedActorSystem::StartTimer(absl::Duration delay) {
  SKEIN_CHECK(timers_.size() < kTimersMax) << name_ << " has " << kTimersMax << " timers running";
  const TimerId timer{++last_timer_};
  const absl::Time at = Now() + std::max(delay, absl::ZeroDuration());
  timers_.emplace(at, timer);
  timer_times_.emplace(timer, at);
  return timer;
}

void ThreadedActorSystem::CancelTimer(TimerId timer) {
  const auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, timer});
  timer_times_.erase(found);
}

uint64_t ThreadedActorSystem::RandomUint64() {
  // Names that nobody may guess are made of it: one value must not lead to the next.
  if (!options_.random_seed) return KernelRandom();
  // SplitMix64: a full-period sequence from one seed.
  uint64_t z = (random_state_ += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void ThreadedActorSystem::Stop(absl::Status reason) {
  if (stopped_) return;
  stopped_ = true;
  stop_reason_ = std::move(reason);
  flush_end_ = Now() + kFlushMax;
}

void ThreadedActorSystem::OnFrame(ActorId peer, std::span<const std::byte> frame) {
  const DecodedFrame decoded = DecodeFrame(frame);
  switch (decoded.defect) {
    case FrameDefect::kNone:
      break;
    case FrameDefect::kLength:
      return Count(counters_.bad_length);
    case FrameDefect::kMagic:
      return Count(counters_.bad_magic);
    case FrameDefect::kVersion:
      return Count(counters_.bad_version);
    case FrameDefect::kChecksum:
      return Count(counters_.bad_checksum);
  }
  if (decoded.header.from != peer || decoded.header.to != options_.self) {
    return Count(counters_.bad_address);
  }
  Session* session = FindOrAccept(peer);
  if (session == nullptr) return Count(counters_.bad_address);
  session->OnFrame(decoded.header, decoded.body, Now());
}

void ThreadedActorSystem::OnGarbage() { Count(counters_.bad_length); }

void ThreadedActorSystem::OnDenied() { Count(counters_.auth_denied); }

Session* ThreadedActorSystem::FindOrAccept(ActorId peer) {
  const auto found = sessions_.find(peer);
  if (found != sessions_.end()) return found->second.get();
  if (options_.term == Term() || sessions_.size() >= options_.peers_max) return nullptr;
  SessionOptions session;
  session.self = options_.self;
  session.peer = peer;
  session.role = SessionRole::kAccepting;
  session.term = options_.term;
  session.beat_interval = options_.beat_interval;
  session.lease = options_.lease;
  auto& made = sessions_[peer];
  made = std::make_unique<Session>(session, static_cast<SessionOutput&>(*this), counters_, Now());
  return made.get();
}

void ThreadedActorSystem::Transmit(ActorId peer, std::span<const std::byte> frame) {
  // A frame that cannot leave now is resent by the session, or the lease ends it.
  const absl::Status sent = transport_->Send(peer, frame);
  if (!sent.ok()) SKEIN_LOG(kDebug, "frame not sent").Field("reason", StatusText(sent));
}

absl::Status ThreadedActorSystem::Deliver(const FrameHeader& header,
                                          std::span<const std::byte> body) {
  SKEIN_ASSIGN_OR_RETURN(Message message,
                         DecodeMessage(static_cast<MessageType>(header.type), body));
  if (stopped_) return absl::OkStatus();  // acknowledged while flushing, no longer acted on
  Envelope envelope{header.from,  header.to,      header.term,       header.incarnation,
                    header.epoch, header.ordinal, std::move(message)};
  actor_->OnMessage(*this, std::move(envelope));
  return absl::OkStatus();
}

void ThreadedActorSystem::Down(ActorId peer, const absl::Status& reason) {
  SKEIN_LOG(kInfo, "peer down")
      .Field("actor", name_)
      .Field("peer", peer.node)
      .Field("reason", StatusText(reason));
  if (!stopped_) actor_->OnPeerDown(*this, PeerDown{peer, reason});
}

absl::Time ThreadedActorSystem::next_round() const {
  absl::Time next = stopped_          ? flush_end_
                    : timers_.empty() ? absl::InfiniteFuture()
                                      : timers_.begin()->first;
  for (const auto& [peer, session] : sessions_) next = std::min(next, session->next_tick());
  return next;
}

void ThreadedActorSystem::FireTimers() {
  const absl::Time now = Now();
  // A timer started by a callback waits for the next round, even when it is due already.
  std::vector<TimerId> due;
  for (const auto& [at, timer] : timers_) {
    if (at > now) break;
    due.push_back(timer);
  }
  for (const TimerId timer : due) {
    if (stopped_) return;
    if (!timer_times_.contains(timer)) continue;  // cancelled by an earlier callback
    CancelTimer(timer);
    actor_->OnTimer(*this, timer);
  }
}

void ThreadedActorSystem::TickSessions() {
  const absl::Time now = Now();
  const absl::Duration floor = delay_.LeaseFloor();
  for (const auto& [peer, session] : sessions_) {
    if (session->next_tick() <= now) session->OnTick(now, floor);
  }
}

}  // namespace skein::protocol
