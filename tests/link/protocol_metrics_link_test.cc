// Links protocol_metrics alone.
#include "protocol/metrics/metrics.h"

int main() {
  skein::protocol::MetricsRegistry registry({});
  return registry.AddGauge({"skein_link", "Linked."}).value() == 0 ? 0 : 1;
}
