// One session between two actors: numbers what is sent, acknowledges what arrived, resends after a
// reconnect within the lease, and says once when the peer is down. A state machine without I/O or
// clock: frames go out and events come back through SessionOutput, time is an argument.
// One thread. Must never deliver a frame twice, out of order, or of an ended session.
//
// The worker connects: it counts sessions within its incarnation and learns the term. The
// coordinator accepts: it adopts the newest (incarnation, session) it sees; an older one is stale.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "protocol/actor/actor.h"
#include "protocol/transport/frame.h"

namespace skein::protocol {

// What was refused and repaired. Written by the session's thread, read by any.
struct FrameCounters {
  std::atomic<uint64_t> bad_length{0}, bad_magic{0}, bad_version{0}, bad_checksum{0};
  std::atomic<uint64_t> bad_address{0};  // header and connection disagree about the sender
  std::atomic<uint64_t> bad_body{0};     // checksum right, message refused by the codec
  std::atomic<uint64_t> stale_term{0}, stale_incarnation{0}, stale_session{0};
  std::atomic<uint64_t> duplicates{0};  // arrived again after a resend
  std::atomic<uint64_t> gaps{0};        // a frame arrived before one that was lost
  std::atomic<uint64_t> resent{0};
  std::atomic<uint64_t> auth_denied{0};  // peers turned away before their first frame
};

// Where a session's work goes. Calls come from within Session's methods.
class SessionOutput {
 public:
  virtual ~SessionOutput() = default;
  // Hands a frame to the transport; losing it is allowed.
  virtual void Transmit(ActorId peer, std::span<const std::byte> frame) = 0;
  // One message, in order. InvalidArgument when it is none: the session ends.
  virtual absl::Status Deliver(const FrameHeader& header, std::span<const std::byte> body) = 0;
  // The session ended; once per session that was alive. What was not acknowledged is lost.
  virtual void Down(ActorId peer, const absl::Status& reason) = 0;
};

enum class SessionRole { kConnecting, kAccepting };

struct SessionOptions {
  ActorId self;
  ActorId peer;
  SessionRole role = SessionRole::kAccepting;
  Term term;                // of this process when accepting
  Incarnation incarnation;  // of this process when connecting
  absl::Duration beat_interval = absl::Milliseconds(100);
  absl::Duration lease = absl::Seconds(1);
  // Frames not yet acknowledged: two plans or results per lane and 64 control frames.
  size_t window_frames = 68;
};

class Session final {
 public:
  // `output` and `counters` outlive the session.
  Session(const SessionOptions& options, SessionOutput& output, FrameCounters& counters,
          absl::Time now);

  // Queues one message. ResourceExhausted when the window is full; Unavailable when the peer is
  // down (accepting side: not connected).
  absl::Status Send(uint16_t type, Epoch epoch, std::vector<std::byte> body, absl::Time now);

  // A frame whose checksum and addresses are right.
  void OnFrame(const FrameHeader& header, std::span<const std::byte> body, absl::Time now);

  // Beats, resends and ends the session when the lease ran out, which is not before `lease_floor`.
  // Call at next_tick() or earlier.
  void OnTick(absl::Time now, absl::Duration lease_floor = absl::ZeroDuration());
  // Once in a beat, however much is sent: the lease is watched there.
  absl::Time next_tick() const { return std::min(last_sent_, last_tick_) + options_.beat_interval; }

  // The peer answers.
  bool alive() const { return alive_; }
  // Frames not yet acknowledged.
  size_t unacknowledged() const { return window_.size(); }
  Term term() const { return term_; }
  Incarnation incarnation() const { return incarnation_; }

 private:
  struct Pending {
    FrameHeader header;
    std::vector<std::byte> body;
  };

  // The frame belongs to this session, or was dropped, counted and answered.
  bool AdmitAsConnecting(const FrameHeader& header, absl::Time now);
  bool AdmitAsAccepting(const FrameHeader& header, absl::Time now);
  void Begin(absl::Time now);
  void End(const absl::Status& reason);
  void OnAcknowledged(const FrameHeader& header, absl::Time now);
  void OnOrdinal(const FrameHeader& header, std::span<const std::byte> body, absl::Time now);
  void Transmit(FrameHeader header, std::span<const std::byte> body, absl::Time now);
  void TransmitBeat(uint64_t flags, absl::Time now);
  void Resend(absl::Time now);

  const SessionOptions options_;
  SessionOutput& output_;
  FrameCounters& counters_;

  bool alive_ = false;
  Term term_;
  Incarnation incarnation_;
  uint64_t number_ = 0;         // of the session
  uint64_t last_ordinal_ = 0;   // given to the newest frame sent
  uint64_t received_ = 0;       // newest ordinal that arrived in order
  uint64_t unannounced_ = 0;    // received since the last frame that acknowledged
  std::deque<Pending> window_;  // sent, not acknowledged, by ordinal
  absl::Time last_sent_;
  absl::Time last_heard_;
  absl::Time last_tick_;
  absl::Time last_progress_;  // an acknowledgement advanced, or the window was empty
  absl::Time last_resend_;
  absl::Time last_complaint_;  // a resend was asked for
};

}  // namespace skein::protocol
