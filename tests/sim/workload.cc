#include "tests/sim/workload.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "scheduler/prefix_cache.h"
#include "tests/scheduler/fake_constraint.h"

namespace skein::tests {
namespace {

constexpr size_t kTurnsMax = 8;
// In no other prompt: one that was ended innocently is refused for minutes.
constexpr int32_t kCanaryToken = 62;

uint64_t SameHash(uint64_t, std::span<const int32_t>) { return 7; }

protocol::CacheGeometry DrawGeometry(SimRandom& random, bool caching, uint32_t budget,
                                     uint32_t drafts) {
  protocol::CacheGeometry geometry;
  geometry.block_tokens = random.Pick(1, 4);
  geometry.max_model_len = random.Pick(4, 40);
  const uint32_t whole =
      (geometry.max_model_len + geometry.block_tokens - 1) / geometry.block_tokens;
  // Three blocks, just one sequence, some, or enough for all.
  const uint32_t kind = random.Below(8);
  geometry.num_slots = random.Pick(1, 6);
  geometry.num_blocks = kind == 0   ? 3
                        : kind <= 2 ? whole
                        : kind <= 5 ? whole + random.Pick(1, 2 * whole)
                                    : whole * geometry.num_slots;
  geometry.max_rows = budget;
  geometry.max_draft_tokens = drafts;
  geometry.edits_logits = true;
  if (caching) {
    geometry.num_checkpoints = random.Pick(0, 3);
    geometry.recompute_tokens =
        geometry.num_checkpoints == 0 || random.OneIn(3) ? random.Pick(1, 6) : 0;
  }
  return geometry;
}

void DrawScheduler(SimRandom& random, SimConfig& config) {
  const uint32_t budget = random.OneIn(6) ? 1 : random.Pick(1, 24);
  const uint32_t drafts = std::min(random.Pick(0, 5), budget);
  scheduler::SchedulerLimits& limits = config.limits;
  limits.prefix_caching = !random.OneIn(3);
  const protocol::CacheGeometry geometry =
      DrawGeometry(random, limits.prefix_caching, budget, drafts);
  limits.max_num_seqs = random.Pick(1, geometry.num_slots);
  limits.max_num_batched_tokens = budget;
  limits.lanes = random.Pick(1, 2);
  limits.admission = {UINT32_MAX, UINT64_MAX};  // the front door bounds
  limits.speculation.max_depth = random.Pick(0, 5);
  limits.speculation.adaptation =
      random.OneIn(2) ? scheduler::Adaptation::kAdaptive : scheduler::Adaptation::kFixed;
  if (random.OneIn(8)) limits.cache_hash = &SameHash;
  DeviceOptions device;
  device.geometry = geometry;
  const uint32_t pace = random.Below(3);
  device.step_min = absl::Milliseconds(pace == 0 ? 2 : pace == 1 ? 20 : 100);
  device.step_max = device.step_min * random.Pick(1, 5);
  device.wrong_drafts_one_in = random.Pick(1, 6);
  config.num_groups = random.OneIn(3) ? 1 : random.Pick(2, 4);
  const uint32_t spares = random.OneIn(3) ? 1 : 0;
  if (random.OneIn(5)) {
    config.num_ranks = random.OneIn(2) ? 2 : 4;
    config.num_groups = random.Pick(1, 2);
    if (!random.OneIn(3)) {
      config.rebalance_interval = random.Between(absl::Milliseconds(200), absl::Seconds(2));
    }
  }
  limits.moves_blocks = geometry.num_checkpoints > 0 && config.num_groups > 1 && !random.OneIn(3);
  if (limits.moves_blocks && random.OneIn(2)) {
    limits.prefill_groups = random.Pick(1, config.num_groups - 1);
  }
  config.workers.assign(config.num_engines() + spares, device);
  if (random.OneIn(8)) {  // another host has a smaller one
    const uint32_t which = random.Below(static_cast<uint32_t>(config.workers.size()));
    protocol::CacheGeometry& small = config.workers[which].geometry;
    small.num_blocks = std::max(1u, small.num_blocks * 2 / 3);
  }
}

void DrawRequests(SimRandom& random, SimConfig& config) {
  config.horizon = random.Between(absl::Seconds(2), absl::Seconds(12));
  config.num_requests = random.Pick(2, 24);
  config.door = {random.OneIn(4) ? random.Pick(1, 3) : 64,
                 random.OneIn(4) ? random.Pick(4, 60) : 100'000};
  config.alphabet = config.limits.prefix_caching ? random.Pick(1, 3) : 50;
  config.follow_one_in = config.limits.prefix_caching ? random.Pick(1, 4) : 0;
  if (random.OneIn(3)) config.cancel_one_in = random.Pick(1, 6);
  if (random.OneIn(4)) config.deadline_one_in = random.Pick(1, 6);
  if (random.OneIn(4)) config.constraint_one_in = random.Pick(1, 4);
  if (random.OneIn(2)) config.burst_one_in = random.Pick(1, 3);
}

void DrawNetwork(SimRandom& random, SimConfig& config) {
  const uint32_t beat = random.Below(3);
  config.beat = absl::Milliseconds(beat == 0 ? 100 : beat == 1 ? 250 : 500);
  config.lease = 10 * config.beat;
  config.coordinator_wait = random.OneIn(4) ? 5 * config.lease : absl::Seconds(300);
  config.network.delay_max = absl::Microseconds(random.OneIn(3) ? 30'000 : 500);
}

// No worker is gone for longer than its lease.
bool IsHarmless(Fault fault) {
  constexpr Fault kHarmless[] = {Fault::kCut,         Fault::kDrainGroup, Fault::kUndrainGroup,
                                 Fault::kCloseServer, Fault::kOpenServer, Fault::kRolloutVerb};
  return std::find(std::begin(kHarmless), std::end(kHarmless), fault) != std::end(kHarmless);
}

// Small steps and hardly more blocks than one sequence needs: who is on probation has to push
// others out. Time for verdicts.
void DrawTight(SimRandom& random, SimConfig& config) {
  uint32_t& budget = config.limits.max_num_batched_tokens;
  budget = std::min(budget, random.Pick(1, 3));
  const uint32_t spare = random.Pick(1, 4);
  for (DeviceOptions& device : config.workers) {
    protocol::CacheGeometry& geometry = device.geometry;
    const uint32_t whole =
        (geometry.max_model_len + geometry.block_tokens - 1) / geometry.block_tokens;
    geometry.num_blocks = std::min(geometry.num_blocks, whole + spare);
  }
  config.horizon *= 2;
}

// Answers so long, and deaths so frequent, some of them of the workers' own doing, that one
// survives several.
void DrawStorm(SimRandom& random, SimConfig& config) {
  config.limits.speculation.max_depth = 0;
  for (DeviceOptions& device : config.workers) {
    protocol::CacheGeometry& geometry = device.geometry;
    geometry.max_model_len = 160;
    geometry.num_blocks =
        std::max(geometry.num_blocks, (160 + geometry.block_tokens - 1) / geometry.block_tokens);
    device.step_min = absl::Milliseconds(20);
    device.step_max = absl::Milliseconds(40);
  }
  const absl::Duration every = random.Between(absl::Milliseconds(400), absl::Milliseconds(1500));
  const auto workers = static_cast<int64_t>(config.workers.size());
  config.horizon = absl::Seconds(15);
  config.every[static_cast<size_t>(Fault::kCrashWorker)] = every / workers;
  config.every[static_cast<size_t>(Fault::kKillWorker)] = 2 * every / workers;
}

// Workers that stand still for longer than their lease, again and again, after one that ended of
// its own doing: nothing of that may count twice.
void DrawPauses(SimRandom& random, SimConfig& config) {
  for (DeviceOptions& device : config.workers) {
    device.step_min = absl::Milliseconds(100);
    device.step_max = absl::Milliseconds(200);
  }
  const auto workers = static_cast<int64_t>(config.workers.size());
  config.every[static_cast<size_t>(Fault::kCrashWorker)] = absl::Seconds(10);
  config.every[static_cast<size_t>(Fault::kPauseWorker)] =
      random.Between(absl::Milliseconds(500), absl::Seconds(3)) / workers;
  config.horizon = absl::Seconds(20);
}

// Two lanes, blocks of one token and hardly more than one sequence needs, and many sequences that
// share a beginning.
void DrawCrowd(SimRandom& random, SimConfig& config) {
  config.limits.max_num_batched_tokens = random.Pick(1, 4);
  for (DeviceOptions& device : config.workers) {
    protocol::CacheGeometry& geometry = device.geometry;
    geometry.block_tokens = 1;
    geometry.num_slots = 6;
    geometry.num_blocks = geometry.max_model_len + random.Below(3);
  }
  config.limits.max_num_seqs = 6;
  config.num_requests = 24;
  config.alphabet = random.Pick(1, 2);
  config.burst_one_in = 2;
}

// Groups that are emptied at once, again and again, and answers so long, with so much room in the
// others, that most of what runs there is taken along with its cache.
void DrawDrains(SimRandom& random, SimConfig& config) {
  for (DeviceOptions& device : config.workers) {
    protocol::CacheGeometry& geometry = device.geometry;
    geometry.max_model_len = 120;
    geometry.num_slots = 6;
    geometry.num_checkpoints = 12;
    const uint32_t whole = (120 + geometry.block_tokens - 1) / geometry.block_tokens;
    geometry.num_blocks = whole * random.Pick(3, 6);
    device.step_min = absl::Milliseconds(20);
    device.step_max = absl::Milliseconds(40);
  }
  config.limits.max_num_seqs = 6;
  config.every[static_cast<size_t>(Fault::kDrainGroup)] = absl::Milliseconds(600);
  config.every[static_cast<size_t>(Fault::kUndrainGroup)] = absl::Milliseconds(200);
}

void DrawFaults(SimRandom& random, SimConfig& config) {
  // Nothing that a session must not bridge, or anything.
  const bool bridged = random.OneIn(6);
  for (size_t i = 0; i < kNumFaults; ++i) {
    if (bridged && !IsHarmless(static_cast<Fault>(i))) continue;
    const absl::Duration every = random.Between(absl::Milliseconds(300), absl::Seconds(8));
    if (random.OneIn(bridged ? 2 : 4)) config.every[i] = every;
  }
  if (bridged) {
    if (random.OneIn(2)) config.network.damage_one_in = random.Pick(20, 100);
    return;
  }
  // A new coordinator knows of no rollout: it would let an unchecked build serve.
  const bool restarts =
      config.Has(Fault::kCrashCoordinator) || config.Has(Fault::kDrainCoordinator);
  if (restarts) config.every[static_cast<size_t>(Fault::kRolloutOfBadBuild)] = {};
  if (random.OneIn(8)) config.network.damage_one_in = random.Pick(5, 100);
  if (random.OneIn(8)) config.poison_one_in = random.Pick(2, 12);
  if (random.OneIn(8)) config.failing_one_in = random.Pick(2, 12);
  for (DeviceOptions& device : config.workers) {
    if (random.OneIn(4)) device.slow_one_in = random.Pick(3, 30);
    if (random.OneIn(8)) device.fail_one_in = random.Pick(5, 60);
    if (random.OneIn(16)) device.hang_one_in = random.Pick(10, 100);
    if (random.OneIn(16)) device.death_one_in = random.Pick(10, 100);
    if (random.OneIn(3)) device.lose_moves_one_in = random.Pick(1, 6);
  }
  if (config.poison_one_in > 0 && random.OneIn(2)) DrawTight(random, config);
  if (config.Has(Fault::kCrashWorker) && random.OneIn(2)) {
    DrawStorm(random, config);
  } else if (config.Has(Fault::kCrashWorker) && random.OneIn(2)) {
    DrawPauses(random, config);
  }
}

}  // namespace

bool SimConfig::own_deaths() const {
  return Has(Fault::kCrashWorker) || Has(Fault::kRolloutOfBadBuild) ||
         std::any_of(workers.begin(), workers.end(), [](const DeviceOptions& device) {
           return device.hang_one_in > 0 || device.death_one_in > 0;
         });
}

bool SimConfig::failed_steps() const {
  return std::any_of(workers.begin(), workers.end(),
                     [](const DeviceOptions& device) { return device.fail_one_in > 0; });
}

bool SimConfig::may_lose_workers() const {
  for (size_t i = 0; i < kNumFaults; ++i) {
    const auto fault = static_cast<Fault>(i);
    if (Has(fault) && !IsHarmless(fault)) return true;
  }
  const bool damaged = network.damage_one_in > 0 && network.damage_one_in < 20;
  return damaged || poison_one_in > 0 || own_deaths();
}

SimConfig DrawConfig(SimRandom& random, bool faults) {
  SimConfig config;
  DrawScheduler(random, config);
  DrawRequests(random, config);
  DrawNetwork(random, config);
  config.rollout.drain_timeout = random.Between(absl::Milliseconds(500), absl::Seconds(3));
  config.rollout.start_timeout = random.Between(absl::Seconds(5), absl::Seconds(15));
  config.rollout.soak = random.Between(absl::Milliseconds(100), absl::Seconds(2));
  config.shutdown_timeout = random.Between(absl::Seconds(1), absl::Seconds(10));
  if (faults) DrawFaults(random, config);
  if (faults && config.limits.moves_blocks && random.OneIn(3)) {  // groups that are emptied at once
    config.every[static_cast<size_t>(Fault::kDrainGroup)] = absl::Milliseconds(500);
    config.every[static_cast<size_t>(Fault::kUndrainGroup)] = absl::Milliseconds(500);
    config.rollout.drain_timeout = absl::ZeroDuration();
    if (random.OneIn(2)) DrawDrains(random, config);
  }
  const bool one = config.num_groups == 1 && config.num_ranks == 1;
  if (one && config.limits.lanes == 2 && config.limits.prefix_caching && random.OneIn(2)) {
    DrawCrowd(random, config);
  }
  return config;
}

void Workload::DrawPrompt(ClientRequest& request) {
  const uint32_t longest = config_.workers.front().geometry.max_model_len - 1;
  std::vector<int32_t>& prompt = request.submit.prompt_ids;
  if (!turns_.empty() && random_.OneIn(config_.follow_one_in)) {
    prompt = turns_[random_.Below(static_cast<uint32_t>(turns_.size()))];
    request.follows = true;
    if (random_.OneIn(4)) prompt.resize(random_.Pick(1, static_cast<uint32_t>(prompt.size())));
  }
  for (uint32_t left = random_.Pick(request.follows ? 0 : 1, longest); left > 0; --left) {
    prompt.push_back(static_cast<int32_t>(random_.Below(config_.alphabet)));
    if (random_.OneIn(6)) break;
  }
  if (prompt.size() > longest) prompt.resize(longest);
  if (!poison_.empty() && random_.OneIn(4)) {
    request.poison = true;
    prompt = poison_;  // its client tries again
  } else if (random_.OneIn(config_.poison_one_in)) {
    request.poison = true;
    prompt.back() = kPoisonToken;
    poison_ = prompt;
  } else if (random_.OneIn(config_.failing_one_in)) {
    request.failing = true;
    prompt.back() = kFailingToken;
  }
}

ClientRequest Workload::Draw() {
  ClientRequest request;
  coordinator::SubmitRequest& submit = request.submit;
  DrawPrompt(request);
  const uint32_t room = config_.workers.front().geometry.max_model_len -
                        static_cast<uint32_t>(submit.prompt_ids.size());
  submit.stop.max_tokens = static_cast<int32_t>(random_.Pick(1, room));
  if (random_.OneIn(3)) {
    submit.stop.min_tokens = static_cast<int32_t>(random_.Below(4));
    for (uint32_t i = random_.Below(4); i > 0; --i) {
      submit.stop.stop_token_ids.push_back(static_cast<int32_t>(random_.Below(50)));
    }
  }
  submit.priority = static_cast<int32_t>(random_.Below(3)) - 1;
  submit.speculation.enabled = !random_.OneIn(6);
  submit.speculation.max_draft_tokens = random_.OneIn(4) ? random_.Below(3) : 63;
  if (random_.OneIn(4)) submit.cache_salt = "b";
  if (random_.OneIn(3)) submit.tenant = random_.OneIn(2) ? "a" : "ab";
  if (random_.OneIn(3)) {
    submit.sampling.temperature = 0;
    submit.speculation.mode = protocol::VerificationMode::kGreedy;
  } else {
    submit.sampling.seed = random_.Below(4);
    submit.speculation.mode = random_.OneIn(2) ? protocol::VerificationMode::kCoupled
                                               : protocol::VerificationMode::kRejection;
  }
  if (random_.OneIn(config_.constraint_one_in)) {
    submit.constraint = std::make_shared<FakeConstraint>();
    submit.sampling.temperature = 0;
    submit.sampling.seed = 0;
    submit.speculation.mode = protocol::VerificationMode::kGreedy;
    submit.stop.stop_token_ids.clear();
  }
  return Finish(std::move(request));
}

ClientRequest Workload::DrawCanary() {
  ClientRequest request;
  request.submit.prompt_ids = {kCanaryToken};
  request.submit.sampling.temperature = 0;
  request.submit.speculation.mode = protocol::VerificationMode::kGreedy;
  request.submit.stop.max_tokens = 1;
  return Finish(std::move(request));
}

// Its answer, and who can hold it.
ClientRequest Workload::Finish(ClientRequest request) {
  coordinator::SubmitRequest& submit = request.submit;
  submit.id = protocol::RequestId(++last_id_);
  const uint32_t longest = config_.workers.front().geometry.max_model_len;
  const bool greedy = submit.sampling.temperature < protocol::kGreedyTemperature;
  const uint64_t seed = greedy ? 0 : submit.sampling.seed;
  request.answer =
      submit.constraint == nullptr
          ? DecodeAlone(submit.prompt_ids, submit.stop, longest, seed)
          : DecodeBound(submit.prompt_ids, submit.stop.max_tokens, longest, *submit.constraint);
  std::vector<int32_t> turn = submit.prompt_ids;
  for (const int32_t token : request.answer) {
    request.logprobs.push_back(LogprobOf(turn, seed));
    turn.push_back(token);
  }
  const size_t tokens = submit.prompt_ids.size() + static_cast<size_t>(submit.stop.max_tokens);
  for (const DeviceOptions& device : config_.workers) {
    const protocol::CacheGeometry& geometry = device.geometry;
    request.fits = request.fits && tokens <= size_t{geometry.num_blocks} * geometry.block_tokens;
  }
  if (!request.poison && !request.failing) {
    if (turns_.size() == kTurnsMax) turns_.erase(turns_.begin());
    turns_.push_back(std::move(turn));
  }
  return request;
}

}  // namespace skein::tests
