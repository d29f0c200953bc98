// Links scheduler alone: one sequence goes through one step.
#include "scheduler/cluster_scheduler.h"

int main() {
  using namespace skein;
  scheduler::ClusterScheduler scheduler(
      {.max_num_seqs = 1, .max_num_batched_tokens = 8, .admission = {.queued_requests_max = 1}}, 1);
  const protocol::CacheGeometry geometry[] = {
      {.block_tokens = 4, .num_blocks = 2, .num_slots = 1, .max_rows = 8, .max_model_len = 8}};
  scheduler.StartEpoch(protocol::GroupId(0), protocol::Epoch(1), geometry);
  scheduler::NewSequence sequence;
  sequence.prompt = {1, 2, 3};
  sequence.stop.max_tokens = 1;
  if (!scheduler.AddSequence(sequence).ok()) return 1;
  const auto plans = scheduler.PlanStep(protocol::GroupId(0), 0);
  if (plans.size() != 1 || plans[0].sequences.size() != 1) return 1;
  return plans[0].sequences[0].tokens.size() == 3 ? 0 : 1;
}
