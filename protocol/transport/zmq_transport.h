// ZeroMQ under the Transport interface: one ROUTER for those who connect, one DEALER per peer that
// is connected to. Mandatory routing, bounded queues, heartbeats. ipc in a private directory is
// plain, tcp is CURVE with a pinned server key and an allow-list. Created anywhere, then used by
// one thread; Wake from any. Sockets never cross a fork.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/transport/curve_keys.h"
#include "protocol/transport/transport.h"

namespace skein::protocol {

struct ZmqTransportOptions {
  ActorId self;
  absl::Duration heartbeat_interval = absl::Milliseconds(100);
  absl::Duration heartbeat_timeout = absl::Milliseconds(300);
  std::optional<CurveKeys> keys;  // tcp endpoints need them
};

class ZmqTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<ZmqTransport>> Create(const ZmqTransportOptions& options);
  ~ZmqTransport() override;

  // Endpoints as CheckControlEndpoint has them; see bound_endpoint for a free port. One call per
  // transport.
  absl::Status Listen(std::string_view endpoint) override;
  absl::Status Connect(ActorId peer, std::string_view endpoint) override;
  absl::Status Send(ActorId peer, std::span<const std::byte> frame) override;
  absl::Status Poll(absl::Duration timeout, FrameReceiver& receiver) override;
  void Wake() override;

  // The endpoint that Listen bound, with the real port.
  std::string bound_endpoint() const;

 private:
  class Impl;
  explicit ZmqTransport(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace skein::protocol
