// Must never: give a name to a sum or a part of a family.
#include "coordinator/vllm_names.h"

#include <string>

namespace skein::coordinator {
namespace {

constexpr MetricAlias kNames[] = {
    {"vllm:num_requests_running", "skein_requests_running"},
    {"vllm:num_requests_waiting", "skein_requests_waiting"},
    {"vllm:num_requests_waiting_by_reason", "skein_requests_waiting_by_reason"},
    {"vllm:kv_cache_usage_perc", "skein_kv_cache_usage_ratio"},
    {"vllm:gpu_cache_usage_perc", "skein_kv_cache_usage_ratio"},
    {"vllm:prefix_cache_queries_total", "skein_prefix_cache_queries_tokens_total"},
    {"vllm:prefix_cache_hits_total", "skein_prefix_cache_hits_tokens_total"},
    {"vllm:gpu_prefix_cache_queries_total", "skein_prefix_cache_queries_tokens_total"},
    {"vllm:gpu_prefix_cache_hits_total", "skein_prefix_cache_hits_tokens_total"},
    {"vllm:num_preemptions_total", "skein_preemptions_total"},
    {"vllm:prompt_tokens_total", "skein_prompt_tokens_total"},
    {"vllm:prompt_tokens_cached_total", "skein_prefix_cache_hits_tokens_total"},
    {"vllm:prompt_tokens_by_source_total", "skein_prompt_tokens_by_source_total"},
    {"vllm:generation_tokens_total", "skein_generation_tokens_total"},
    {"vllm:request_success_total", "skein_requests_total"},
    {"vllm:admission_rejections_total", "skein_admission_rejections_total"},
    {"vllm:spec_decode_num_drafts_total", "skein_spec_drafts_total"},
    {"vllm:spec_decode_num_draft_tokens_total", "skein_spec_draft_tokens_total"},
    {"vllm:spec_decode_num_accepted_tokens_total", "skein_spec_accepted_tokens_total"},
    {"vllm:spec_decode_num_accepted_tokens_per_pos_total",
     "skein_spec_accepted_tokens_per_position_total"},
    {"vllm:cache_config_info", "skein_config_info"},
    {"vllm:time_to_first_token_seconds", "skein_time_to_first_token_seconds"},
    {"vllm:inter_token_latency_seconds", "skein_inter_token_latency_seconds"},
    {"vllm:time_per_output_token_seconds", "skein_inter_token_latency_seconds"},
    {"vllm:request_time_per_output_token_seconds", "skein_request_time_per_output_token_seconds"},
    {"vllm:e2e_request_latency_seconds", "skein_e2e_request_latency_seconds"},
    {"vllm:request_queue_time_seconds", "skein_request_queue_time_seconds"},
    {"vllm:request_prefill_time_seconds", "skein_request_prefill_time_seconds"},
    {"vllm:request_decode_time_seconds", "skein_request_decode_time_seconds"},
    {"vllm:request_inference_time_seconds", "skein_request_inference_time_seconds"},
    {"vllm:request_prompt_tokens", "skein_request_prompt_tokens"},
    {"vllm:request_generation_tokens", "skein_request_generation_tokens"},
    {"vllm:iteration_tokens_total", "skein_step_tokens"},
};

}  // namespace

std::span<const MetricAlias> VllmNames() { return kNames; }

void AddVllmNames(protocol::MetricsRegistry& registry) {
  for (const MetricAlias& alias : kNames) {
    registry.AddAlias(std::string(alias.name), std::string(alias.family));
  }
}

}  // namespace skein::coordinator
