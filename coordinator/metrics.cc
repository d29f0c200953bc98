#include "coordinator/metrics.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace skein::coordinator {
namespace {

const std::vector<std::string> kPhases = {"prefill", "decode", "mixed"};
const std::vector<std::string> kDraftMethods = {"dspark", "mtp", "provided"};
// By scheduler::PreemptReason.
const std::vector<std::string> kPreemptReasons = {"kv_blocks", "probation"};
// By scheduler::CacheMiss.
const std::vector<std::string> kCacheMisses = {"cold", "evicted", "state_missing", "salt",
                                               "alignment"};
// The first ones in the order of scheduler::Undrafted.
const std::vector<std::string> kUndrafted = {"request", "load", "near_max_len", "grammar"};
// In the order of protocol::PredecessorEnd.
const std::vector<std::string> kEnds = {"unknown", "own", "outside", "ordered"};
// By scheduler::MoveCause and MoveResult.
const std::vector<std::string> kMoveCauses = {"drain", "handover"};
const std::vector<std::string> kMoveResults = {"moved", "replayed"};
// The groups by their numbers.
protocol::LabelSet Engines(uint32_t num_engines) {
  protocol::LabelSet label{"engine", {}};
  for (uint32_t i = 0; i < num_engines; ++i) label.values.push_back(std::to_string(i));
  return label;
}

// Positions of a draft, from 0; one at least, since a family without series says nothing.
protocol::LabelSet Positions(uint32_t num_drafts) {
  protocol::LabelSet label{"position", {}};
  for (uint32_t i = 0; i < std::max(num_drafts, 1u); ++i) label.values.push_back(std::to_string(i));
  return label;
}

// The workers by their numbers, from 1; the others as "spare".
protocol::LabelSet Workers(uint32_t num_engines) {
  protocol::LabelSet label{"worker", {}};
  for (uint32_t i = 1; i <= num_engines; ++i) label.values.push_back(std::to_string(i));
  label.values.emplace_back("spare");
  return label;
}

// Where a request waits: with one group for that one, with several for none in particular.
protocol::LabelSet WaitingEngines(uint32_t num_engines) {
  return {"engine", {num_engines == 1 ? "0" : "none"}};
}

}  // namespace

SpeculationFamilies::SpeculationFamilies(protocol::MetricsRegistry& registry, uint32_t num_engines,
                                         uint32_t num_drafts)
    : drafts(registry.AddCounters(
          {"skein_spec_drafts_total",
           "Steps of a request that verified drafts, by what drafted. Flat while requests run: see "
           "skein_spec_disabled_requests_total."},
          {Engines(num_engines), {"method", kDraftMethods}})),
      draft_tokens(registry.AddCounters(
          {"skein_spec_draft_tokens_total", "Drafted tokens that steps verified."},
          {Engines(num_engines), {"method", kDraftMethods}})),
      accepted_tokens(
          registry.AddCounters({"skein_spec_accepted_tokens_total",
                                "Drafted tokens that were kept. A falling share of "
                                "skein_spec_draft_tokens_total: the text is hard to foresee; lower "
                                "num-speculative-tokens if the depth is fixed."},
                               {Engines(num_engines), {"method", kDraftMethods}})),
      accepted_per_position(registry.AddCounters(
          {"skein_spec_accepted_tokens_per_position_total",
           "Drafted tokens that were kept, by their position in the step from 0. Last positions "
           "near zero: num-speculative-tokens may be lower."},
          {Engines(num_engines), Positions(num_drafts)})),
      disabled_requests(registry.AddCounters(
          {"skein_spec_disabled_requests_total",
           "Requests that took a step without drafts although there is a draft head, once for each "
           "reason. request: the client turned drafts off; load: drafting did not pay in that step "
           "or no rows or cache blocks were left; near_max_len: no room below max_model_len; "
           "grammar: a grammar binds the next token."},
          {Engines(num_engines), {"reason", kUndrafted}})),
      grammar_rejected(registry.AddCounter(
          {"skein_grammar_rejected_draft_tokens_total",
           "Drafted tokens that were kept and thrown away, since a grammar began to bind at one "
           "before them."})) {}

