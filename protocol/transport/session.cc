// The session state machine. Every branch that drops a frame counts it.
// Must never touch the state of a session after End: callbacks may have begun the next one.
#include "protocol/transport/session.h"

#include <algorithm>
#include <utility>

#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

// Received frames after which an acknowledgement is sent without waiting for the beat.
constexpr uint64_t kAcknowledgeEvery = 16;
// Beats without progress after which everything not acknowledged is sent again.
constexpr int kResendBeats = 3;

void Count(std::atomic<uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

Session::Session(const SessionOptions& options, SessionOutput& output, FrameCounters& counters,
                 absl::Time now)
    : options_(options),
      output_(output),
      counters_(counters),
      term_(options.term),
      incarnation_(options.incarnation),
      number_(options.role == SessionRole::kConnecting ? 1 : 0),
      last_sent_(now - options.beat_interval),
      last_heard_(now),
      last_tick_(now),
      last_progress_(now),
      last_resend_(now),
      last_complaint_(absl::InfinitePast()) {}

absl::Status Session::Send(uint16_t type, Epoch epoch, std::vector<std::byte> body,
                           absl::Time now) {
  if (!alive_ && options_.role == SessionRole::kAccepting) {
    return absl::UnavailableError(Concat("peer ", options_.peer.node.value(), " is not connected"));
  }
  if (window_.size() >= options_.window_frames) {
    return absl::ResourceExhaustedError(Concat("window of peer ", options_.peer.node.value(),
                                               " is full: ", window_.size(),
                                               " frames are not acknowledged"));
  }
  if (window_.empty()) last_progress_ = last_resend_ = now;
  FrameHeader header;
  header.type = type;
  header.epoch = epoch;
  header.ordinal = ++last_ordinal_;
  header.from = options_.self;
  header.to = options_.peer;
  window_.push_back({header, std::move(body)});
  if (alive_) Transmit(header, window_.back().body, now);
  return absl::OkStatus();
}

void Session::OnFrame(const FrameHeader& header, std::span<const std::byte> body, absl::Time now) {
  const bool admitted = options_.role == SessionRole::kConnecting ? AdmitAsConnecting(header, now)
                                                                  : AdmitAsAccepting(header, now);
  if (!admitted) return;
  last_heard_ = now;
  if (!alive_) Begin(now);
  if (header.acknowledged > last_ordinal_) {
    End(absl::InternalError(Concat("peer ", options_.peer.node.value(), " acknowledged frame ",
                                   header.acknowledged, " of ", last_ordinal_)));
    return;
  }
  OnAcknowledged(header, now);
  if (header.ordinal != 0) OnOrdinal(header, body, now);
}

bool Session::AdmitAsConnecting(const FrameHeader& header, absl::Time now) {
  if (header.incarnation != incarnation_) {
    Count(counters_.stale_incarnation);
    return false;
  }
  if (header.term < term_ || header.term == Term()) {
    Count(counters_.stale_term);
    return false;
  }
  if (header.session != number_) {
    Count(counters_.stale_session);
    return false;
  }
  if (term_ != Term() && header.term > term_) {
    const Term before = std::exchange(term_, header.term);
    if (alive_) {
      End(absl::UnavailableError(Concat("coordinator restarted: term ", before.value(), " ended, ",
                                        header.term.value(), " began")));
      TransmitBeat(0, now);
      return false;
    }
  }
  if ((header.flags & kFrameReset) != 0) {
    if (alive_) {
      End(absl::UnavailableError("the peer ended the session"));
    } else {
      ++number_;  // an attempt to begin that the peer no longer knows
    }
    TransmitBeat(0, now);
    return false;
  }
  term_ = header.term;
  return true;
}

bool Session::AdmitAsAccepting(const FrameHeader& header, absl::Time now) {
  if (header.incarnation < incarnation_) {
    Count(counters_.stale_incarnation);
    return false;
  }
  const bool newer = header.incarnation > incarnation_ || header.session > number_;
  if (!newer && header.session < number_) {
    Count(counters_.stale_session);
    return false;
  }
  if (newer) {
    const bool restarted = header.incarnation > incarnation_;
    if (alive_) {
      End(absl::UnavailableError(restarted ? Concat("process restarted: incarnation ",
                                                    header.incarnation.value(), " replaces ",
                                                    incarnation_.value())
                                           : std::string("the peer began a new session")));
    }
    incarnation_ = header.incarnation;
    number_ = header.session;
  } else if (!alive_) {
    Count(counters_.stale_session);
    TransmitBeat(kFrameReset, now);  // this session was declared over here
    return false;
  }
  if (header.term != Term() && header.term != term_) {
    Count(counters_.stale_term);
    // The answer carries our term: the peer ends its session with the earlier coordinator.
    TransmitBeat(0, now);
    return false;
  }
  return true;
}

void Session::Begin(absl::Time now) {
  alive_ = true;
  last_heard_ = last_tick_ = last_progress_ = last_resend_ = now;
  TransmitBeat(0, now);
  for (const Pending& pending : window_) Transmit(pending.header, pending.body, now);
}

void Session::End(const absl::Status& reason) {
  alive_ = false;
  last_ordinal_ = received_ = unannounced_ = 0;
  window_.clear();
  if (options_.role == SessionRole::kConnecting) ++number_;
  output_.Down(options_.peer, reason);
}

void Session::OnAcknowledged(const FrameHeader& header, absl::Time now) {
  while (!window_.empty() && window_.front().header.ordinal <= header.acknowledged) {
    window_.pop_front();
    last_progress_ = last_resend_ = now;
  }
  if ((header.flags & kFrameResend) != 0) Resend(now);
}

void Session::OnOrdinal(const FrameHeader& header, std::span<const std::byte> body,
                        absl::Time now) {
  if (header.ordinal <= received_) {
    Count(counters_.duplicates);
    return;
  }
  if (header.ordinal > received_ + 1) {
    Count(counters_.gaps);
    if (now - last_complaint_ >= options_.beat_interval / 2) {
      last_complaint_ = now;
      TransmitBeat(kFrameResend, now);
    }
    return;
  }
  ++received_;
  const uint64_t number = number_;
  const absl::Status delivered = output_.Deliver(header, body);
  if (!alive_ || number_ != number) return;  // ended by what was delivered
  if (!delivered.ok()) {
    Count(counters_.bad_body);
    End(delivered);
    return;
  }
  if (++unannounced_ >= kAcknowledgeEvery) TransmitBeat(0, now);
}

void Session::OnTick(absl::Time now, absl::Duration lease_floor) {
  const absl::Duration lease = std::max(options_.lease, lease_floor);
  // When we ourselves were late, silence proves nothing about the peer.
  const absl::Duration late = now - last_tick_ - 2 * options_.beat_interval;
  if (late > absl::ZeroDuration()) {
    last_heard_ = std::min(last_heard_ + late, now);
    last_progress_ = std::min(last_progress_ + late, now);
  }
  last_tick_ = now;
  if (alive_ && now - last_heard_ > lease) {
    End(absl::UnavailableError(Concat("peer ", options_.peer.node.value(), " was silent for ",
                                      absl::ToInt64Milliseconds(now - last_heard_), " ms")));
  } else if (alive_ && !window_.empty() && now - last_progress_ > lease) {
    End(absl::UnavailableError(Concat("peer ", options_.peer.node.value(), " acknowledged nothing",
                                      " for ", absl::ToInt64Milliseconds(now - last_progress_),
                                      " ms")));
  }
  if (alive_ && !window_.empty() && now - last_resend_ > kResendBeats * options_.beat_interval) {
    Resend(now);
  }
  const bool speaks = alive_ || options_.role == SessionRole::kConnecting;
  if (now >= last_sent_ + options_.beat_interval) {
    if (speaks) TransmitBeat(0, now);
    last_sent_ = now;
  }
}

void Session::Resend(absl::Time now) {
  last_resend_ = now;
  for (const Pending& pending : window_) {
    Count(counters_.resent);
    Transmit(pending.header, pending.body, now);
  }
}

void Session::Transmit(FrameHeader header, std::span<const std::byte> body, absl::Time now) {
  // A connecting session is bound to a term only once the coordinator answered.
  const bool bound = alive_ || options_.role == SessionRole::kAccepting;
  header.term = bound ? term_ : Term();
  header.incarnation = incarnation_;
  header.session = number_;
  header.acknowledged = received_;
  unannounced_ = 0;
  last_sent_ = now;
  output_.Transmit(options_.peer, EncodeFrame(header, body));
}

void Session::TransmitBeat(uint64_t flags, absl::Time now) {
  FrameHeader header;
  header.from = options_.self;
  header.to = options_.peer;
  header.flags = flags;
  Transmit(header, {}, now);
}

}  // namespace skein::protocol
