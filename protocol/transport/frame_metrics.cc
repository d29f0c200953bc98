#include "protocol/transport/frame_metrics.h"

#include <array>

namespace skein::protocol {
namespace {

constexpr std::array<double, 12> kDelayBounds = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02,
                                                 0.05,   0.1,    0.2,   0.5,   1,    3};

}  // namespace

FrameMetrics::FrameMetrics(MetricsRegistry& registry)
    : scheduling_delay_(registry.AddHistogram(
          {"skein_scheduling_delay_seconds",
           "How late the control loop, or a worker's, is woken. Leases have a floor of three times "
           "its "
           "99.9th percentile; high values: this host has too little processor time."},
          kDelayBounds)) {
  const CounterFamily bad = registry.AddCounters(
      {"skein_bad_frames_total",
       "Control frames dropped because they are damaged or malformed. More than a few: a broken "
       "network or a stranger on the control network."},
      {{"reason", {"length", "magic", "version", "checksum", "address", "body"}}});
  const CounterFamily stale =
      registry.AddCounters({"skein_stale_frames_dropped_total",
                            "Control frames of an ended term, incarnation or session, repeated "
                            "ones, and messages between ranks of an ended epoch. Some after each "
                            "failure are normal."},
                           {{"kind", {"term", "incarnation", "session", "repeated", "epoch"}}});
  stale_epochs_ = stale.At({"epoch"});
  const Counter gaps =
      registry.AddCounter({"skein_seq_gaps_total",
                           "Control frames that came before one that was lost and sent again."});
  const Counter denied = registry.AddCounter(
      {"skein_control_auth_denied_total",
       "Peers turned away from the control endpoint: no or unknown key. Look who connects there."});
  followed_ = {
      {bad.At({"length"}), &FrameCounters::bad_length},
      {bad.At({"magic"}), &FrameCounters::bad_magic},
      {bad.At({"version"}), &FrameCounters::bad_version},
      {bad.At({"checksum"}), &FrameCounters::bad_checksum},
      {bad.At({"address"}), &FrameCounters::bad_address},
      {bad.At({"body"}), &FrameCounters::bad_body},
      {stale.At({"term"}), &FrameCounters::stale_term},
      {stale.At({"incarnation"}), &FrameCounters::stale_incarnation},
      {stale.At({"session"}), &FrameCounters::stale_session},
      {stale.At({"repeated"}), &FrameCounters::duplicates},
      {gaps, &FrameCounters::gaps},
      {denied, &FrameCounters::auth_denied},
  };
}

void FrameMetrics::Update(const FrameCounters& counters, uint64_t stale_epochs) {
  const std::lock_guard lock(mutex_);
  for (Followed& followed : followed_) {
    const uint64_t now = (counters.*followed.counter).load(std::memory_order_relaxed);
    followed.series.Increment(static_cast<double>(now - followed.seen));
    followed.seen = now;
  }
  stale_epochs_->Increment(static_cast<double>(stale_epochs - stale_epochs_seen_));
  stale_epochs_seen_ = stale_epochs;
}

}  // namespace skein::protocol