SizeFamilies::SizeFamilies(protocol::MetricsRegistry& registry, uint32_t num_engines)
    : prompt(registry.AddHistograms({"skein_request_prompt_tokens", "Prompt tokens of a request."},
                                    protocol::TokenCountBounds(), {Engines(num_engines)})),
      generation(registry.AddHistograms({"skein_request_generation_tokens",
                                         "Generated tokens of a request that ended in a step."},
                                        protocol::TokenCountBounds(), {Engines(num_engines)})),
      cached(registry.AddHistograms(
          {"skein_request_cached_tokens",
           "Prompt tokens of a request that its first step found in the prefix cache."},
          protocol::TokenCountBounds(), {Engines(num_engines)})),
      reasoning(registry.AddHistograms(
          {"skein_request_reasoning_tokens",
           "Tokens of reasoning of a choice that began with it. Most at the limit of the answer: "
           "it is too small, see skein_reasoning_parse_total."},
          protocol::TokenCountBounds(), {Engines(num_engines)})) {}

LatencyFamilies::LatencyFamilies(protocol::MetricsRegistry& registry, uint32_t num_engines)
    : time_to_first_token(registry.AddHistograms({"skein_time_to_first_token_seconds",
                                                  "From arrival to the first token. High with an "
                                                  "empty queue: prompts are long."},
                                                 protocol::TimeToFirstTokenBounds(),
                                                 {Engines(num_engines)})),
      inter_token_latency(registry.AddHistograms({"skein_inter_token_latency_seconds",
                                                  "Between tokens of one request, a step's time "
                                                  "shared by its tokens."},
                                                 protocol::InterTokenBounds(),
                                                 {Engines(num_engines)})),
      inter_event_latency(registry.AddHistograms(
          {"skein_inter_event_latency_seconds",
           "Between two deliveries to one request, each of one or more tokens. What vLLM calls "
           "inter-token latency under speculation."},
          protocol::InterTokenBounds(), {Engines(num_engines)})),
      e2e_latency(registry.AddHistograms(
          {"skein_e2e_request_latency_seconds", "From arrival to the last token."},
          protocol::RequestLatencyBounds(), {Engines(num_engines)})),
      queue_time(registry.AddHistograms(
          {"skein_request_queue_time_seconds", "From arrival to the first step."},
          protocol::RequestLatencyBounds(), {Engines(num_engines)})),
      prefill_time(registry.AddHistograms(
          {"skein_request_prefill_time_seconds", "From the first step to the first token."},
          protocol::RequestLatencyBounds(), {Engines(num_engines)})),
      decode_time(registry.AddHistograms(
          {"skein_request_decode_time_seconds", "From the first token to the last."},
          protocol::RequestLatencyBounds(), {Engines(num_engines)})),
      inference_time(registry.AddHistograms(
          {"skein_request_inference_time_seconds", "From the first step to the last token."},
          protocol::RequestLatencyBounds(), {Engines(num_engines)})),
      time_per_output_token(registry.AddHistograms(
          {"skein_request_time_per_output_token_seconds",
           "Decode time of a request per token after the first; of requests with two or more."},
          protocol::InterTokenBounds(), {Engines(num_engines)})) {}

