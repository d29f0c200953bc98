// What TCP under ZeroMQ can do to frames, and no more: delay, hold back for a while (clog), lose
// all but a prefix with the connection (cut), refuse, connect anew. And damage single frames, which
// the checksum is for. Frames are the encoded bytes of production sessions. Owns the connections of
// every worker to the one coordinator. One thread. Must never reorder or repeat frames of one
// connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "protocol/base/retry_pause.h"
#include "protocol/transport/transport.h"
#include "tests/sim/sim_system.h"

namespace skein::tests {

enum class Direction { kUp, kDown };  // to the coordinator, to the worker

struct NetworkOptions {
  absl::Duration delay_min = absl::Microseconds(50);
  absl::Duration delay_max = absl::Milliseconds(1);
  uint32_t damage_one_in = 0;  // frames; 0: none
};

class SimNetwork;

// The transport of one process; gone with it.
class SimTransport final : public protocol::Transport {
 public:
  SimTransport(SimNetwork& network, protocol::ActorId self, std::weak_ptr<SimProcess> process);
  ~SimTransport() override;

  absl::Status Listen(std::string_view endpoint) override;
  absl::Status Connect(protocol::ActorId peer, std::string_view endpoint) override;
  absl::Status Send(protocol::ActorId peer, std::span<const std::byte> frame) override;
  // Never waits.
  absl::Status Poll(absl::Duration timeout, protocol::FrameReceiver& receiver) override;
  void Wake() override;

  void Receive(protocol::ActorId from, std::vector<std::byte> frame);
  protocol::ActorId self() const { return self_; }

 private:
  SimNetwork& network_;
  const protocol::ActorId self_;
  const std::weak_ptr<SimProcess> process_;
  std::deque<std::pair<protocol::ActorId, std::vector<std::byte>>> arrived_;
};

class SimNetwork {
 public:
  SimNetwork(SimSystem& system, const NetworkOptions& options);

  // The connection of the worker breaks; what is under way arrives up to some frame.
  void Cut(protocol::ActorId worker);
  // Nothing of the direction arrives for so long.
  void Clog(protocol::ActorId worker, Direction direction, absl::Duration duration);
  // New connections of the worker fail for so long.
  void Refuse(protocol::ActorId worker, absl::Duration duration);
  // From now on frames only take their time.
  void Heal();

  // What happened, for the coverage.
  uint64_t num_lost() const { return num_lost_; }
  uint64_t num_damaged() const { return num_damaged_; }
  uint64_t num_cut() const { return num_cut_; }

 private:
  friend class SimTransport;
  struct Frame {
    absl::Time arrives;
    std::vector<std::byte> bytes;
  };
  struct Link {
    SimTransport* worker = nullptr;
    bool connected = false;
    uint64_t connection = 0;  // counts tries
    absl::Time clogged[2] = {absl::InfinitePast(), absl::InfinitePast()};
    absl::Time refused = absl::InfinitePast();
    std::deque<Frame> under_way[2];
    protocol::RetryPause pause{absl::Milliseconds(50), absl::Milliseconds(2500)};
  };

  void Attach(SimTransport& transport, bool listens);
  void Detach(SimTransport& transport);
  void Dial(protocol::ActorId worker, absl::Duration delay);
  void Break(Link& link);
  absl::Status Send(protocol::ActorId worker, Direction direction,
                    std::span<const std::byte> frame);
  void Arrive(protocol::ActorId worker, Direction direction);
  void Damage(std::vector<std::byte>& bytes);

  SimSystem& system_;
  NetworkOptions options_;
  SimRandom random_;
  SimTransport* coordinator_ = nullptr;
  std::map<protocol::ActorId, Link> links_;
  uint64_t num_lost_ = 0;
  uint64_t num_damaged_ = 0;
  uint64_t num_cut_ = 0;
};

}  // namespace skein::tests
