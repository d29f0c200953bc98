// Every metric of a worker. Declared once while main() wires; handles are updated at the one place
// where the fact is known, from any thread. Label values are closed: nothing of a request is one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "kernels/kernel_registry.h"
#include "protocol/config/config.h"
#include "protocol/messages/move.h"
#include "protocol/metrics/metrics.h"
#include "worker/start_progress.h"

namespace skein::worker {

// What a step was and where its time went.
struct StepAccount {
  // Checking and laying it out; drafting and feeding the draft head; the layers, with the wait for
  // the device; head, choice of tokens and their summary. Waits for other ranks count where they
  // happen.
  absl::Duration prepare, draft, forward, sample;
  bool recorded = false;          // one launch of a graph; else call by call
  bool decodes = false;           // some sequence has one token and wants the next
  bool prefills = false;          // some sequence does anything else
  uint64_t table_rows = 0;        // of n-gram tables that this rank looked up
  uint64_t table_bytes = 0;       // of them
  uint64_t nonfinite_logits = 0;  // rows whose logits are no numbers
  absl::Duration busy() const { return prepare + draft + forward + sample; }
};

// Bytes of what a worker holds in the memory of its device.
struct MemoryUse {
  uint64_t weights = 0, engram = 0;  // of the checkpoint; on a host mapped from its files
  uint64_t compressed = 0, index = 0, window = 0, state = 0, draft = 0;  // pools of the cache
  uint64_t activations = 0;     // everything else: buffers of the largest step
  uint64_t free = 0;            // that was left when it was loaded
  bool has_own_memory = false;  // the device's; else the host's
  uint64_t cache() const { return compressed + index + window + state + draft; }
};

// Families of the steps.
struct StepFamilies {
  explicit StepFamilies(protocol::MetricsRegistry& registry);
  protocol::CounterFamily step_phase;      // phase
  protocol::CounterFamily forward_passes;  // graph, phase
  protocol::Counter busy, nonfinite;
  protocol::CounterFamily engram_lookups, engram_bytes;  // tier
};

// Families of block transfers.
struct TransferFamilies {
  explicit TransferFamilies(protocol::MetricsRegistry& registry);
  protocol::HistogramFamily seconds, bytes;  // direction
  protocol::CounterFamily transfers;         // direction, result
  protocol::Counter leases_expired;
};

class WorkerMetrics {
 public:
  WorkerMetrics(protocol::MetricsRegistry& registry, const protocol::Config& config,
                const kernels::KernelRegistry& kernels, const kernels::KernelManifest& manifest);

  void Count(const StepAccount& account);
  // One side of a block transfer ended.
  void Count(const protocol::BlocksMoved& moved);
  void CountAbort(std::string_view cause) { comm_aborts_.At({cause}).Increment(); }
  void SetMemory(const MemoryUse& use);
  void SetStart(const StartProgress& progress);
  void SetCollectives(absl::Duration took);

  // What is read anew for each scrape. One thread at a time.
  struct Reading {
    absl::Duration device_age, actor_age;  // of the running step; since the loop went round
    size_t plans = 0, results = 0;         // that wait
    uint64_t hangs = 0;                    // since the start
  };
  void Set(const Reading& reading);

 private:
  StepFamilies steps_;
  TransferFamilies transfers_;
  protocol::Counter hangs_;
  protocol::CounterFamily comm_aborts_;  // cause
  protocol::GaugeFamily kv_pool_bytes_;  // pool
  protocol::GaugeFamily memory_;         // kind
  protocol::GaugeFamily startup_;        // phase
  protocol::GaugeFamily thread_age_;     // thread
  protocol::GaugeFamily mailbox_depth_;  // actor, type
  uint64_t hangs_seen_ = 0;
  std::string_view tier_ = "host";
};

// The registry of a worker, whose series carry the name of its node and its number.
protocol::MetricLabels WorkerLabels(int64_t index);

}  // namespace skein::worker