GroupFamilies::GroupFamilies(protocol::MetricsRegistry& registry, uint32_t num_engines,
                             uint32_t num_drafts)
    : requests_running(
          registry.AddGauges({"skein_requests_running",
                              "Requests that take part in steps. Flat at max_num_seqs: the "
                              "server is full, see skein_requests_waiting."},
                             {Engines(num_engines)})),
      requests_waiting(
          registry.AddGauges({"skein_requests_waiting",
                              "Requests that wait for their first step. Rising for minutes: "
                              "add capacity or lower the load. The queue is one for all engines: "
                              "with several its label is none."},
                             {WaitingEngines(num_engines)})),
      waiting_by_reason(registry.AddGauges(
          {"skein_requests_waiting_by_reason",
           "skein_requests_waiting by what they wait for. capacity: room in a group that takes "
           "requests, add capacity; deferred: a group that takes any, all are starting or drained, "
           "see skein_groups."},
          {WaitingEngines(num_engines), {"reason", {"capacity", "deferred"}}})),
      prompt_tokens(registry.AddCounters(
          {"skein_prompt_tokens_total", "Prompt tokens of requests that had their first step."},
          {Engines(num_engines)})),
      prompt_tokens_by_source(registry.AddCounters(
          {"skein_prompt_tokens_by_source_total",
           "skein_prompt_tokens_total by where what is known of them came from. local_compute: a "
           "step computes them; local_cache_hit: the prefix cache of the engine had them."},
          {Engines(num_engines), {"source", {"local_compute", "local_cache_hit"}}})),
      generation_tokens(
          registry.AddCounters({"skein_generation_tokens_total", "Tokens committed to requests."},
                               {Engines(num_engines)})),
      reasoning_tokens(registry.AddCounters(
          {"skein_reasoning_tokens_total",
           "Generated tokens of answers that were reasoning, counted when an answer ends. A high "
           "share of skein_generation_tokens_total: clients may ask for less reasoning_effort."},
          {Engines(num_engines)})),
      kv_blocks(registry.AddGauges(
          {"skein_kv_blocks",
           "Cache blocks by state; those that another engine is to fetch "
           "(pending_send) are among the used ones."},
          {Engines(num_engines), {"state", {"free", "used", "cached", "pending_send"}}})),
      kv_cache_usage(registry.AddGauges({"skein_kv_cache_usage_ratio",
                                         "Used share of the cache blocks. Near 1 with preemptions "
                                         "rising: lower max_num_seqs."},
                                        {Engines(num_engines)})),
      preemptions(registry.AddCounters(
          {"skein_preemptions_total",
           "Sequences that lost their cache to others and start over. kv_blocks: the cache is too "
           "small for what runs, lower max_num_seqs; probation: a request that may have ended its "
           "worker runs alone."},
          {Engines(num_engines), {"reason", kPreemptReasons}})),
      preempted_tokens(registry.AddCounters(
          {"skein_preempted_tokens_total", "Computed tokens that preemption threw away."},
          {Engines(num_engines), {"reason", kPreemptReasons}})),
      size(registry, num_engines),
      latency(registry, num_engines),
      speculation(registry, num_engines, num_drafts),
      cache(registry, num_engines) {}

CacheFamilies::CacheFamilies(protocol::MetricsRegistry& registry, uint32_t num_engines)
    : queries(registry.AddCounters(
          {"skein_prefix_cache_queries_tokens_total",
           "Prompt tokens that were looked up at the first admission of their request."},
          {Engines(num_engines), {"tier", {"device"}}})),
      hits(registry.AddCounters({"skein_prefix_cache_hits_tokens_total",
                                 "Of them, those that were not computed. A falling share: see "
                                 "skein_prefix_cache_miss_tokens_total."},
                                {Engines(num_engines), {"tier", {"device"}}})),
      misses(registry.AddCounters(
          {"skein_prefix_cache_miss_tokens_total",
           "Prompt tokens that were computed, by reason. evicted: the cache is too small, raise "
           "num-blocks; state_missing: blocks without the state at their end, gone at the next "
           "hit; "
           "alignment: after the last whole block."},
          {Engines(num_engines), {"reason", kCacheMisses}})),
      evictions(registry.AddCounters(
          {"skein_kv_cache_evictions_total", "Cached blocks that made room for others."},
          {Engines(num_engines)})),
      violations(registry.AddCounters(
          {"skein_kv_audit_violations_total",
           "Cache blocks whose accounts the audit found wrong. Above 0: a defect of this program; "
           "restart the workers and report it."},
          {Engines(num_engines), {"kind", {"leak", "double_free"}}})),
      slots(registry.AddGauges(
          {"skein_kv_slots",
           "State of sequences: free and used slots, and checkpoints of the prefix cache."},
          {Engines(num_engines), {"state", {"free", "used", "cached"}}})) {}

