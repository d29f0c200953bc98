// Links protocol_zmq alone.
#include "protocol/transport/zmq_transport.h"

int main() { return skein::protocol::ZmqTransport::Create({}).ok() ? 0 : 1; }
