// Every coordinator metric; those of the HTTP edge are http_metrics.h. Declared once while main()
// wires; handles are updated at the one place where the fact is known, from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/http_metrics.h"
#include "protocol/messages/control.h"
#include "protocol/metrics/metrics.h"
#include "scheduler/group_scheduler.h"

namespace skein::coordinator {

// Families of drafts; label `engine`.
struct SpeculationFamilies {
  // `num_drafts`: of a sequence in a step at most.
  SpeculationFamilies(protocol::MetricsRegistry& registry, uint32_t num_engines,
                      uint32_t num_drafts);
  protocol::CounterFamily drafts, draft_tokens, accepted_tokens;  // method
  protocol::CounterFamily accepted_per_position;                  // position
  protocol::CounterFamily disabled_requests;                      // reason
  protocol::Counter grammar_rejected;
};

// Families of the tokens of requests; label `engine`.
struct SizeFamilies {
  SizeFamilies(protocol::MetricsRegistry& registry, uint32_t num_engines);
  protocol::HistogramFamily prompt, generation, cached, reasoning;
};

// Families of the time that requests take; label `engine`.
struct LatencyFamilies {
  LatencyFamilies(protocol::MetricsRegistry& registry, uint32_t num_engines);
  protocol::HistogramFamily time_to_first_token, inter_token_latency, inter_event_latency;
  protocol::HistogramFamily e2e_latency, queue_time, prefill_time, decode_time, inference_time;
  protocol::HistogramFamily time_per_output_token;
};

// Families of the prefix cache and of the audit of its accounts; label `engine`.
struct CacheFamilies {
  CacheFamilies(protocol::MetricsRegistry& registry, uint32_t num_engines);
  protocol::CounterFamily queries, hits;  // tier
  protocol::CounterFamily misses;         // reason
  protocol::CounterFamily evictions;
  protocol::CounterFamily violations;  // kind
  protocol::GaugeFamily slots;         // state
};

// Families whose series carry the label `engine`: the number of the worker group.
struct GroupFamilies {
  GroupFamilies(protocol::MetricsRegistry& registry, uint32_t num_engines, uint32_t num_drafts);
  protocol::GaugeFamily requests_running, requests_waiting;
  protocol::GaugeFamily waiting_by_reason;  // reason
  protocol::CounterFamily prompt_tokens;
  protocol::CounterFamily prompt_tokens_by_source;  // source
  protocol::CounterFamily generation_tokens, reasoning_tokens;
  protocol::GaugeFamily kv_blocks;  // state
  protocol::GaugeFamily kv_cache_usage;
  protocol::CounterFamily preemptions, preempted_tokens;  // reason
  SizeFamilies size;
  LatencyFamilies latency;
  SpeculationFamilies speculation;
  CacheFamilies cache;
};

// The prefix cache of one worker group.
struct CacheMetrics {
  CacheMetrics(const CacheFamilies& families, std::string_view engine);
  // Adds what happened between two readings of the scheduler's counters.
  void Add(const scheduler::SchedulerCounters& now, const scheduler::SchedulerCounters& before);
  protocol::Counter queries, hits;
  std::vector<protocol::Counter> misses;  // by scheduler::CacheMiss
  protocol::Counter evictions;
  protocol::Counter leaks, double_frees;
  protocol::Gauge slots_free, slots_used, slots_cached;
};

// What became of the drafts of one worker group's draft head.
struct SpeculationMetrics {
  SpeculationMetrics(const SpeculationFamilies& families, std::string_view engine,
                     uint32_t num_drafts);
  // Adds what happened between two readings of the scheduler's counters.
  void Add(const scheduler::SchedulerCounters& now, const scheduler::SchedulerCounters& before);
  protocol::Counter drafts, draft_tokens, accepted_tokens;  // of the head
  protocol::Counter provided_drafts, provided_draft_tokens, provided_accepted_tokens;
  protocol::Counter grammar_rejected;          // of all groups
  std::vector<protocol::Counter> accepted_at;  // by position
  std::vector<protocol::Counter> disabled;     // by scheduler::Undrafted
};

// The series of one worker group.
struct GroupMetrics {
  GroupMetrics(const GroupFamilies& families, std::string_view engine, uint32_t num_drafts);
  // Adds what happened between two readings of the scheduler's counters.
  void Add(const scheduler::SchedulerCounters& now, const scheduler::SchedulerCounters& before);
  // What was observed per token is in the text from now on.
  void Flush();
  // The first step of a request: `cached` of its prompt tokens are not computed.
  void CountPrompt(uint64_t tokens, uint64_t cached);
  // A choice that reasoned ended.
  void CountReasoning(double tokens);
  protocol::Gauge requests_running;
  protocol::Counter prompt_tokens, generation_tokens, reasoning_tokens;
  protocol::Counter prompt_tokens_computed, prompt_tokens_cached;  // all of prompt_tokens
  protocol::Histogram request_prompt_tokens, request_generation_tokens;
  protocol::Histogram request_cached_tokens, request_reasoning_tokens;
  protocol::Histogram time_to_first_token;
  // Per token: the control thread's alone, flushed with each commit.
  protocol::HistogramBuffer inter_token_latency, inter_event_latency;
  protocol::Histogram e2e_latency, queue_time, prefill_time, decode_time, inference_time;
  protocol::Histogram time_per_output_token;
  protocol::Gauge kv_blocks_free, kv_blocks_used, kv_blocks_cached, kv_blocks_lent;
  protocol::Gauge kv_cache_usage;
  std::vector<protocol::Counter> preemptions, preempted_tokens;  // by scheduler::PreemptReason
  SpeculationMetrics speculation;
  CacheMetrics cache;
};

// Steps and workers.
struct StepMetrics {
  explicit StepMetrics(protocol::MetricsRegistry& registry);
  protocol::HistogramFamily step_tokens, step_batch_size, step_duration;  // phase
  protocol::CounterFamily step_phase;                                     // phase
  protocol::Counter schedule_seconds, transport_seconds, commit_seconds;  // of step_phase
  protocol::CounterFamily replays;                                        // result
  protocol::Counter quarantined_requests;
  protocol::CounterFamily migrations;     // kind, result
  protocol::CounterFamily epoch_changes;  // cause
  protocol::GaugeFamily workers, groups;  // state
  protocol::GaugeFamily mailbox_depth;    // actor, type
  protocol::Counter stale_results;
};

// Where experts are, and how well that fits what is routed to them.
struct ExpertMetrics {
  explicit ExpertMetrics(protocol::MetricsRegistry& registry);
  protocol::GaugeFamily expert_imbalance;  // phase
  protocol::CounterFamily rebalances;      // result
  protocol::Histogram rebalance_seconds;
};

// When a worker was heard and progressed, written by the control thread and turned into the gauges
// of one reading by whoever reads: an age grows between two of the loop's rounds, too.
struct WorkerTimes {
  std::atomic<int64_t> heard_ns = 0, progressed_ns = 0;  // monotonic; 0: never
};

// One worker. Those that belong to a group by their number, n to group n - 1, have series; spares
// have none, so that the label stays closed.
struct WorkerMetrics {
  protocol::Gauge heartbeat_age, step_sequence, last_progress;
  std::unique_ptr<WorkerTimes> times = std::make_unique<WorkerTimes>();
};

// The workers of all groups.
struct FleetMetrics {
  FleetMetrics(protocol::MetricsRegistry& registry, uint32_t num_engines);
  protocol::CounterFamily worker_restarts;  // worker, reason
  std::vector<WorkerMetrics> by_group;
};

// The states of workers and groups, as ClusterOperations names them.
const std::vector<std::string>& WorkerStates();
const std::vector<std::string>& GroupStates();

struct CoordinatorMetrics : HttpMetrics, StepMetrics, ExpertMetrics {
  // `num_engines`: worker groups. `num_drafts`: of a sequence in a step at most.
  CoordinatorMetrics(protocol::MetricsRegistry& registry, uint32_t num_engines,
                     uint32_t num_drafts);

  // What the HTTP edge reports; any thread.
  void Count(const ApiEvent& event);

  std::vector<GroupMetrics> engines;  // by group
  FleetMetrics fleet;
  // In the one queue of all groups, and the same by reason.
  protocol::Gauge requests_waiting, waiting_for_capacity, waiting_deferred;

  // So many wait for their first step. They are served in one order, so what the first of them
  // waits for all wait for: room in a group, or a group that takes any.
  void SetWaiting(uint32_t waiting, bool takes_newcomers);
  // A worker came in place of one that was here, which ended so. Spares count as "spare".
  void CountRestart(uint32_t node, protocol::PredecessorEnd end);
  // Sets what grows with time, for a reading at this moment. Any thread.
  void Refresh(absl::Time monotonic, double unix_seconds);

 private:
  CoordinatorMetrics(protocol::MetricsRegistry& registry, const GroupFamilies& families,
                     uint32_t num_engines, uint32_t num_drafts);
};

}  // namespace skein::coordinator