CacheMetrics::CacheMetrics(const CacheFamilies& families, std::string_view engine)
    : queries(families.queries.At({engine, "device"})),
      hits(families.hits.At({engine, "device"})),
      evictions(families.evictions.At({engine})),
      leaks(families.violations.At({engine, "leak"})),
      double_frees(families.violations.At({engine, "double_free"})),
      slots_free(families.slots.At({engine, "free"})),
      slots_used(families.slots.At({engine, "used"})),
      slots_cached(families.slots.At({engine, "cached"})) {
  for (const std::string& reason : kCacheMisses) {
    misses.push_back(families.misses.At({engine, reason}));
  }
}

void CacheMetrics::Add(const scheduler::SchedulerCounters& now,
                       const scheduler::SchedulerCounters& before) {
  queries.Increment(static_cast<double>(now.cache_queries - before.cache_queries));
  hits.Increment(static_cast<double>(now.cache_hits - before.cache_hits));
  evictions.Increment(static_cast<double>(now.cache_evictions - before.cache_evictions));
  for (size_t i = 0; i < misses.size(); ++i) {
    misses[i].Increment(static_cast<double>(now.cache_misses[i] - before.cache_misses[i]));
  }
}

SpeculationMetrics::SpeculationMetrics(const SpeculationFamilies& families, std::string_view engine,
                                       uint32_t num_drafts)
    : drafts(families.drafts.At({engine, "dspark"})),
      draft_tokens(families.draft_tokens.At({engine, "dspark"})),
      accepted_tokens(families.accepted_tokens.At({engine, "dspark"})),
      provided_drafts(families.drafts.At({engine, "provided"})),
      provided_draft_tokens(families.draft_tokens.At({engine, "provided"})),
      provided_accepted_tokens(families.accepted_tokens.At({engine, "provided"})),
      grammar_rejected(families.grammar_rejected) {
  for (const std::string& position : Positions(num_drafts).values) {
    accepted_at.push_back(families.accepted_per_position.At({engine, position}));
  }
  for (size_t i = 0; i < scheduler::kNumUndrafted; ++i) {
    disabled.push_back(families.disabled_requests.At({engine, kUndrafted[i]}));
  }
}

void SpeculationMetrics::Add(const scheduler::SchedulerCounters& now,
                             const scheduler::SchedulerCounters& before) {
  drafts.Increment(static_cast<double>(now.drafts - before.drafts));
  draft_tokens.Increment(static_cast<double>(now.draft_tokens - before.draft_tokens));
  for (size_t i = 0; i < now.accepted.size() && i < accepted_at.size(); ++i) {
    const uint64_t was = i < before.accepted.size() ? before.accepted[i] : 0;
    const auto kept = static_cast<double>(now.accepted[i] - was);
    accepted_at[i].Increment(kept);
    accepted_tokens.Increment(kept);
  }
  const auto add = [](protocol::Counter& counter, uint64_t is, uint64_t was) {
    counter.Increment(static_cast<double>(is - was));
  };
  add(provided_drafts, now.provided_drafts, before.provided_drafts);
  add(provided_draft_tokens, now.provided_draft_tokens, before.provided_draft_tokens);
  add(provided_accepted_tokens, now.provided_accepted_tokens, before.provided_accepted_tokens);
  add(grammar_rejected, now.unbound_drafts, before.unbound_drafts);
  for (size_t i = 0; i < disabled.size(); ++i) {
    disabled[i].Increment(static_cast<double>(now.undrafted[i] - before.undrafted[i]));
  }
}

