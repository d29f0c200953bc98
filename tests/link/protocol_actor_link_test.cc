// Links protocol_actor alone.
#include "protocol/actor/threaded_actor_system.h"
#include "protocol/transport/frame.h"

int main() {
  const auto frame = skein::protocol::EncodeFrame({}, {});
  return skein::protocol::DecodeFrame(frame).defect == skein::protocol::FrameDefect::kNone ? 0 : 1;
}
