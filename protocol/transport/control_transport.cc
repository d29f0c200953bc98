#include "protocol/transport/control_transport.h"

#include "protocol/base/status_macros.h"
#include "protocol/transport/control_endpoint.h"

namespace skein::protocol {

absl::StatusOr<std::unique_ptr<ZmqTransport>> OpenControlTransport(
    const ControlTransportOptions& options) {
  ZmqTransportOptions zmq;
  zmq.self = options.self;
  zmq.heartbeat_interval = options.heartbeat_interval;
  zmq.heartbeat_timeout = options.heartbeat_timeout;
  if (NeedsKeys(options.endpoint)) {
    const CurveSide side =
        options.self == kCoordinatorActor ? CurveSide::kCoordinator : CurveSide::kWorker;
    SKEIN_ASSIGN_OR_RETURN(zmq.keys, LoadCurveKeys(options.curve, side));
  }
  return ZmqTransport::Create(zmq);
}

}  // namespace skein::protocol