GroupMetrics::GroupMetrics(const GroupFamilies& families, std::string_view engine,
                           uint32_t num_drafts)
    : requests_running(families.requests_running.At({engine})),
      prompt_tokens(families.prompt_tokens.At({engine})),
      generation_tokens(families.generation_tokens.At({engine})),
      reasoning_tokens(families.reasoning_tokens.At({engine})),
      prompt_tokens_computed(families.prompt_tokens_by_source.At({engine, "local_compute"})),
      prompt_tokens_cached(families.prompt_tokens_by_source.At({engine, "local_cache_hit"})),
      request_prompt_tokens(families.size.prompt.At({engine})),
      request_generation_tokens(families.size.generation.At({engine})),
      request_cached_tokens(families.size.cached.At({engine})),
      request_reasoning_tokens(families.size.reasoning.At({engine})),
      time_to_first_token(families.latency.time_to_first_token.At({engine})),
      inter_token_latency(families.latency.inter_token_latency.At({engine}),
                          protocol::InterTokenBounds()),
      inter_event_latency(families.latency.inter_event_latency.At({engine}),
                          protocol::InterTokenBounds()),
      e2e_latency(families.latency.e2e_latency.At({engine})),
      queue_time(families.latency.queue_time.At({engine})),
      prefill_time(families.latency.prefill_time.At({engine})),
      decode_time(families.latency.decode_time.At({engine})),
      inference_time(families.latency.inference_time.At({engine})),
      time_per_output_token(families.latency.time_per_output_token.At({engine})),
      kv_blocks_free(families.kv_blocks.At({engine, "free"})),
      kv_blocks_used(families.kv_blocks.At({engine, "used"})),
      kv_blocks_cached(families.kv_blocks.At({engine, "cached"})),
      kv_blocks_lent(families.kv_blocks.At({engine, "pending_send"})),
      kv_cache_usage(families.kv_cache_usage.At({engine})),
      speculation(families.speculation, engine, num_drafts),
      cache(families.cache, engine) {
  for (const std::string& reason : kPreemptReasons) {
    preemptions.push_back(families.preemptions.At({engine, reason}));
    preempted_tokens.push_back(families.preempted_tokens.At({engine, reason}));
  }
}

void GroupMetrics::CountPrompt(uint64_t tokens, uint64_t cached) {
  prompt_tokens.Increment(static_cast<double>(tokens));
  prompt_tokens_computed.Increment(static_cast<double>(tokens - cached));
  prompt_tokens_cached.Increment(static_cast<double>(cached));
  request_prompt_tokens.Observe(static_cast<double>(tokens));
  request_cached_tokens.Observe(static_cast<double>(cached));
}

void GroupMetrics::CountReasoning(double tokens) {
  reasoning_tokens.Increment(tokens);
  request_reasoning_tokens.Observe(tokens);
}

void GroupMetrics::Flush() {
  inter_token_latency.Flush();
  inter_event_latency.Flush();
}

void GroupMetrics::Add(const scheduler::SchedulerCounters& now,
                       const scheduler::SchedulerCounters& before) {
  for (size_t i = 0; i < preemptions.size(); ++i) {
    preemptions[i].Increment(static_cast<double>(now.preemptions[i] - before.preemptions[i]));
    preempted_tokens[i].Increment(
        static_cast<double>(now.preempted_tokens[i] - before.preempted_tokens[i]));
  }
  speculation.Add(now, before);
  cache.Add(now, before);
}

const std::vector<std::string>& WorkerStates() {
  static const auto* states = new std::vector<std::string>{"ready", "spare", "suspect", "dead"};
  return *states;
}

const std::vector<std::string>& GroupStates() {
  static const auto* states =
      new std::vector<std::string>{"starting", "ready", "draining", "suspect", "hung", "dead"};
  return *states;
}

