// The transport of the control plane as the section `transport` of the configuration describes it,
// for coordinators and workers. Reads key files; any thread. Must never open a tcp endpoint
// without keys.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/transport/curve_keys.h"
#include "protocol/transport/zmq_transport.h"

namespace skein::protocol {

struct ControlTransportOptions {
  ActorId self = {};  // kCoordinatorActor: the side that lets others in
  std::string endpoint = {};
  absl::Duration heartbeat_interval = absl::Milliseconds(100);
  absl::Duration heartbeat_timeout = absl::Milliseconds(300);
  CurveFiles curve = {};  // read when the endpoint needs keys
};

// Neither listens nor connects yet. Errors are those of LoadCurveKeys and ZmqTransport.
absl::StatusOr<std::unique_ptr<ZmqTransport>> OpenControlTransport(
    const ControlTransportOptions& options);

}  // namespace skein::protocol
