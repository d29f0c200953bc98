// Links protocol_frame_metrics alone.
#include "protocol/transport/frame_metrics.h"

int main() {
  skein::protocol::MetricsRegistry registry({});
  skein::protocol::FrameMetrics metrics(registry);
  metrics.Observe(absl::Milliseconds(1));
  return registry.Text().find("skein_seq_gaps_total") == std::string::npos ? 1 : 0;
}