StepMetrics::StepMetrics(protocol::MetricsRegistry& registry)
    : step_tokens(
          registry.AddHistograms({"skein_step_tokens",
                                  "Rows of a step. Far below max_num_batched_tokens under load: "
                                  "the cache is the limit."},
                                 protocol::StepTokenBounds(), {{"phase", kPhases}})),
      step_batch_size(registry.AddHistograms({"skein_step_batch_size", "Sequences of a step."},
                                             protocol::StepBatchBounds(), {{"phase", kPhases}})),
      step_duration(
          registry.AddHistograms({"skein_step_duration_seconds", "From plan to commit of a step."},
                                 protocol::StepDurationBounds(), {{"phase", kPhases}})),
      step_phase(registry.AddCounters(
          {"skein_step_phase_seconds_total",
           "Time of the control loop by what it did. schedule: choosing what runs; transport: "
           "encoding plans and handing them to the transport; commit: acceptance and bookkeeping "
           "of "
           "results, and handing tokens to the HTTP thread. Their rate is the share of one core."},
          {{"phase", {"schedule", "transport", "commit"}}})),
      schedule_seconds(step_phase.At({"schedule"})),
      transport_seconds(step_phase.At({"transport"})),
      commit_seconds(step_phase.At({"commit"})),
      replays(registry.AddCounters({"skein_replays_total",
                                    "Sequences put back because their worker was lost, and those "
                                    "that were quarantined instead. Rising: see "
                                    "skein_epoch_changes_total."},
                                   {{"result", {"replayed", "quarantined"}}})),
      quarantined_requests(registry.AddCounter(
          {"skein_quarantined_requests_total",
           "Requests that ended three workers, the last one alone; each prompt is refused for ten "
           "minutes. Any: keep the request, it shows a bug of the worker."})),
      migrations(registry.AddCounters(
          {"skein_request_migrations_total",
           "Sequences that moved to another group: because theirs was emptied for a drain or "
           "rollout, or since their prompt was computed (handover). replayed: computed again, for "
           "want of a cache to take, of a place for it, or of its transfer; rising for handovers: "
           "read what the coordinator's log says of cache blocks."},
          {{"kind", kMoveCauses}, {"result", kMoveResults}})),
      epoch_changes(registry.AddCounters(
          {"skein_epoch_changes_total",
           "Epochs that ended, by cause. rebalanced: experts changed places. Others rising: a "
           "worker dies or hangs, read its log."},
          {{"cause",
            {"peer_down", "step_failed", "step_aborted", "registered_again", "rebalanced"}}})),
      workers(
          registry.AddGauges({"skein_workers", "Workers by state. None ready: nothing is served."},
                             {{"state", WorkerStates()}})),
      groups(registry.AddGauges({"skein_groups",
                                 "Worker groups by state. Fewer ready than configured for minutes: "
                                 "read the log of the worker that is missing."},
                                {{"state", GroupStates()}})),
      mailbox_depth(registry.AddGauges(
          {"skein_actor_mailbox_depth",
           "Items that wait in a mailbox: requests and operators' commands for the control loop, "
           "deltas of streams for the HTTP thread. High for seconds: that thread does not keep up, "
           "see skein_scheduling_delay_seconds."},
          {{"actor", {"control", "http"}}, {"type", {"request", "command", "delta"}}})),
      stale_results(registry.AddCounter(
          {"skein_stale_results_total", "Results of ended epochs that were dropped."})) {}

ExpertMetrics::ExpertMetrics(protocol::MetricsRegistry& registry)
    : expert_imbalance(
          registry.AddGauges({"skein_expert_load_imbalance_ratio",
                              "Rows for the experts of the busiest rank over those of the mean "
                              "one, of the worst group of ranks, counted in a few steps. Above "
                              "1.2 for long: set scheduler.expert_rebalance_interval."},
                             {{"phase", {"prefill", "decode"}}})),
      rebalances(registry.AddCounters(
          {"skein_eplb_rebalances_total",
           "Times that experts of a group changed places, or were to. failed: a rank was lost on "
           "the way, or could not load them; the coordinator's log says which."},
          {{"result", {"ok", "failed"}}})),
      rebalance_seconds(registry.AddHistogram(
          {"skein_eplb_rebalance_seconds",
           "For which a group computed nothing because its experts changed places. Long: the "
           "checkpoint is read slowly."},
          protocol::RequestLatencyBounds())) {}

