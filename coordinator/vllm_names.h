// vLLM's names for metrics of this process, for scrapers that bypass Prometheus. The same names as
// recording rules: dashboards/vllm_aliases.rules.yaml.
// Thread: while main() wires.
#pragma once

#include <span>
#include <string_view>

#include "protocol/metrics/metrics.h"

namespace skein::coordinator {

// A name that copies value, type and labels of exactly one family.
struct MetricAlias {
  std::string_view name;
  std::string_view family;
};

std::span<const MetricAlias> VllmNames();

// From now on the registry's text has them beside its own. Every family is declared.
void AddVllmNames(protocol::MetricsRegistry& registry);

}  // namespace skein::coordinator