FleetMetrics::FleetMetrics(protocol::MetricsRegistry& registry, uint32_t num_engines)
    : worker_restarts(registry.AddCounters(
          {"skein_worker_restarts_total",
           "Workers that came in place of one that ended, by how that one did. own: it crashed or "
           "ran out of memory, read its last log lines; outside: somebody killed it; ordered: a "
           "rollout or drain; unknown: its supervisor does not know."},
          {Workers(num_engines), {"reason", kEnds}})) {
  protocol::LabelSet workers = Workers(num_engines);
  workers.values.pop_back();  // spares
  const protocol::GaugeFamily age = registry.AddGauges(
      {"skein_worker_heartbeat_age_seconds",
       "Since anything was heard of the worker. Above the lease: it is lost or cut off."},
      {workers});
  const protocol::GaugeFamily sequence = registry.AddGauges(
      {"skein_worker_step_sequence",
       "The newest step whose result the worker sent. Flat while requests run: it hangs."},
      {workers});
  const protocol::GaugeFamily progress =
      registry.AddGauges({"skein_worker_last_progress_timestamp_seconds",
                          "Unix time at which the worker registered or finished a step last."},
                         {workers});
  for (const std::string& worker : workers.values) {
    by_group.push_back({age.At({worker}), sequence.At({worker}), progress.At({worker})});
  }
}

CoordinatorMetrics::CoordinatorMetrics(protocol::MetricsRegistry& registry, uint32_t num_engines,
                                       uint32_t num_drafts)
    : CoordinatorMetrics(registry, GroupFamilies(registry, num_engines, num_drafts), num_engines,
                         num_drafts) {}

CoordinatorMetrics::CoordinatorMetrics(protocol::MetricsRegistry& registry,
                                       const GroupFamilies& families, uint32_t num_engines,
                                       uint32_t num_drafts)
    : HttpMetrics(registry),
      StepMetrics(registry),
      ExpertMetrics(registry),
      fleet(registry, num_engines),
      requests_waiting(families.requests_waiting.At({WaitingEngines(num_engines).values.front()})),
      waiting_for_capacity(
          families.waiting_by_reason.At({WaitingEngines(num_engines).values.front(), "capacity"})),
      waiting_deferred(
          families.waiting_by_reason.At({WaitingEngines(num_engines).values.front(), "deferred"})) {
  for (const std::string& engine : Engines(num_engines).values)
    engines.emplace_back(families, engine, num_drafts);
}

void CoordinatorMetrics::Count(const ApiEvent& event) {
  HttpMetrics::Count(event);
  if (event.kind != ApiEvent::Kind::kReasoning || event.engine >= engines.size()) return;
  engines[event.engine].CountReasoning(event.value);
}

void CoordinatorMetrics::SetWaiting(uint32_t waiting, bool takes_newcomers) {
  requests_waiting.Set(waiting);
  waiting_for_capacity.Set(takes_newcomers ? waiting : 0);
  waiting_deferred.Set(takes_newcomers ? 0 : waiting);
}

void CoordinatorMetrics::CountRestart(uint32_t node, protocol::PredecessorEnd end) {
  const bool in_group = node >= 1 && node <= engines.size();
  fleet.worker_restarts
      .At({in_group ? std::to_string(node) : "spare", kEnds[static_cast<size_t>(end)]})
      .Increment();
}

void CoordinatorMetrics::Refresh(absl::Time monotonic, double unix_seconds) {
  const int64_t now = absl::ToUnixNanos(monotonic);
  for (WorkerMetrics& worker : fleet.by_group) {
    const int64_t heard = worker.times->heard_ns.load();
    const int64_t progressed = worker.times->progressed_ns.load();
    if (heard != 0) worker.heartbeat_age.Set(static_cast<double>(now - heard) * 1e-9);
    if (progressed != 0) {
      worker.last_progress.Set(unix_seconds - static_cast<double>(now - progressed) * 1e-9);
    }
  }
}

}  // namespace skein::coordinator
